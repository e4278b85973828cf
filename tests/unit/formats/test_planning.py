"""What has to be read over a network before the first sample is said, or refused."""

import logging

import pytest
import tars

from mds.errors import FormatError
from mds.formats import Files, JsonLines, RawFiles, Tar
from mds.formats import _dataset as dataset
from mds.formats._dataset import make_table
from mds.formats._source import parse_place
from mds.storage import open_store
from mds.storage._memory import MemoryStore


def planned(kind, place, most=None):
    files = Files(open_store(place))
    found = kind.find(kind.narrow(parse_place(place)), files)
    return make_table(kind, files, found, most_bytes=most)


@pytest.fixture(autouse=True)
def _tell_all(monkeypatch):
    monkeypatch.setattr(dataset, "_WARNED_BYTES", 1000)


def test_counting_tells_what_it_reads(tmp_path, caplog):
    """Lines and tars whose samples nobody counted are read whole; the bytes are said before."""
    store = MemoryStore("memory://planning-1")
    for name in ("a.jsonl", "b.jsonl"):
        store.put(name, b'{"x": 1}\n' * 1000)
    tars.by_python(tmp_path / "a.tar", tars.members([tars.sample(i) for i in range(9)]))
    store.put("a.tar", (tmp_path / "a.tar").read_bytes())
    with caplog.at_level(logging.WARNING, "mds.formats"):
        planned(JsonLines(), store.url)
        planned(Tar(), store.url)
    told = [record.getMessage() for record in caplog.records]
    assert "to count the samples of 2 jsonl files, mds must read 17.6 KB" in told[0]
    assert "to count the samples of 1 tar files" in told[1]


def test_too_much_is_refused_with_the_command():
    """Above the limit nothing is read, and the command is named that does it once."""
    store = MemoryStore("memory://planning-2")
    store.put("a.jsonl", b'{"x": 1}\n' * 1000)
    with pytest.raises(
        FormatError, match=r"must read 8\.8 KB, more than the limit of 8\.\d KB.*mds index"
    ):
        planned(JsonLines(), store.url, 8500)
    assert planned(JsonLines(), store.url, 9000).samples.tolist() == [1000]


def test_what_is_counted_or_on_this_disk_needs_no_word(tmp_path, caplog):
    """Notes of others, manifests and files of this machine are free."""
    tars.by_python(tmp_path / "a.tar", tars.members([tars.sample(i) for i in range(9)]))
    (tmp_path / "a_stats.json").write_text('{"successes": 9}')
    (tmp_path / "files.csv").write_text("path\n" + "a.tar\n" * 9)
    store = MemoryStore("memory://planning-3")
    for path in tmp_path.iterdir():
        store.put(path.name, path.read_bytes())
    for place in (str(tmp_path), store.url):
        assert planned(Tar(), place, 0).samples.tolist() == [9]
        assert planned(RawFiles(manifest="files.csv"), place, 0).samples.tolist() == [9]
    assert not caplog.records
