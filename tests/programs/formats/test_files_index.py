"""An index of files pins them; mds info, head and verify look into them."""

import json
import logging
import os
import shutil

import numpy as np
import pytest
import zstandard
from click.testing import CliRunner

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402
from tables import table, write_files  # noqa: E402

from devtools.httpserver import http_server  # noqa: E402
from mds import LocalDataset, MDSWriter, StreamingDataLoader, StreamingDataset  # noqa: E402
from mds._cli import main  # noqa: E402
from mds._index.sidecar import write_sidecar  # noqa: E402
from mds._index.table import (  # noqa: E402
    TABLE_KIND,
    TABLE_NAME,
    files_index_bytes,
    fingerprint_of,
)
from mds.errors import (  # noqa: E402
    IndexFileError,
    MdsError,
    NotFoundError,
    ReplacedError,
    StateError,
    StoreError,
)
from mds.formats import RawFiles  # noqa: E402
from mds.formats._dataset import PINNED, open_files  # noqa: E402
from mds.formats._rows_of_files import pack_rows  # noqa: E402
from mds.formats._table import _FILE_COLUMNS, _SHARD_COLUMNS, FileTable  # noqa: E402
from mds.storage import open_store  # noqa: E402


def run(*arguments):
    done = CliRunner().invoke(main, [*map(str, arguments)])
    return done.exit_code, done.output


@pytest.fixture
def files(tmp_path):
    return write_files(tmp_path / "files", groups=((5, 7), (4,), (6, 1)))


def ids(place, cache, **more):
    dataset = StreamingDataset(remote=str(place), local=str(cache), batch_size=2, **more)
    return [sample["id"] for sample in dataset]


def test_a_dataset_of_an_index_reads_the_files_that_it_pins(files, tmp_path):
    """Files that came later are not among them, and no start lists the folder."""
    code, told = run("index", f"{files}/*.parquet", tmp_path / "index")
    assert code == 0, told
    assert "23 samples in 5 shards of 3 files" in told
    pq.write_table(table(100, 3), files / "part-0000.parquet")
    for cache in ("a", "a", "b"):
        assert ids(tmp_path / "index", tmp_path / cache) == list(range(23))
    assert ids(tmp_path / "index", tmp_path / "c", columns=["id"]) == list(range(23))
    listed = ids(files, tmp_path / "d", format="parquet")
    assert listed == [*range(12), 100, 101, 102, *range(12, 23)]


def test_an_index_beside_the_files(files, tmp_path):
    """Without OUT it lies in the folder of the files, and moves with them."""
    assert run("index", files)[0] == 0
    os.rename(files, tmp_path / "moved")
    dataset = StreamingDataset(local=str(tmp_path / "moved"), batch_size=2)
    assert [sample["id"] for sample in dataset] == list(range(23))
    assert run("index", tmp_path / "moved")[0] == 2
    assert run("index", tmp_path / "moved", "--overwrite")[0] == 0


def test_a_complete_cache_of_an_index_needs_no_remote(files, tmp_path, caplog):
    """The last index and its table are kept, until the remote has an index of shards."""
    with http_server(str(files)) as url:
        run("index", files)
        assert ids(url, tmp_path / "c") == list(range(23))
        pq.write_table(table(100, 3), files / "part-0000.parquet")
        run("index", files, "--overwrite")
        samples = ids(url, tmp_path / "c")
        assert samples == [*range(12), 100, 101, 102, *range(12, 23)]
    quick = {"download_retry": 0, "download_timeout": 1.0}
    assert ids(url, tmp_path / "c", **quick) == samples
    assert "The remote cannot be read, so mds uses the verified index in" in caplog.text
    with pytest.raises(StoreError):
        ids(url, tmp_path / "other", **quick)

    (kept,) = (tmp_path / "c" / ".mds").glob("files-*.json")
    kept.write_bytes(kept.read_bytes()[:-3])
    with pytest.raises(StoreError):
        ids(url, tmp_path / "c", **quick)


def test_an_index_of_shards_replaces_one_of_files(files, tmp_path):
    """A start without the remote then reads the shards, not the files of before."""
    with http_server(str(tmp_path)) as url:
        run("index", files, tmp_path / "data")
        assert ids(f"{url}/data", tmp_path / "c") == list(range(23))
        shutil.rmtree(tmp_path / "data")
        with MDSWriter(out=str(tmp_path / "data"), columns={"id": "int"}) as writer:
            for number in range(4):
                writer.write({"id": number})
        assert ids(f"{url}/data", tmp_path / "c") == [0, 1, 2, 3]
    samples = ids(f"{url}/data", tmp_path / "c", download_retry=0, download_timeout=1.0)
    assert samples == [0, 1, 2, 3]


def test_files_that_change_or_go_are_refused_by_name(files, tmp_path):
    """At the first sample that is in them."""
    assert run("index", files, tmp_path / "index")[0] == 0
    pq.write_table(table(50, 4), files / "part-001.parquet")
    os.unlink(files / "part-002.parquet")
    dataset = StreamingDataset(remote=str(tmp_path / "index"), local=str(tmp_path / "c"))
    assert dataset[0]["id"] == 0
    with pytest.raises(ReplacedError, match=r"part-001\.parquet"):
        dataset[13]
    with pytest.raises(NotFoundError, match=r"part-002\.parquet"):
        dataset[20]


def test_files_that_came_between_two_starts_are_named(files, tmp_path, caplog):
    """A warning says which, and a state of the old files is refused."""
    loader = StreamingDataLoader(
        StreamingDataset(remote=str(files), local=str(tmp_path / "c"), batch_size=2), batch_size=2
    )
    next(iter(loader))
    state = loader.state_dict()
    write_files(tmp_path / "more", groups=((2,),))
    os.rename(tmp_path / "more" / "part-000.parquet", files / "part-0015.parquet")
    with caplog.at_level(logging.WARNING):
        dataset = StreamingDataset(remote=str(files), local=str(tmp_path / "c"), batch_size=2)
    assert "these files are new: part-0015.parquet" in caplog.text
    with pytest.raises(StateError):
        StreamingDataLoader(dataset, batch_size=2).load_state_dict(state)


def test_readers_of_shards_are_told_what_it_is(files, tmp_path):
    """LocalDataset and the like say what reads it; a damaged table is told."""
    assert run("index", files, tmp_path / "index")[0] == 0
    with pytest.raises(IndexFileError, match="parquet files, which StreamingDataset reads"):
        LocalDataset(str(tmp_path / "index"))
    told = json.loads((tmp_path / "index" / "index.json").read_bytes())
    assert told["shards"] == []
    assert told["files"]["format"] == "parquet"
    path = tmp_path / "index" / "index.files.bin"
    whole = path.read_bytes()
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(MdsError, match=r"index\.files\.bin"):
            StreamingDataset(remote=str(tmp_path / "index"), local=str(tmp_path / f"c{place}"))
    path.unlink()
    with pytest.raises(IndexFileError, match="run mds index again"):
        StreamingDataset(remote=str(tmp_path / "index"), local=str(tmp_path / "c"))


@pytest.mark.parametrize("place", ["files", "index"])
def test_info_head_and_verify(files, tmp_path, place):
    """They take files and an index of files as they take MDS."""
    assert run("index", files, tmp_path / "index")[0] == 0
    code, told = run("info", tmp_path / place)
    assert code == 0, told
    assert "5 (parquet)" in told
    assert "ndarray:int32" in told
    code, told = run("head", tmp_path / place, "-n", 6, "--json")
    assert [json.loads(line)["id"] for line in told.splitlines()] == list(range(6))
    code, told = run("verify", tmp_path / place)
    assert code == 0, told
    assert "23 samples in 5 shards" in told
    whole = bytearray((files / "part-001.parquet").read_bytes())
    stamp = os.stat(files / "part-001.parquet").st_mtime_ns
    whole[120:400] = bytes(280)
    (files / "part-001.parquet").write_bytes(whole)
    os.utime(files / "part-001.parquet", ns=(stamp, stamp))
    code, told = run("verify", tmp_path / place)
    assert code == 1
    assert "part-001.parquet, row group 0" in told


# ---------------------------------------------------------------------- tables from anywhere


def forged(place, kind, change, tmp_path, name):
    """A dataset of an index whose table was changed, with digests that fit."""
    data, _ = open_files(str(place), kind)
    columns = {n: np.array(getattr(data.table, n)) for n in (*_FILE_COLUMNS, *_SHARD_COLUMNS)}
    parts = {"keys": list(data.table.keys), "versions": [""] * len(data.table.keys)}
    note = change(columns, parts)
    notes = bytes(data.table._notes) if note is None else note
    columns["note_ends"][-1] = len(notes)
    header = {**data.table.header, "source": PINNED}
    table = FileTable(header, columns, parts["keys"], parts["versions"], notes)
    told = files_index_bytes(
        data.format.name, str(place), dict(data.format.settings()), table.digest()
    )
    store = open_store(str(tmp_path / name))
    write_sidecar(store, TABLE_NAME, TABLE_KIND, fingerprint_of(told), table.to_bytes())
    store.put("index.json", told)
    return StreamingDataset(remote=str(tmp_path / name), local=str(tmp_path / f"{name}-c"))


def setting(column, value, at=-1):
    def change(columns, parts):
        columns[column][at] = value

    return change


def naming(key):
    def change(columns, parts):
        parts["keys"][0] = key

    return change


WRONG = {
    "samples below zero": setting("samples", -1),
    "too many samples": setting("samples", 1 << 60),
    "more samples than lines": setting("samples", 99),
    "bytes below zero": setting("decoded", -5),
    "another file": setting("file", 7),
    "another schema": setting("schema_of", 7),
    "begins before the file": setting("begin", -9),
    "ends before it begins": setting("begin", 1 << 40),
    "ends behind the file": setting("end", 1 << 40),
    "out of the folder": naming("../secret.jsonl"),
    "at the root": naming("/etc/hostname"),
    "not there": naming("other.jsonl"),
    "no note": lambda columns, parts: b"",
    "another note": lambda columns, parts: b"\xff" * 40,
    "a note of a list": lambda columns, parts: b"\x04\0\0\0[[1]",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_table_from_anywhere_is_checked(tmp_path, name):
    """Digests tell damage and not intent: every number and name of a table is looked at."""
    place = tmp_path / "lines"
    place.mkdir()
    (tmp_path / "secret.jsonl").write_text('{"a": 1}\n' * 9)
    (place / "a.jsonl").write_text("".join(json.dumps({"a": n}) + "\n" for n in range(9)))
    assert len(forged(place, "jsonl", lambda columns, parts: None, tmp_path, "good")[8]) == 1
    with pytest.raises(MdsError):
        list(forged(place, "jsonl", WRONG[name], tmp_path, "bad"))


FOOTERS = {
    "none": b"",
    "junk": b"\xff" * 40,
    "no footer": zstandard.compress(b"PAR1" * 9),
    "larger than memory": b"\x28\xb5\x2f\xfd\xe0" + (1 << 60).to_bytes(8, "little") + bytes(40),
}


@pytest.mark.parametrize("name", FOOTERS)
def test_footers_of_a_table_from_anywhere_are_checked(tmp_path, name):
    """The footer of a Parquet file that a table holds is none of that file, or nothing at all."""
    place = write_files(tmp_path / "files", groups=((3, 2),))
    with pytest.raises(MdsError, match="the stored footer cannot be read"):
        list(forged(place, "parquet", lambda columns, parts: FOOTERS[name], tmp_path, "bad"))


@pytest.mark.parametrize("path", ["../secret", "/etc/hostname", "", 5, "a\0b"])
def test_rows_of_a_table_stay_below_the_folder(tmp_path, path):
    """A manifest is checked when it is read, and its rows again when they come from a table."""
    place = tmp_path / "raw"
    place.mkdir()
    (tmp_path / "secret").write_text("secret")
    (place / "a.bin").write_text("a")
    (place / "m.csv").write_text("path\na.bin\n")

    def change(columns, parts):
        packed = pack_rows([{"path": path}], "m.csv")
        columns["begin"][0], columns["end"][0] = 0, len(packed)
        return packed

    with pytest.raises(MdsError, match="row 0"):
        forged(place, RawFiles(manifest="m.csv"), change, tmp_path, "bad")[0]


def test_settings_that_no_format_has_are_told(tmp_path):
    """Of an index.json that was written by something else, or by a later version."""
    place = tmp_path / "lines"
    place.mkdir()
    (place / "a.jsonl").write_text('{"a": 1}\n')
    assert run("index", place)[0] == 0
    whole = json.loads((place / "index.json").read_text())
    for wrong in ({"color": 1}, {"shard_size": -1}, {"shard_size": []}):
        told = {**whole, "files": {**whole["files"], "settings": wrong}}
        (place / "index.json").write_text(json.dumps(told, sort_keys=True))
        with pytest.raises(MdsError, match="has invalid settings"):
            StreamingDataset(local=str(place))
        code, text = run("info", place)
        assert (code, "has invalid settings" in text) == (2, True)


def test_an_index_of_plain_files_is_made_by_the_command(tmp_path):
    """The settings of a format are given one by one, and are those of the dataset of the index."""
    place, out = tmp_path / "raw", tmp_path / "index"
    place.mkdir()
    for at in range(5):
        (place / f"{at}.bin").write_bytes(bytes([at]))
    (place / "m.csv").write_text("file\n" + "".join(f"{at}.bin\n" for at in range(5)))
    settings = ["--set", "manifest=m.csv", "--set", "path=file", "--set", "samples_per_shard=2"]
    code, text = run("index", place, out, "--format", "files", *settings)
    assert (code, "5 samples in 3 shards of 1 file" in text) == (0, True)
    dataset = StreamingDataset(remote=str(out), local=str(tmp_path / "cache"), batch_size=2)
    assert dataset.samples_per_shard.tolist() == [2, 2, 1]
    assert dataset[4] == {"path": "4.bin", "content": b"\4"}


def test_settings_of_a_command_are_checked(tmp_path):
    """Each that is missing, unknown, of the wrong kind or no pair is told with what would do."""
    place = tmp_path / "lines"
    place.mkdir()
    (place / "a.jsonl").write_text('{"a": 1}\n' * 9)
    (place / "m.csv").write_text("path\na.jsonl\n")
    for given, words in [
        (["--set", "shard_sizes=5"], "no setting 'shard_sizes'. Did you mean 'shard_size'?"),
        (["--set", "shard_size"], "--set takes NAME=VALUE, got 'shard_size'"),
        (["--set", "shard_size=large"], "large"),
        (["--format", "files", "--set", "manifest=m.csv", "--set", "samples_per_shard=few"],
         "samples_per_shard='few'"),
    ]:  # fmt: skip
        code, text = run("index", place / "a.jsonl" if len(given) == 2 else place, *given)
        assert code == 2
        assert words in " ".join(text.split())
    (tmp_path / "plain").mkdir()
    code, text = run("index", tmp_path / "plain", "--set", "a=1")
    assert (code, "--set needs --format" in text) == (2, True)
    code, text = run("index", place / "a.jsonl", tmp_path / "out", "--set", "shard_size=20")
    assert (code, "9 samples in 3 shards" in text) == (0, True)
