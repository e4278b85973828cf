"""Readers of mds shards: samples, columns, projection, and what is refused."""

import os
import pickle

import numpy as np
import pytest

from mds._index.table import Index, read_index
from mds._readers import make_decoder, open_reader, open_sparse
from mds._readers.gather import gather, unique_stable
from mds.errors import ConfigError, NotFoundError, ShardError, UnsafeTypeError

SHAPES = ["mixed", "fixed"]


@pytest.fixture(params=SHAPES)
def shape(request, kit, tmp_path):
    """A dataset of two shards and the function that makes its samples."""
    folder = getattr(kit, request.param)(tmp_path / "data", 20, 7)
    return folder, getattr(kit, f"{request.param}_sample")


def test_samples_are_what_was_written(kit, shape):
    """reader[i] gives every sample, value by value and type by type."""
    folder, make = shape
    first, second = kit.readers(folder)
    assert [len(first), len(second)] == [20, 7]
    assert all(kit.same(first[i], make(i)) for i in range(20))
    assert all(kit.same(sample, make(20 + i)) for i, sample in enumerate(second))


def test_columns_are_the_samples_turned(kit, shape):
    """rows(...) holds the same values as the samples one by one."""
    folder, _ = shape
    reader = kit.readers(folder)[0]
    numbers = [3, 19, 0, 3, 7]
    batch = reader.rows(numbers)
    for name, values in batch.items():
        singles = [reader[i][name] for i in numbers]
        assert len(values) == 5
        if isinstance(values, np.ndarray):
            assert values.flags.writeable
            assert values.flags.aligned
            assert np.array_equal(values, np.stack([np.asarray(one) for one in singles]))
        else:
            assert kit.same(values, singles)
    assert set(batch) == set(reader[0])


def test_fixed_width_columns_come_as_arrays(kit, shape):
    """Numbers and arrays of one shape are a numpy array of (rows, *shape), also beside text."""
    folder, _ = shape
    batch = kit.readers(folder)[0].rows(np.arange(4))
    arrays = {name: v.shape for name, v in batch.items() if isinstance(v, np.ndarray)}
    if "grid" in batch:
        assert arrays == {"grid": (4, 2, 3), "id": (4,), "label": (4,), "tokens": (4, 5)}
    else:
        assert arrays == {"array": (4, 3), "flag": (4,), "half": (4,), "number": (4,), "wide": (4,)}


def test_no_rows_are_no_values(kit, shape):
    """An empty selection gives empty columns of the right kind."""
    folder, _ = shape
    reader = kit.readers(folder)[0]
    batch = reader.rows([])
    for name, values in reader.rows([1]).items():
        assert type(batch[name]) is type(values)
        assert len(batch[name]) == 0


def test_rows_count_from_the_end_and_end(kit, shape):
    """Negative rows count from the end; others out of range are an IndexError with the file."""
    folder, make = shape
    reader = kit.readers(folder)[1]
    assert kit.same(reader[-1], make(26))
    assert kit.same(reader.samples(np.array([-7, -1])), [make(20), make(26)])
    for wrong in (7, -8, 2**40):
        with pytest.raises(IndexError, match=r"shard\.00001"):
            reader[wrong]
        with pytest.raises(IndexError, match=r"shard\.00001"):
            reader.rows([0, wrong])
    assert 6 in reader
    assert 7 not in reader
    assert -1 not in reader


def test_chosen_columns_only(kit, shape):
    """With columns= the others are neither given nor decoded."""
    folder, make = shape
    names = ["json", "number"] if "json" in make(0) else ["label"]
    reader = kit.readers(folder, columns=names)[0]
    assert kit.same(reader[4], {name: make(4)[name] for name in names})
    assert sorted(reader.rows([1, 2])) == names
    with pytest.raises(ConfigError, match="no column 'nope'"):
        kit.readers(folder, columns=["nope"])


def test_columns_that_are_not_chosen_are_not_decoded(kit, tmp_path):
    """Damage in a column that nobody wants is not met."""
    data, entry = kit.pack({"a": "int", "j": "str"}, [{"a": 5, "j": b"\xff\xfe"}])
    (tmp_path / "shard.00000.mds").write_bytes(data)
    entry["raw_data"] = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    info = Index.build([entry]).shard(0)
    assert open_reader(str(tmp_path), info, columns=["a"])[0] == {"a": 5}
    with pytest.raises(ValueError, match=r"shard\.00000\.mds, sample 0, column 'j'"):
        open_reader(str(tmp_path), info)[0]


def test_stored_bytes_decode_by_themselves(kit, shape):
    """make_decoder gives of a sample's bytes what the reader gives of the file."""
    folder, make = shape
    reader = kit.readers(folder)[0]
    decoder = make_decoder(reader.schema)
    for i in (0, 7, 19):
        assert kit.same(decoder(reader.sample_bytes(i)), make(i))
        assert kit.same(decoder(memoryview(bytes(reader.sample_bytes(i)))), make(i))
    with pytest.raises(ValueError, match="from the wire"):
        make_decoder(reader.schema, source="from the wire")(memoryview(b"ab"))


def test_a_sparse_reader_knows_its_rows_only(kit, shape):
    """Rows fetched one by one read like those of the whole shard; others are an IndexError."""
    folder, make = shape
    whole = kit.readers(folder)[0]
    info = read_index(str(folder / "index.json")).shard(0)
    some = open_sparse(info, {r: bytes(whole.sample_bytes(r)) for r in (12, 3, 19)}, "shard")
    assert kit.same(some[3], make(3))
    assert kit.same(list(some), [make(12), make(3), make(19)])
    assert [r in some for r in (3, 4, 19)] == [True, False, True]
    ours, theirs = some.rows([19, 3]), whole.rows([19, 3])
    assert all(kit.same(ours[name], theirs[name]) for name in theirs)
    with pytest.raises(IndexError, match="sample 4 is not among the 3"):
        some[4]
    with pytest.raises(IndexError):
        some.rows([3, 4])
    assert bytes(some.sample_bytes(12)) == bytes(whole.sample_bytes(12))


def test_views_outlive_their_reader(kit, tmp_path):
    """close() copes with arrays that are still in use, and they keep their values."""
    reader = kit.readers(kit.fixed(tmp_path / "data", 9))[0]
    sample, part = reader[3], reader.sample_bytes(2)
    before = bytes(part)
    reader.close()
    reader.close()
    os.unlink(tmp_path / "data" / "shard.00000.mds")
    assert kit.same(sample, kit.fixed_sample(3))
    assert bytes(part) == before
    for use in (lambda: reader[0], lambda: reader.rows([0]), lambda: reader.sample_bytes(0)):
        with pytest.raises(ShardError, match="closed"):
            use()
    assert "closed" in repr(reader)


def test_pickles_are_refused_at_every_door(kit, tmp_path):
    """No reader and no decoder is made for pickles unless they are allowed."""
    folder = kit.write(tmp_path / "data", {"x": "list[pkl]"}, [[{"x": [{1, 2}]}]])
    info = read_index(str(folder / "index.json")).shard(0)
    doors = [
        lambda **k: open_reader(str(folder), info, **k),
        lambda **k: make_decoder(info.schema, **k),
        lambda **k: open_sparse(info, {}, "shard", **k),
        lambda **k: open_reader(str(folder), info, columns=[], **k),
    ]
    for door in doors:
        with pytest.raises(UnsafeTypeError, match="allow_unsafe_types=True"):
            door()
        door(allow_unsafe_types=True)
    assert doors[0](allow_unsafe_types=True)[0] == {"x": [{1, 2}]}


def test_a_shard_without_samples(kit, tmp_path):
    """Zero samples read as none, fixed-width or not."""
    for reader in [
        kit.readers(kit.fixed(tmp_path / "fixed", 0))[0],
        kit.readers(kit.mixed(tmp_path / "mixed", 0))[0],
    ]:
        assert len(reader) == 0
        assert list(reader) == []
        assert all(len(column) == 0 for column in reader.rows([]).values())
        with pytest.raises(IndexError):
            reader[0]


def test_samples_without_columns(kit, tmp_path):
    """A dataset of no columns has empty samples."""
    reader = kit.readers(kit.write(tmp_path / "data", {}, [[{}, {}]]))[0]
    assert list(reader) == [{}, {}]


def test_files_that_are_not_the_shard(kit, tmp_path):
    """A missing file, another size, a folder and a pipe are refused by name, at once."""
    folder = kit.mixed(tmp_path / "data", 3)
    path = folder / "shard.00000.mds"
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(NotFoundError, match=r"shard\.00000\.mds"):
        kit.readers(folder)
    path.write_bytes(data[:-1])
    with pytest.raises(
        ShardError, match=rf"has {len(data) - 1} bytes, but its index says {len(data)}"
    ):
        kit.readers(folder)
    path.write_bytes(b"")
    with pytest.raises(ShardError, match="has 0 bytes"):
        kit.readers(folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(ShardError, match="not a file"):
        kit.readers(folder)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(ShardError, match="not a file"):
        kit.readers(folder)


def test_a_folder_that_is_a_link_does_not_lead_outside(kit, tmp_path):
    """A basename through a linked folder is refused; a linked file, as hubs make them, is read."""
    folder = kit.mixed(tmp_path / "data", 3)
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "shard.00000.mds").rename(outside / "shard.00000.mds")
    (folder / "shard.00000.mds").symlink_to(outside / "shard.00000.mds")
    assert kit.same(kit.readers(folder)[0][0], kit.mixed_sample(0))
    (folder / "link").symlink_to(outside)
    index = (folder / "index.json").read_text()
    (folder / "index.json").write_text(index.replace('"shard.', '"link/shard.'))
    with pytest.raises(ShardError, match="is a link to a place outside"):
        kit.readers(folder)


def test_gather_is_the_samples_in_their_order(kit, tmp_path):
    """Rows of several shards become one batch, by runs, by groups and one by one."""
    rng = np.random.default_rng(0)
    for name in SHAPES:
        folder = getattr(kit, name)(tmp_path / name, 40, 30, 50)
        readers = dict(enumerate(kit.readers(folder)))
        counts = [40, 30, 50]
        picks = [
            (np.repeat([0, 1, 2], 30), np.tile(np.arange(30), 3)),
            (
                shards := rng.integers(0, 3, 300),
                np.array([rng.integers(counts[s]) for s in shards]),
            ),
            (np.array([2, 0, 1, 2]), np.array([49, 3, 29, 0])),
            (np.full(5, 1), np.array([4, 4, 3, 29, 0])),
            (np.full(4, 2), np.arange(10, 14)),
        ]
        for shards, rows in picks:
            batch = gather(readers, shards, rows)
            samples = [readers[s][r] for s, r in zip(shards.tolist(), rows.tolist(), strict=True)]
            for column, values in batch.items():
                assert len(values) == len(rows)
                got = values if isinstance(values, list) else list(values)
                for one, sample in zip(got, samples, strict=True):
                    assert np.array_equal(one, sample[column])
                if isinstance(values, np.ndarray):
                    assert values.flags.writeable
                    assert values.base is None or values.base.base is None


def test_gather_fills_what_it_is_given(kit, tmp_path):
    """out= arrays are filled in place, and refused when they do not fit."""
    readers = dict(enumerate(kit.readers(kit.fixed(tmp_path / "data", 6, 6))))
    out = {"tokens": np.zeros((4, 5), np.int32)}
    batch = gather(readers, [0, 1, 1, 0], [5, 0, 1, 2], ["tokens", "id"], out)
    assert batch["tokens"] is out["tokens"]
    assert sorted(batch) == ["id", "tokens"]
    assert out["tokens"][:, 0].tolist() == [5, 6, 7, 2]
    bad = [np.zeros((4, 5), np.int64), np.zeros((3, 5), np.int32), np.zeros((5, 4), np.int32).T]
    for array in bad:
        with pytest.raises(ShardError, match="out"):
            gather(readers, [0, 1, 1, 0], [5, 0, 1, 2], None, {"tokens": array})


def test_gather_refuses_what_makes_no_batch(kit, tmp_path):
    """Rows out of range, unequal lengths and shards of other columns are errors."""
    fixed = dict(enumerate(kit.readers(kit.fixed(tmp_path / "fixed", 6, 6))))
    mixed = kit.readers(kit.mixed(tmp_path / "mixed", 6))[0]
    assert gather(fixed, [], []) == {}
    for rows in ([0, 6], [0, -1]):
        with pytest.raises(IndexError):
            gather(fixed, [0, 1], rows)
        with pytest.raises(IndexError):
            gather(fixed, [0, 0], rows)
    with pytest.raises(ShardError, match="each sample needs one of both"):
        gather(fixed, [0, 1], [0])
    with pytest.raises(ShardError, match="columns"):
        gather({0: fixed[0], 1: mixed}, [0, 1], [0, 0])


def test_errors_of_readers_travel_between_processes(kit, tmp_path):
    """A reader's error is pickled and comes back with its words."""
    folder = kit.mixed(tmp_path / "data", 3)
    (folder / "shard.00000.mds").unlink()
    with pytest.raises(NotFoundError) as caught:
        kit.readers(folder)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (NotFoundError, str(caught.value))


def test_distinct_shards_keep_the_order_of_their_first_use():
    """Nearest deadline first; none of none."""
    assert unique_stable(np.array([5, 2, 2, 5, 9, 2])) == [5, 2, 9]
    assert unique_stable(np.zeros(0, np.int64)) == []
    many = np.random.default_rng(0).integers(0, 40, 3000)
    for shards in (many, many * 10**9):  # small numbers are found by their places
        assert unique_stable(shards) == list(dict.fromkeys(shards.tolist()))
