"""dataset.map: functions on samples, where samples are made."""

import copy
import pickle
import traceback

import numpy as np
import pytest
from torch.utils.data import DataLoader

from mds import StreamingDataLoader, StreamingDataset
from mds.errors import ArgumentError, ConfigError, EncodingError, FunctionError

HOWS = {
    "here": {},
    "processes": {"num_workers": 2},
    "spawned": {"num_workers": 1, "multiprocessing_context": "spawn"},
    "threads": {"num_workers": 2, "worker_type": "threads"},
}


def double(sample):
    """A cheap function that spawned workers can unpickle."""
    return {"id": sample["id"], "twice": 2 * sample["id"]}


def draw(sample, rng):
    """A function that takes random numbers."""
    return {"id": sample["id"], "drawn": int(rng.integers(1 << 40))}


def fail_at_77(sample):
    """Fails on one sample."""
    if sample["id"] == 77:
        raise KeyError("what it says")
    return sample


def even(sample):
    """A filter."""
    return sample["id"] % 2 == 0


def drawn(loaders, column="drawn"):
    """What each sample drew, over the loaders of all ranks."""
    return {
        i: x
        for loader in loaders
        for batch in loader
        for i, x in zip(batch["id"].tolist(), batch[column].tolist(), strict=True)
    }


def ranks(make, count, chain, options=None, **settings):
    """A loader for each rank."""
    for rank in range(count):
        dataset = make(shuffle=True, remainder="short", topology=(rank, count), **settings)
        yield StreamingDataLoader(chain(dataset), **(options or {}))


def test_a_function_makes_the_samples_of_batches(make, how):
    """In the order of the dataset without it, with every kind of worker."""
    plain = [b["id"].tolist() for b in StreamingDataLoader(make(shuffle=True))]
    loader = StreamingDataLoader(make(shuffle=True).map(double), **HOWS[how])
    batches = list(loader)
    assert sorted(i for b in batches for i in b["id"].tolist()) == list(range(100))
    if how == "here":
        assert [b["id"].tolist() for b in batches] == plain
    for batch in batches:
        assert batch["twice"].tolist() == [2 * i for i in batch["id"].tolist()]


def test_a_mapped_dataset_is_a_new_dataset_in_every_respect(make):
    """Class, length, order, state and hash are those of the dataset without functions."""
    plain = make(shuffle=True)
    mapped = plain.map(double)
    assert type(mapped).__name__ == "StreamingDataset"
    assert isinstance(mapped, StreamingDataset)
    assert len(mapped) == len(plain) == 100
    assert [s["id"] for s in mapped] == [s["id"] for s in plain]
    assert plain[3].keys() > {"vector"}
    assert mapped[3] == {"id": 3, "twice": 6}
    assert mapped[-1]["id"] == 99
    assert [s["id"] for s in mapped[:3]] == [0, 1, 2]
    states = []
    for dataset in (plain, mapped):
        loader = StreamingDataLoader(dataset)
        for _ in zip(range(5), loader, strict=False):
            pass
        states.append(loader.state_dict())
    assert states[0] == states[1]
    parts = mapped.limit(50).split({"a": 0.5, "b": 0.5})
    assert sum(len(p) for p in parts.values()) == 50
    assert all(s["twice"] == 2 * s["id"] for p in parts.values() for s in p)
    assert sorted(s["twice"] for s in mapped.select([4, 7])) == [8, 14]
    late = mapped.select(where=lambda s: s["twice"] > 194)
    assert sorted(s["id"] for s in late) == [98, 99]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("options", [{}, HOWS["threads"]])
def test_random_numbers_depend_on_the_place_in_the_order_alone(make, count, options):
    """Neither on ranks, workers or batches: the same as in one process."""
    wanted = drawn(ranks(make, 1, lambda d: d.map(draw)))
    assert len(set(wanted.values())) == len(wanted) == 100
    assert drawn(ranks(make, count, lambda d: d.map(draw), options)) == wanted
    assert drawn(ranks(make, count, lambda d: d.map(draw), options, batch_size=5)) == wanted


@pytest.mark.parametrize("step", [1, 4])
def test_random_numbers_after_a_resume(make, step):
    """On other ranks, workers and batch sizes: as if the run had not stopped."""
    wanted = drawn(ranks(make, 1, lambda d: d.map(draw)))
    (loader,) = ranks(make, 1, lambda d: d.map(draw), {"num_workers": 2})
    head = {}
    for number, batch in enumerate(loader, 1):
        head |= dict(zip(batch["id"].tolist(), batch["drawn"].tolist(), strict=True))
        if number == step:
            state = loader.state_dict()
            break
    resumed = list(ranks(make, 2, lambda d: d.map(draw), batch_size=4))
    for each in resumed:
        each.load_state_dict(state)
    tail = drawn(resumed)
    assert not head.keys() & tail.keys()
    assert head | tail == wanted


def test_random_numbers_differ_between_epochs_seeds_and_functions(make):
    """Each epoch, each seed and each link of a chain draws others; a new run draws the same."""

    def again(sample, rng):
        return {**sample, "other": int(rng.integers(1 << 40))}

    loader = StreamingDataLoader(make(shuffle=True).map(draw).map(again))
    first, second = drawn([loader]), drawn([loader])
    assert not set(first.values()) & set(second.values())
    assert not set(first.values()) & set(drawn([loader], "other").values())
    seeded = StreamingDataLoader(make(shuffle=True, shuffle_seed=1).map(draw))
    assert not set(first.values()) & set(drawn([seeded]).values())
    fresh = StreamingDataLoader(make(shuffle=True).map(draw))
    assert drawn([fresh]) == first


def test_random_numbers_by_number_are_always_the_same(make):
    """``dataset[i]`` has no place in an epoch: seed and number decide."""
    dataset = make().map(draw)
    assert dataset[5] == dataset[5] == make(shuffle=True).map(draw)[5]
    assert dataset[5]["drawn"] != dataset[6]["drawn"]
    assert dataset[5]["drawn"] != next(s["drawn"] for s in dataset if s["id"] == 5)


def test_a_repeated_sample_draws_anew(folder):
    """The place counts, not only the sample."""
    from mds import Stream

    dataset = StreamingDataset(streams=[Stream(local=folder, repeat=2)], batch_size=4, shuffle=True)
    found = [s["drawn"] for s in dataset.map(draw)]
    assert len(found) == len(set(found)) == 200


def test_the_generator_is_numpys_and_begins_anew_for_each_sample(make):
    """What one sample draws does not move the next one's numbers, nor do links that draw none."""

    def several(sample, rng):
        assert isinstance(rng, np.random.Generator)
        rng.normal(size=3 if sample["id"] % 2 else 70)
        return {"id": sample["id"], "drawn": rng.random()}

    one = drawn([StreamingDataLoader(make().map(several))])
    two = drawn([StreamingDataLoader(make().filter(even).map(dict).map(several))])
    assert {i: x for i, x in one.items() if i % 2 == 0} == two


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_an_error_names_the_sample_and_keeps_its_traceback(make, options):
    """Also where it crosses from a worker process."""
    loader = StreamingDataLoader(make(shuffle=True).map(fail_at_77), **options)
    with pytest.raises(FunctionError, match=r"map\(fail_at_77\) failed on sample 77 \(place") as at:
        list(loader)
    text = "".join(traceback.format_exception(at.value))
    assert 'raise KeyError("what it says")' in text
    assert isinstance(pickle.loads(pickle.dumps(at.value)), FunctionError)
    with pytest.raises(FunctionError, match="failed on sample 77: KeyError") as at:
        make().map(fail_at_77)[77]
    assert isinstance(at.value.__cause__, KeyError)


def test_an_iteration_raises_its_error_again(make):
    """No sample is passed over; a new iteration from the state has the same random numbers."""
    dataset = make().map(draw).map(fail_at_77)
    samples, found = iter(dataset), []
    wanted = {s["id"]: s for s in make().map(draw)}
    with pytest.raises(FunctionError, match="sample 77"):
        found.extend(samples)
    for _ in range(3):
        with pytest.raises(FunctionError, match="sample 77"):
            next(samples)
    mended = make().map(draw)
    mended.load_state_dict(dataset.state_dict())
    assert [*found, *mended] == [wanted[i] for i in range(100)]


def test_a_function_cannot_end_an_epoch_by_accident(make):
    """A StopIteration that escapes it is an error like any other."""
    with pytest.raises(FunctionError, match="StopIteration"):
        list(make().map(lambda s: next(iter(())) if s["id"] == 5 else s))


def test_a_function_that_forgets_to_return_is_told(make):
    """None is no sample."""
    with pytest.raises(FunctionError, match=r"returned None for sample 0 .*It must return"):
        list(make().map(lambda _: None))


def test_functions_and_filters_run_in_their_order(make):
    """A filter sees what functions before it made, and later ones see what it kept."""
    seen = []

    def note(sample):
        seen.append(sample["id"])
        return sample

    dataset = make().map(double).filter(lambda s: s["twice"] < 20).map(note).filter(even)
    assert [s["id"] for s in dataset] == [0, 2, 4, 6, 8]
    assert seen == list(range(10))
    assert len(dataset.skipped) == 95


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_of_which_nothing_is_kept_has_the_form_of_the_others(make, workers):
    """A masked sample that all functions have seen stands for it."""
    dataset = make().filter(lambda s: s["id"] > 50).map(double)
    batches = list(StreamingDataLoader(dataset, num_workers=workers))
    assert len(batches) == 13
    assert all(b.keys() == {"id", "twice", "mask"} for b in batches)
    assert sorted(i for b in batches for i in b["id"][b["mask"]].tolist()) == list(range(51, 100))


def test_broken_samples_are_those_that_a_function_says(make):
    """on_error='skip' leaves out what raises EncodingError, and no other error."""

    def check(sample):
        if sample["id"] == 3:
            raise EncodingError("not of this world")
        return sample

    dataset = make(on_error="skip").map(check)
    assert [s["id"] for s in dataset][:4] == [0, 1, 2, 4]
    assert dataset.skipped[0] == (3, "EncodingError: not of this world")
    with pytest.raises(FunctionError, match="failed on sample 77"):
        list(make(on_error="skip").map(fail_at_77))
    with pytest.raises(FunctionError, match="EncodingError"):
        list(make().map(check))


class Own(StreamingDataset):
    """A subclass that changes its samples, in the two ways that there are."""

    def __getitem__(self, at):
        return {**super().__getitem__(at), "own": True}


class OwnItem(StreamingDataset):
    """The same by get_item."""

    def get_item(self, sample_id, retry=7):
        return {**super().get_item(sample_id), "own": True}


@pytest.mark.parametrize("kind", [Own, OwnItem])
@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_functions_see_what_a_subclass_makes(make, kind, options):
    """By number, in iterations and in every worker; the class stays the caller's."""

    def build():
        return make(kind, shuffle=True).map(needs_own).map(draw)

    dataset = build()
    assert isinstance(dataset, kind)
    assert isinstance(copy.copy(dataset), kind)
    assert dataset[3]["id"] == 3
    wanted = drawn([StreamingDataLoader(make(shuffle=True).map(draw))])
    assert drawn([StreamingDataLoader(dataset, **options)]) == wanted
    assert {s["id"]: s["drawn"] for s in build()} == wanted


def needs_own(sample):
    """Fails on a sample that the subclass has not made."""
    assert sample["own"]
    return sample


class Pairs(StreamingDataset):
    """A subclass with an iteration of its own."""

    def __iter__(self):
        previous = None
        for sample in super().__iter__():
            if previous is not None:
                yield {"a": previous["twice"], "b": sample["twice"]}
            previous = None if previous is not None else sample


@pytest.mark.filterwarnings("ignore:the position is not exact")  # two samples become one
def test_functions_run_beneath_an_iteration_of_a_subclass(make):
    """They are of samples of the order, and its position is counted as before."""
    loader = StreamingDataLoader(make(Pairs).map(double), batch_size=4)
    assert next(iter(loader))["b"].tolist() == [2, 6, 10, 14]
    assert loader.state_dict()["sample_in_epoch"] == 8


def test_torchs_loader_runs_the_functions_too(make):
    """The dataset is an IterableDataset as any."""
    loader = DataLoader(make().map(double), batch_size=8, num_workers=2)
    assert sorted(i for b in loader for i in b["twice"].tolist()) == list(range(0, 200, 2))


def test_lambdas_go_to_forked_workers_and_not_to_spawned_ones(make):
    """With a sentence that says what to do."""
    dataset = make().map(lambda s: {"id": s["id"]}).filter(lambda _: True)
    assert len(list(StreamingDataLoader(dataset, num_workers=1))) == 13
    with pytest.raises(ConfigError, match=r"map\(.*<lambda>\) cannot be sent to a spawned worker"):
        list(StreamingDataLoader(dataset, num_workers=1, multiprocessing_context="spawn"))
    bare = make().filter(lambda _: True)
    with pytest.raises(ConfigError, match=r"filter\(.*<lambda>\) cannot be sent"):
        list(StreamingDataLoader(bare, num_workers=1, multiprocessing_context="spawn"))


def test_what_is_no_function_is_refused_when_it_is_given(make):
    """Not in a worker, later."""
    for method in ("map", "map_batches", "filter"):
        with pytest.raises(ConfigError, match=rf"{method}\(\) needs a function, got str 'x'"):
            getattr(make(), method)("x")


def crop(sample, size):
    """A function of a sample and a setting."""
    return {"id": sample["id"] % size}


class Doubling:
    """A function with settings, of which an object is needed."""

    def __call__(self, sample):
        return {"id": sample["id"] * 2}


@pytest.mark.parametrize(
    ("method", "function", "words"),
    [
        (
            "map",
            lambda: 1,
            r"called with sample, or sample and rng .* arguments are \(\)\.",
        ),
        ("map", lambda a, b: a, r"are \(a, b\)\. Write lambda sample: \.\.\."),
        ("map", crop, r"Write lambda sample: crop\(sample, size=\.\.\.\)"),
        ("map", Doubling, r"Doubling is a class, .*Write map\(Doubling\(\.\.\.\)\)"),
        ("map", lambda sample, rng, size: 1, r"are \(sample, rng, size\)"),
        (
            "filter",
            lambda sample, rng: True,
            r"called with sample, but .* are \(sample, rng\)",
        ),
        ("map_batches", lambda: 1, r"called with columns, or columns and keys"),
    ],
)
def test_a_function_of_other_arguments_is_refused_when_it_is_given(make, method, function, words):
    """The error shows what it is called with, and what it takes."""
    with pytest.raises(ArgumentError, match=words):
        getattr(make(), method)(function)


def test_functions_of_one_argument_are_taken(make):
    """Objects, classes that are made of a sample, and optional arguments besides."""
    assert next(iter(make().map(Doubling())))["id"] == 0
    assert next(iter(make().map(dict).map(lambda sample, size=3: sample)))["id"] == 0
    assert next(iter(make().map(lambda *samples: samples[0])))["id"] == 0


def test_builtins_and_partials_are_functions(make):
    """A signature that cannot be read takes no random numbers."""
    import functools

    assert next(iter(make().map(dict)))["id"] == 0
    bound = functools.partial(draw, rng=np.random.default_rng(0))
    assert next(iter(make().map(functools.partial(draw))))["drawn"] != 0
    assert next(iter(make().map(lambda s, **_: s)))["id"] == 0
    assert "rng" in bound.keywords


def test_a_chain_prints(make):
    """In the repr, and in explain() with what each link costs."""
    dataset = make().map(draw).filter(even).map_batches(double)
    assert ", map(draw), filter(even), map_batches(double), " in repr(dataset)
    text = dataset.explain()
    rows = {line.split("  ")[1]: line for line in text.splitlines()[1:]}
    assert "no longer gathered by column; 2 us a sample" in rows["map(draw)"]
    assert "mask" in rows["filter(even)"]
    assert "once a batch" in rows["map_batches(double)"]
