"""The history of a run by its state: samples of a step, steps of a sample, mixture, differences.

Everything is computed from the state and the indexes of its data. No sample is fetched.

Steps are counted in two ways if `OrderEdits.skip_steps` has left some out. The run counts all
steps; the order of an epoch has, and counts, only those that are not skipped::

    step of the run, in its epoch   0  1  2  3  4
    skipped                               x  x
    step of the order               0  1        2

`Gaps` translates between places of an epoch, which are steps times the size of a global batch.
"""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mds._arguments import no_attribute, takes_names
from mds._dataset.run import run_of, source_of
from mds._dataset.samples import Samples
from mds._dataset.steps import TrainingSteps
from mds._dataset.stream import Stream
from mds._process.fork_safe import cached_property
from mds._words import plural
from mds.errors import ConfigError, StateError
from mds.formats._registry import find_recorded_format
from mds.plan._edits import describe_edit
from mds.plan._pack_schedule import TokenMixture
from mds.plan._packing import Packing
from mds.plan._schedule import ScheduledRun
from mds.plan._state import ResumePoint, differences, parse_state
from mds.storage._files import open_regular
from mds.storage._local import unlisted_error
from mds.storage._url import redact
from mds.world import World

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds.formats import Format
    from mds.plan import EpochPlan
    from mds.plan._mixture import Mixture

    Ids = NDArray[np.int64]


_MAX_BYTES = 1 << 30  # of a checkpoint in JSON
_MAX_DEPTH = 8  # of the state in a checkpoint
_ENDINGS = (".json", ".pt", ".pth", ".ckpt", ".bin")  # of states in the folder of a run
_MAX_GLOBAL_BATCH = 1 << 24  # samples; their numbers are in memory
_MAX_EPOCHS = 1 << 20  # a search goes through all of them
_SETTINGS = frozenset(
    (
        "shuffle",
        "shuffle_algo",
        "shuffle_block_size",
        "sampling_method",
        "sampling_granularity",
        "batching_method",
    )
)


class StepRow(NamedTuple):
    """Sample of a global batch: the rank that gets it, its number, and where it is stored.

    ``stream`` is the name in the schedule, else of the folder. ``shard`` is the number of the shard
    in its stream, ``file`` the name of its file, and ``row`` the number of the sample in it.
    ``tokens`` is the range (first, end) of the document's tokens that are in the pack; None without
    packing.
    """

    rank: int
    sample: int
    stream: str
    shard: int
    file: str
    row: int
    tokens: tuple[int, int] | None = None


class Seen(NamedTuple):
    """Occurrence of a sample in a run: its epoch, step and rank.

    ``step`` is counted since the run began. ``is_over`` is whether the step comes before the
    position of the state, so that the sample was trained on.
    """

    epoch: int
    step: int
    rank: int
    is_over: bool


class Difference(NamedTuple):
    """Difference of two runs.

    ``reasons`` are differences of their data, settings and edits, in words. ``step`` is the first
    step in which they have other samples, or None, and ``steps`` the number of compared steps.
    """

    reasons: list[str]
    step: int | None
    steps: int


class RunMixture(NamedTuple):
    """Mixture of the streams of a run, to be shown: how many samples of each come until when.

    Attributes:
        names: Name of each stream.
        samples: Number of samples of each stream in a pass, that is once through all of them.
        mixture: Numbers of samples of each stream that come before any step.
        until: Last step to show.
        now: Next step of the run.
        unit: What steps are here: "steps", or with packing "windows" of documents.
    """

    names: tuple[str, ...]
    samples: tuple[int, ...]
    mixture: Mixture
    until: int
    now: int
    unit: str

    def amounts(self, steps: NDArray[np.int64]) -> NDArray[Any]:
        """Return the samples (or estimated tokens, of packs) of each stream before ``steps``."""
        mixture = self.mixture
        return mixture.tokens(steps) if isinstance(mixture, TokenMixture) else mixture.counts(steps)


class RunHistory:
    """History of a run: which samples came and will come, by a state that the run saved.

    Its methods are the commands ``mds run step``, ``sample``, ``diff`` and ``mixture``. Steps are
    global batches, counted from 0 since the run began; samples are numbered as in ``dataset[i]``.

    - ``state`` (Mapping[str, Any] | str | os.PathLike): Result of ``state_dict()`` of a loader or a
      dataset; or the path of a file with it, as JSON or somewhere inside a file of ``torch.save``;
      or the folder of a run, whose newest such file is taken.
    - ``data`` (str | Sequence[str], default ()): URLs or paths of the streams, in their order;
      default is the places that the state names.
    - ``select`` (Any, default None): Argument of ``select()``, for the state of a selection:
      numbers, a mask, or a ``.npy`` file of either.

    Attributes: ``path`` (str | None) is the file that the state was read from, and ``dataset`` has
    the samples by number.

    Raises StateError for a state without the facts of its order or with facts of other data and for
    a file without a state, OSError for a file or folder that cannot be opened, and the errors of
    reading an index.

    >>> history = mds.RunHistory("checkpoint.pt")  # doctest: +SKIP
    >>> history.step(12_345)[0].sample  # doctest: +SKIP
    77123
    """

    @takes_names
    def __init__(
        self,
        state: Mapping[str, Any] | str | os.PathLike[str],
        *,
        data: str | Sequence[str] = (),
        select: Any = None,
    ) -> None:
        self.path, state = _read_state(state)
        self._data = (data,) if isinstance(data, str) else tuple(data)
        self._select = select
        self._point = parse_state(state)
        facts = _data_of(self._point, is_selected=select is not None)
        order = self._point.order or {}
        try:
            self.dataset = Samples(
                **_mixed(_streams(facts, self._data), self._point),
                topology=World(
                    num_nodes=facts["nodes"],
                    ranks_per_node=facts["ranks"] // facts["nodes"],
                    workers_per_rank=1,
                    worker=0,
                ),
                batch_size=facts["batch_size"],
                partition_algo=facts.get("partition_algo", "relaxed"),
                epoch_size=facts.get("epoch_size"),
                shuffle_seed=self._point.shuffle_seed or 0,
                num_canonical_nodes=self._point.num_canonical_nodes,
                packing=_packing(facts, self._point),
                # A state does not tell whether short batches were filled, which is no other order.
                remainder="short" if order.get("exact") else "repeat",
                **{k: v for k, v in order.items() if k in _SETTINGS},
            )
        except (ConfigError, TypeError, KeyError, ZeroDivisionError) as error:
            raise StateError(
                f"the order of the run cannot be computed from the state: {error}"
            ) from error
        if select is not None:
            self.dataset = self.dataset.select(select)
        self.dataset.load_state_dict(state)
        run = run_of(self.dataset)
        self._steps = TrainingSteps(run.order, run.world())
        self._orders: dict[int, EpochPlan] = {}

    def __getattr__(self, name: str) -> Any:
        raise no_attribute(self, name, "RunHistory")

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of the first epoch. Without packing all epochs have as many."""
        return self._steps.in_epoch(0)

    @property
    def position(self) -> tuple[int, int]:
        """Epoch of the state, and the next step, counted since the run began."""
        epoch, steps = max(self._point.position.epoch, 0), self._steps
        # A step that has begun counts as over.
        steps_over = steps.step_in_epoch(epoch, self._point.position.place)
        return epoch, steps.before(epoch) + steps_over

    def step(self, step: int) -> list[StepRow]:
        """Return the samples of the global batch of a step of the run, rank by rank.

        Raises what `place_of` raises.

        >>> [row.sample for row in history.step(0)]  # doctest: +SKIP
        [77123, 4, 88012, 12]
        """
        epoch, step_in_epoch = self.place_of(step)
        number = self._steps.number_of(epoch, step_in_epoch)
        assert number is not None  # place_of() raises an error for a skipped step
        # (rank, sample) of each sample, and with packing also the range of its tokens.
        samples_of_ranks = self._order_of(epoch).step_rows(number)
        return [self._row(*fields) for fields in samples_of_ranks]

    def sample(self, number: int) -> list[Seen]:
        """Return all occurrences of a sample from epoch 0 to the end of the epoch of the state.

        Raises StateError for a number that no sample has.

        >>> [seen.step for seen in history.sample(77123) if seen.is_over]  # doctest: +SKIP
        [0, 10412]
        """
        last_epoch, next_step = self.position
        if not 0 <= number < self.dataset.num_samples:
            raise StateError(
                f"there is no sample {number:,}: the "
                f"{plural(self.dataset.num_samples, 'sample')} of all "
                "streams are numbered from 0."
            )
        occurrences = []
        for epoch in range(last_epoch + 1):
            first_step = self._steps.before(epoch)
            for place in self._order_of(epoch).locate(number):
                # The order counts only steps that are not skipped; the run counts all.
                step = first_step + self._steps.step_of(epoch, place.step)
                occurrences.append(Seen(epoch, step, place.rank, step < next_step))
        return occurrences

    def diff(self, other: RunHistory | Mapping[str, Any] | str | os.PathLike[str]) -> Difference:
        """Return the first step with other samples in another run, and the reasons.

        - ``other`` (RunHistory | Mapping[str, Any] | str | os.PathLike): The other run, or its
          state, which is then read with the ``data`` and ``select`` of this one.

        Steps up to the later position of the two are compared. Raises what `RunHistory` raises.

        >>> history.diff("other.json").step is None  # the same samples  # doctest: +SKIP
        True
        """
        if not isinstance(other, RunHistory):
            other = RunHistory(other, data=self._data, select=self._select)
        reasons = _reasons(self._point, other._point)
        steps = max(self.position[1], other.position[1])
        pairs = itertools.zip_longest(
            *(itertools.islice(run._batches(), steps) for run in (self, other))
        )
        for step, (own_ids, other_ids) in enumerate(pairs):
            # None: this run has no such step.
            if own_ids is None or other_ids is None or not np.array_equal(own_ids, other_ids):
                return Difference(reasons, step, steps)
        return Difference(reasons, None, steps)

    def mixture(self, until: int | None = None) -> RunMixture:
        """Return the mixture of the streams of a run with a schedule.

        - ``until`` (int | None, default None): Last step, or with packing the last window of
          documents; None is the largest of: a quarter beyond the last change of the schedule, the
          next step, and the end of the first epoch.

        Raises StateError for a run without a schedule.

        >>> mixture = history.mixture()  # doctest: +SKIP
        >>> mixture.amounts(np.array([0, 100])).tolist()  # doctest: +SKIP
        [[0, 0], [640, 160]]
        """
        epoch, now = self.position
        order = self._order_of(epoch)
        run, scheduled = order.schedule, order.scheduled
        if run is None or scheduled is None:
            raise StateError(
                "the state belongs to a run without a schedule. The shares of its streams do not "
                "change; they follow from their sizes, repeat= and choose=."
            )
        samples_per_pass, batch = tuple(map(int, order.choose)), order.shape.global_batch
        # The cursor has the window that is read next, counted in the epoch, and
        # ``scheduled.first`` is the number of windows of all earlier epochs. ``window`` is the one
        # that all canonical nodes have reached.
        cursor = self._point.position.cursor
        window = scheduled.first + (min(cursor.windows)[0] if cursor is not None else 0)
        now = {"steps": now, "windows": window}[run.unit]
        if until is None:
            # Shares change where a span of the schedule begins, and where set_weights() changed
            # them.
            spans = run.spans(samples_per_pass, batch)
            last_change = max([*(span.first for span in spans), *(step for step, _ in run.live)])
            first_epoch_end = run.epoch_steps(order.epoch_size, batch)
            until = max(last_change + last_change // 4, now, first_epoch_end, 1)
        return RunMixture(run.names, samples_per_pass, scheduled.mixture, until, now, run.unit)

    def place_of(self, step: int) -> tuple[int, int]:
        """Return the epoch of a step of the run, and the step in it.

        Raises StateError for a step that does not exist or was skipped, and ConfigError for a step
        of packs that is too many epochs ahead.
        """
        # A negative step is refused below, with the other steps that do not exist.
        epoch, step_in_epoch = self._steps.epoch_of(
            max(step, 0), max(self._point.position.epoch, 0)
        )
        number = self._steps.number_of(epoch, step_in_epoch)
        if step >= 0 and number is None:
            raise StateError(f"step {step:,} was skipped in this run, so it has no samples.")
        if step < 0 or number is None or number >= self._order_of(epoch).steps:
            raise StateError(
                f"there is no step {step:,}: no epoch of this run has it. Epochs have "
                f"{plural(self.steps_per_epoch, 'step')}, counted from 0."
            )
        return epoch, step_in_epoch

    def drops_of(self, sample: int) -> list[str]:
        """Return the edits that drop a sample, in words."""
        edits = self._point.edits
        return [describe_edit(edit) for edit in edits if sample in edit.get("drop", ())]

    def _order_of(self, epoch: int) -> EpochPlan:
        """Return the order of a whole epoch; that of the last call is kept."""
        if epoch not in self._orders:
            self._orders = {epoch: self._steps.plan(epoch)}
        return self._orders[epoch]

    def _row(self, rank: int, sample: int, tokens: tuple[int, int] | None = None) -> StepRow:
        """Return a sample of a rank with the place where it is stored; see StepRow."""
        shards = source_of(self.dataset).shards
        shard, row = shards.locate(sample)
        stream = int(shards.stream_per_shard[shard])
        shard_in_stream = shard - int(shards.shard_offset_per_stream[stream])
        file = self.dataset.shards[shard].raw.basename
        return StepRow(rank, sample, self._names[stream], shard_in_stream, file, row, tokens)

    def _batches(self) -> Iterator[Ids]:
        """Yield the sample numbers of each step since the run began; an empty array if skipped."""
        no_samples = np.zeros(0, np.int64)
        for epoch in itertools.count():
            steps, next_step = self._steps.in_epoch(epoch), 0
            if not steps:
                return
            for number, ids in enumerate(self._order_of(epoch).step_reads()):
                step = self._steps.step_of(epoch, number)  # its number if skipped steps count
                yield from itertools.repeat(no_samples, step - next_step)
                yield ids
                next_step = step + 1
            yield from itertools.repeat(no_samples, steps - next_step)

    @cached_property
    def _names(self) -> list[str]:
        """Names of the streams: the schedule's, else of their folders, else their numbers."""
        run = run_of(self.dataset).order.schedule
        if run is not None:
            return list(run.names)
        folders = [stream.folder.rstrip("/") for stream in self.dataset.streams]
        names = [folder.rpartition("/")[2] for folder in folders]
        return names if len({*names}) == len(names) else [str(i) for i in range(len(names))]


def _reasons(first: ResumePoint, second: ResumePoint) -> list[str]:
    """Return the differences of two parsed states in their data, settings and edits, in words."""
    reasons = differences("dataset", first.dataset, second.dataset or {})
    reasons += differences("order", first.order, second.order or {})
    for name in ("num_canonical_nodes", "shuffle_seed"):
        before, now = getattr(first, name), getattr(second, name)
        if before != now:
            reasons.append(f"{name} was {before} and is {now}")
    for run_name, point, other_point in (("first", first, second), ("second", second, first)):
        clauses = [describe_edit(edit) for edit in point.edits if edit not in other_point.edits]
        reasons += [f"only the {run_name} has {text}" for text in clauses]
    return reasons


def _packing(data: Mapping[str, Any], point: ResumePoint) -> Packing | None:
    """Return the packing of a state that counts packs, or None for one that counts samples.

    ``data`` is the entry ``data`` of the state, and ``point`` the parsed state.
    """
    if point.position.unit != "packs":
        return None
    order, packing_facts = point.order or {}, data.get("packing")
    if not isinstance(packing_facts, Mapping):
        raise StateError(
            "the state counts packs but does not name their column, because an earlier version "
            "of the library wrote it. Use a state of this version."
        )
    return Packing.of_facts(order, packing_facts.get("lengths", ""), packing_facts.get("balance"))


def _data_of(point: ResumePoint, *, is_selected: bool) -> Mapping[str, Any]:
    """Return the entry ``data`` of a state, after checking the parts that are used.

    ``is_selected``: whether the user gave a selection, which the state of a selection needs.
    Raises StateError if the entry is missing, damaged, or does not fit.
    """
    data = point.data
    if data is None or not {"streams", "batch_size", "ranks", "nodes"} <= set(data):
        raise StateError(
            "the state does not name its data. An earlier version, another library or a dataset "
            "without a batch size wrote it. Use a state of a StreamingDataLoader of this version."
        )
    if ("selected" in data) != is_selected:
        if is_selected:
            raise StateError(
                "the state belongs to a whole dataset, but select= (--select) was given. Leave "
                "the selection out."
            )
        raise StateError(
            f"the state belongs to {plural(data['selected'], 'sample')} that select(), limit() "
            "or split() "
            "chose, but it does not record which. Pass the argument of select() as select= or "
            "--select FILE.npy."
        )
    numbers = {name: data[name] for name in ("batch_size", "ranks", "nodes")}
    for name, value in numbers.items():
        if type(value) is not int or not 1 <= value <= _MAX_GLOBAL_BATCH:
            raise StateError(f"the state has data with {name} {str(value)[:60]!r}.")
    if data["batch_size"] * data["ranks"] > _MAX_GLOBAL_BATCH or point.position.epoch > _MAX_EPOCHS:
        raise StateError(
            f"the state has epoch {point.position.epoch} and {plural(data['ranks'], 'rank')} "
            "with batches "
            f"of {data['batch_size']}, which no training can reach."
        )
    streams = data["streams"]
    if not isinstance(streams, list) or not all(
        isinstance(entry, Mapping) and isinstance(entry.get("at"), str) for entry in streams
    ):
        raise StateError("the state has data with streams that have no place.")
    return data


def _mixed(streams: list[Stream], point: ResumePoint) -> dict[str, Any]:
    """Return the arguments of a dataset that mix streams as a state does.

    With a schedule, streams get the names that it has for them.
    """
    if point.schedule is None:
        return {"streams": streams}
    run = ScheduledRun.from_json(point.schedule)
    return {"streams": dict(zip(run.names, streams, strict=True)), "schedule": run.schedule}


def _streams(data: Mapping[str, Any], places: Sequence[str]) -> list[Stream]:
    """Return the streams of a state, at ``places`` if given, else where the state names them."""
    entries = data["streams"]
    if places and len(places) != len(entries):
        raise StateError(
            f"the state has {plural(len(entries), 'stream')}, but data= (--data) has "
            f"{plural(len(places), 'place')}. "
            "Give one place for each stream, in the order of the streams."
        )
    streams = []
    for number, entry in enumerate(entries):
        place = places[number] if places else f"{data.get('root', '')}{entry['at']}"
        if "***" in place or "?..." in place:
            raise StateError(
                f"the state has the place {place} of stream {number} without its secrets. Its "
                "full URL is needed in data= (--data)."
            )
        share = {k: entry[k] for k in ("proportion", "repeat", "choose") if k in entry}
        arguments: dict[str, Any] = {"remote" if "://" in place else "local": place}
        streams.append(Stream(**arguments, **share, format=_format_of(entry)))
    return streams


def _format_of(entry: Mapping[str, Any]) -> str | Format | None:
    """Return the format of a stream of a state, or None for MDS.

    ``entry`` describes the stream. The pin of a table has arguments for its format, such as the
    version that was read. (A pin with ``remote`` has the URL instead.)
    """
    pin = entry.get("pin")
    if isinstance(pin, Mapping) and pin and "remote" not in pin:
        return find_recorded_format(str(entry.get("kind")))(**pin)
    recorded_name = entry.get("format")
    return None if recorded_name is None else find_recorded_format(recorded_name).name


# ---------------------------------------------------------------------------------- files of states


def _read_state(state: Any) -> tuple[str | None, Mapping[str, Any]]:
    """Return the path of the file that was read, None for a dict, and the state in it.

    Raises StateError if there is no state, or if there are several, and the errors of
    `open_regular`.
    """
    if isinstance(state, Mapping):
        states = _states_in(state, 0)
        if len(states) > 1:
            raise StateError(
                f"the dict has {plural(len(states), 'state')} of a loader. Pass one of them, as "
                "loader.state_dict() returned it."
            )
        return None, states[0] if states else state  # parse_state() refuses a dict without a state
    if not isinstance(state, (str, os.PathLike)):
        way_out = "Write RunHistory(loader.state_dict()), or the path of a file with it."
        raise StateError(
            f"RunHistory takes a state or the path of a file, got {type(state).__name__}. {way_out}"
        )
    path = os.fspath(state)
    if "://" in path:
        raise StateError(
            f"{redact(path)} is a URL, but RunHistory reads states only from a local file. "
            "Download the file first."
        )
    if os.path.isdir(path):
        path = _newest_file(path)
    try:
        with io.TextIOWrapper(open_regular(path), "utf-8") as file:
            size = min(os.path.getsize(path), _MAX_BYTES)  # `read` allocates what it is asked for
            checkpoint: Any = json.loads(file.read(size))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        checkpoint = _read_torch(path)
    states = _states_in(checkpoint, 0)
    if len(states) != 1:
        raise StateError(
            f"{path} has {plural(len(states), 'state')} of a loader; expected one, as "
            "loader.state_dict() "
            "returns it. Save one as JSON: json.dump(loader.state_dict(), file)."
        )
    return path, states[0]


def _newest_file(folder: str) -> str:
    """Return the newest file in a folder, or one level below, that may hold a state.

    Raises StateError if there is none, and StoreError for a folder that cannot be listed.
    """
    files, folders = _list_states(folder)
    paths = [*files, *(path for subfolder in folders for path in _list_states(subfolder)[0])]
    if not paths:
        raise StateError(
            f"the folder {folder} has no file that ends with {', '.join(_ENDINGS)}. Name the file "
            "with the state of the run."
        )
    return max(paths, key=lambda path: (os.path.getmtime(path), path))


def _list_states(folder: str) -> tuple[list[str], list[str]]:
    """Return the paths of the files in a folder that may hold a state, and of its subfolders.

    Hidden names are left out. Raises StoreError for a folder that cannot be listed.
    """
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise unlisted_error(folder, error) from error
    paths = [os.path.join(folder, name) for name in names if not name.startswith(".")]
    states = [path for path in paths if path.endswith(_ENDINGS) and os.path.isfile(path)]
    return states, [path for path in paths if os.path.isdir(path)]


def _read_torch(path: str) -> Any:
    """Return the contents of a file of torch.save. Raises StateError for any other file."""
    import pickle
    import warnings

    import torch

    # Damaged and foreign files make torch.load raise any of these.
    load_errors = (ArithmeticError, AttributeError, EOFError, LookupError, RuntimeError, TypeError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of files of another kind
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, ValueError, *load_errors) as error:
        raise StateError(
            f"{path} is neither JSON nor a file of torch.save with only plain values and tensors. "
            "Save the state as JSON: json.dump(loader.state_dict(), file)."
        ) from error


def _states_in(value: Any, depth: int) -> list[Mapping[str, Any]]:
    """Return the states of loaders in nested dicts, such as ``{"trainer": {"loader": STATE}}``.

    ``depth`` is the number of dicts around ``value``; no state is searched below `_MAX_DEPTH`.
    """
    if not isinstance(value, dict) or depth > _MAX_DEPTH:
        return []
    if "num_canonical_nodes" in value and "shuffle_seed" in value:  # keys of every state
        return [value]
    return [state for item in value.values() for state in _states_in(item, depth + 1)]
