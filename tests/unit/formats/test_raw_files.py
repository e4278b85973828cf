"""Files named by a manifest are samples, fetched side by side and kept as few."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mds import StreamingDataset
from mds.errors import ConfigError, FormatError, NotFoundError, ReplacedError
from mds.formats import Files, RawFiles
from mds.formats._source import FilePlace
from mds.storage import _registry as registry
from mds.storage._memory import MemoryStore

ROWS = [{"path": f"p/{i}.bin", "label": i, "weight": i / 2, "name": f"n {i}"} for i in range(20)]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "raw"
    (place / "p").mkdir(parents=True)
    for i in range(20):
        (place / f"p/{i}.bin").write_bytes(bytes([i]) * i)
    lines = [",".join(map(str, row.values())) for row in ROWS]
    (place / "m.csv").write_text("\n".join(["path,label,weight,name", *lines]) + "\n")
    (place / "m.tsv").write_text((place / "m.csv").read_text().replace(",", "\t"))
    (place / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    pq.write_table(pa.Table.from_pylist(ROWS), place / "m.parquet")
    return place


def of(folder, tmp_path, kind, **more):
    return StreamingDataset(
        remote=str(folder), local=str(tmp_path / "cache"), batch_size=2, format=kind, **more
    )


@pytest.mark.parametrize("name", ["m.csv", "m.tsv", "m.jsonl", "m.parquet"])
def test_a_manifest_of_any_kind(folder, tmp_path, name):
    """Its columns come with the bytes of each file, in its order, in shards of so many."""
    dataset = of(folder, tmp_path, RawFiles(manifest=name, samples_per_shard=8))
    assert dataset.samples_per_shard.tolist() == [8, 8, 4]
    assert list(dataset) == [{**row, "content": bytes([i]) * i} for i, row in enumerate(ROWS)]
    chosen = of(folder, tmp_path, RawFiles(manifest=name), columns=["label"])
    assert list(chosen)[7] == {"label": 7}


def test_what_files_hold_goes_by_their_endings(tmp_path):
    """Text where all are text; the column is called as one likes."""
    (tmp_path / "raw").mkdir()
    for i in range(3):
        (tmp_path / f"raw/{i}.txt").write_text(f"text {i}")
    (tmp_path / "raw/m.csv").write_text("file\n" + "".join(f"{i}.txt\n" for i in range(3)))
    kind = RawFiles(manifest="m.csv", path="file", content="document")
    assert list(of(tmp_path / "raw", tmp_path, kind))[2] == {"path": "2.txt", "document": "text 2"}


def test_a_start_reads_the_manifest_and_looks_at_sixteen_files(folder):
    """No folder is listed, no file of a row is read; where sizes are told none is met."""
    store = MemoryStore("memory://raw")
    for path in folder.rglob("*.*"):
        store.put(str(path.relative_to(folder)), path.read_bytes())
    lines = "".join(f"p/{i}.bin,{i}\n" for i in range(20))
    store.put("s.csv", f"path,bytes\n{lines}".encode())
    calls = []
    for verb in ("list", "head", "stream"):
        inner = getattr(store, verb)

        def noted(key, *more, verb=verb, inner=inner):
            calls.append((verb, key))
            return inner(key, *more)

        setattr(store, verb, noted)

    def plan(kind):
        calls.clear()
        files = Files(store)
        (manifest,) = kind.choose(files.find(kind.narrow(FilePlace("memory://x"))), files)
        found = kind.plan_file(manifest, files)
        assert found.samples == [8, 8, 4]
        return found.sizes

    sizes = plan(RawFiles(manifest="m.csv", samples_per_shard=8))
    # The beginning of the manifest shows its columns.
    assert calls[:3] == [("head", "m.csv"), ("stream", "m.csv"), ("stream", "m.csv")]
    assert sorted(calls[3:]) == sorted(("head", f"p/{i}.bin") for i in range(0, 20, 2))
    assert sizes == [9 * 8, 9 * 8, 9 * 4]
    sizes = plan(RawFiles(manifest="s.csv", size="bytes", samples_per_shard=8))
    assert calls == [("head", "s.csv"), ("stream", "s.csv"), ("stream", "s.csv")]
    assert sizes == [28, 92, 70]


def test_small_files_fit_into_a_small_cache(folder, tmp_path):
    """The limit is held against what the files take, by sizes of some, or of the manifest."""
    (folder / "s.csv").write_text("path,n\n" + "".join(f"p/{i}.bin,{i}\n" for i in range(20)))
    store = MemoryStore("memory://small")
    for path in folder.rglob("*.*"):
        store.put(str(path.relative_to(folder)), path.read_bytes())
    for name, size in (("m.csv", None), ("s.csv", "n")):
        kind = RawFiles(manifest=name, size=size, samples_per_shard=5)
        found = of(store.url, tmp_path / name, kind, cache_limit=60_000)
        assert [sample["content"] for sample in found] == [bytes([i]) * i for i in range(20)]
    assert not any(columns.startswith("size") for columns in kind.settings())


def test_sizes_that_are_none_or_others_are_told(folder, tmp_path):
    """A text, a negative number, no such column; and a file that has other bytes than it says."""
    for text, words in (
        ("path,n\np/1.bin,x\n", "row 0: column 'n' has 'x', which is not a number of bytes"),
        ("path,n\np/1.bin,-1\n", "column 'n' has -1"),
        ("path,m\np/1.bin,1\n", "column 'n' has None"),
    ):
        (folder / "s.csv").write_text(text)
        with pytest.raises(FormatError, match=words):
            of(folder, tmp_path, RawFiles(manifest="s.csv", size="n"))
    store = MemoryStore("memory://sizes")
    store.put("s.csv", b"path,n\na.bin,3\n")
    store.put("a.bin", b"abcd")
    with pytest.raises(ReplacedError, match="it had 3 bytes and now has 4"):
        of(store.url, tmp_path, RawFiles(manifest="s.csv", size="n"))[0]


def test_a_sample_is_fetched_alone(folder, tmp_path):
    """Random access reads the file of a row and leaves its neighbours."""
    store = MemoryStore("memory://single")
    for path in folder.rglob("*.*"):
        store.put(str(path.relative_to(folder)), path.read_bytes())
    for i in range(20):
        store.put(f"p/{i}.bin", bytes(100_000))
    dataset = of(store.url, tmp_path, RawFiles(manifest="m.csv"))
    assert dataset[7]["content"] == bytes(100_000)
    assert dataset.stats()["ranged_bytes"] == 100_000
    assert [sample["label"] for sample in dataset] == list(range(20))


def test_what_is_wrong_with_a_manifest_is_told(folder, tmp_path):
    """No paths, a path that leads out, no rows, a broken table, a column in the way."""
    for name, text, words in [
        (
            "a.csv",
            "file\nx.bin\n",
            r"a\.csv, row 0: column 'path' has no path. The col.* 'file'",
        ),
        ("b.csv", "path\n../other\n", r"b\.csv, row 0: '\.\./other' is not the name"),
        ("c.csv", "path\n", r"c\.csv: the manifest has no rows"),
        ("d.csv", "path,label\na.bin\n", r"d\.csv, line 2: 1 value for 2 columns"),
        ("e.jsonl", '{"path": 1\n', r"e\.jsonl, line 1, column 11: Expecting ',' delimiter"),
        ("f.parquet", "PAR1", r"f\.parquet: it cannot be read"),
        ("g.csv", "path,content\na,b\n", r"g\.csv: the manifest already has a column 'content'"),
        ("h.xml", "<a/>", r"h\.xml: the name of a manifest must end in \.parquet, \.csv"),
    ]:
        (folder / name).write_text(text)
        with pytest.raises(FormatError, match=words):
            of(folder, tmp_path, RawFiles(manifest=name))
    with pytest.raises(NotFoundError, match=r"no\.csv"):
        of(folder, tmp_path, RawFiles(manifest="no.csv"))
    with pytest.raises(ConfigError, match="samples_per_shard=0 must be at least 1"):
        RawFiles(manifest="m.csv", samples_per_shard=0)


def test_a_row_without_its_file_is_told(folder, tmp_path):
    """The file that is not there, and the manifest that has a row of it; others can be read."""
    (folder / "p/3.bin").unlink()
    dataset = of(folder, tmp_path, RawFiles(manifest="m.csv"))
    with pytest.raises(FormatError, match=r"3\.bin: m\.csv lists it, but there is no such file"):
        dataset[3]
    skipping = of(folder, tmp_path, RawFiles(manifest="m.csv"), on_error="skip")
    assert [sample["label"] for sample in skipping] == [n for n in range(20) if n != 3]


def test_a_key_of_a_later_row_is_a_column(tmp_path):
    """However late it comes in JSON lines or Parquet, rows without it have None there."""
    place = tmp_path / "raw"
    place.mkdir()
    (place / "a.bin").write_bytes(b"a")
    rows = [{"path": "a.bin"} for _ in range(10_050)] + [{"path": "a.bin", "late": 7}]
    (place / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.table({"path": ["a.bin"] * 10_051, "n": [1] * 10_050 + [None]}),
                   place / "m.parquet")  # fmt: skip
    lines = of(place, tmp_path, RawFiles(manifest="m.jsonl"))
    assert [lines[at]["late"] for at in (0, 10_049, 10_050)] == [None, None, 7]
    table = of(place, tmp_path, RawFiles(manifest="m.parquet"))
    assert [table[at]["n"] for at in (0, 10_049, 10_050)] == [1, 1, None]


def test_a_manifest_loses_nothing(tmp_path):
    """Columns of one name, characters that end a line elsewhere, numbers that no float holds."""
    place = tmp_path / "raw"
    place.mkdir()
    (place / "a.bin").write_bytes(b"a")
    kinds = {"csv": ",", "tsv": "\t"}
    for ending, cut in kinds.items():
        for names, words in (
            [["path", "c", "c"], "two columns have the name 'c'"],
            [["path", ""], ""],
        ):
            cells = cut.join(["a.bin", "1", "2"][: len(names)])
            (place / f"m.{ending}").write_text(f"{cut.join(names)}\n{cells}\n")
            if words:
                with pytest.raises(FormatError, match=rf"m\.{ending}, line 1: .*{words}"):
                    of(place, tmp_path, RawFiles(manifest=f"m.{ending}"))
            else:  # a column without a name has its number
                dataset = of(place, tmp_path, RawFiles(manifest=f"m.{ending}"))
                assert dataset[0] == {"column_1": 1, "content": b"a", "path": "a.bin"}
    (place / "m.csv").write_text("path,n\na.bin,9007199254740993\na.bin,0.5\n")
    found = list(of(place, tmp_path, RawFiles(manifest="m.csv"), columns=["n"]))
    assert found == [{"n": "9007199254740993"}, {"n": "0.5"}]
    text = "one\u2028two\x85three\x0b"
    row = json.dumps({"path": "a.bin", "t": text}, ensure_ascii=False)
    (place / "m.jsonl").write_text(row + "\r\n\n" + row)
    found = list(of(place, tmp_path, RawFiles(manifest="m.jsonl"), columns=["t"]))
    assert found == [{"t": text}, {"t": text}]


def test_a_row_of_a_folder_is_told(folder, tmp_path):
    """A path that is no file, or that leads through one, is named with its manifest."""
    (folder / "d.csv").write_text("path\np\np/3.bin/x\n")
    dataset = of(folder, tmp_path, RawFiles(manifest="d.csv"))
    with pytest.raises(FormatError, match=r"raw/p: cannot be read: Is a directory"):
        dataset[0]
    with pytest.raises(FormatError, match=r"3\.bin/x: d\.csv lists it, but there is no such"):
        dataset[1]


class Noted(MemoryStore):
    """Notes which thread asks for what."""

    def __init__(self, url):
        super().__init__(url)
        self.threads = {}

    def stream(self, key, start=0, end=None):
        self.threads[key] = threading.current_thread().name
        return super().stream(key, start, end)


def test_files_of_all_shards_come_by_threads_that_stay(folder, tmp_path, monkeypatch):
    """No shard starts threads, and so connections, of its own."""
    stores = []
    monkeypatch.setitem(
        registry._stores.entries, "noted", lambda url, *_: stores.append(Noted(url)) or stores[-1]
    )
    place = MemoryStore("noted://raw")
    for path in folder.rglob("*.*"):
        place.put(str(path.relative_to(folder)), path.read_bytes())
    dataset = StreamingDataset(
        remote="noted://raw", local=str(tmp_path / "cache"), batch_size=2,
        format=RawFiles(manifest="m.csv", samples_per_shard=2),
    )  # fmt: skip
    assert [sample["label"] for sample in dataset] == list(range(20))
    threads = {
        name for store in stores for key, name in store.threads.items() if key.endswith(".bin")
    }
    assert threads
    assert all(re.fullmatch(r"mds-files-\d+", name) for name in threads)
    assert max(int(name.rpartition("-")[2]) for name in threads) <= 64


@pytest.mark.parametrize("submits", [False, True])
def test_many_files_keep_their_order_and_the_first_error_is_told(submits):
    """What waits behind an error is not begun, with threads of the caller's or without."""
    with ThreadPoolExecutor(1) as pool:
        files = Files(MemoryStore("memory://map"), submit=pool.submit if submits else None)
        assert list(files.map(lambda at: at * at, range(500))) == [at * at for at in range(500)]
        assert list(files.map(str, [])) == []
        begun = []

        def act(at):
            begun.append(at)
            if at == 3:
                raise ValueError(at)
            return at

        found = files.map(act, range(10_000))
        assert [next(found) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="3"):
            next(found)
    assert len(begun) < 200
