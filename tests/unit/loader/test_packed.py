"""Batches of packs: what they hold, in every world, through every stop and start."""

import os
import pathlib
import threading

import numpy as np
import pytest
import torch

from mds import MDSWriter, Packing, StreamingDataLoader, StreamingDataset
from mds._cache.order_files import PackFile
from mds._cache.source import cache_root
from mds._dataset import pack_counts
from mds._index.lengths import KIND, emit_lengths, lengths_name
from mds._index.sidecar import write_sidecar
from mds._iteration.rows import TensorPool
from mds.errors import ArgumentError, ConfigError, IndexFileError, PlanError, StateError
from mds.plan._pack_filling import PackFilling
from mds.storage import open_store
from tests.unit.loader import packed_helpers
from tests.unit.loader.packed_helpers import CAPACITY, COUNT, document, make, packs_of, run

# Fixtures of both halves of these tests.
corpus = packed_helpers.corpus

# torch warns of more workers than this machine has cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def place_of(state):
    """Epoch, place and cursor of a state."""
    return state["epoch"], state["sample_in_epoch"], state["cursor"]


@pytest.mark.parametrize("remainder", ["repeat", "short"])
def test_the_dataset_of_packs_has_a_state_during_an_epoch(corpus, remainder):
    """It is that of the loader, which counts packs; without one, the beginning of the epoch."""
    dataset = make(corpus, remainder=remainder)
    loader = StreamingDataLoader(dataset)
    batches = iter(loader)
    next(batches)
    assert place_of(dataset.state_dict(0)) == (0, 0, "null")
    for _ in batches:
        assert dataset.state_dict() == {**loader.state_dict(), "order_hash": ""}
    assert place_of(dataset.state_dict()) == place_of(loader.state_dict())
    assert dataset.state_dict()["epoch"] == 1 or dataset.state_dict()["finished"]


def test_a_number_of_composer_stands_for_the_position_of_the_loader(corpus):
    """Composer counts rows from the beginning, and only the loader counts packs."""
    dataset = make(corpus)
    loader = StreamingDataLoader(dataset)
    for _ in loader:
        assert place_of(dataset.state_dict(24, True)) == place_of(loader.state_dict())
    ended = dataset.state_dict(0, True)
    assert ended["finished"]
    resumed = StreamingDataLoader(make(corpus))
    resumed.load_state_dict(ended)
    assert place_of(resumed.dataset.state_dict(24, True))[:2] == (1, 0)
    with pytest.raises(ConfigError, match="a position counts packs"):
        dataset.state_dict(24)


def test_every_token_comes_once(corpus):
    """Over all batches; long documents in pieces of the capacity and a rest, others whole."""
    rows, _ = run(corpus)
    found = sorted(piece for row in rows for piece in row)
    expected = [
        tuple(document(i)["tokens"][at : at + CAPACITY].tolist())
        for i in range(COUNT)
        for at in range(0, len(document(i)["tokens"]), CAPACITY)
    ]
    assert found == sorted(expected)


@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_separator_has_no_place_in_other_columns(corpus, is_mapped):
    """Weights of tokens have none for it."""
    dataset = make(corpus, packing=Packing(CAPACITY, packer="concat", separator=3))
    loader = StreamingDataLoader(dataset.map(dict) if is_mapped else dataset)
    with pytest.raises(ConfigError, match=r"column 'weight'.*has no value for it"):
        next(iter(loader))


def test_worker_processes_bring_the_same(corpus):
    """With their cursors, through another process."""
    expected, states = run(corpus)
    loader = StreamingDataLoader(make(corpus), num_workers=2, worker_type="processes")
    found = []
    for step, batch in enumerate(loader):
        found.append(sorted(packs_of(batch)))
        assert loader.state_dict() == states[step]
        del batch
    assert found == expected


def test_what_a_varlen_batch_has(corpus):
    """Types, positions that begin anew, labels without the first of each document."""
    batch = next(iter(StreamingDataLoader(make(corpus))))
    ends = batch["cu_seqlens"].tolist()
    sizes = np.diff(ends)
    assert batch["cu_seqlens"].dtype == torch.int32
    assert all(batch[name].dtype == torch.int64 for name in ("tokens", "labels", "position_ids"))
    assert batch["weight"].dtype == torch.float32
    assert batch["max_seqlen"] == max(sizes)
    assert batch["position_ids"].tolist() == [at for size in sizes for at in range(size)]
    labels = batch["tokens"].clone()
    labels[torch.tensor(ends[:-1])] = -100
    assert torch.equal(batch["labels"], labels)
    assert torch.equal(batch["weight"], batch["tokens"] / 2)
    assert len(batch["name"]) == len(sizes)
    wholes = [(a, n) for a, n, name in zip(ends, sizes, batch["name"], strict=False)]
    for (at, size), name in zip(wholes, batch["name"], strict=True):
        whole = document(int(name[1:]))["tokens"].tolist()
        assert tuple(batch["tokens"][at : at + size].tolist()) in {
            tuple(whole[k : k + CAPACITY]) for k in range(0, len(whole), CAPACITY)
        }


def test_what_a_dense_batch_has(corpus):
    """A pack a row, the same documents in the same order, padding told everywhere."""
    flat = iter(StreamingDataLoader(make(corpus)))
    for batch in StreamingDataLoader(make(corpus, layout="dense")):
        other = next(flat)
        assert batch["tokens"].shape == (24, CAPACITY)
        real = batch["document_ids"] >= 0
        for name in ("tokens", "labels", "position_ids", "weight"):
            assert torch.equal(batch[name][real], other[name]) or (other["tokens"].numel() == 1)
        assert (batch["labels"][~real] == -100).all()
        assert (batch["tokens"][~real] == 0).all()
        for row, mask in zip(batch["document_ids"], real, strict=True):
            numbers = row[mask]
            if len(numbers):
                assert numbers.tolist() == sorted(numbers.tolist())
                assert numbers.unique().tolist() == list(range(int(numbers.max()) + 1))
                assert mask[: len(numbers)].all()


@pytest.mark.parametrize("layout", ["varlen", "dense"])
@pytest.mark.parametrize("overflow", ["split", "drop"])
def test_shifted_labels_are_the_next_tokens_of_a_document(corpus, layout, overflow):
    """A loss that compares them in place is the loss of a model that shifts masked ones itself."""

    def batches(labels):
        packing = Packing(CAPACITY, overflow=overflow, layout=layout, labels=labels)
        return StreamingDataLoader(make(corpus, packing=packing))

    for masked, shifted in zip(batches("masked"), batches("shifted"), strict=True):
        assert torch.equal(masked["tokens"], shifted["tokens"])
        positions = shifted["position_ids"].flatten()
        begins = positions == 0
        if layout == "dense":
            begins |= shifted["document_ids"].flatten() < 0
        tokens, labels = shifted["tokens"].flatten(), shifted["labels"].flatten()
        expected = torch.where(begins[1:], -100, tokens[1:])
        assert torch.equal(labels[:-1], expected)
        assert labels[-1] == -100
        assert torch.equal(labels[:-1], masked["labels"].flatten()[1:])


def test_a_budget_makes_a_batch_of_each_pack(corpus):
    """Documents of like lengths, one a row, below the budget when padded."""
    settings = {"packing": Packing(budget=1000, overflow="split", layout="dense"), "batch_size": 1}
    seen = 0
    for batch in StreamingDataLoader(make(corpus, **settings)):
        assert batch["tokens"].numel() <= 1000
        seen += int((batch["document_ids"] >= 0).sum())
    assert seen == sum(len(document(i)["tokens"]) for i in range(COUNT))
    with pytest.raises(ConfigError, match="batch_size=1"):
        StreamingDataLoader(make(corpus, **{**settings, "batch_size": 2}))


def test_labels_of_the_samples_are_used(tmp_path):
    """Where there is such a column; the first of each document is ignored there too."""
    columns = {"tokens": "ndarray:int32", "labels": "ndarray:int32"}
    with MDSWriter(out=str(tmp_path), columns=columns, lengths="tokens") as writer:
        for _ in range(10):
            writer.write({"tokens": np.arange(5, dtype=np.int32),
                          "labels": np.array([7, -100, 7, 7, 7], np.int32)})  # fmt: skip
    batch = next(iter(StreamingDataLoader(make(str(tmp_path), packing=Packing(10), batch_size=1))))
    assert batch["labels"].tolist() == [-100, -100, 7, 7, 7] * 2


def test_numbers_that_int64_cannot_tell_are_refused(tmp_path):
    """They would come as others."""
    with MDSWriter(
        out=str(tmp_path), columns={"tokens": "ndarray:uint64"}, lengths="tokens"
    ) as out:
        out.write({"tokens": np.array([1, 2**63], np.uint64)})
    settings = {"packing": Packing(10), "batch_size": 1}
    for change in (lambda d: d, lambda d: d.map(dict)):
        with pytest.raises(ConfigError, match=r"'tokens' has a number above 2\*\*63 - 1"):
            list(StreamingDataLoader(change(make(str(tmp_path), **settings))))


def test_an_epoch_without_a_pack_is_an_error(corpus):
    """A training would take no step and not know why."""
    dataset = make(corpus, packing=Packing(1, overflow="drop"), batch_size=1)
    long = dataset.select([i for i in range(COUNT) if len(document(i)["tokens"]) > 1])
    with pytest.raises(PlanError, match="epoch 0 has no pack"):
        list(StreamingDataLoader(long))


def test_a_sample_of_another_length_is_named(tmp_path):
    """With both numbers: a recorded length that is wrong, and a column that does not follow."""
    columns = {"tokens": "ndarray:int32", "mask": "ndarray:int8"}
    with MDSWriter(out=str(tmp_path), columns=columns, lengths="tokens") as writer:
        for i in range(10):
            mask = np.ones(4 if i == 7 else 5, np.int8)
            writer.write({"tokens": np.arange(5, dtype=np.int32), "mask": mask})
    packing = {"packing": Packing(50), "batch_size": 1, "num_canonical_nodes": 1}
    with pytest.raises(ConfigError, match="sample 7 has 4 values in column 'mask' but 5"):
        list(StreamingDataLoader(make(str(tmp_path), **packing)))
    list(StreamingDataLoader(make(str(tmp_path), **packing, columns=["tokens"])))
    dataset = make(str(tmp_path), **packing, columns=["tokens"])
    lengths = np.full(10, 5)
    lengths[3] = 9
    fingerprint = dataset._shards.indexes[0].fingerprint()
    payload = emit_lengths("tokens", lengths)
    write_sidecar(open_store(str(tmp_path)), lengths_name("tokens"), KIND, fingerprint, payload)
    with pytest.raises(IndexFileError, match=r"sample 3 has 5 values.*recorded length is 9"):
        list(StreamingDataLoader(dataset))


def test_an_estimate_says_that_it_is_one(corpus, monkeypatch):
    """Of a large dataset, until a thread has packed the epoch."""
    monkeypatch.setattr(pack_counts, "COUNTED_AT_ONCE", 10)
    dataset = make(corpus, shuffle_seed=77)
    loader = StreamingDataLoader(dataset)
    with pytest.warns(UserWarning, match="estimate: about"):
        about = len(loader)
    pack_counts.counts_by_key.join()
    assert abs(len(loader) - about) <= 1 + about // 5
    assert len(loader) == len(list(loader))


def test_packs_are_counted_once_on_a_machine(corpus, monkeypatch):
    """A later start finds what was counted; a damaged file is counted anew."""
    counted = []
    count = PackFilling.count
    monkeypatch.setattr(PackFilling, "count", lambda packs: counted.append(1) or count(packs))
    monkeypatch.setattr(pack_counts, "COUNTED_AT_ONCE", 10)

    def start():
        """As in another process: nothing is known yet."""
        monkeypatch.setattr(pack_counts, "counts_by_key", pack_counts._KnownCounts())
        return StreamingDataLoader(make(corpus, shuffle_seed=78))

    with pytest.warns(UserWarning, match="estimate"):
        len(start())
    pack_counts.counts_by_key.join()
    exact = len(start())  # a warning would be an error
    assert counted == [1]
    assert exact == len(list(StreamingDataLoader(make(corpus, shuffle_seed=78))))
    files = [path for path in orders().iterdir() if path.name.startswith("packs-")]
    for path in files:
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.warns(UserWarning, match="estimate"):
        len(start())
    pack_counts.counts_by_key.join()
    assert len(start()) == exact
    assert counted == [1, 1]


def orders():
    return pathlib.Path(cache_root()) / "orders"


def test_every_process_counts_where_nothing_can_be_kept(corpus, monkeypatch):
    """The number is the same."""
    exact = len(StreamingDataLoader(make(corpus, shuffle_seed=79)))
    monkeypatch.setattr(pack_counts, "counts_by_key", pack_counts._KnownCounts())
    monkeypatch.setattr(pack_counts, "cache_root", lambda: "/proc/none")
    assert len(StreamingDataLoader(make(corpus, shuffle_seed=79))) == exact


def test_only_the_newest_counts_are_kept(tmp_path):
    """Sixteen epochs."""
    for i in range(30):
        file = PackFile(f"{i:032x}", np.array([2, 0, 1]), str(tmp_path / "orders"))
        file.ensure(lambda: [np.array([3, 4]), np.array([], np.int64), np.array([9])])
    assert [c.tolist() for c in file.read()] == [[3, 4], [], [9]]
    assert sum(p.name.startswith("packs-") for p in (tmp_path / "orders").iterdir()) == 16


def test_a_pipe_under_the_name_of_counts_holds_nobody_up(tmp_path):
    """It is none of ours, so the packs are counted, and the file takes its place."""
    file = PackFile("0" * 32, np.array([2]), str(tmp_path))
    os.mkfifo(file.path)
    reader = threading.Thread(target=file.read, daemon=True)
    reader.start()
    reader.join(60)
    is_held_up = reader.is_alive()
    if is_held_up:  # let go of the thread
        os.close(os.open(file.path, os.O_WRONLY))
    assert not is_held_up
    assert file.read() is None
    assert [c.tolist() for c in file.ensure(lambda: [np.array([3, 4])])] == [[3, 4]]
    assert [c.tolist() for c in file.read()] == [[3, 4]]


def test_explain_tells_of_packs(corpus):
    """Their capacity, about how many there are, and what becomes of long documents."""
    told = make(corpus).explain()
    assert "packs for each rank; 24 for all ranks" in told
    assert "128" in told
    assert "longer documents are cut into pieces" in told


def test_a_state_fits_one_packing(corpus):
    """Another capacity, no packing at all, or a state of samples: refused with the reason."""
    _, states = run(corpus, steps=2)
    other = make(corpus, packing=Packing(200, overflow="split"))
    with pytest.raises(StateError, match="packing_capacity was 128 and is 200"):
        other.load_state_dict(states[0])
    plain = make(corpus, packing=None)
    with pytest.raises(StateError, match=r"counts packs.*packing="):
        plain.load_state_dict(states[0])
    with pytest.raises(StateError, match="counts samples"):
        make(corpus).load_state_dict(plain.state_dict(24))
    with pytest.raises(ConfigError, match="loader"):
        make(corpus).state_dict(24)


def test_a_state_before_the_first_batch_is_the_beginning(corpus):
    """And one of a loaded state that nothing came of is that state."""
    loader = StreamingDataLoader(make(corpus))
    state = loader.state_dict()
    assert place_of(state) == (-1, 0, "null")
    expected, states = run(corpus)
    again = StreamingDataLoader(make(corpus))
    again.load_state_dict(state)
    assert [sorted(packs_of(batch)) for batch in again] == expected
    waiting = StreamingDataLoader(make(corpus))
    waiting.load_state_dict(states[3])
    assert place_of(waiting.state_dict()) == place_of(states[3])


def test_the_hash_of_the_loader_is_that_of_the_plan(corpus):
    """Summed over the ranks, as for samples."""
    from mds.plan import OrderHash

    total = OrderHash()
    for rank in range(4):
        loader = StreamingDataLoader(make(corpus, (4, rank)), num_workers=2)
        for batch in loader:
            del batch
        total.merge(loader.order_hash)
    single = StreamingDataLoader(make(corpus))
    for batch in single:
        del batch
    assert str(total) == str(single.order_hash)


def test_selections_and_shares_go_with_packs(corpus):
    """Numbers of samples are those of the selection, and their lengths are found."""
    chosen = make(corpus).select(np.arange(100, 300))
    found = [p for batch in StreamingDataLoader(chosen) for p in packs_of(batch)]
    assert sum(map(len, found)) >= sum(len(document(i)["tokens"]) for i in range(100, 300))


def test_what_does_not_go_with_packs_is_refused(corpus):
    """Each with the way out."""
    for dataset in (make(corpus), make(corpus, packing=None)):
        with pytest.raises(ArgumentError, match=r"Write Packing\(\.\.\., layout='dense'\)"):
            StreamingDataLoader(dataset, pack_as="dense")
    with pytest.raises(ConfigError, match="collate_fn"):
        StreamingDataLoader(make(corpus), collate_fn=list)
    with pytest.raises(ConfigError, match="only to the dataset"):
        StreamingDataLoader(make(corpus), batch_size=3)
    with pytest.raises(ConfigError, match="columns= leaves it out"):
        StreamingDataLoader(make(corpus, columns=["weight"]))
    with pytest.raises(ConfigError, match="columns= leaves it out"):
        iter(make(corpus, columns=["weight"]))
    with pytest.raises(ConfigError, match="packing must be a Packing"):
        make(corpus, packing=True)
    with pytest.raises(PlanError, match=r"overflow='split'\), or 'truncate' or 'drop'"):
        list(StreamingDataLoader(make(corpus, packing=Packing(CAPACITY))))


def test_a_cache_limit_and_a_remote_change_nothing(corpus, tmp_path):
    """Shards come and go while packs are made."""
    expected, _ = run(corpus)
    dataset = StreamingDataset(
        remote=corpus, local=str(tmp_path), shuffle=True, shuffle_algo="seekable",
        num_canonical_nodes=4, shuffle_block_size=60, batch_size=24, cache_limit="100kb",
        packing=Packing(CAPACITY, overflow="split"),
    )  # fmt: skip
    assert [sorted(packs_of(batch)) for batch in StreamingDataLoader(dataset)] == expected


def test_columns_of_packs_are_made_in_memory_of_earlier_batches(tmp_path, monkeypatch):
    """Memory that is new each time costs more than the copies."""
    with MDSWriter(out=str(tmp_path), columns={"tokens": "ndarray:int32"}, lengths="tokens") as out:
        for length in [8000, 191] * 80:
            out.write({"tokens": np.full(length, 7, np.int32)})
    taken = []
    fitting = TensorPool._fitting

    def note(pool, size):
        free = {*map(id, pool._free)}
        taken.append(id(block := fitting(pool, size)) in free)
        return block

    monkeypatch.setattr(TensorPool, "_fitting", note)
    for batch in StreamingDataLoader(make(str(tmp_path), packing=Packing(8192), batch_size=8)):
        assert batch["tokens"].numel() < 8 * 8192
        del batch
    assert len(taken) == 10 * 3
    assert sum(taken) >= 9 * 3
