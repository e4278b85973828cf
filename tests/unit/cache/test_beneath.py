"""No file outside of the cache folder is touched, whatever index, sidecar and links say."""

import json
import os

import pytest
import xxhash
from cache_tools import contents, open_cache, write

from mds import StreamingDataset
from mds._index.table import MIN_COPIED_BYTES, read_index
from mds.errors import CacheError, ConfigError, MdsError

KEYS = b"a private key\n"


@pytest.fixture
def user(tmp_path):
    """Files of a user beside his cache folder."""
    home = tmp_path / "user"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "shard.00000.mds").write_bytes(KEYS)
    (home / ".ssh" / "shard.00000.mds.zstd").write_bytes(KEYS)
    (home / ".ssh" / ".shard.00000.mds.4194303-0123456789ab.mds-part").write_bytes(KEYS)
    return home


def rename(folder, change):
    """Let an index name its files otherwise, moving them."""
    path = os.path.join(folder, "index.json")
    with open(path, encoding="utf-8") as file:
        index = json.load(file)
    for shard in index["shards"]:
        for file in (shard["raw_data"], shard["zip_data"]):
            if file:
                before = os.path.join(folder, file["basename"])
                file["basename"] = change(file["basename"])
                after = os.path.join(folder, file["basename"])
                os.makedirs(os.path.dirname(after), exist_ok=True)
                if os.path.exists(before):
                    os.rename(before, after)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(index, file)


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"hashes": []}], ids=str)
@pytest.mark.parametrize("keep_zip", [False, True])
@pytest.mark.parametrize("limit", [None, 150_000])
@pytest.mark.parametrize("way", ["hold", "samples", "in_memory"])
def test_a_link_below_the_cache_folder_is_refused_first(
    tmp_path, user, options, keep_zip, limit, way
):
    """Nothing behind a link in the cache folder is removed, replaced or written."""
    remote = write(tmp_path / "remote", **options)
    rename(remote, lambda name: f"data/{name}")
    folder = user / "cache"
    folder.mkdir()
    (folder / "data").symlink_to(user / ".ssh")
    before = contents(user / ".ssh")
    with open_cache(remote, folder, limit, keep_zip=keep_zip) as cache:
        info = cache.sources[0].index.shard(0)
        act = {
            "hold": lambda: cache.hold(0),
            "samples": lambda: cache.samples(0, [1, 2]),
            "in_memory": lambda: cache.runtime.fetcher.downloaders[0].download_to_memory(info),
        }[way]
        if options == {"hashes": []}:
            act()  # nothing tells whose those files are, so the dataset is kept apart from them
        else:
            with pytest.raises(ConfigError, match="a link leads out of the cache folder"):
                act()
        cache.evict(0)
    assert contents(user / ".ssh") == before


def test_a_link_that_comes_later_is_not_followed_by_eviction(tmp_path, user):
    """Eviction removes nothing through a link, even of the same file."""
    remote = write(tmp_path / "remote")
    rename(remote, lambda name: f"data/{name}")
    folder = user / "cache"
    with open_cache(remote, folder, 150_000) as cache:
        cache.hold(0)
        cache.release(0)
        os.rename(folder / "data", user / "moved")
        (folder / "data").symlink_to(user / "moved")
        before = contents(user / "moved")
        with pytest.raises(ConfigError, match="a link leads out"):
            cache.evict(0)
        assert contents(user / "moved") == before


def test_a_cache_folder_may_be_reached_through_a_link(tmp_path, user):
    """The owner of a disk may put the cache folder wherever he likes."""
    remote = write(tmp_path / "remote", compression="zstd")
    rename(remote, lambda name: f"data/{name}")
    (tmp_path / "disk").mkdir()
    (user / "cache").symlink_to(tmp_path / "disk")
    with open_cache(remote, user / "cache", 150_000) as cache:
        cache.hold(3)
        cache.release(3)
        assert (tmp_path / "disk" / "data" / "shard.00003.mds").exists()
        assert cache.evict(3)
        assert not (tmp_path / "disk" / "data" / "shard.00003.mds").exists()


def test_a_dataset_cannot_plant_the_table_of_its_index(tmp_path, user):
    """A shard that would become the cached table is refused before anything is fetched."""
    remote = write(tmp_path / "remote", hashes=[])
    rename(remote, lambda name: ".mds/index.mds" if name.endswith("0.mds") else name)
    with pytest.raises(MdsError):
        StreamingDataset(remote=remote, local=str(user / "cache"))
    assert not os.path.exists(user / "cache" / ".mds" / "index.mds")


@pytest.mark.parametrize("lie", [b"../.ssh/shard.00000.mds", b"x" * 23])
def test_a_planted_table_does_no_harm(tmp_path, user, lie):
    """A table of the index with names that lead outside is made anew, and nothing is removed."""
    remote = write(tmp_path / "remote", hashes=[])
    rename(remote, lambda name: f"aaaaaaa/{name}")
    with open(os.path.join(remote, "index.json"), "ab") as file:
        file.write(b" " * MIN_COPIED_BYTES)  # of a size that is worth a table
    folder = user / "cache"
    with open_cache(remote, folder):
        pass
    path, table = folder / "index.json", folder / ".mds" / "index.mds"
    index = read_index(str(path), str(table))
    data = table.read_bytes()
    bad = bytearray(data[16:].replace(b"aaaaaaa/shard.00000.mds", lie))
    if lie[:1] == b"x":  # a table of another kind of nonsense: a shard of a size that it has not
        bad = bytearray(data[16:]).replace(
            int(index.raw_size[0]).to_bytes(8, "little"), (-5).to_bytes(8, "little", signed=True)
        )
    table.write_bytes(data[:8] + xxhash.xxh3_64_intdigest(bad).to_bytes(8, "little") + bad)
    before = contents(user / ".ssh")
    dataset = StreamingDataset(remote=remote, local=str(folder))
    assert len([dataset[i] for i in range(20)]) == 20
    assert contents(user / ".ssh") == before
    assert table.read_bytes() == data


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"hashes": []}], ids=str)
@pytest.mark.parametrize("limit", [None, 150_000])
@pytest.mark.parametrize("keep_zip", [False, True])
@pytest.mark.parametrize("size", ["other", "same"])
def test_what_a_user_put_into_the_cache_folder_stays(
    tmp_path, user, options, limit, keep_zip, size
):
    """A shard that is called as a file of the user's is refused or kept apart; the file stays."""
    remote = write(tmp_path / "remote", **options)
    rename(remote, lambda name: name.replace("shard.00000.mds", "train.py"))
    shard = read_index(os.path.join(remote, "index.json")).shard(0)
    file = shard.zip if shard.zip and keep_zip else shard.raw
    folder = user / "cache"
    folder.mkdir()
    (folder / file.basename).write_bytes(b"#" * (file.size if size == "same" else 40))
    before = contents(folder)[file.basename]
    with open_cache(remote, folder, limit, keep_zip=keep_zip) as cache:
        if "hashes" in options:  # without digests the folder is not this dataset's at all
            cache.hold(0)
        else:
            with pytest.raises(CacheError, match=r"train\.py.* has the name of a shard"):
                cache.hold(0)
        cache.hold(1)
        cache.release(1)
        cache.evict(0)
        cache.evict(1)
    assert contents(folder)[file.basename] == before


def test_strange_names_of_shards_are_fetched_and_evicted(tmp_path, user):
    """Files that the library made are its own, whatever they are called."""
    remote = write(tmp_path / "remote")
    rename(remote, lambda name: name.replace("shard.", "part-").replace(".mds", ".bin"))
    folder = user / "cache"
    for _ in range(2):
        with open_cache(remote, folder, 150_000) as cache:
            for shard in (0, 1, 0):
                cache.hold(shard)
                cache.release(shard)
                assert cache.evict(shard)
            cache.hold(2)
            cache.release(2)
    os.unlink(folder / ".mds" / "ledger")
    with open_cache(remote, folder, 150_000) as cache:
        cache.hold(2)
        cache.release(2)
