"""A dataset that is published anew behind a running job is noticed; samples are never mixed."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess

import pytest
from cache_tools import SAMPLES, payload, read, write
from sharing import finish, start

from devtools.httpserver import FolderHandler, http_server
from mds import StreamingDataset
from mds._cache.index_copy import fetch_index
from mds._cache.shard_cache import ShardCache
from mds._cache.source import Source
from mds.errors import CorruptError, ReplacedError, VanishedError

SIZE = 50_000  # bytes of a sample: large enough that one alone comes by range


class Weak(FolderHandler):
    """Calls the etags of ranges weak and those of whole files strong."""

    def send_header(self, keyword, value):
        is_weak = keyword == "ETag" and "Range" in self.headers
        super().send_header(keyword, f"W/{value}" if is_weak else value)


class Silent(FolderHandler):
    """Tells no version."""

    def send_header(self, keyword, value):
        if keyword != "ETag":
            super().send_header(keyword, value)


class Farm(FolderHandler):
    """Stands for many servers, each with an etag of its own for the same file."""

    numbers = itertools.count()

    def send_header(self, keyword, value):
        super().send_header(keyword, f'"{next(self.numbers)}"' if keyword == "ETag" else value)


def plain(tmp_path):
    """Forty samples in four shards of half a megabyte, without digests."""
    return write(tmp_path / "plain", size=SIZE, samples=40, hashes=[])


def opened(url, folder, **options):
    index = fetch_index(url, folder, timeout=10.0)
    return ShardCache([Source(index, url, folder, timeout=10.0, options=options or None)])


def publish_anew(remote, tmp_path, **options):
    """Other bytes under the same names, and the index that was there."""
    fresh = write(tmp_path / "fresh", **{"size": SIZE, "samples": 40, "hashes": [], **options})
    for name in sorted(os.listdir(fresh)):
        if name != "index.json":
            shutil.copy(os.path.join(fresh, name), os.path.join(remote, name))


def one_by_one(cache, rows):
    """One sample at a time, each by a ranged read of its own while they are few."""
    out = []
    for row in rows:
        sample = cache.samples(row // 10, [row % 10])[0]
        assert sample["b"] == payload(sample["x"], SIZE)
        out.append(sample["x"])
    return out


@pytest.mark.parametrize("kind", [FolderHandler, Weak])
def test_ranges_of_two_objects_are_not_mixed(tmp_path, folder, kind):
    """Of a shard that was replaced, bytes of equal size are refused by their version."""
    remote = plain(tmp_path)
    with http_server(remote, handler=kind) as url, opened(url, folder) as cache:
        assert one_by_one(cache, [3, 13, 5]) == [3, 13, 5]
        assert cache.stats()["ranged_reads"] >= 3
        publish_anew(remote, tmp_path, salt=7000)
        with pytest.raises(ReplacedError, match=r"shard\.00000.*version.*Restart") as caught:
            one_by_one(cache, [8])
        assert isinstance(caught.value, VanishedError)


@pytest.mark.parametrize("size", [SIZE - 10, SIZE + 10])
@pytest.mark.parametrize("row", [4, 35])
def test_a_range_of_another_size_than_the_index_says_is_refused(tmp_path, folder, size, row):
    """Where the server tells no version the size of the whole object is compared, at any read."""
    remote = plain(tmp_path)
    with http_server(remote, handler=Silent) as url, opened(url, folder) as cache:
        assert one_by_one(cache, [3]) == [3]
        publish_anew(remote, tmp_path, size=size, size_limit=10 * (SIZE + 40))
        with pytest.raises(ReplacedError, match="The dataset was replaced during the run"):
            one_by_one(cache, [row])


def test_a_whole_shard_of_another_version_is_refused_without_a_digest(tmp_path, folder):
    """A shard that comes a second time is the one that came first."""
    remote = plain(tmp_path)
    with http_server(remote) as url, opened(url, folder) as cache:
        assert read(cache, size=SIZE) == list(range(40))
        publish_anew(remote, tmp_path, salt=7000)
        cache.evict(2)
        with pytest.raises(ReplacedError, match=r"shard\.00002"):
            cache.hold(2)


def test_the_same_bytes_published_again_are_right_where_a_digest_says_so(remote, folder, tmp_path):
    """A digest decides about a whole shard, whatever its version."""
    with http_server(remote) as url, opened(url, folder) as cache:
        cache.hold(2)
        cache.release(2)
        publish_anew(remote, tmp_path, size=1000, samples=SAMPLES, hashes=["sha1"])
        assert cache.evict(2)
        assert cache.hold(2)[0]["b"] == payload(int(cache.sources[0].index.offsets[2]))
        cache.release(2)


def test_servers_that_disagree_about_versions_are_read_when_told_so(tmp_path, folder):
    """The error names the option, with which the size alone is compared."""
    remote = plain(tmp_path)
    with http_server(remote, handler=Farm) as url:
        with (
            opened(url, folder) as cache,
            pytest.raises(CorruptError, match="compare_versions=False"),
        ):
            one_by_one(cache, [3, 4])
        with opened(url, f"{folder}-2", compare_versions=False) as cache:
            assert one_by_one(cache, [3, 4, 5]) == [3, 4, 5]
            assert sorted(read(cache, size=SIZE)) == list(range(40))


def test_ranges_are_of_the_object_that_another_process_fetched_whole(tmp_path, folder):
    """With a digest or without: a shard that is replaced after it was fetched is noticed."""
    for hashes in ([], ["sha1"]):
        remote = write(tmp_path / f"p{hashes}", size=SIZE, samples=40, hashes=hashes)
        here = f"{folder}{len(hashes)}"
        with http_server(remote) as url, opened(url, here) as first, opened(url, here) as second:
            first.hold(1)
            first.release(1)
            publish_anew(remote, tmp_path, salt=7000)
            assert first.evict(1)
            with pytest.raises(ReplacedError, match=r"shard\.00001"):
                one_by_one(second, [13])
        shutil.rmtree(tmp_path / "fresh")


def test_a_run_ends_with_the_error_in_the_loop_of_the_trainer(tmp_path, folder):
    """It comes out of ``next``, once, and says what to do."""
    remote = plain(tmp_path)
    with http_server(remote) as url:
        dataset = StreamingDataset(remote=url, local=folder, batch_size=1, shuffle=False)
        assert dataset[3]["x"] == 3
        publish_anew(remote, tmp_path, salt=7000)
        with pytest.raises(VanishedError, match="Restart to read the new data"):
            list(dataset)


@pytest.mark.slow
@pytest.mark.parametrize("row", [8, None])
def test_processes_agree_about_the_object(tmp_path, folder, row):
    """What one process read ranges of, another refuses when it is replaced, rows and whole."""
    remote = plain(tmp_path)
    with http_server(remote) as url:
        other = start("ranges", url, folder, 0, 3, 5, stdin=subprocess.PIPE)
        assert other.stdout.readline() == b"[3, 5]\n"
        publish_anew(remote, tmp_path, salt=7000)
        with opened(url, folder) as cache, pytest.raises(ReplacedError, match=r"version.*start"):
            one_by_one(cache, [8]) if row else cache.hold(0)
        finish(other)
        # A new start reads what is there now.
        with opened(url, folder) as cache:
            assert cache.samples(0, [8])[0]["b"] == payload(7008, SIZE)
