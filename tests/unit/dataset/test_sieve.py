"""Samples dropped while iterating: reported, never replaced, and ranks stay in step."""

import os

import pytest

from mds import MDSWriter, StreamingDataLoader, StreamingDataset
from mds._iteration.filtering import MAX_LISTED_SAMPLES, SkippedSample
from mds.errors import ConfigError, FunctionError, MdsError
from tests.unit.dataset.sieve_helpers import even, few


def test_a_filter_drops(make):
    """What is refused does not come, and nothing comes twice in its place."""
    dataset = StreamingDataset(local=make(), batch_size=4).filter(even)
    assert [s["id"] for s in dataset] == list(range(0, 100, 2))
    assert [left.sample for left in dataset.skipped] == list(range(1, 100, 2))
    assert [s["id"] for s in StreamingDataset(local=make(), batch_size=4).filter(few)] == [17, 60]


def test_filters_add_up(make):
    """A filter of a filtered dataset sees what the first one kept."""
    dataset = StreamingDataset(local=make(), batch_size=4).filter(even)
    both = dataset.filter(lambda sample: sample["id"] > 90)
    assert [s["id"] for s in both] == [92, 94, 96, 98]
    assert len(list(dataset)) == 50


@pytest.mark.parametrize(
    ("use", "remedy"),
    [
        (lambda dataset: dataset[1], r"where=function\)\[1\]"),
        (lambda dataset: dataset[:2], r"where=function\)\[<slice>\]"),
        (lambda dataset: dataset.limit(10), r"where=function\)\.limit\(10\)"),
        (lambda dataset: dataset.select([1]), r"where=function\)\.select\(numbers\)"),
        (lambda dataset: dataset.split([0.5, 0.5]), r"where=function\)\.split\("),
    ],
)
def test_samples_have_no_numbers_after_a_filter(make, use, remedy):
    """Which samples are kept is not known, unless select() has called the function for all."""
    dataset = StreamingDataset(local=make(), batch_size=4)
    for filtered in (dataset.filter(even), dataset.filter(even).map(dict)):
        with pytest.raises(
            ConfigError, match=r"filter\(even\) decides while samples are read\..*" + remedy
        ):
            use(filtered)
    assert use(dataset.select(where=even))
    assert use(dataset.map(dict).select(where=even))


def test_a_selection_of_a_filtered_dataset_has_numbers(make):
    """The function of select() is called for what the filter keeps, and both decide at once."""
    filtered = StreamingDataset(local=make(), batch_size=4).filter(even)
    part = filtered.select(where=lambda sample: sample["id"] > 89)
    assert [part[1]["id"], part.limit(2)[-1]["id"], len(part)] == [92, 92, 5]
    assert [sample["id"] for sample in part] == [90, 92, 94, 96, 98]
    with pytest.raises(ConfigError, match=r"filter\(even\), filter\(few\) decides"):
        part.filter(few)[0]
    drawn = filtered.map(lambda sample, rng: sample).select(where=even)
    with pytest.raises(ConfigError, match="decides while samples are read"):
        drawn[0]


def test_a_filter_that_returns_nothing_is_refused(make):
    """None is a forgotten return, and not a decision."""
    dataset = StreamingDataset(local=make(), batch_size=4).filter(lambda sample: None)
    with pytest.raises(FunctionError, match=r"returned None for sample 0 .*return True or False"):
        next(iter(dataset))
    with pytest.raises(FunctionError, match="return True or False"):
        StreamingDataset(local=make()).select(where=lambda sample: None)


def test_a_class_of_the_user_reads_by_number_below_a_filter(make):
    """Its own __getitem__ makes the samples that the filter sees."""

    class Mine(StreamingDataset):
        def __getitem__(self, number):
            return {"id": super().__getitem__(number)["id"] * 2}

    dataset = Mine(local=make(samples=10)).filter(lambda sample: sample["id"] % 4 == 0)
    assert [sample["id"] for sample in dataset] == [0, 4, 8, 12, 16]
    assert type(dataset).__name__ == "Mine"


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("remainder", ["short", "mask"])
def test_a_filter_with_padding_gives_each_sample_once(make, ranks, remainder):
    """Where the samples do not divide evenly too; padding is neither shown nor reported."""
    kept, dropped = [], []
    for rank in range(ranks):
        dataset = StreamingDataset(
            local=make(), batch_size=8, remainder=remainder, topology=(rank, ranks)
        ).filter(even)
        for batch in StreamingDataLoader(dataset):
            kept += batch["id"][batch["mask"]].tolist()
        dropped += [left.sample for left in dataset.skipped]
    assert sorted(kept) == list(range(0, 100, 2))
    assert sorted(dropped) == list(range(1, 100, 2))


def test_resume_law_of_a_filter_without_a_loader(make):
    """A position counts places of the order, dropped ones too."""

    def fresh():
        return StreamingDataset(local=make(), batch_size=4, shuffle=True).filter(even)

    whole = [s["id"] for s in fresh()]
    for after in range(1, 50, 7):
        dataset = fresh()
        for _ in zip(range(after), dataset, strict=False):
            pass
        resumed = fresh()
        resumed.load_state_dict(dataset.state_dict())
        assert [s["id"] for s in resumed] == whole[after:]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_workers_left_out_is_told_to_the_main_process(make, workers):
    """Once each, whatever the number of workers, and the position is exact."""
    dataset = StreamingDataset(local=make(), batch_size=4).filter(even)
    loader = StreamingDataLoader(dataset, num_workers=workers)
    batches = [batch["id"].tolist() for batch in loader]
    assert sorted(i for batch in batches for i in batch) == list(range(0, 100, 2))
    assert sorted(left.sample for left in dataset.skipped) == list(range(1, 100, 2))
    assert loader.state_dict()["sample_in_epoch"] == 100
    assert dataset.stats()["dropped_samples"] == 50


def test_dropped_samples_are_listed_up_to_a_bound(make):
    """A filter of a large dataset does not fill the memory with what it refused."""
    dataset = StreamingDataset(local=make(), batch_size=4)
    for _ in range(3 * MAX_LISTED_SAMPLES):
        dataset._dataset_run.dropped.report(SkippedSample(1, "dropped by the filter"))
    assert len(dataset.skipped) == MAX_LISTED_SAMPLES
    assert dataset._dataset_run.dropped.count == 3 * MAX_LISTED_SAMPLES


class Mine(StreamingDataset):
    """A dataset with code of its own."""

    def get_item(self, sample_id, retry=7):
        return {**super().get_item(sample_id), "mine": True}


def test_a_filter_sees_the_samples_of_a_subclass(make):
    """And batches of an own collate function come beside their mask."""
    dataset = Mine(local=make(), batch_size=4).filter(lambda s: s["mine"] and s["id"] % 2)
    loader = StreamingDataLoader(dataset, collate_fn=lambda batch: [s["id"] for s in batch])
    assert next(iter(loader))[0] == [1, 3]
    batches = list(loader)
    assert [i for batch, _ in batches for i in batch] == list(range(1, 100, 2))
    assert all(mask.tolist() == [True, True] for _, mask in batches)


def test_single_samples_are_batches_of_one_place(make):
    """Without a batch size a dropped sample is one whose mask is False, so positions stay exact."""
    dataset = StreamingDataset(local=make(samples=10), batch_size=4).filter(even)
    samples = list(StreamingDataLoader(dataset, batch_size=None))
    assert [bool(s["mask"]) for s in samples] == [True, False] * 5


@pytest.fixture
def broken(tmp_path):
    """Twenty samples, of which number 7 has text that is no UTF-8."""
    out = os.path.join(tmp_path, "broken")
    with MDSWriter(out=out, columns={"id": "int", "text": "str"}, samples_per_shard=5) as writer:
        for i in range(20):
            writer.write({"id": i, "text": f"sample {i}"})
    shard = os.path.join(out, "shard.00001.mds")
    with open(shard, "rb+") as file:
        content = file.read()
        file.seek(content.index(b"sample 7"))
        file.write(b"\xff\xfe")
    return out


def test_a_broken_sample_is_an_error_unless_asked_otherwise(broken):
    """And when it is skipped, its number and reason are kept."""
    with pytest.raises(MdsError):
        list(StreamingDataset(local=broken, batch_size=4))
    dataset = StreamingDataset(local=broken, batch_size=4, on_error="skip")
    found = [s["id"] for s in dataset]
    assert found == [*range(7), *range(8, 20)]
    assert [left.sample for left in dataset.skipped] == [7]
    assert dataset.left_out == dataset.skipped
    assert isinstance(dataset.skipped[0], SkippedSample)
    assert "Error" in dataset.skipped[0].reason


def test_a_missing_shard_is_never_skipped(broken):
    """Only faults of a sample are; a store that fails stops the run."""
    os.remove(os.path.join(broken, "shard.00002.mds"))
    with pytest.raises(FileNotFoundError):
        list(StreamingDataset(local=broken, batch_size=4, on_error="skip"))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_sample_is_dropped_from_its_batch(broken, workers):
    """on_error="skip" does as a filter: smaller batches, a mask, an exact position."""
    dataset = StreamingDataset(local=broken, batch_size=4, on_error="skip", remainder="short")
    loader = StreamingDataLoader(dataset, num_workers=workers)
    batches = {b["id"].tolist()[0]: b for b in loader}
    assert batches[4]["id"].tolist() == [4, 5, 6]
    assert batches[4]["mask"].all()
    assert loader.state_dict()["sample_in_epoch"] == 20


def test_a_batch_of_broken_samples_is_one_masked_sample(broken):
    """A readable sample stands for it, from wherever there is one."""
    dataset = StreamingDataset(local=broken, batch_size=1, on_error="skip").select([3, 7])
    batches = list(StreamingDataLoader(dataset))
    assert [(b["id"].tolist(), b["mask"].tolist()) for b in batches] == [
        ([3], [True]),
        ([3], [False]),
    ]
    nothing = StreamingDataset(local=broken, batch_size=1, on_error="skip").select([7])
    with pytest.raises(ConfigError, match="on_error='raise' to see why"):
        list(StreamingDataLoader(nothing))


def test_a_filter_that_refuses_everything_is_told(make):
    """The epoch has its steps, all masked, and a warning says so."""
    dataset = StreamingDataset(local=make(), batch_size=4).filter(lambda sample: False)
    assert list(dataset) == []
    with pytest.warns(UserWarning, match="all 25 batches of this rank are empty"):
        batches = list(StreamingDataLoader(dataset))
    assert [b["mask"].tolist() for b in batches] == [[False]] * 25


def test_a_column_named_mask_is_refused_with_a_filter(make):
    """The two would be one."""
    data = make(columns={"id": "int", "mask": "int"}, value=lambda i: {"id": i, "mask": 1})
    dataset = StreamingDataset(local=data, batch_size=4).filter(even)
    with pytest.raises(ConfigError, match="column 'mask'"):
        list(StreamingDataLoader(dataset))


def test_an_unknown_policy_is_refused(make):
    """With the ones that there are."""
    with pytest.raises(ConfigError, match="'raise' or 'skip'"):
        StreamingDataset(local=make(), on_error="ignore")
