"""A cached file is what it claims to be: folders that several datasets share.

The shards of all datasets here have the same names and sizes and no digests, as those of blocks of
tokens have.
"""

from __future__ import annotations

import json
import logging
import os
import shutil

import pytest
from cache_tools import SAMPLES, contents, open_cache, read, write
from users import GROUP, USERS, can_become

from devtools.httpserver import http_server
from mds._cache.index_copy import find_index
from mds._cache.ownership import (
    Origin,
    claim,
    folder_below,
    read_origin,
    source_of,
    write_origin,
)
from mds._cache.source import default_folder
from mds._dataset.stream import Stream
from mds.errors import ReplacedError
from mds.writers import merge_index

SALT = 10_000


@pytest.fixture
def pair(tmp_path):
    """Two datasets that nothing but their samples tells apart."""
    one = write(tmp_path / "one", hashes=[])
    other = write(tmp_path / "other", hashes=[], salt=SALT)
    assert contents(one)["index.json"][0] == contents(other)["index.json"][0]
    return one, other


def fetched(cache):
    """Shards that came whole or in part."""
    stats = cache.stats()
    return stats["fetched_shards"] + stats["ranged_reads"] + stats["in_memory_shards"]


def cached_names(folder):
    return sorted(name for name in os.listdir(folder) if name != ".mds")


@pytest.mark.parametrize("limit", [None, 150_000])
def test_two_datasets_on_one_folder_have_their_own_samples(pair, folder, limit):
    """At the same time, one after the other, and when everything is started again."""
    one, other = pair
    with open_cache(one, folder, limit) as first, open_cache(other, folder, limit) as second:
        for _ in range(2):
            assert read(first) == list(range(SAMPLES))
            assert read(second, salt=SALT) == list(range(SAMPLES))
    for remote, salt in ((one, 0), (other, SALT), (one, 0)):
        with open_cache(remote, folder, limit) as cache:
            assert read(cache, salt=salt) == list(range(SAMPLES))
            assert limit or not fetched(cache)


def test_the_first_has_the_names_of_the_remote_and_the_second_is_kept_apart(pair, folder, caplog):
    """Other readers find the first; one line says where the second is, once."""
    one, other = pair
    with open_cache(one, folder) as cache:
        read(cache)
    caplog.clear()
    for _ in range(2):
        with open_cache(other, folder) as cache:
            read(cache, salt=SALT)
    assert len([line for line in caplog.messages if "cached separately" in line]) == 1
    assert cached_names(folder) == sorted(os.listdir(one))
    assert contents(folder)["shard.00003.mds"][0] == contents(one)["shard.00003.mds"][0]
    where = folder_below(folder, source_of(other, None))
    assert cached_names(where) == sorted(os.listdir(other))


def test_the_limit_of_each_is_that_of_its_own_files(pair, folder):
    """What is cached separately counts for the dataset that keeps it."""
    one, other = pair
    with open_cache(one, folder) as first, open_cache(other, folder) as second:
        read(first)
        used = first.usage
        read(second, salt=SALT)
        assert first.usage == used
        assert abs(second.usage - used) < 100  # the notes have numbers of several lengths


def test_a_source_is_the_same_however_its_url_is_signed_and_spelled(tmp_path, folder):
    """A new signature or a slash at the end does not make a cold start."""
    remote = write(tmp_path / "remote", hashes=[])
    with http_server(remote) as url:
        for spelling in (f"{url}?X-Amz-Signature=1f", f"{url}/?X-Amz-Signature=2e", f"{url}/", url):
            with open_cache(spelling, folder) as cache:
                assert read(cache) == list(range(SAMPLES))
                is_cold = spelling.endswith("=1f")
                assert bool(fetched(cache)) == is_cold
    assert cached_names(folder) == sorted(os.listdir(remote))


def test_what_is_noted_of_a_folder_has_no_secrets(tmp_path, folder):
    """Neither login nor signature; and who may read the folder may read the note."""
    remote = write(tmp_path / "remote", samples=20)
    os.makedirs(folder, 0o750)
    with http_server(remote) as url:
        secret = url.replace("//", "//anna:hunter2@") + "?sig=hunter2&pass=hunter2"
        find_index(secret, folder)
    path = os.path.join(folder, ".mds", "origin.json")
    with open(path, encoding="utf-8") as file:
        assert "hunter2" not in file.read()
    assert os.stat(path).st_mode & 0o777 == 0o640
    assert os.stat(os.path.join(folder, "index.json")).st_mode & 0o777 == 0o640


def test_a_dataset_that_is_published_anew_with_the_same_index_is_noticed(tmp_path, folder):
    """By the version of its index, in one request and none for a shard."""
    remote = write(tmp_path / "remote", hashes=[])
    with open_cache(remote, folder) as cache:
        read(cache)
    shutil.rmtree(remote)
    write(remote, hashes=[], salt=SALT)
    with open_cache(remote, folder) as cache:
        assert read(cache, salt=SALT) == list(range(SAMPLES))
    assert cached_names(folder) == sorted(os.listdir(remote))


def test_a_job_that_runs_while_its_dataset_is_published_anew_is_left_alone(tmp_path, folder):
    """The newcomer takes the folder; the job goes on beside it, and neither starts over."""
    remote = write(tmp_path / "remote", hashes=[])
    with open_cache(remote, folder) as old:
        read(old)
        shutil.rmtree(remote)
        write(remote, hashes=[], salt=SALT)
        with open_cache(remote, folder) as new:
            assert read(new, salt=SALT) == list(range(SAMPLES))
            before = fetched(new)
            for _ in range(2):
                old.runtime.readers.close()  # nothing is open any more
                with pytest.raises(ReplacedError):  # what it would fetch is other data by now
                    read(old)
                assert read(new, salt=SALT) == list(range(SAMPLES))
            assert fetched(new) == before
    with open_cache(remote, folder) as cache:
        assert read(cache, salt=SALT) == list(range(SAMPLES))
        assert not fetched(cache)


def test_a_folder_that_is_deleted_and_taken_by_another_is_not_fought_for(pair, folder):
    """A running job whose folder is another's by now keeps its files apart."""
    one, other = pair
    with open_cache(one, folder) as first:
        assert read(first) == list(range(SAMPLES))
        shutil.rmtree(folder)
        with open_cache(other, folder) as second:
            assert read(second, salt=SALT) == list(range(SAMPLES))
            before = fetched(second)
            for _ in range(2):
                first.runtime.readers.close()
                assert read(first) == list(range(SAMPLES))
                assert read(second, salt=SALT) == list(range(SAMPLES))
            assert fetched(second) == before
            assert first.stats()["fetched_shards"] == 2 * len(first.sources[0].index)


def test_a_file_that_was_put_under_the_name_of_a_shard_is_not_believed(pair, folder):
    """The books know it not, and its size says nothing."""
    one, other = pair
    with open_cache(one, folder) as cache:
        read(cache, range(100))
    for name in ("shard.00002.mds", "shard.00015.mds"):
        shutil.copy(os.path.join(other, name), os.path.join(folder, name))
    for _ in range(2):
        with open_cache(one, folder) as cache:
            assert read(cache) == list(range(SAMPLES))
    shutil.rmtree(os.path.join(folder, ".mds"))
    os.unlink(os.path.join(folder, "index.json"))
    shutil.copy(os.path.join(other, "shard.00002.mds"), folder)
    with open_cache(one, folder) as cache:
        assert read(cache) == list(range(SAMPLES))


def test_files_say_themselves_what_they_are_when_the_books_are_lost(pair, folder):
    """Ours are used again, as on another node; another's of the same name and size is not."""
    one, other = pair
    with open_cache(one, folder) as cache:
        read(cache)
    os.unlink(os.path.join(folder, ".mds", "ledger"))
    shutil.copy2(os.path.join(other, "shard.00007.mds"), folder)
    with open_cache(one, folder) as cache:
        assert read(cache) == list(range(SAMPLES))
        assert fetched(cache) == 1


def test_what_the_dead_left_unsettled_is_not_believed_for_its_size(pair, folder):
    """A look at the disk after a death vouches for nothing that is not ours."""
    one, other = pair
    with open_cache(one, folder) as cache:
        opened = cache.runtime.fetcher.open(cache.runtime.catalog.folders[0])
        with opened.ledger.change():
            opened.ledger.reserve(2, 100_000)
        shutil.copy(os.path.join(other, "shard.00002.mds"), folder)
        opened.rescan(2)
        assert read(cache) == list(range(SAMPLES))


def test_a_file_is_not_believed_for_a_process_that_died_beside_it(pair, folder):
    """Whoever fetches a shard first removes what lies there, so the dead leave nothing doubtful."""
    one, other = pair
    with open_cache(one, folder) as cache:
        opened = cache.runtime.fetcher.open(cache.runtime.catalog.folders[0])
        shutil.copy(os.path.join(other, "shard.00002.mds"), folder)
        info = cache.sources[0].index.shard(2)
        cache.runtime.fetcher._delete_stale_files(opened, info)
        assert not os.path.exists(os.path.join(folder, "shard.00002.mds"))
        assert read(cache) == list(range(SAMPLES))


@pytest.mark.parametrize("is_old", [False, True], ids=["copied", "of an earlier version"])
@pytest.mark.parametrize("form", ["equal", "indented"])
def test_a_folder_without_a_note_is_adopted_if_its_index_is_the_remotes(
    pair, folder, caplog, is_old, form
):
    """As one that `aws s3 sync` filled: its shards are taken by their size, with one warning."""
    one, _ = pair
    shutil.copytree(one, folder)
    path = os.path.join(folder, "index.json")
    if form == "indented":
        with open(path, "r+", encoding="utf-8") as file:
            told = json.load(file)
            file.seek(0)
            json.dump(told, file, indent=1)
    if is_old:
        state = os.stat(path)
        copy = [state.st_ino, state.st_mtime_ns, state.st_size]
        os.mkdir(os.path.join(folder, ".mds"))
        with open(os.path.join(folder, ".mds", "origin.json"), "w", encoding="utf-8") as file:
            json.dump({"url": one, "version": "1", "size": state.st_size, "copy": copy}, file)
    before = contents(folder)
    for _ in range(2):
        with open_cache(one, folder, limit=10_000_000) as cache:
            assert read(cache) == list(range(SAMPLES))
            assert not fetched(cache)
    assert len([line for line in caplog.messages if "no digests" in line]) == 1
    after = contents(folder)
    shards = [name for name in before if name.startswith("shard")]
    assert {name: after[name] for name in shards} == {name: before[name] for name in shards}


def test_what_was_adopted_is_not_believed_when_the_dataset_is_published_anew(pair, folder):
    """The files stay, since they are somebody's until they are needed; the samples are new."""
    one, other = pair
    shutil.copytree(one, folder)
    with open_cache(one, folder) as cache:
        assert read(cache) == list(range(SAMPLES))
    shutil.rmtree(one)
    shutil.copytree(other, one)
    os.utime(os.path.join(one, "index.json"))
    for _ in range(2):
        with open_cache(one, folder) as cache:
            assert read(cache, salt=SALT) == list(range(SAMPLES))


def test_what_a_user_put_into_a_folder_stays(pair, folder, tmp_path):
    """With another index, and without any: the dataset is kept beside it."""
    one, other = pair
    write(folder, samples=50, hashes=[])
    before = contents(folder)
    with open_cache(one, folder) as cache:
        assert read(cache) == list(range(SAMPLES))
    after = contents(folder)
    assert {name: after[name] for name in before} == before
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(os.path.join(other, "shard.00002.mds"), bare)
    before = contents(bare)
    with open_cache(one, bare) as cache:
        assert read(cache) == list(range(SAMPLES))
    assert {name: contents(bare)[name] for name in before} == before


@pytest.mark.parametrize("keep_zip", [False, True])
def test_a_compressed_file_that_nothing_vouches_for_is_not_used(tmp_path, folder, keep_zip):
    """Neither one that was left by the version before."""
    remote = write(tmp_path / "remote", hashes=[], compression="zstd")
    with open_cache(remote, folder, keep_zip=True) as cache:
        read(cache)
    shutil.rmtree(remote)
    write(remote, hashes=[], compression="zstd", salt=SALT)
    with open_cache(remote, folder, keep_zip=keep_zip) as cache:
        assert read(cache, salt=SALT) == list(range(SAMPLES))


def test_what_is_decompressed_follows_the_users_own_folder(tmp_path):
    """Published anew in place with an index of the same text, without digests."""
    home = write(tmp_path / "data", hashes=[], compression="zstd")
    index = contents(home)["index.json"][0]
    with open_cache(None, home) as cache:
        assert read(cache) == list(range(SAMPLES))
    shutil.rmtree(home)
    write(home, hashes=[], compression="zstd", salt=SALT)
    with open(os.path.join(home, "index.json"), "rb") as file:
        assert len(file.read()) == len(index)
    with open_cache(None, home) as cache:
        assert read(cache, salt=SALT) == list(range(SAMPLES))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 10_000,
        b'{"source": 1, "identity": "x", "version": "", "size": 1, "since": 0, "copy": [1, 2, 3]}',
        b'{"source": "x", "identity": "x", "version": "", "size": 1, "since": 0, "copy": [1, 2]}',
        b'{"source": "x", "identity": "x", "version": "", "size": -7, "since": 0, "copy": [1,2,3]}',
        b'{"source": "x", "identity": "x", "version": "", "size": 1e400, "since": 0, "copy": []}',
        b'{"source":"x", "identity":"x", "version":"", "size":true, "since":0, "copy":[1, 2, 3]}',
    ],
)
def test_a_note_that_is_none_is_not_believed(pair, folder, text):
    """A damaged one is written anew, for the dataset whose index lies there."""
    one, _ = pair
    assert Origin.parse(text) is None
    with open_cache(one, folder) as cache:
        read(cache)
    with open(os.path.join(folder, ".mds", "origin.json"), "wb") as file:
        file.write(text)
    with open_cache(one, folder) as cache:
        assert read(cache) == list(range(SAMPLES))
        assert not fetched(cache)
    assert read_origin(folder).source == source_of(one, None)


def test_a_link_in_place_of_the_note_is_not_followed(pair, folder, tmp_path):
    """It is replaced, and what it leads to stays as it is."""
    one, _ = pair
    secret = tmp_path / "secret"
    secret.write_text("mine")
    os.makedirs(os.path.join(folder, ".mds"))
    os.symlink(secret, os.path.join(folder, ".mds", "origin.json"))
    with open_cache(one, folder) as cache:
        assert read(cache) == list(range(SAMPLES))
    assert secret.read_text() == "mine"
    assert not os.path.islink(os.path.join(folder, ".mds", "origin.json"))


def test_of_many_that_claim_a_folder_one_has_it(tmp_path):
    """Without a lock in common, as on two nodes."""
    folder = str(tmp_path)
    (tmp_path / ".mds").mkdir()
    claims = [Origin(f"source {number}", f"{number}") for number in range(5)]
    assert [claim(folder, origin, 0o600) for origin in claims] == [True] + 4 * [False]
    assert read_origin(folder) == claims[0]
    write_origin(folder, claims[1], 0o600)
    assert read_origin(folder) == claims[1]
    assert os.listdir(tmp_path / ".mds") == ["origin.json"]


def test_a_note_with_names_elsewhere_is_not_believed(tmp_path):
    """It has a second name while it is published, and one more may be a file of another place."""
    folder, path = str(tmp_path), tmp_path / ".mds" / "origin.json"
    path.parent.mkdir()
    origin = Origin("source", "identity")
    assert claim(folder, origin, 0o600)
    os.link(path, tmp_path / "half published")
    assert read_origin(folder) == origin
    os.link(path, tmp_path / "elsewhere")
    assert read_origin(folder) is None


@pytest.mark.skipif(not can_become(), reason="only root can give files away")
def test_a_note_of_a_stranger_is_not_believed_in_a_sticky_folder(tmp_path):
    """Anyone can make one there, as with every control file."""
    folder, control = str(tmp_path), tmp_path / ".mds"
    control.mkdir()
    control.chmod(0o1777)
    assert claim(folder, Origin("source", "identity"), 0o644)
    os.chown(control / "origin.json", USERS[0], GROUP)
    assert read_origin(folder) is None
    control.chmod(0o755)
    assert read_origin(folder) == Origin("source", "identity")


def test_options_that_say_where_the_bytes_are_make_another_source():
    """The same bucket of another service is another one, and credentials are not told."""
    plain = source_of("s3://bucket/a", {"aws_secret_access_key": "secret"})
    assert plain == "s3://bucket/a"
    one, two = (source_of("s3://b/a", {"endpoint_url": f"https://{n}"}) for n in ("me@x", "y"))
    assert len({plain, one, two}) == 3
    assert "me" not in one


def test_the_default_folder_is_that_of_the_source(monkeypatch):
    """Presigned or with a slash at its end: one folder; that of a plain URL is as it was."""
    monkeypatch.setenv("MDS_CACHE_DIR", "/cache")
    spellings = ["https://h/a", "https://h/a/", "https://h/a?sig=1", "https://me:x@h/a?sig=2"]
    assert len({default_folder(url) for url in spellings}) == 1
    assert default_folder("s3://b/a") == "/cache/601e891420117c6eaf63454bd88cb7a8"


def test_a_split_goes_before_the_signature():
    """A signed URL has its query at its end."""
    stream = Stream(remote="https://h/a?sig=1", local="/tmp/a", split="train")
    assert stream.remote_folder == "https://h/a/train?sig=1"


@pytest.mark.parametrize("hashes", [[], ["sha1"]], ids=str)
@pytest.mark.parametrize("order", [1, -1])
def test_a_dataset_and_its_split_may_share_a_folder(tmp_path, folder, hashes, order):
    """Whose files would lie in each other's folders; both stay warm."""
    whole = tmp_path / "whole"
    for number, split in enumerate(("train", "val")):
        write(whole / split, hashes=hashes, salt=number * SALT)
    merge_index(str(whole), keep_local=True)
    other = write(tmp_path / "other" / "train", hashes=hashes, salt=5 * SALT)
    named = [
        (str(whole), folder, range(SAMPLES), 0),
        (other, os.path.join(folder, "train"), range(SAMPLES), 5 * SALT),
    ]
    for turn in range(2):
        for remote, local, ids, salt in named[::order]:
            with open_cache(remote, local) as cache:
                assert read(cache, ids, salt=salt) == list(ids)
                assert not turn or not fetched(cache)


def test_streams_of_one_dataset_may_share_a_folder(pair, folder):
    """Each keeps its own shards in it."""
    from mds import StreamingDataset

    one, other = pair
    streams = [Stream(remote=one, local=folder), Stream(remote=other, local=folder)]
    for _ in range(2):
        dataset = StreamingDataset(streams=streams, batch_size=10)
        firsts = {dataset[0]["b"], dataset[SAMPLES]["b"]}
        assert len(firsts) == 2
        assert dataset[SAMPLES + 5]["b"] != dataset[5]["b"]


def test_a_fallback_folder_is_removed_when_nobody_uses_it(tmp_path, folder, caplog):
    """What a job cached separately because its dataset was published anew goes with it."""
    caplog.set_level(logging.WARNING, "mds.cache")
    remote = write(tmp_path / "remote", hashes=[])
    with open_cache(remote, folder) as old:
        read(old, range(50))
        shutil.rmtree(remote)
        write(remote, hashes=[], salt=SALT)
        with open_cache(remote, folder) as new:
            read(new, salt=SALT)
            read(old, range(100, 150), salt=SALT)
            assert os.listdir(os.path.join(folder, ".mds", "sources"))
            with open_cache(remote, folder) as third:
                read(third, salt=SALT)
            assert os.listdir(os.path.join(folder, ".mds", "sources"))
    with open_cache(remote, folder) as cache:
        assert read(cache, salt=SALT) == list(range(SAMPLES))
    assert not os.listdir(os.path.join(folder, ".mds", "sources"))
