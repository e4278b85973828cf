"""Tars of several programs are read, and what is wrong with one is told by name."""

import io
import itertools
import json
import struct
import tarfile

import numpy as np
import pytest
import tars
from click.testing import CliRunner
from PIL import Image

from mds import LocalDataset, StreamingDataset
from mds._cli import main
from mds.errors import FormatError, SourceError
from mds.formats import DataFile, Files, Tar
from mds.formats._tar_members import Arriving, members
from mds.storage._memory import MemoryStore
from mds.writers.convert import convert

_STORES = itertools.count()
LONG = "folder/" * 30 + "{:06}"


def found_in(path):
    data = path.read_bytes()
    whole = [
        (each.name, data[each.start : each.start + each.size])
        for each in members(lambda start, end: data[start:end], "x.tar", len(data))
    ]
    for step in (1, 700, 1 << 20):  # as it comes over a wire
        source = Arriving(iter([data[at : at + step] for at in range(0, len(data), step)]))
        arrived = []
        for each in members(source.read, "x.tar", len(data)):
            arrived.append((each.name, source.read(each.start, each.start + each.size)))
            source.forget(each.start)
        assert arrived == whole
    return whole


@pytest.mark.parametrize("key", ["{:06}", "d.x/{:06}", LONG, "é/ü-{:06}"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_of_python(tmp_path, form, key):
    """All files with their names and bytes, in each form that there is."""
    if form == tarfile.USTAR_FORMAT and key == LONG:
        key = "folder/" * 12 + "{:06}"
    files = tars.members([tars.sample(i) for i in range(5)], key)
    tars.by_python(tmp_path / "x.tar", files, form)
    assert found_in(tmp_path / "x.tar") == files


@pytest.mark.parametrize("options", [[], ["--format=posix"], ["--format=ustar"], ["--format=v7"]])
def test_tars_of_gnu_tar(tmp_path, options):
    """What GNU tar writes, with names as long as the form takes."""
    key = LONG if options in ([], ["--format=posix"]) else "d.x/{:06}"
    files = tars.members([tars.sample(i) for i in range(5)], key)
    tars.by_gnu_tar(tmp_path / "x.tar", files, tmp_path / "disk", *options)
    assert found_in(tmp_path / "x.tar") == files


@pytest.mark.parametrize("recorded", [tars.BSDTAR, tars.WEBDATASET], ids=["bsdtar", "webdataset"])
def test_tars_of_other_programs(tmp_path, recorded):
    """A long name that is no ASCII, and values, as bsdtar and webdataset wrote them."""
    (tmp_path / "x.tar").write_bytes(tars.recorded(recorded))
    found_in(tmp_path / "x.tar")
    key = "é/" + "long/" * 30 + "{:06}"
    dataset = StreamingDataset(local=str(tmp_path / "c"), remote=str(tmp_path / "x.tar"))
    assert list(dataset) == [
        {"__key__": key.format(0), "cls": 7, "txt": "é"},
        {"__key__": key.format(1), "cls": 8, "txt": "two"},
    ]


def test_large_sizes_are_read_in_each_form():
    """Sizes above 8 GB are binary in GNU tars and text in PAX tars."""
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        info = tarfile.TarInfo("big.bin")
        info.size = 9 << 30
        header = info.tobuf(form)

        size = len(header) + (9 << 30) + 1024

        def read(start, end, header=header, size=size):
            return header[start:end] if start < len(header) else bytes(min(end, size) - start)

        (member,) = members(read, "x.tar", size)
        assert (member.name, member.size) == ("big.bin", 9 << 30)
        with pytest.raises(FormatError, match=r"'big.bin' has 9,663,676,416 bytes"):
            list(members(read, "x.tar", len(header) + 5))


def test_headers_alone_are_read():
    """To count files of 100 KB, a block is read of each."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for number in range(50):
            info = tarfile.TarInfo(f"{number}.bin")
            info.size = 100_000
            tar.addfile(info, io.BytesIO(bytes(100_000)))
    data, asked = file.getvalue(), []

    def read(start, end):
        asked.append(end - start)
        return data[start:end]

    assert len(list(members(read, "x.tar", len(data)))) == 50
    assert len([size for size in asked if size == 512]) == 51
    assert sum(asked) < 51 * 512 + 3 * 65536


def test_damage_is_told():
    """No tar, another header, an end too early, a second archive behind the end."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number in range(3):
            info = tarfile.TarInfo(f"{number}.bin")
            info.size = 700
            tar.addfile(info, io.BytesIO(bytes([number]) * 700))
    data = file.getvalue()

    def names(data):
        return [each.name for each in members(lambda s, e: data[s:e], "x.tar", len(data))]

    assert names(data) == names(data[: 3 * 1536 + 512]) == ["0.bin", "1.bin", "2.bin"]
    assert names(data + bytes(5000)) == ["0.bin", "1.bin", "2.bin"]
    for wrong, words in [
        (b"", "the file is empty"),
        (b"PK" * 600, "this is not a tar"),
        (data[:1000], r"'0.bin' has 700 bytes from byte 512 on, but the tar ends at 1,000"),
        (data[:1700], r"it ends at byte 1,700 inside a header"),
        (data[: 3 * 1536], r"it ends at byte 4,608 without the empty block"),
        (data[: 3 * 1536 + 300], r"it ends at byte 4,908 without the empty block"),
        (data[:1540] + b"x" + data[1541:], "there is no header at byte 1,536"),
        (data + data, "its end is marked at byte 4,608, but more data follow"),
    ]:
        with pytest.raises(FormatError, match=rf"^x\.tar: .*{words}"):
            names(wrong)


def test_every_cut_of_a_tar_is_an_error_or_a_tar():
    """Wherever a tar is cut before its end is marked, an error of ours comes out."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(3):
            info = tarfile.TarInfo("é" * 90 + f"{number}.bin")
            info.size = 100
            tar.addfile(info, io.BytesIO(bytes([number]) * 100))
    data = file.getvalue()
    marked = -(-len(data.rstrip(b"\0")) // 512) * 512 + 512  # the first of two empty blocks
    for end in range(0, len(data), 13):
        cut = data[:end]
        if end < marked:
            with pytest.raises(FormatError):
                list(members(lambda s, e, cut=cut: cut[s:e], "x", len(cut)))


# ---------------------------------------------------------------------- datasets


def of(place, tmp_path, kind=None, cache="cache", **more):
    return StreamingDataset(
        remote=str(place), local=str(tmp_path / cache), batch_size=2, format=kind, **more
    )


def jpeg(number):
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number, 0, 255)).save(file, "JPEG")
    return file.getvalue()


def make(folder, samples, key="{:06}", name="00000.tar"):
    folder.mkdir(exist_ok=True)
    tars.by_python(folder / name, tars.members(samples, key))
    return folder


def test_values_go_by_their_ending(tmp_path):
    """Images, numbers, text, JSON and arrays come as themselves, everything else as bytes."""
    folder = make(tmp_path / "t", [tars.sample(i, jpg=jpeg(i)) for i in range(20)])
    dataset = of(folder, tmp_path, "tar", images="array")
    sample = dataset[11]
    assert sample["jpg"].shape == (8, 8, 3)
    assert {k: v for k, v in sample.items() if k not in ("jpg", "npy")} == {
        "__key__": "000011", "cls": 11, "json": {"n": 11, "é": "ü"}, "txt": "number 11 é",
        "left.bin": b"\x0b" * 11,
    }  # fmt: skip
    assert sample["npy"].dtype == np.float32
    assert sample["npy"].tolist() == [11, 11, 11]
    assert not list((tmp_path / "cache").glob("shard*.mds")), "it is read where it lies"
    assert [*of(folder, tmp_path, "tar", columns=["cls"])][3] == {"cls": 3}


def test_what_is_no_sample_is_passed_over(tmp_path):
    """Folders, hidden files, files without an ending, and those of other programs."""
    folder = tmp_path / "t"
    folder.mkdir()
    with tarfile.open(folder / "x.tar", "w") as tar:
        below = tarfile.TarInfo("d")
        below.type = tarfile.DIRTYPE
        tar.addfile(below)
        for name in (
            "README",
            "d/._1.txt",
            "d/1.txt",
            "__index__/a.json",
            "d/.DS_Store",
            "d/2.txt",
        ):
            info = tarfile.TarInfo(name)
            info.size = 2
            tar.addfile(info, io.BytesIO(b"ab"))
    keys = [sample["__key__"] for sample in of(folder, tmp_path, "tar")]
    assert keys == ["d/1", "d/2"]


def test_samples_that_are_none_are_told(tmp_path):
    """A key twice, a file twice, links, sparse files: each by its key, when it is read."""

    def tar_of(name, entries):
        folder = tmp_path / name
        folder.mkdir()
        with tarfile.open(folder / "x.tar", "w") as tar:
            for entry, data in entries:
                info = tarfile.TarInfo(entry)
                if isinstance(data, bytes):
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
                else:
                    info.type, info.linkname = data
                    tar.addfile(info)
        return folder

    for name, entries, words in [
        ("apart", [("1.a", b""), ("2.a", b""), ("1.b", b"")], "an earlier sample has the same key"),
        ("twice", [("1.a", b""), ("1.a", b"")], r"the file '1\.a' exists twice"),
        ("soft", [("1.a", (tarfile.SYMTYPE, "z"))], r"'1\.a' is a symbolic link to 'z'.*--deref"),
        ("hard", [("1.a", (tarfile.LNKTYPE, "z"))], r"'1\.a' is a hard link to 'z'.*--hard-deref"),
    ]:
        dataset = of(tar_of(name, entries), tmp_path, "tar", cache=name)
        with pytest.raises(FormatError, match=rf"x\.tar, sample '1': .*{words}"):
            list(dataset)
    disk = tmp_path / "disk"
    disk.mkdir()
    with (disk / "1.bin").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    for form in ("gnu", "posix"):
        place = tmp_path / f"sparse-{form}"
        place.mkdir()
        options = ["--sparse", f"--format={form}", "--hole-detection=raw"]
        tars.by_gnu_tar(place / "x.tar", [], disk, *options, "1.bin")
        with pytest.raises(FormatError, match=r"x\.tar, sample '1': .*is stored as a sparse file"):
            of(place, tmp_path, "tar")[0]


def test_keys_that_change_are_told_or_null(tmp_path):
    """A file that some samples lack is None, left out by name, or an error."""
    samples = [{"a": b"1", "json": b"1", "txt": b"t"} for _ in range(5)]
    del samples[3]["json"], samples[4]["txt"]
    folder = make(tmp_path / "t", samples)
    with pytest.raises(FormatError, match=r"00000\.tar: some of its samples have a file \.json"):
        of(folder, tmp_path, Tar(missing="error"))
    assert len(list(of(folder, tmp_path, "tar", columns=["a"]))) == 5
    found = [*of(folder, tmp_path, Tar(missing="null"))]
    assert [sample["json"] for sample in found] == [1, 1, 1, None, 1]
    assert [sample["txt"] for sample in found] == ["t", "t", "t", "t", None]


# ---------------------------------------------------------------------- counted by others


def counted(folder, note):
    """Samples as planned, and the bytes that planning read."""
    store = MemoryStore(f"memory://tars-{next(_STORES)}")
    for path in folder.iterdir():
        store.put(path.name, path.read_bytes())
    for name, data in note.items():
        store.put(name, data)
    came = []
    files = Files(store, came.append)
    (file,) = [each for each in store.list("") if each.key.endswith(".tar")]
    place = DataFile(file.key, file.size, file.version)
    plan = Tar().plan_file(place, files)
    return plan, sum(came), Tar().plan_bytes(place, files)


def test_samples_that_others_counted_are_not_counted_again(tmp_path):
    """Energon's offsets, the index of wids, img2dataset's statistics: the tar is looked into."""
    samples = [tars.sample(i, bin=bytes(20_000)) for i in range(30)]
    folder = make(tmp_path / "t", samples)
    size = (folder / "00000.tar").stat().st_size
    with tarfile.open(folder / "00000.tar") as tar:
        places = [each.offset for each in tar if each.name.endswith(".cls")]
    whole, came, planned = counted(folder, {})
    assert (whole.samples, planned) == ([30], size)
    assert came >= size
    for name, note in [
        ("00000.tar.idx", struct.pack("<31Q", *places, size)),
        ("00000_stats.json", json.dumps({"successes": 30, "count": 31}).encode()),
        ("index.json", json.dumps({"shardlist": [{"url": "00000.tar", "nsamples": 30}]}).encode()),
    ]:
        plan, came, planned = counted(folder, {name: note})
        assert (plan.samples, planned) == ([30], 0)
        assert plan.columns == whole.columns
        assert came < 200_000 < size


@pytest.mark.parametrize("by_energon", [False, True])
def test_samples_come_by_range_where_it_is_known_where_they_begin(tmp_path, by_energon):
    """A sample of a remote tar costs its own bytes, as our headers or Energon's note have them."""
    samples = [tars.sample(i, bin=bytes([i]) * 200_000) for i in range(30)]
    folder = make(tmp_path / "t", samples)
    store = MemoryStore(f"memory://tars-{next(_STORES)}")
    store.put("00000.tar", (folder / "00000.tar").read_bytes())
    if by_energon:
        with tarfile.open(folder / "00000.tar") as tar:
            places = [each.offset for each in tar if each.name.endswith(".cls")]
            end = tar.offset
        store.put("00000.tar.idx", struct.pack("<31Q", *places, end))
    dataset = of(store.url + "/*.tar", tmp_path)
    before = dataset.stats()["ranged_bytes"]
    for number in (7, 29, 8):
        assert dataset[number]["bin"] == bytes([number]) * 200_000
        assert dataset[number]["cls"] == number
    came = dataset.stats()["ranged_bytes"] - before
    assert 0 < came < 6 * 210_000
    assert not list((tmp_path / "cache").glob("shard*.mds"))
    assert [sample["cls"] for sample in dataset] == list(range(30))


def test_a_note_of_energon_begins_where_the_first_sample_does(tmp_path):
    """Behind the folder that a tar of a whole folder begins with, and with others in between."""
    place = tmp_path / "t" / "00000.tar"
    place.parent.mkdir()
    starts = []
    with tarfile.open(place, "w", format=tarfile.GNU_FORMAT) as tar:
        for number in range(6):
            if number % 3 == 0:
                folder = tarfile.TarInfo("./" if number == 0 else f"./{'x' * 120}/")
                folder.type = tarfile.DIRTYPE
                tar.addfile(folder)
            starts.append(tar.offset)
            parent = "./" if number < 3 else f"./{'x' * 120}/"
            for ending, data in (("txt", b"t%d" % number), ("bin", bytes([number]) * 70_000)):
                info = tarfile.TarInfo(f"{parent}{number}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        starts.append(tar.offset)
    assert starts[0] == 512
    store = MemoryStore(f"memory://tars-{next(_STORES)}")
    store.put("00000.tar", place.read_bytes())
    store.put("00000.tar.idx", struct.pack("<7Q", *starts))
    dataset = of(store.url + "/*.tar", tmp_path)
    assert dataset[4]["txt"] == "t4"
    assert [each["bin"][0] for each in dataset] == list(range(6))
    store.put("00000.tar.idx", struct.pack("<7Q", *(start + 1 for start in starts)))
    with pytest.raises(FormatError, match="not a list of positions"):
        of(store.url + "/*.tar", tmp_path / "odd")


def test_places_that_do_not_fit_are_told(tmp_path):
    """A note of another tar is noticed when a sample is read by it."""
    folder = make(tmp_path / "t", [tars.sample(i, bin=bytes(200_000)) for i in range(9)])
    store = MemoryStore(f"memory://tars-{next(_STORES)}")
    store.put("00000.tar", (folder / "00000.tar").read_bytes())
    places = range(0, 10 * 512, 512)
    store.put("00000.tar.idx", struct.pack("<10Q", *places))
    dataset = of(store.url + "/*.tar", tmp_path)
    with pytest.raises(FormatError, match=r"00000\.tar"):
        dataset[3]


def test_a_count_that_cannot_be_is_told(tmp_path):
    """A broken note is named, and one that is wrong when the tar is read."""
    folder = make(tmp_path / "t", [tars.sample(i) for i in range(3)])
    for name, note in [
        ("00000.tar.idx", b"12345"),
        ("00000.tar.idx", struct.pack("<3Q", 0, 5, 1 << 60)),
        ("00000_stats.json", b'{"successes": "many"}'),
        ("00000_stats.json", b"[]"),
        ("index.json", b'{"shardlist": [{}]}'),
        ("index.json", b'{"shardlist": [{"url": "00000.tar", "nsamples": -1}]}'),
    ]:
        with pytest.raises(FormatError, match=rf"{name}: it has no count of the samples of 00000"):
            counted(folder, {name: note})
    large = make(tmp_path / "large", [tars.sample(i, bin=bytes(40_000)) for i in range(5)])
    (large / "00000_stats.json").write_text('{"successes": 7}')
    with pytest.raises(FormatError, match=r"00000\.tar: there are 5 samples, but 7 were expected"):
        of(large, tmp_path / "c", "tar")[0]


@pytest.mark.parametrize("count", [0, 1, 7])
def test_samples_that_a_note_leaves_out_are_told(tmp_path, count):
    """As far as a tar is looked into; a count of 0 would leave it out without a word."""
    folder = make(tmp_path / "t", [tars.sample(i) for i in range(3)])
    for name, note in [
        ("00000.tar.idx", struct.pack(f"<{count + 1}Q", *range(0, 512 * (count + 1), 512))),
        ("00000_stats.json", json.dumps({"successes": count}).encode()),
        (
            "index.json",
            json.dumps({"shardlist": [{"url": "00000.tar", "nsamples": count}]}).encode(),
        ),
    ]:
        with pytest.raises(FormatError, match=rf"3 samples, but the sidecar file says {count}"):
            counted(folder, {name: note})
    large = make(tmp_path / "large", [tars.sample(i, bin=bytes(99_000)) for i in range(3)])
    with pytest.raises(FormatError, match="1 sample or more, but the sidecar file says 0"):
        counted(large, {"00000_stats.json": b'{"successes": 0}'})
    empty = make(tmp_path / "empty", [])
    assert counted(empty, {"00000_stats.json": b'{"successes": 0}'})[0].samples == [0]


def test_the_remedies_for_a_file_that_samples_lack_work(tmp_path, monkeypatch):
    """`format=Tar(missing='null')`, the index of the command line, and --fill are as they say."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tars").mkdir()
    with tarfile.open("tars/a.tar", "w") as archive:
        for name in ("1.txt", "1.cls", "2.cls"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"7"))
    with pytest.raises(FormatError, match=r"format=Tar\(missing='null'\)") as told:
        StreamingDataset(local="tars", batch_size=1, format=Tar(missing="error"))
    rows = [{"__key__": "1", "cls": 7, "txt": "7"}, {"__key__": "2", "cls": 7, "txt": None}]
    assert list(StreamingDataset(local="tars", batch_size=1, format=Tar(missing="null"))) == rows
    command = str(told.value).partition("On a command line, mds ")[2].partition(" does")[0].split()
    assert CliRunner().invoke(main, [*command, "tars", "pinned"]).exit_code == 0
    assert list(StreamingDataset(local="pinned", batch_size=1)) == rows
    convert("tars", "kept")
    convert("tars", "filled", fill={"txt": "none"})
    assert [LocalDataset(out)[1]["txt"] for out in ("filled", "kept")] == ["none", None]


@pytest.mark.parametrize("how", ["in place", "fetched", "keep_shards", "convert"])
def test_files_without_an_ending_are_no_samples(tmp_path, how):
    """If a tar has no others, the error says so. Beside samples, they are left out."""
    tars.by_python(tmp_path / "x.tar", [(".hidden", b""), ("0001", b"a"), ("0002", b"b")])
    out = str(tmp_path / "out")

    def read(path):
        if how == "in place":
            return StreamingDataset(path, batch_size=1).num_samples
        if how == "fetched":
            return StreamingDataset(remote=path, local=out, batch_size=1).num_samples
        return convert(path, out, keep_shards=how == "keep_shards").samples

    message = r"x\.tar: .*its file '0001' has no ending. Name the files of a sample KEY.ENDING"
    with pytest.raises((FormatError, SourceError), match=message):
        read(str(tmp_path / "x.tar"))
    tars.by_python(tmp_path / "y.tar", [("README", b""), ("0001.txt", b"a")])
    assert read(str(tmp_path / "y.tar")) == 1


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_a_sparse_file_without_an_ending_is_skipped(tmp_path, form):
    """It is no damage, though the places of its parts take headers of their own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    with open(folder / "sparse", "wb") as file:
        for number in range(60):  # a header has the places of 4 parts, a further one of 21
            file.seek(number * 40_000)
            file.write(b"x" * 5000)
    (folder / "1.txt").write_text("a")
    options = ["--sparse", f"--format={form}", "--hole-detection=raw"]
    tars.by_gnu_tar(tmp_path / "x.tar", [], folder, *options, "sparse", "1.txt")
    assert StreamingDataset(str(tmp_path / "x.tar"), batch_size=1)[0]["txt"] == "a"
    tars.by_gnu_tar(tmp_path / "y.tar", [], folder, *options, "sparse")
    with pytest.raises(FormatError, match="its file 'sparse' has no ending"):
        StreamingDataset(str(tmp_path / "y.tar"), batch_size=1)
