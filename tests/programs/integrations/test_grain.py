"""The order of a dataset as a MapDataset of Grain: any number of processes, epochs, resumes."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import mds
from mds import MDSWriter, StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError

grain = pytest.importorskip("grain", reason="needs the libraries of the tables: pip install grain")

from absl import flags  # noqa: E402 - Grain brings it

from mds.integrations.grain import MapDataset  # noqa: E402 - grain may be missing

SAMPLES, BATCH = 103, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = str(tmp_path_factory.mktemp("grain") / "data")
    with MDSWriter(out, {"id": "int"}, size_limit=400) as writer:
        for number in range(SAMPLES):
            writer.write({"id": number})
    return out


def ordered(folder, **options):
    return StreamingDataset(folder, batch_size=BATCH, shuffle=True, **options)


def ids(items):
    return [int(item["id"]) for item in items]


def batches(loader):
    return [batch["id"].tolist() for batch in loader]


def test_items_are_the_samples_of_the_order(folder):
    samples = MapDataset(ordered(folder))
    assert len(samples) == SAMPLES
    loader = StreamingDataLoader(ordered(folder))
    assert ids(samples) == [number for batch in loader for number in batch["id"].tolist()]
    epochs = samples.repeat(2)
    assert ids(epochs[SAMPLES + i] for i in range(SAMPLES)) == [
        number for batch in loader for number in batch["id"].tolist()
    ]
    assert batches(samples.batch(BATCH).to_iter_dataset())[0] == ids(
        samples[i] for i in range(BATCH)
    )


@pytest.mark.parametrize("processes", [2, 4])
def test_a_process_gets_what_a_rank_gets(folder, processes):
    """Up to the last batch, which Grain divides differently."""
    samples = MapDataset(ordered(folder))
    for process in range(processes):
        shares = batches(samples[process::processes].batch(BATCH // processes).to_iter_dataset())
        dataset = StreamingDataset(
            folder, batch_size=BATCH // processes, shuffle=True, topology=(process, processes)
        )
        assert (
            shares[: SAMPLES // BATCH] == batches(StreamingDataLoader(dataset))[: SAMPLES // BATCH]
        )


def elastic(folder, process, processes):
    return grain.experimental.ElasticIterator(
        MapDataset(ordered(folder)),
        BATCH,
        grain.sharding.ShardOptions(shard_index=process, shard_count=processes),
    )


def test_a_position_of_four_processes_is_resumed_on_two(folder):
    before = [elastic(folder, process, 4) for process in range(4)]
    seen = [ids_ for _ in range(5) for it in before for ids_ in next(it)["id"].tolist()]
    state = before[0].get_state()
    assert [it.get_state() for it in before] == [state] * 4
    after = [elastic(folder, process, 2) for process in range(2)]
    for iterator in after:
        iterator.set_state(state)
    for _ in range(SAMPLES // BATCH - 5):
        seen += [number for it in after for number in next(it)["id"].tolist()]
    whole = ids(ordered(folder))
    for step in range(SAMPLES // BATCH):
        part = slice(step * BATCH, (step + 1) * BATCH)
        assert sorted(seen[part]) == sorted(whole[part])


def test_repeated_samples_are_dealt_in_global_batches(folder):
    """In all epochs, though their length is no multiple of the number of processes."""
    samples = MapDataset(ordered(folder)).repeat(4)
    shares = [
        batches(samples[process::2].batch(BATCH // 2).to_iter_dataset()) for process in (0, 1)
    ]
    whole = ids(samples)
    for step, parts in enumerate(zip(*shares, strict=True)):
        batch = whole[step * BATCH : (step + 1) * BATCH]
        assert sorted([*parts[0], *parts[1]]) == sorted(batch)


def test_kinds_of_index(folder):
    """Integers of Python and NumPy; negative ones count from the end of the first epoch."""
    first = ids(MapDataset(ordered(folder)))
    for index in (-1, -3, -SAMPLES, -SAMPLES - 1):
        item = MapDataset(ordered(folder))[index]
        assert ids([item]) == [first[index % SAMPLES]]
    samples = MapDataset(ordered(folder))
    assert ids([samples[np.int64(3)], samples[np.uint8(3)]]) == [first[3]] * 2
    assert ids(samples[-3:]) == first[-3:]
    for index in (1.0, "1", [1], None):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            samples[index]


def test_later_settings_have_no_effect(folder):
    """The items of one MapDataset belong to one order."""
    dataset = ordered(folder)
    samples = MapDataset(dataset)
    first = ids(samples)
    dataset.shuffle_seed, dataset.batch_size = 5, 3
    assert ids(samples) == first


def test_grains_own_check_of_checkpoints(folder):
    data = MapDataset(ordered(folder)).batch(4).to_iter_dataset()
    grain.experimental.assert_equal_output_after_checkpoint(data)


def test_a_copy_in_another_process_gives_the_same(folder):
    samples = MapDataset(ordered(folder))
    assert samples[5] == pickle.loads(pickle.dumps(samples))[5]
    flags.FLAGS(["grain"])  # if JAX is installed, Grain reads a flag of its workers
    workers = grain.MultiprocessingOptions(num_workers=2)
    data = samples.to_iter_dataset().mp_prefetch(workers)
    assert sorted(ids(data)) == list(range(SAMPLES))


def read_ids(source, numbers):
    return ids(source[number] for number in numbers)


@pytest.mark.parametrize("make", [mds.LocalDataset, lambda folder: MapDataset(ordered(folder))])
def test_the_contract_of_a_data_source(folder, make):
    """The properties that grain/_src/python/data_sources_test.py asks for."""
    source = make(folder)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert ids(source[i] for i in range(len(source))) == ids(source)
    parts = [[1, 3, 5], [2, 3, 4], [5, 2, 3]]
    expected = [read_ids(source, numbers) for numbers in parts]
    copies = [pickle.loads(pickle.dumps(source)) for _ in parts]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(read_ids, copies, parts)) == expected
        assert list(pool.map(read_ids, [source] * 3, parts)) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (mds.LocalDataset, r"directly to grain\.MapDataset\.source"),
        (StreamingDataset, "has no batch_size"),
        (lambda folder: ordered(folder).filter(bool), "decides while samples are read"),
        (lambda folder: ordered(folder).map_batches(dict), "map_batches"),
        (lambda folder: ordered(folder, on_error="skip"), "find broken samples with mds verify"),
        (
            lambda folder: ordered(folder, batching_method="device_per_stream"),
            "Use batching_method='per_stream'",
        ),
    ],
)
def test_what_has_no_such_order_is_refused(folder, make, message):
    with pytest.raises(ConfigError, match=message):
        MapDataset(make(folder))
