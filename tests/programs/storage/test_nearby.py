"""A URL without an index: the error names what is near, with a bounded number of requests."""

import pytest

from devtools import servers
from devtools.httpserver import http_server
from devtools.proxy import FaultProxy
from mds import MDSWriter, StreamingDataset
from mds.errors import NotFoundError

PLACES = ("bucket/a/train", "bucket/a/val", "bucket/deep/b/c", "parts/x/0", "parts/x/1")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of buckets with datasets, and an empty bucket."""
    folder = tmp_path_factory.mktemp("buckets")
    (folder / "empty").mkdir()
    for place in PLACES:
        with MDSWriter(str(folder / place), {"id": "int"}) as writer:
            writer.write({"id": 1})
    return str(folder)


@pytest.fixture(scope="module")
def buckets(root):
    """A proxy before an S3 server of these buckets."""
    try:
        with servers.s3_server(root) as url, FaultProxy(url) as proxy:
            yield proxy
    except servers.ServerMissing as error:
        pytest.skip(str(error))


def text_of_error(tmp_path, remote, split=None, **options):
    """Return the text of the error for a remote without an index."""
    with pytest.raises(NotFoundError) as caught:
        StreamingDataset(
            remote=remote,
            local=str(tmp_path / "cache"),
            split=split,
            batch_size=1,
            storage_options=options or None,
        )
    return str(caught.value)


@pytest.mark.parametrize(
    ("remote", "split", "hint"),
    [
        ("s3://bucket/a", None, "There are datasets in train, val: give split='train'."),
        ("s3://bucket/a/train", "train", "There is a dataset in 's3://bucket/a/train': give this"),
        ("s3://bucket/a/train/index.json", None, "Give the folder of the dataset: 's3://bucket/a/"),
        ("s3://bucket/a/trainn", None, "Did you mean 'train'?"),
        ("s3://bucket/a", "other", "There are datasets beside it: train, val."),
        ("s3://bucket/deep", None, "give remote='s3://bucket/deep/b/c'."),
        ("s3://buckett/a/train", None, "repository does not exist: correct its name in the URL."),
        ("s3://parts/x", None, "join them: mds.merge_index('s3://parts/x')."),
        ("s3://empty/x", None, "mds-convert converts them."),
    ],
)
def test_a_bucket_gives_the_hints_of_a_folder(buckets, tmp_path, remote, split, hint):
    """One level below or above, the index itself, another name, no such bucket, parts."""
    buckets.seen.requests.clear()
    assert hint in text_of_error(tmp_path, remote, split, endpoint_url=buckets.url)
    assert buckets.count() <= 4


@pytest.mark.parametrize(
    ("path", "split", "hint"),
    [
        ("bucket/a", None, "There are datasets in train, val: give split='train'."),
        ("bucket/a/train", "train", "bucket/a/train': give this as remote=."),
        ("bucket/a/train/index.json", None, "Give the folder of the dataset: 'http://"),
        ("bucket/a/vla", None, "Did you mean 'val'?"),
        ("nothing", None, "mds-convert converts them."),
    ],
)
def test_a_web_server_is_asked_for_usual_names(root, tmp_path, path, split, hint):
    """It lists nothing, so the number of names is bounded."""
    with http_server(root) as url, FaultProxy(url) as proxy:
        assert hint in text_of_error(tmp_path, f"{proxy.url}/{path}", split)
        assert proxy.count() <= 10


def test_a_dataset_at_its_place_costs_no_request_more(buckets, tmp_path):
    """The hints are made where an error is raised."""
    buckets.seen.requests.clear()
    options = {"endpoint_url": buckets.url}
    remote, local = "s3://bucket/a/train", str(tmp_path / "cache")
    StreamingDataset(remote=remote, local=local, batch_size=1, storage_options=options)
    assert buckets.count() == 1


def test_containers_and_other_buckets_give_hints(azure, gcs, sftp, name, tmp_path, monkeypatch):
    """Azure, Google and a server that lists folder by folder."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure)
    (tmp_path / "known").write_text(sftp.known_hosts)
    monkeypatch.setenv("COMPOSER_SFTP_KNOWN_HOSTS_FILE", str(tmp_path / "known"))
    login = f"sftp://{sftp.user}:se%3Acr%40t@127.0.0.1:{sftp.port}"
    for root in ("gs://bucket", "azure://container", login):
        with MDSWriter(f"{root}/{name}/train", {"id": "int"}) as writer:
            writer.write({"id": 1})
        assert "give split='train'" in text_of_error(tmp_path, f"{root}/{name}")
        above = text_of_error(tmp_path, f"{root}/{name}/train", "val")
        assert "give this as remote=" in above
        assert "cr@t" not in above
        assert "cr%40t" not in above
    for url in ("gs://no-such-bucket/x", "azure://no-such-container/x"):
        assert "does not exist: correct its name in the URL" in text_of_error(tmp_path, url)
