"""Downloaders and uploaders through the door: which class, which URLs, which errors."""

import os

import pytest
from streaming.base.storage import CloudDownloader, CloudUploader, S3Downloader
from streaming.base.storage import download as downloads
from streaming.base.storage import upload as uploads

from mds.errors import SealedNameError

SCHEMES = {
    "s3": "S3",
    "gs": "GCS",
    "oci": "OCI",
    "azure": "Azure",
    "azure-dl": "AzureDataLake",
    "hf": "HF",
    "sftp": "SFTP",
    "dbfs": "DBFS",
    "dbfs:/Volumes": "DatabricksUnityCatalog",
    "alipan": "Alipan",
}


@pytest.mark.parametrize(("scheme", "family"), SCHEMES.items())
def test_a_class_for_each_scheme(scheme, family):
    """The class of a URL, its identifier, and the tables that name it."""
    kind = getattr(downloads, f"{family}Downloader")
    url = f"{scheme}/x/y" if ":" in scheme else f"{scheme}://x/y"
    assert type(CloudDownloader.get(url)) is kind
    assert kind._client_identifier() == scheme
    assert downloads.DOWNLOADER_MAPPINGS[scheme] is kind
    assert uploads.UPLOADERS[scheme] == f"{family}Uploader"
    kind()._validate_remote_path(url)
    with pytest.raises(ValueError, match="is for URLs of scheme"):
        kind()._validate_remote_path("ftp://x/y")


def test_urls_of_another_scheme_are_refused(tmp_path):
    """A downloader is of one scheme; a scheme that no store has is a ValueError."""
    with pytest.raises(ValueError):
        S3Downloader().download("gs://bucket/x", str(tmp_path / "x"))
    with pytest.raises(ValueError, match="no store is known"):
        CloudDownloader.get("nonsense://bucket/x")
    with pytest.raises(ValueError):
        CloudDownloader.get(None).download(None, str(tmp_path / "x"))
    with pytest.raises(FileNotFoundError):
        CloudDownloader.get(None).download(str(tmp_path / "gone"), str(tmp_path / "x"))


def test_downloading_without_an_object(tmp_path):
    """`direct_download` is a method of the class."""
    (tmp_path / "a").write_bytes(b"abc")
    CloudDownloader.direct_download(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == b"abc"


@pytest.mark.parametrize(
    "out", [None, ("a",), ("a", "b", "c"), (1, 2), "nonsense://b/c", ("here", "nonsense://b/c")]
)
def test_an_uploader_looks_at_its_place_first(out, tmp_path, monkeypatch):
    """What is no place is a ValueError, and nothing is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError):
        CloudUploader.get(out)
    assert os.listdir(tmp_path) == []


def test_a_url_without_a_bucket_is_refused():
    """The URL is looked at when the uploader is made."""
    pytest.importorskip("boto3", reason='boto3 is not installed: pip install "mds-streaming[s3]"')
    with pytest.raises(ValueError, match="names no bucket"):
        CloudUploader.get("s3://")


def test_checks_of_an_uploader_are_not_called(tmp_path):
    """A check is missing, an override of one warns, and one that is set on a class raises."""
    uploader = CloudUploader.get((str(tmp_path / "here"), str(tmp_path)))
    assert uploader.remote == str(tmp_path)
    with pytest.raises(AttributeError, match=r"check_bucket_exists through mds.*upload_file"):
        uploader.check_bucket_exists(str(tmp_path))
    with pytest.warns(UserWarning, match="Mine overrides check_token"):
        type("Mine", (uploads.AlipanUploader,), {"check_token": lambda self: None})
    with pytest.raises(SealedNameError, match=r"S3Uploader\.check_bucket_exists would have no"):
        uploads.S3Uploader.check_bucket_exists = lambda *_: None
    with pytest.raises(SealedNameError, match="Mine overrides _create_s3_client"):
        type("Mine", (uploads.S3Uploader,), {"_create_s3_client": lambda self: None})


def test_databricks_have_a_class_in_common():
    """Both kinds of its uploaders are one."""
    for name in ("DBFSUploader", "DatabricksUnityCatalogUploader"):
        assert issubclass(getattr(uploads, name), uploads.DatabricksUploader)
