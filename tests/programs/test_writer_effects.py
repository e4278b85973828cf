"""Every argument of writers, packs, schedules and of the methods of a dataset has an effect.

For each argument there is what a user observes without it and with it. An argument without an
entry fails the test, so a new one needs an entry.
"""

import inspect
import json
import pathlib
import threading

import numpy as np
import pytest

from devtools.httpserver import FolderHandler, http_server
from mds import (
    MDSWriter,
    Packing,
    Schedule,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    TSVWriter,
    XSVWriter,
)
from mds._dataset.order_edits import OrderEdits
from mds.errors import MdsError, StateError
from mds.plan import register_packer

pytestmark = pytest.mark.slow

COLUMNS = {"id": "int", "label": "int", "tokens": "ndarray:int32"}


def outcome(observe):
    """Return what a check observes, or the class of the error that it raises."""
    try:
        return observe()
    except MdsError as error:
        return type(error)


def files(folder):
    """Return the files of a folder with what is in them."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(pathlib.Path(folder).rglob("*"))
        if path.is_file()
    }


class WriterChecks:
    """One method for each argument of a writer: what is observed without it and with it."""

    def __init__(self, folder, capfd, monkeypatch):
        self.folder, self.capfd, self.monkeypatch = folder, capfd, monkeypatch
        self._count = 0

    def out(self):
        self._count += 1
        return self.folder / f"out-{self._count}"

    def write(self, kind=MDSWriter, columns=COLUMNS, samples=8, **arguments):
        """Write a dataset and return its files."""
        out = arguments.setdefault("out", str(self.out()))
        with kind(columns=columns, **arguments) as writer:
            for number in range(samples):
                tokens = np.arange(number + 1, dtype=np.int32)
                sample = {"id": number, "label": number % 2, "tokens": tokens}
                writer.write({name: sample[name] for name in columns})
        return files(out if isinstance(out, str) else out[0])

    def compare(self, **arguments):
        return self.write(), self.write(**arguments)

    def check_columns(self):
        return self.compare(columns={"id": "int", "label": "int"})

    def check_out(self):
        elsewhere = self.out()
        self.write(out=str(elsewhere))
        return bool(files(self.out())), bool(files(elsewhere))

    def check_lengths(self):
        return [*self.write()], [*self.write(lengths="tokens")]

    def check_keep_local(self):
        def local_files(**arguments):
            local, remote = self.out(), self.out()
            self.write(out=(str(local), str(remote)), **arguments)
            return bool(files(local))

        return local_files(), local_files(keep_local=True)

    def check_compression(self):
        return self.compare(compression="zstd")

    def check_hashes(self):
        return self.compare(hashes=["sha1"])

    def check_size_limit(self):
        return self.compare(size_limit=200)

    def check_samples_per_shard(self):
        return self.compare(samples_per_shard=3)

    def check_exist_ok(self):
        out = str(self.out())
        self.write(out=out)
        again = lambda **a: outcome(lambda: self.write(out=out, samples=2, **a))
        with pytest.raises(FileExistsError):
            again()
        return None, again(exist_ok=True)

    def check_retry(self):
        """The server refuses the first try of every upload."""

        def upload(**arguments):
            refused = set()

            class Refusing(FolderHandler):
                def do_PUT(self):
                    if self.path in refused:
                        super().do_PUT()
                    else:
                        refused.add(self.path)
                        self.rfile.read(int(self.headers["Content-Length"]))
                        self.end(503)

            folder = self.out()
            folder.mkdir()
            with http_server(str(folder), handler=Refusing) as url:
                return outcome(lambda: bool(self.write(out=(str(self.out()), url), **arguments)))

        return upload(retry=0), upload()

    def check_storage_options(self):
        """The server takes uploads with a header only."""

        def upload(**arguments):
            class Guarded(FolderHandler):
                def do_PUT(self):
                    if self.headers.get("X-Token") == "open":
                        super().do_PUT()
                    else:
                        self.rfile.read(int(self.headers["Content-Length"]))
                        self.end(403)

            folder = self.out()
            folder.mkdir()
            with http_server(str(folder), handler=Guarded) as url:
                return outcome(lambda: bool(self.write(out=(str(self.out()), url), **arguments)))

        return upload(), upload(storage_options={"headers": {"X-Token": "open"}})

    def check_max_workers(self):
        """A server counts the uploads that run at a time."""

        def most_at_once(workers):
            running, most, enough = [], [], threading.Event()
            lock = threading.Lock()

            class Counting(FolderHandler):
                def do_PUT(self):
                    with lock:
                        running.append(1)
                        most.append(len(running))
                        if len(running) == 2:
                            enough.set()
                    if workers > 1:
                        enough.wait(60)
                    super().do_PUT()
                    with lock:
                        running.pop()

            folder = self.out()
            folder.mkdir()
            with http_server(str(folder), handler=Counting) as url:
                out = (str(self.out()), url)
                self.write(out=out, samples_per_shard=1, max_workers=workers)
            return max(most) > 1

        return most_at_once(1), most_at_once(4)

    def check_progress_bar(self):
        self.monkeypatch.setenv("FORCE_COLOR", "1")  # output is taken for a terminal's
        self.monkeypatch.setenv("TERM", "xterm")

        def shown(**arguments):
            self.write(**arguments)
            return "shards to" in self.capfd.readouterr().out

        return shown(), shown(progress_bar=True)

    def check_durable(self):
        flushed = []
        self.monkeypatch.setattr("os.fsync", flushed.append)

        def count(**arguments):
            flushed.clear()
            self.write(**arguments)
            return len(flushed) > 0

        return count(), count(durable=False)

    def check_strict(self):
        def surplus(strict):
            with MDSWriter(out=str(self.out()), columns={"id": "int"}, strict=strict) as writer:
                writer.write({"id": 1, "surplus": 2})
            return True

        return outcome(lambda: surplus(strict=False)), outcome(lambda: surplus(strict=True))

    def check_class_names(self):
        return [*self.write()], [*self.write(class_names={"label": ["cat", "dog"]})]

    def check_descriptions(self):
        return [*self.write()], [*self.write(descriptions={"label": "what it is"})]

    def check_newline(self):
        text = {"id": "int", "label": "int"}
        return self.write(TSVWriter, text), self.write(TSVWriter, text, newline="\r\n")

    def check_separator(self):
        text = {"id": "int", "label": "int"}
        return [self.write(XSVWriter, text, separator=each) for each in ("|", ";")]


WRITER_ARGUMENTS = dict.fromkeys(
    name
    for kind in (MDSWriter, XSVWriter, TSVWriter)
    for name in inspect.signature(kind).parameters
)


@pytest.mark.parametrize("name", WRITER_ARGUMENTS)
def test_every_argument_of_a_writer_has_an_effect(name, tmp_path, capfd, monkeypatch):
    """Other files, another output or an error."""
    without, changed = getattr(WriterChecks(tmp_path, capfd, monkeypatch), f"check_{name}")()
    assert without != changed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two datasets of documents of one to nine tokens."""
    root = tmp_path_factory.mktemp("documents")
    for name, first in (("a", 0), ("b", 1000)):
        with MDSWriter(out=str(root / name), columns=COLUMNS, samples_per_shard=8) as writer:
            for number in range(96):
                tokens = np.full(number % 9 + 1, number + first, np.int32)
                writer.write({"id": number + first, "label": number % 3, "tokens": tokens})
    return root


def make(folder, **arguments):
    """Make a dataset of both folders, or of the first."""
    if "schedule" in arguments:
        arguments["streams"] = {name: Stream(local=str(folder / name)) for name in ("a", "b")}
    else:
        arguments["local"] = str(folder / "a")
    return StreamingDataset(**{"batch_size": 4, **arguments})


def packs(folder, *arguments, **settings):
    """Return the packs of an epoch, or the class of the error."""
    packing = outcome(lambda: Packing(*arguments, **settings))
    if isinstance(packing, type):
        return packing
    columns = ["tokens", packing.column or "tokens"]
    dataset = make(folder, packing=packing, columns=columns, batch_size=2, topology=(1, 4))
    values = lambda batch: (batch["tokens"].tolist(), batch["labels"].tolist())
    return outcome(lambda: [values(batch) for batch in StreamingDataLoader(dataset)])


register_packer("alone", lambda sizes, room: (np.arange(len(sizes)), len(sizes)))

PACKINGS = {
    "capacity": (((16,), {}), ((12,), {})),
    "column": (((16,), {}), ((16,), {"column": "label"})),
    "overflow": (((6,), {}), ((6,), {"overflow": "truncate"})),
    "balance": (((16,), {}), ((16,), {"balance": "attention"})),
    "budget": ((((16,), {})), ((), {"budget": 32})),
    "window": (((16,), {}), ((16,), {"window": 2})),
    "separator": (((16,), {}), ((16,), {"separator": 1})),
    "packer": (((16,), {}), ((16,), {"packer": "alone"})),
    "layout": (((16,), {}), ((16,), {"layout": "dense"})),
    "labels": (((16,), {}), ((16,), {"labels": "shifted"})),
}


def test_every_argument_of_packing_has_an_entry():
    """The table holds the arguments of Packing, and no others."""
    assert {*inspect.signature(Packing).parameters} == {*PACKINGS}


@pytest.mark.parametrize("name", PACKINGS)
def test_every_argument_of_packing_has_an_effect(name, folder):
    """Other packs, or an error."""
    (before, settings), (after, changed) = PACKINGS[name]
    assert packs(folder, *before, **settings) != packs(folder, *after, **changed)


KNOTS = {0: {"a": 0.75, "b": 0.25}, 20: {"a": 0.25, "b": 0.75}}
SCHEDULES = {
    "knots": ({}, {"knots": {0: {"a": 0.25, "b": 0.75}}}),
    "between": ({}, {"between": "linear"}),
    "unit": ({}, {"unit": "samples"}),
    "tokens_per_sample": ({"unit": "tokens"}, {"tokens_per_sample": 4}),
    "exhausted": ({}, {"exhausted": "error"}),
    "max_passes": ({}, {"max_passes": {"a": 1}}),
}


@pytest.mark.parametrize("kind", ["weights", "temperature"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_argument_of_a_schedule_has_an_effect(name, kind, folder):
    """Other samples, or an error."""
    make_schedule = {"weights": Schedule, "temperature": Schedule.temperature}[kind]
    assert {*inspect.signature(make_schedule).parameters} == {*SCHEDULES}
    knots = KNOTS if kind == "weights" else {0: 1.0, 20: 9.0}
    before, changed = ({"knots": knots, **each} for each in SCHEDULES[name])
    if name == "knots" and kind == "temperature":
        changed["knots"] = {0: 9.0}
    if name == "tokens_per_sample":
        changed = {**before, **changed}

    def order(settings):
        dataset = make(folder, schedule=make_schedule(**settings))
        return [sample["id"] for _ in range(3) for sample in dataset]

    observed = [outcome(lambda each=each: order(each)) for each in (before, changed)]
    assert observed[0] != observed[1] or (kind, name) in SAME_SIZES


# Two streams of one size have one weight at any temperature, so neither has more passes.
SAME_SIZES = {("temperature", name) for name in ("knots", "between", "unit", "exhausted")}


class MethodChecks:
    """One method for each argument of a method of a dataset."""

    def __init__(self, folder):
        self.folder = folder

    def make(self, **arguments):
        return make(self.folder, **arguments)

    def ids(self, dataset):
        return [sample["id"] for sample in dataset]

    def check_select_choice(self):
        return self.ids(self.make()), self.ids(self.make().select([1, 3]))

    def check_select_where(self):
        chosen = self.make().select(where=lambda sample: sample["id"] % 2)
        return self.ids(self.make()), self.ids(chosen)

    def check_select_key(self):
        """The result of a key is kept, and is taken for another function with that key."""

        def select(**arguments):
            part = self.make().select(where=lambda sample: sample["id"] % 2, **arguments)
            return self.ids(part)

        return select(), self.ids(
            self.make().select(where=lambda s: s["id"] < 5, key="small")
        ) and (select(key="small"))

    def check_limit_samples(self):
        return len(self.make()), len(self.make().limit(5))

    def check_filter_keep(self):
        return self.ids(self.make()), self.ids(self.make().filter(lambda s: s["id"] % 2))

    def check_map_function(self):
        return self.ids(self.make()), self.ids(self.make().map(lambda s: {"id": -s["id"]}))

    def check_map_batches_function(self):
        first = lambda dataset: next(iter(StreamingDataLoader(dataset)))["id"].tolist()
        plain = self.make(columns=["id"])
        return first(plain), first(plain.map_batches(lambda columns: {"id": -columns["id"]}))

    def split(self, **arguments):
        part = self.make().split({"train": 0.5, "val": 0.5}, **arguments)["val"]
        return self.ids(part)

    def check_split_shares(self):
        return self.ids(self.make()), self.split()

    def check_split_by(self):
        return self.split(), self.split(by="label")

    def check_split_seed(self):
        return self.split(), self.split(seed=5)

    def check_state_dict_num_samples(self):
        dataset = self.make()
        return dataset.state_dict(0), dataset.state_dict(8)

    def check_state_dict_from_beginning(self):
        dataset = self.make()
        dataset.load_state_dict(self.make().state_dict(8))
        next(iter(dataset))
        return dataset.state_dict(8), dataset.state_dict(8, from_beginning=True)

    def check_load_state_dict_obj(self):
        dataset = self.make()
        next(iter(dataset))
        other = self.make()
        other.load_state_dict(dataset.state_dict(8))
        return self.ids(self.make()), self.ids(other)

    def check_load_state_dict_other_data(self):
        """The digest of the first shards of the state is another one."""
        state = self.make().state_dict(8)
        data = json.loads(state["data"])
        data["contents"]["digests"] = f"00000000{data['contents']['digests'][8:]}"
        state["data"] = json.dumps(data)
        results = []
        for other_data in (False, True):
            dataset = self.make()
            try:
                dataset.load_state_dict(state, other_data=other_data)
            except StateError:
                results.append(None)
            else:
                results.append(self.ids(dataset))
        return results

    def check_stats_node(self):
        """Another process reads from the same folder."""
        dataset = self.cached()
        dataset.prepare_shard(0)
        loader = StreamingDataLoader(
            self.cached(local=dataset.streams[0].local), num_workers=1, worker_type="processes"
        )
        iterator = iter(loader)
        next(iterator)
        counted = [dataset.stats(node=node)["processes"] for node in (False, True)]
        del iterator
        return counted

    def check_get_item_sample_id(self):
        return self.make().get_item(1)["id"], self.make().get_item(2)["id"]

    def cached(self, **arguments):
        local = str(self.folder / f"cache-{len(list(self.folder.iterdir()))}")
        place = {"remote": str(self.folder / "a"), "local": local, "batch_size": 4}
        return StreamingDataset(**{**place, **arguments})

    def check_prepare_shard_shard_id(self):
        dataset = self.cached()
        before = dataset.stats()["fetched_shards"]
        dataset.prepare_shard(1)
        return before, dataset.stats()["fetched_shards"]

    def check_prepare_shard_blocking(self):
        """Without waiting, the shard may come later; with a broken remote no error comes."""
        states = []
        for blocking in (True, False):
            dataset = self.cached()
            (self.folder / "a" / "shard.00001.mds").rename(self.folder / "hidden")
            try:
                states.append(outcome(lambda d=dataset, b=blocking: d.prepare_shard(1, blocking=b)))
            finally:
                (self.folder / "hidden").rename(self.folder / "a" / "shard.00001.mds")
        return states

    def check_evict_shard_shard_id(self):
        dataset = self.cached()
        dataset.prepare_shard(1)
        before = dataset.cache_usage
        dataset.evict_shard(1)
        return before, dataset.cache_usage

    def check_to_arrow_reader_columns(self):
        names = lambda **arguments: self.make().to_arrow_reader(**arguments).schema.names
        return names(), names(columns=["label"])

    def check_to_arrow_reader_batch_rows(self):
        rows = lambda **a: [batch.num_rows for batch in self.make().to_arrow_reader(**a)]
        return rows(), rows(batch_rows=3)

    def check_replace_samples_ids(self):
        dataset = self.make()
        dataset.edits.replace_samples([3, 5])
        return self.ids(self.make()), self.ids(dataset)

    def check_replace_samples_reason(self):
        edits = []
        for reason in ("", "a duplicate"):
            dataset = self.make()
            dataset.edits.replace_samples([3], reason=reason)
            edits.append(json.dumps(dataset.state_dict()))
        return edits

    def check_replace_samples_at_step(self):
        return self.dropped(), self.dropped(at_step=3)

    def dropped(self, **arguments):
        dataset = self.make()
        dataset.edits.replace_samples([3], **arguments)
        return self.ids(dataset)

    def check_skip_steps_steps(self):
        dataset = self.make()
        dataset.edits.skip_steps(range(1, 2))
        return self.ids(self.make()), self.ids(dataset)

    def check_set_weights_weights(self):
        return self.weighted(None), self.weighted({"a": 0.0, "b": 1.0})

    def check_set_weights_at_step(self):
        weights = {"a": 0.0, "b": 1.0}
        return self.weighted(weights), self.weighted(weights, at_step=4)

    def weighted(self, weights, **arguments):
        dataset = self.make(schedule=Schedule({0: {"a": 0.5, "b": 0.5}}))
        if weights is not None:
            dataset.edits.set_weights(weights, **arguments)
        return self.ids(dataset)


def method_arguments():
    """Yield the arguments of the public methods of a dataset that are not torch's."""
    kinds = dict.fromkeys(dir(StreamingDataset), StreamingDataset)
    kinds |= dict.fromkeys(vars(OrderEdits), OrderEdits)
    for name in sorted(set(kinds) - set(dir(object))):
        method = getattr(kinds[name], name)
        if name.startswith("_") or not inspect.isfunction(method) or "torch" in method.__module__:
            continue
        for argument in inspect.signature(method).parameters:
            if argument not in {"self", "dataset"} and (name, argument) != ("get_item", "retry"):
                yield name, argument


@pytest.mark.parametrize(("method", "argument"), [*method_arguments()])
def test_every_argument_of_a_method_has_an_effect(method, argument, folder):
    """Other samples, another state or an error; ``retry`` of get_item has none, as documented."""
    without, changed = getattr(MethodChecks(folder), f"check_{method}_{argument}")()
    assert without != changed
