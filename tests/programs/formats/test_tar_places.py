"""Tars are read by the places of their files, which a hostile table cannot lead astray."""

import io
import itertools
import json
import re
import tarfile

import numpy as np
import pytest
import tars
from PIL import Image

from mds import StreamingDataset
from mds.errors import FormatError
from mds.formats import DataFile, Files, Tar
from mds.formats._columns import as_columns, note_of
from mds.formats._facts import ShardPlace
from mds.formats._tar_places import TarPlaces
from mds.storage._memory import MemoryStore
from mds.writers.convert import convert

_STORES = itertools.count()


def jpeg(number):
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number, 0, 255)).save(file, "JPEG")
    return file.getvalue()


def of(place, tmp_path, kind=None, cache="cache", **more):
    return StreamingDataset(
        remote=str(place), local=str(tmp_path / cache), batch_size=2, format=kind, **more
    )


def write(folder, files, form=tarfile.PAX_FORMAT):
    folder.mkdir(exist_ok=True)
    tars.by_python(folder / "00000.tar", files, form)
    return folder


def far(folder):
    """The folder in a store that is behind a network."""
    store = MemoryStore(f"memory://places-{next(_STORES)}")
    for path in folder.iterdir():
        store.put(path.name, path.read_bytes())
    return store


def typed(value):
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tolist()
    if isinstance(value, Image.Image):
        return value.mode, value.size, value.tobytes()
    return type(value), value


@pytest.mark.parametrize("images", ["pil", "array"])
@pytest.mark.parametrize("missing", [None, "null"])
def test_samples_in_place_are_those_of_the_copy(tmp_path, images, missing):
    """Value for value and type for type, of every kind of file, long names and gaps included."""
    samples = [tars.sample(i, jpg=jpeg(i), id=b"0%d" % i, bin=b"") for i in range(12)]
    if missing:
        for i in (3, 7):
            del samples[i]["jpg"], samples[i]["json"], samples[i]["cls"], samples[i]["npy"]
    files = tars.members(samples, "é/" + "long/" * 30 + "{:06}")
    files += [(name.replace("é/", "x/"), data) for name, data in tars.members(samples, "é/{:06}")]
    kind = Tar(missing=missing)
    folder = write(tmp_path / "t", files)
    convert(str(folder), str(tmp_path / "copy"), format=kind, durable=False, keep_shards=True)
    here = of(folder, tmp_path, kind, images=images)
    copy = StreamingDataset(local=str(tmp_path / "copy"), batch_size=2, images=images)
    assert len(here) == len(copy) == 24
    for row in range(24):
        one, other = here[row], copy[row]
        assert list(one) == list(other)
        assert {k: typed(v) for k, v in one.items()} == {k: typed(v) for k, v in other.items()}
    rows = [5, 3, 20]
    for one, other in zip(here[rows], copy[rows], strict=True):
        assert {k: typed(v) for k, v in one.items()} == {k: typed(v) for k, v in other.items()}


def test_no_header_is_looked_at_again(tmp_path, monkeypatch):
    """A dataset whose table is known opens a tar without a scan of it."""
    folder = write(tmp_path / "t", tars.members([tars.sample(i) for i in range(9)]))
    of(folder, tmp_path)
    looked = []
    for module in ("_tar_reader", "_tar_samples"):
        path = f"mds.formats.{module}.members"
        monkeypatch.setattr(path, lambda *_, **__: looked.append(1) or iter(()))
    dataset = of(folder, tmp_path)
    assert [sample["cls"] for sample in dataset] == list(range(9))
    assert not looked


@pytest.mark.parametrize("size", [300, 400_000])
def test_a_remote_tar_gives_the_wanted_files_alone_where_that_saves(tmp_path, size):
    """Texts beside large files come by ranges, those beside small ones with what is between."""
    samples = [{"bin": bytes(size), "txt": b"number %d" % i} for i in range(12)]
    folder = write(tmp_path / "t", tars.members(samples, "a/{:06}"))
    store, whole = far(folder), (folder / "00000.tar").stat().st_size
    for columns in (["txt"], ["__key__", "txt"]):
        dataset = of(store.url + "/*.tar", tmp_path, "tar", f"c{len(columns)}", columns=columns)
        before = dataset.stats()["fetched_bytes"] + dataset.stats()["ranged_bytes"]
        found = list(dataset)
        came = dataset.stats()["fetched_bytes"] + dataset.stats()["ranged_bytes"] - before
        assert [sample["txt"] for sample in found] == [f"number {i}" for i in range(12)]
        if len(columns) == 2:
            assert [sample["__key__"] for sample in found] == [f"a/{i:06}" for i in range(12)]
        if size < 1000:
            assert 12 * size < came <= whole
        else:
            assert 0 < came < 12 * 2000


def test_a_million_files_take_ten_megabytes(tmp_path):
    """Of 500,000 samples of two files: the places of both, and their sizes."""
    count = 500_000
    sizes = np.random.default_rng(0).integers(10_000, 200_000, count)
    blocks = 1 + -(-sizes // 512)
    starts = np.concatenate([[0], np.cumsum(blocks + 2)]).astype("<u4")
    ones = np.ones(count, "<u1")
    found = TarPlaces(
        starts, {"cls": ((blocks + 1).astype("<u2"), ones), "jpg": (ones, sizes.astype("<u4"))}
    )
    note = note_of(["__key__", "cls", "jpg"], found.to_bytes())
    assert len(note) <= 10 << 20
    place = ShardPlace(
        DataFile("a.tar", int(starts[-1]) * 512 + 1024),
        (0, 0), count, note, as_columns({"cls": "int", "jpg": "jpeg"}),
    )  # fmt: skip
    parsed = TarPlaces.of(place)
    begins, ends = parsed.bounds("jpg")
    assert (ends - begins).tolist() == sizes.tolist()
    assert begins[:2].tolist() == [512, int(starts[1]) * 512 + 512]


def test_a_table_that_cannot_be_is_refused(tmp_path):
    """Places outside of the tar, samples that overlap, columns without numbers."""
    folder = write(tmp_path / "t", tars.members([{"a": b"1", "b": b"22"} for _ in range(3)]))
    store = far(folder)
    (info,) = store.list("")
    file, files = DataFile(info.key, info.size, info.version), Files(store)
    plan = Tar().plan_file(file, files)
    columns = as_columns(plan.columns)
    good = ShardPlace(file, (0, 0), 3, plan.note, columns)
    places = TarPlaces.of(good)
    assert set(Tar().rows(good, [0, 2], files)) == {0, 2}
    known = ["__key__", "a", "b"]

    def note(starts=places.starts, **more):
        told = {**places.files, **more}
        return note_of(known, TarPlaces(np.asarray(starts), told).to_bytes())

    one, two, big = (np.full(3, n, "<u4") for n in (1, 2, 1 << 30))
    for wrong in [
        note(starts=np.array([0, 8, 4, 12], "<u1")),
        note(starts=np.array([0, 4, 8, 12_000], "<u4")),
        note(starts=np.array([0, 4, 8, 1 << 60], "<u8")),
        note(a=(one, big)),
        note(a=(big, one)),
        note(a=(np.zeros(3, "<u1"), two)),
        note(a=(np.zeros(3, "<u1"), np.zeros(3, "<u1")), b=(np.zeros(3, "<u1"),) * 2),
        plan.note[:-1],
        plan.note + b"\0",
        note_of(known, b"[]\n"),
        note_of(known, b'{"files": ["a"], "types": ["<f4"]}\n'),
        note_of(known, b"\xff"),
        b"\x09\0\0\0[1, 2",
    ]:
        place = ShardPlace(file, (0, 0), 3, wrong, columns)
        with pytest.raises(FormatError, match="Delete the table, or run mds index again"):
            Tar().rows(place, [0, 2], files)
        with pytest.raises(FormatError, match="Delete the table, or run mds index again"):
            Tar().reader(place, str(folder / "00000.tar"), None)


# ---------------------------------------------------------------------- odd files and names


@pytest.mark.parametrize("is_far", [False, True])
def test_numbers_are_numbers_where_all_are(tmp_path, is_far):
    """A zero in front, a sign, a line of an underscore: then all are texts, in every tar."""

    def found(name, *texts, second=()):
        folder = tmp_path / name
        write(folder, [(f"{i}.id", text) for i, text in enumerate(texts)])
        if second:
            tars.by_python(folder / "1.tar", [(f"{i}.id", each) for i, each in enumerate(second)])
        place = far(folder).url + "/*.tar" if is_far else folder
        return [sample["id"] for sample in of(place, tmp_path, "tar", name + "-c")]

    assert found("a", b"7\n", b"-8", b"0") == [7, -8, 0]
    assert found("b", b"007", b"8", b"1_000") == ["007", "8", "1_000"]
    assert found("c", *[b"%d" % i for i in range(100)], b"-0")[-2:] == ["99", "-0"]
    assert found("d", b"5", str(1 << 63).encode()) == ["5", str(1 << 63)]
    assert found("e", b"5", second=[b"06"]) == ["5", "06"]
    assert found("f", b"5", "٣".encode()) == ["5", "٣"]


def test_files_that_lose_something_are_refused(tmp_path):
    """An ending that is taken, arrays cut short, names that are no UTF-8: each by its name."""
    for number, (files, words) in enumerate(
        [
            (
                [("a.__key__", b"x"), ("a.txt", b"y")],
                r"'a\.__key__' has the ending '__key__'",
            ),
            ([("a.npy", b"")], r"sample 'a', file \.npy: "),
            ([("a.npy", tars.npy(np.zeros(99))[:200])], r"sample 'a', file \.npy: "),
            ([("th\udce9.txt", b"x")], r"UTF-8 can encode.*'th\\udce9'"),
            ([("a.json", b"[" * 100_000)], r"sample 'a', file \.json: "),
        ]
    ):
        folder = write(tmp_path / f"t{number}", files, tarfile.GNU_FORMAT)
        for place in (folder, far(folder).url + "/*.tar"):
            with pytest.raises(FormatError, match=rf"00000\.tar.*{words}"):
                list(of(place, tmp_path, "tar", f"c{number}"))
    folder = write(tmp_path / "latin", [("th\udce9.txt", b"x")], tarfile.GNU_FORMAT)
    assert list(of(folder, tmp_path, columns=["txt"], cache="l")) == [{"txt": "x"}]


def test_a_file_that_a_counted_tar_lacks_is_told(tmp_path):
    """Where others have counted, what was not looked at is checked when it is read."""
    samples = [{"a": b"1", "b": b"2"} for _ in range(90)]
    del samples[80]["b"]
    folder = write(tmp_path / "t", tars.members(samples))
    (folder / "00000_stats.json").write_text(json.dumps({"successes": 90}))
    for place in (folder, far(folder).url + "/*.tar"):
        dataset = of(place, tmp_path, "tar", re.sub(r"\W", "", str(place))[-20:])
        with pytest.raises(FormatError, match=r"sample '000080': there is no file \.b"):
            list(dataset)
