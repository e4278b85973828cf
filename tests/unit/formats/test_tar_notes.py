"""Notes beside tars, of which samples are counted: what is asked for, and what comes whole."""

import itertools
import json

import pytest
import tars

from mds import StreamingDataset
from mds.errors import FormatError, IndexFileError
from mds.formats import Files, Tar
from mds.formats._dataset import make_table
from mds.formats._source import parse_place
from mds.storage._memory import MemoryStore

_STORES = itertools.count()


def of(remote, folder, **more):
    return StreamingDataset(remote=remote, local=str(folder), batch_size=1, **more)


def write(folder, samples):
    folder.mkdir()
    tars.by_python(folder / "00000.tar", tars.members(samples, "{:06}"))
    return folder


def test_a_note_is_fetched_once_for_all_that_it_tells_of(tmp_path):
    """The index of wids is of all tars of a folder; each of them needs one look beside it."""
    folder = write(tmp_path / "t", [tars.sample(i) for i in range(5)])
    store = MemoryStore(f"memory://notes-{next(_STORES)}")
    names = [f"{number:05}.tar" for number in range(7)]
    told = {"shardlist": [{"url": f"x/{name}", "nsamples": 5} for name in names]}
    store.put("index.json", json.dumps(told).encode())
    for name in names:
        store.put(name, (folder / "00000.tar").read_bytes())
    store.put("00003.tar.idx", (folder / "00000.tar").stat().st_size.to_bytes(8, "little"))
    asked, stream = [], store.stream

    def noted(key, *more):
        asked.append(key)
        return stream(key, *more)

    store.stream = noted

    def plan():
        asked.clear()
        files, kind = Files(store), Tar()
        return make_table(kind, files, kind.find(parse_place(store.url + "/*.tar"), files))

    with pytest.raises(FormatError, match=r"00003\.tar: .* 5 samples.*the sidecar file says 0"):
        plan()
    store.delete("00003.tar.idx")
    assert plan().samples.tolist() == [5] * 7
    assert sorted(asked) == [*names, "index.json"]


def test_large_files_that_are_not_wanted_are_hopped_over(tmp_path):
    """Where a note counts the samples of a tar, and one takes more than a request is worth."""
    large, small = bytes(5 << 20), bytes(1 << 20)
    for data, is_hopped in ((large, True), (small, False)):
        folder = write(tmp_path / f"{len(data)}", [tars.sample(i, bin=data) for i in range(4)])
        store = MemoryStore(f"memory://notes-{next(_STORES)}")
        store.put("00000.tar", (folder / "00000.tar").read_bytes())
        store.put("00000_stats.json", b'{"successes": 4}')
        dataset = of(store.url + "/*.tar", tmp_path / f"c{len(data)}", columns=["cls", "txt"])
        assert ("not the positions of their files" in dataset.explain()) is not is_hopped
        assert "read in place" not in dataset.explain()
        assert [sample["cls"] for sample in dataset] == list(range(4))
        came = dataset.stats()["fetched_bytes"]
        assert (came < 1 << 20) is is_hopped
        whole = of(store.url + "/*.tar", tmp_path / f"d{len(data)}")
        assert "whole files" not in whole.explain()


def test_an_index_of_wids_is_none_of_shards(tmp_path):
    """Where the folder is given without what is in it, the message says how."""
    folder = write(tmp_path / "t", [tars.sample(i) for i in range(5)])
    told = {"__kind__": "wids-shard-index-v1", "shardlist": []}
    (folder / "index.json").write_text(json.dumps(told))
    with pytest.raises(IndexFileError, match=r"Is it an index of tars\? Give format='tar'"):
        StreamingDataset(local=str(folder))
    assert StreamingDataset(local=str(folder), format="tar").num_samples == 5
