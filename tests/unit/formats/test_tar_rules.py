"""Rules for tars: which files are samples, compression, and records that are no samples."""

import bz2
import gzip
import io
import itertools
import lzma
import re
import struct
import tarfile

import numpy as np
import pytest
import tars
from PIL import Image

import mds
from mds.errors import FormatError, MdsError
from mds.formats import Block, DataFile, Files, Problem, Tar
from mds.formats._columns import as_columns
from mds.formats._facts import ShardPlace
from mds.formats._tar_places import TarPlaces
from mds.storage import open_store
from mds.storage._memory import MemoryStore

_STORES = itertools.count()


def put(folder, name, files, pack=bytes):
    """Write a tar of (name, bytes), compressed by a function."""
    folder.mkdir(exist_ok=True)
    tars.by_python(folder / name, files)
    (folder / name).write_bytes(pack((folder / name).read_bytes()))


def far(folder):
    """Return the folder in a store that is behind a network."""
    store = MemoryStore(f"memory://tar-rules-{next(_STORES)}")
    for path in folder.iterdir():
        store.put(path.name, path.read_bytes())
    return store


def samples_of(folder, tmp_path, way, **options):
    """Read all samples of a folder of tars in one way."""
    out = tmp_path / f"{way}-{next(_STORES)}"
    if way == "in place":
        return list(mds.StreamingDataset(str(folder), batch_size=1, **options))
    if way == "fetched":
        url = far(folder).url
        dataset = mds.StreamingDataset(remote=url, local=str(out), format="tar", batch_size=1)
        return list(dataset)
    mds.convert(str(folder), str(out), keep_shards=way == "kept shards", **options)
    return list(mds.StreamingDataset(str(out), batch_size=1))


WAYS = ["in place", "fetched", "kept shards", "convert"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.tar.gz", gzip.compress),
        ("a.tgz", gzip.compress),
        ("a.tar.bz2", bz2.compress),
        ("a.tar.xz", lzma.compress),
        ("a.tar", gzip.compress),
        ("a.tgz", bytes),
    ],
)
def test_a_tar_is_decompressed_by_its_content(tmp_path, way, name, pack):
    """Compressed tars are read in every way; an ending that is wrong does not matter."""
    samples = [{"txt": b"a", "cls": b"1"}, {"txt": b"b", "cls": b"2"}]
    put(tmp_path / "t", name, tars.members(samples, "{}"), pack)
    put(tmp_path / "t", "b.tar", [("x.txt", b"c"), ("x.cls", b"3")])
    assert samples_of(tmp_path / "t", tmp_path, way) == [
        {"__key__": "0", "cls": 1, "txt": "a"},
        {"__key__": "1", "cls": 2, "txt": "b"},
        {"__key__": "x", "cls": 3, "txt": "c"},
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("damage", ["cut", "changed", "tar cut"])
def test_a_damaged_compressed_tar_is_named(tmp_path, way, damage):
    """Damage of the compression, and of the tar in it, is an error with the file."""
    files = [(f"{n}.bin", np.random.default_rng(n).bytes(50_000)) for n in range(9)]
    put(tmp_path / "t", "a.tar.gz", files)
    data = (tmp_path / "t" / "a.tar.gz").read_bytes()
    packed = gzip.compress(data if damage != "tar cut" else data[:270_000])
    if damage == "cut":
        packed = packed[:200_000]
    if damage == "changed":
        packed = packed[:200_000] + bytes(1000) + packed[201_000:]
    (tmp_path / "t" / "a.tar.gz").write_bytes(packed)
    with pytest.raises(MdsError, match=r"a\.tar\.gz") as caught:
        samples_of(tmp_path / "t", tmp_path, way)
    words = {"cut": "end too early", "changed": "damaged", "tar cut": "sample '?5'?: the tar ends"}
    assert re.search(words[damage], str(caught.value))


@pytest.mark.parametrize("way", WAYS)
def test_hidden_files_in_a_tar_are_those_of_a_folder(tmp_path, way):
    """Names that begin with a dot, and folders that begin with two underscores, are left out."""
    names = [".a.txt", ".git/1.txt", "__MACOSX/x.txt", "d/__x/2.txt", "d/Thumbs.db"]
    seen = ["./0.txt", "../1.txt", "_a/2.txt", "d/__3.txt"]
    put(tmp_path / "t", "a.tar", [(name, name.encode()) for name in [*names, *seen]])
    found = samples_of(tmp_path / "t", tmp_path, way)
    assert [sample["txt"] for sample in found] == seen


def test_a_tar_of_hidden_files_names_one(tmp_path):
    """If no file of a tar can be a sample, the error says why."""
    put(tmp_path / "t", "a.tar", [(".git/1.txt", b"a")])
    with pytest.raises(FormatError, match=r"a\.tar: .*are hidden, such as '\.git/1\.txt'"):
        samples_of(tmp_path / "t", tmp_path, "in place")


# --------------------------------------------------------------------- records that are no samples

#: By name: the files of a tar whose second sample is none, and words of its problem.
BROKEN = {
    "number": (
        [("0.json", b"1"), ("k1.json", b"{"), ("2.json", b"3")],
        "k1', file .json: Expecting property name",
    ),
    "twice": ([("0.a", b"1"), ("k1.a", b"2"), ("k1.a", b"2"), ("2.a", b"3")], "exists twice"),
    "last twice": ([("0.a", b"1"), ("k1.a", b"2"), ("k1.a", b"2")], "'k1.a' exists twice"),
    "key": ([("0.a", b"1"), ("k1.__key__", b"2"), ("2.a", b"3")], "which is the column of names"),
    "array": ([("0.npy", tars.npy(np.arange(3))), ("k1.npy", b"x")], "k1', file .npy: "),
    "text": (
        [("0.txt", b"a"), ("k1.txt", b"\xff"), ("2.txt", b"b")],
        "k1', file .txt: byte 0xff is not UTF-8",
    ),
}


def blocks_of(folder, *, is_far, counted=True):
    """Return what the blocks of the only tar of a folder give: keys of samples, and problems."""
    files = Files(far(folder) if is_far else open_store(str(folder)))
    (file,) = Tar().find(mds.formats._source.parse_place(str(folder)), files).files
    kind = Tar()
    plan = (kind.plan_file if counted else kind.plan_uncounted)(file, files)
    columns = as_columns(kind.merge([(file.key, plan.columns)]))
    shard = ShardPlace(file, (0, 0), plan.samples[0], plan.note, columns)
    return kind, shard, files


def items_of(kind, shard, files):
    """Return the number of samples of each block of a shard, and its problems, in order."""
    return [
        item if isinstance(item, Problem) else len(item.sizes) for item in kind.blocks(shard, files)
    ]


@pytest.mark.parametrize("is_far", [False, True])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("name", BROKEN)
def test_a_record_that_is_no_sample_is_a_problem_in_its_place(tmp_path, name, counted, is_far):
    """Planning does not raise; the samples around the record are read, and it is located."""
    files, words = BROKEN[name]
    put(tmp_path, "a.tar", files)
    items = items_of(*blocks_of(tmp_path, is_far=is_far, counted=counted))
    problem = items.pop(1)
    assert str(problem).startswith(problem.location)
    assert "a.tar, sample 'k1'" in problem.location
    assert words in str(problem)
    assert items == ([1] if len(files) == 2 or "last" in name else [1, 1])


@pytest.mark.parametrize("way", ["in place", "fetched"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_record_that_is_no_sample_raises_when_it_is_read(tmp_path, name, way):
    """The other samples of the tar can be read by number."""
    files, words = BROKEN[name]
    put(tmp_path / "t", "a.tar", files)
    remote = far(tmp_path / "t").url if way == "fetched" else str(tmp_path / "t")
    local = str(tmp_path / "c") if way == "fetched" else None
    dataset = mds.StreamingDataset(remote=remote, local=local, format="tar", batch_size=1)
    if way == "in place":  # else the whole shard is fetched, with the record
        assert dataset[0]["__key__"] == "0"
    with pytest.raises(FormatError, match=r"a\.tar, sample 'k1'") as caught:
        dataset[1]
    assert words in str(caught.value)


def test_a_key_that_is_repeated_is_a_problem(tmp_path):
    """A late file of a sample is not dropped, nor a sample of its own, also behind a sidecar."""
    files = [("k0.txt", b"a"), ("k1.txt", b"b"), ("k0.txt", b"c"), ("k2.txt", b"d")]
    put(tmp_path, "a.tar", files)
    for is_far, counted in itertools.product([False, True], repeat=2):
        *others, problem, last = items_of(*blocks_of(tmp_path, is_far=is_far, counted=counted))
        assert (sum(others), last) == (2, 1)
        assert "a.tar, sample 'k0': an earlier sample has the same key" in str(problem)
    with tarfile.open(tmp_path / "a.tar") as tar:
        starts = [*[each.offset for each in tar], tar.offset]
    (tmp_path / "a.tar.idx").write_bytes(struct.pack("<5Q", *starts))
    dataset = mds.StreamingDataset(str(tmp_path), format="tar", batch_size=1)
    assert [dataset[row]["txt"] for row in (0, 1, 3)] == ["a", "b", "d"]
    with pytest.raises(FormatError, match="sample 'k0': an earlier sample has the same key"):
        dataset[2]


@pytest.mark.parametrize("counted", [False, True])
def test_rows_of_a_remote_tar_raise_a_problem(tmp_path, counted):
    """Some rows alone are read by range; a record that is none raises its problem."""
    put(tmp_path, "a.tar", BROKEN["twice"][0])
    kind, shard, files = blocks_of(tmp_path, is_far=True)
    assert [*kind.rows(shard, [0, 2], files)] == [0, 2]
    with pytest.raises(FormatError, match=r"a\.tar, sample 'k1': .*exists twice"):
        kind.rows(shard, [0, 1], files)


# --------------------------------------------------------------------- values


@pytest.mark.parametrize("way", ["in place", "fetched", "kept shards"])
def test_arrays_of_one_column_have_one_type(tmp_path, way):
    """Integers become floats if no value changes; empty arrays and single numbers are kept."""
    arrays = [np.arange(3), np.arange(4.0), np.zeros((2, 0)), np.array(5)]
    files = [(f"{number}.npy", tars.npy(array)) for number, array in enumerate(arrays)]
    put(tmp_path / "t", "a.tar", files)
    found = [sample["npy"] for sample in samples_of(tmp_path / "t", tmp_path, way)]
    assert {array.dtype for array in found} == {np.dtype("float64")}
    assert [array.shape for array in found] == [array.shape for array in arrays]
    assert all(np.array_equal(one, other) for one, other in zip(found, arrays, strict=True))


def test_an_integer_that_a_float_cannot_hold_is_a_problem(tmp_path):
    """An array whose numbers would change is not rounded."""
    files = [("0.npy", tars.npy(np.arange(4.0))), ("1.npy", tars.npy(np.array([2**53 + 1])))]
    put(tmp_path, "a.tar", files)
    items = items_of(*blocks_of(tmp_path, is_far=False))
    assert items[0] == 1
    assert "a.tar, sample '1', file .npy: " in str(items[1])


# --------------------------------------------------------------------- conversions


@pytest.mark.parametrize("size", [1, 3000, 1 << 20])
def test_a_tar_on_a_disk_is_cut_between_samples(tmp_path, size):
    """Pieces have all samples of a tar in order, with problems, and locate their own rows."""
    samples = [tars.sample(i) for i in range(40)]
    files = tars.members(samples)
    files[100:100] = [("twice.txt", b"a"), ("twice.txt", b"b")]
    put(tmp_path, "a.tar", files)
    kind, shard, opened = blocks_of(tmp_path, is_far=False, counted=False)
    assert shard.samples == 41
    pieces = list(kind.cut(shard, opened, size))
    assert len(pieces) == {1: 41, 3000: len(pieces), 1 << 20: 1}[size]
    assert sum(piece.samples for piece in pieces) == 41
    assert sum(len(piece.note) for piece in pieces) < len(shard.note) + 400 * len(pieces)

    def bytes_of(shard):
        items = list(kind.blocks(shard, opened))
        return [str(item) if isinstance(item, Problem) else item.data for item in items], sum(
            len(item.sizes) for item in items if isinstance(item, Block)
        )

    whole, count = bytes_of(shard)
    parts = [bytes_of(piece) for piece in pieces]
    assert sum(each for _, each in parts) == count == 40

    def joined(items):
        return b"".join(item.encode() if isinstance(item, str) else item for item in items)

    assert joined(itertools.chain.from_iterable(items for items, _ in parts)) == joined(whole)
    last = pieces[-1]
    assert kind.location_of(last, last.samples - 1, opened).endswith("a.tar, sample '000039'")


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_a_conversion_does_not_read_a_remote_tar_twice(tmp_path, name):
    """Planning reads its beginning; the number of its samples stays unknown."""
    pack = gzip.compress if name.endswith("gz") else bytes
    rng = np.random.default_rng(0)
    samples = [{"bin": rng.bytes(200_000), "txt": b"%d" % i} for i in range(40)]
    put(tmp_path, name, tars.members(samples), pack)
    files = Files(far(tmp_path))
    file = DataFile(name, (tmp_path / name).stat().st_size)
    plan = Tar().plan_uncounted(file, files)
    assert plan.samples == [-1]
    assert plan.columns == {"__key__": "str", "bin": "bytes", "txt": "str"}
    shard = ShardPlace(file, (0, 0), -1, plan.note, as_columns(plan.columns))
    assert list(Tar().cut(shard, files, 1)) == [shard]
    assert sum(len(block.sizes) for block in Tar().blocks(shard, files)) == 40


@pytest.mark.parametrize("note", ["places", "begins", "count", "compressed"])
def test_the_location_of_a_sample_in_a_tar_is_its_key(tmp_path, note):
    """Whatever a plan knows of the tar, local and remote."""
    files = [(f"d/{'x' * 120}{i}.{e}", b"%d" % i) for i in range(4) for e in ("a", "b")]
    name = "a.tar.gz" if note == "compressed" else "a.tar"
    put(tmp_path, name, files, gzip.compress if note == "compressed" else bytes)
    if note == "begins":
        with tarfile.open(tmp_path / "a.tar") as tar:
            starts = [*[each.offset for each in tar][::2], tar.offset]
        (tmp_path / "a.tar.idx").write_bytes(struct.pack("<5Q", *starts))
    if note == "count":
        (tmp_path / "a_stats.json").write_text('{"successes": 4}')
    for is_far in (False, True):
        kind, shard, opened = blocks_of(tmp_path, is_far=is_far)
        location = kind.location_of(shard, 2, opened)
        assert location.endswith(f"{name}, sample 'd/{'x' * 120}2'")


def jpeg():
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG")
    return file.getvalue()


def test_a_picture_that_cannot_be_decoded_is_located_by_its_key(tmp_path):
    """The error of decoding names the tar and the sample."""
    put(tmp_path / "t", "a.tar", [("k0.jpg", jpeg()), ("k1.jpg", jpeg()[:20]), ("k2.jpg", jpeg())])
    dataset = mds.StreamingDataset(str(tmp_path / "t"), batch_size=1, images="array")
    assert dataset[2]["jpg"].shape == (8, 8, 3)
    with pytest.raises(MdsError, match=r"a\.tar, sample 'k1', column 'jpg'"):
        dataset[1]


@pytest.mark.parametrize("way", ["in place", "convert", "skip"])
@pytest.mark.parametrize("name", [*BROKEN, "picture"])
def test_the_same_samples_are_left_out_in_place_and_converted(tmp_path, way, name):
    """Records that are no samples raise the same error, or are skipped, in both ways."""
    broken = {**BROKEN, "picture": ([("0.jpg", jpeg()), ("k1.jpg", b"hello")], "no picture")}
    put(tmp_path / "t", "a.tar", broken[name][0])
    if way == "skip":
        mds.convert(str(tmp_path / "t"), str(tmp_path / "out"), on_error="skip")
        converted = list(mds.StreamingDataset(str(tmp_path / "out"), batch_size=1))
        dataset = mds.StreamingDataset(str(tmp_path / "t"), batch_size=1, on_error="skip")
        assert [each["__key__"] for each in converted] == [each["__key__"] for each in dataset]
        assert len(converted) == len({key.split(".")[0] for key, _ in broken[name][0]}) - 1
    else:
        with pytest.raises(MdsError, match=r"a\.tar, sample 'k1'"):
            samples_of(tmp_path / "t", tmp_path, way)


def test_places_of_problems_are_checked():
    """A table whose numbers of problems are impossible is refused."""
    starts = np.array([0, 4, 8, 12], "<u1")
    ones = np.array([1, 0, 1], "<u1")
    good = TarPlaces(starts, {"a": (ones, ones)}, np.array([1], "<u1"))
    file = DataFile("a.tar", 1 << 20)
    columns = as_columns({"a": "bytes"})
    head = mds.formats._columns.note_of(["__key__", "a"])

    def parse(places):
        return TarPlaces.of(ShardPlace(file, (0, 0), 3, head + places.to_bytes(), columns))

    assert parse(good).problems.tolist() == [1]
    assert [*parse(good).split(range(3))] == [range(1), 1, range(2, 3)]
    for wrong in ([0], [2, 1], [3], [1, 1], [0, 1]):
        with pytest.raises(FormatError, match="Delete the table, or run mds index again"):
            parse(TarPlaces(starts, good.files, np.array(wrong, "<u1")))
