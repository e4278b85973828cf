"""dataset.map_batches: functions on columns, where batches are made."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from mds import MDSWriter, StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError, FunctionError
from mds.transforms import RowGenerator

HOWS = {
    "here": {},
    "processes": {"num_workers": 2},
    "threads": {"num_workers": 2, "worker_type": "threads"},
}


class Pair(NamedTuple):
    """A form of a batch."""

    a: object
    b: object


def halve(columns):
    """Changes one column in place, drops one and adds one."""
    columns["vector"] *= 0.5
    return {
        "id": columns["id"],
        "vector": columns["vector"],
        "size": [len(t) for t in columns["text"]],
    }


def draw(columns, keys):
    """Takes a key for each row."""
    assert keys.dtype == np.uint64
    assert len(keys) == len(columns["id"])
    random = RowGenerator(keys)
    return {
        "id": columns["id"],
        "drawn": random.integers(1 << 40),
        "more": random.random(5),
    }


def fail(columns):
    """Fails on the batch with sample 77."""
    if 77 in columns["id"]:
        raise KeyError("what it says")
    return columns


def rows(loaders):
    """Each sample's row of the batch, over the loaders of all ranks."""
    found = {}
    for loader in loaders:
        for batch in loader:
            kept = batch.pop("mask", torch.ones(len(batch["id"]), dtype=torch.bool))
            for at, i in enumerate(batch["id"].tolist()):
                if not kept[at]:
                    continue
                found[i] = {k: np.asarray(v[at]).tolist() for k, v in batch.items() if k != "id"}
    return found


def ranks(make, count, chain, options=None, **settings):
    """A loader for each rank."""
    for rank in range(count):
        dataset = make(shuffle=True, remainder="short", topology=(rank, count), **settings)
        yield StreamingDataLoader(chain(dataset), **(options or {}))


@pytest.mark.parametrize("how", HOWS)
def test_a_function_of_columns_makes_the_batches(make, how):
    """Every row is that of its sample, and the files are as they were."""
    found = rows([StreamingDataLoader(make(shuffle=True).map_batches(halve), **HOWS[how])])
    assert sorted(found) == list(range(100))
    for i, row in found.items():
        assert row == {"vector": [i / 2] * 4, "size": len(f"sample {i}")}
    assert make()[9]["vector"].tolist() == [9.0] * 4


def test_batches_stay_columnar(tmp_path):
    """Columns of fixed width are views of memory into which several batches were gathered."""
    with MDSWriter(out=str(tmp_path), columns={"id": "int", "v": "float32"}) as writer:
        for i in range(100):
            writer.write({"id": i, "v": np.float32(i)})
    owners = []

    def look(columns):
        owners.append(id(columns["v"].base))
        assert columns["v"].base.size >= columns["v"].size
        return columns

    dataset = StreamingDataset(local=str(tmp_path), batch_size=5, shuffle=True).map_batches(look)
    batches = list(StreamingDataLoader(dataset))
    assert len(batches) == len(owners) == 20
    assert len(set(owners)) <= 6
    assert {b["v"].shape for b in batches} == {(5,)}


def test_columns_are_arrays_where_values_have_one_shape(make):
    """And lists elsewhere; the same with and without a function of samples before."""
    kinds = []

    def look(columns):
        kinds.append({name: type(v) for name, v in columns.items()})
        assert columns["vector"].flags.writeable
        assert all(r.flags.writeable for r in columns["ragged"])
        columns["ragged"][0][:] = 7  # a copy: no file sees it
        return columns

    for dataset in (make(), make().map(dict), make().filter(lambda _: True)):
        for batch in StreamingDataLoader(dataset.map_batches(look)):
            assert isinstance(batch["id"], torch.Tensor)
    wanted = {"id": np.ndarray, "vector": np.ndarray, "text": list, "ragged": list}
    assert all(kind == wanted for kind in kinds)
    assert len(kinds) == 39
    assert make()[0]["ragged"].tolist() == [0]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("how", ["here", "threads"])
def test_keys_depend_on_the_place_in_the_order_alone(make, count, how):
    """The same for a row on any number of ranks, workers and batch sizes, and behind filters."""
    (wanted,) = [rows(ranks(make, 1, lambda d: d.map_batches(draw)))]
    assert len({row["drawn"] for row in wanted.values()}) == 100
    chain = lambda d: d.map_batches(draw)
    assert rows(ranks(make, count, chain, HOWS[how], batch_size=5)) == wanted
    chain = lambda d: d.map(dict).map_batches(draw)
    assert rows(ranks(make, count, chain, HOWS[how])) == wanted
    chain = lambda d: d.filter(lambda s: s["id"] % 2).map_batches(draw)
    kept = rows(ranks(make, count, chain, HOWS[how]))
    assert {i: row["drawn"] for i, row in kept.items()} == {
        i: row["drawn"] for i, row in wanted.items() if i % 2
    }


def test_keys_after_a_resume(make):
    """As if the run had not stopped."""
    chain = lambda d: d.map_batches(draw)
    wanted = rows(ranks(make, 1, chain))
    (loader,) = ranks(make, 1, chain, {"num_workers": 2})
    for _ in zip(range(6), loader, strict=False):
        pass
    resumed = list(ranks(make, 2, chain, batch_size=4))
    for each in resumed:
        each.load_state_dict(loader.state_dict())
    tail = rows(resumed)
    assert len(tail) == 52
    assert tail.items() <= {**wanted, **tail}.items()
    assert all(wanted[i] == row for i, row in tail.items())


def test_two_functions_draw_independently(make):
    """Each link of a chain has keys of its own."""
    seen = []

    def note(columns, keys):
        seen.append(keys.tolist())
        return columns

    list(StreamingDataLoader(make().map_batches(note).map_batches(note)))
    assert len(seen) == 26
    assert not set(seen[0]) & set(seen[1])


def test_what_a_function_returns_is_the_batch(make):
    """Dicts of arrays, tensors and lists become tensors; other forms keep theirs."""
    cases = [
        (lambda c: {"t": torch.as_tensor(c["id"]), "l": c["id"].tolist(), "x": c["text"]}, dict),
        (lambda c: (c["id"], c["text"]), tuple),
        (lambda c: Pair(c["id"], torch.zeros(3)), Pair),
        (lambda c: c["id"], torch.Tensor),
    ]
    for function, kind in cases:
        batch = next(iter(StreamingDataLoader(make().map_batches(function))))
        assert type(batch) is kind
    assert torch.equal(batch, torch.arange(8))
    first = next(iter(StreamingDataLoader(make().map_batches(cases[0][0]))))
    assert first["t"].tolist() == first["l"].tolist() == list(range(8))
    assert first["x"][1] == "sample 1"


@pytest.mark.parametrize("how", HOWS)
def test_an_error_names_the_samples_of_the_batch(make, how):
    """With its cause."""
    loader = StreamingDataLoader(make().map_batches(fail), **HOWS[how])
    said = (
        r"map_batches\(fail\) failed on a batch of 8 samples .*: 72, 73, .*KeyError: 'what it say"
    )
    with pytest.raises(FunctionError, match=said):
        list(loader)


def test_a_function_that_forgets_to_return_is_told(make):
    """None is no batch."""
    with pytest.raises(FunctionError, match="returned None for a batch of 8 samples"):
        list(StreamingDataLoader(make().map_batches(lambda _: None)))


def test_samples_of_a_dataset_of_batches_are_refused(make):
    """A loop over samples would silently miss the function."""
    dataset = make().map_batches(halve)
    for ask in (
        lambda: next(iter(dataset)),
        lambda: dataset[3],
        lambda: next(iter(DataLoader(dataset, batch_size=8))),
    ):
        with pytest.raises(ConfigError, match="StreamingDataLoader"):
            ask()
    with pytest.raises(ConfigError, match=r"map_batches\(halve\) has already made batches"):
        dataset.map(dict)
    with pytest.raises(ConfigError, match=r"call filter\(\) first"):
        dataset.filter(bool)
    with pytest.raises(ConfigError, match="collate_fn= would get no"):
        StreamingDataLoader(dataset, collate_fn=list)
    with pytest.raises(ConfigError, match="batch_size=None makes single samples"):
        StreamingDataLoader(dataset, batch_size=None)
    assert len(dataset) == 100
    assert len(dataset.limit(16).select([1, 2])) == 2


def test_a_mask_of_padding_comes_after_the_function(make):
    """remainder='mask' marks the rows as it does without functions."""
    found = []
    for rank in range(3):
        dataset = make(remainder="mask", topology=(rank, 3)).map_batches(halve)
        for batch in StreamingDataLoader(dataset, num_workers=1):
            found += batch["id"][batch["mask"]].tolist()
    assert sorted(found) == list(range(100))


@pytest.mark.parametrize("how", HOWS)
def test_each_batch_of_columns_of_fixed_width_has_its_own_mask(tmp_path, how):
    """Several batches are read at once; rows, masks and states are those without functions."""
    with MDSWriter(out=str(tmp_path), columns={"id": "int"}) as writer:
        for i in range(205):
            writer.write({"id": i})

    def batches(rank, chain):
        dataset = StreamingDataset(
            local=str(tmp_path), batch_size=8, remainder="mask", topology=(rank, 2)
        )
        loader = StreamingDataLoader(chain(dataset), **HOWS[how])
        rows = [(batch["id"].tolist(), batch["mask"].tolist()) for batch in loader]
        return rows, loader.state_dict()

    for rank in range(2):
        plain = batches(rank, lambda dataset: dataset)
        assert batches(rank, lambda dataset: dataset.map_batches(dict)) == plain
        assert sum(sum(mask) for _, mask in plain[0]) == (103, 102)[rank]


def test_ragged_columns_work_in_a_loader_by_themselves(make):
    """As a list of tensors; of one shape as one tensor, as torch does it."""
    batch = next(iter(StreamingDataLoader(make())))
    assert [r.tolist() for r in batch["ragged"][:3]] == [[0], [0, 1], [0, 1, 2]]
    samples = [make()[i] for i in range(8)]
    assert torch.equal(batch["vector"], default_collate([s["vector"] for s in samples]))
    alike = next(iter(StreamingDataLoader(make().select(range(3, 100, 4)))))
    assert alike["ragged"].shape == (8, 4)


def test_a_row_generator_draws_by_row():
    """A row's numbers depend on its key and on how often was drawn, and on no other row."""
    keys = np.arange(1, 2001, dtype=np.uint64)
    for shape in ((), 3, (2, 4)):
        first, one = RowGenerator(keys), RowGenerator(keys[7:8])
        for method in (
            lambda r, s: r.random(s),
            lambda r, s: r.random(s, np.float64),
            lambda r, s: r.integers(10, 20, s),
            lambda r, s: r.normal(s),
        ):
            many, single = method(first, shape), method(one, shape)
            assert many.shape == (2000, *np.empty(shape).shape)
            assert np.array_equal(many[7:8], single)
            assert not np.array_equal(method(first, shape), many)
            method(one, shape)
    unit = RowGenerator(keys).random(50)
    assert abs(unit.mean() - 0.5) < 0.01
    assert (unit < 1).all()
    assert abs(RowGenerator(keys).random().mean() - 0.5) < 0.03
    numbers = RowGenerator(keys).integers(3, 7, 10)
    assert np.unique(numbers).tolist() == [3, 4, 5, 6]
    bounds = np.arange(1, 2001)
    assert (RowGenerator(keys).integers(bounds) < bounds).all()
    assert (RowGenerator(keys).integers(bounds, bounds + 3, 4) >= bounds[:, None]).all()
    assert abs(RowGenerator(keys).normal(50).std() - 1) < 0.01


def test_a_row_generator_says_what_it_takes():
    """Keys of the loader, bounds that leave room, floats."""
    keys = np.arange(4, dtype=np.uint64)
    with pytest.raises(ConfigError, match="uint64 for each row, got int64"):
        RowGenerator(np.arange(4))
    with pytest.raises(ConfigError, match="low < high"):
        RowGenerator(keys).integers(5, 5)
    with pytest.raises(ConfigError, match="one for each of the 4 rows"):
        RowGenerator(keys).integers([1, 2])
    with pytest.raises(ConfigError, match="float32 or float64"):
        RowGenerator(keys).random(dtype=np.int32)
