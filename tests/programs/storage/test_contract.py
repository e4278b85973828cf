"""Every provider that a real server can stand for passes the contract."""

import pytest

from devtools import dialects
from devtools.httpserver import http_server
from mds.storage import open_store
from mds.testing import StoreContract


class TestHttp(StoreContract):
    """A web server with ranges."""

    @pytest.fixture
    def store(self, web, name):
        return open_store(f"{web[0]}/{name}")


class TestHttpWithoutRanges(StoreContract):
    """A web server that sends everything whatever is asked for."""

    @pytest.fixture
    def store(self, tmp_path):
        with http_server(str(tmp_path), ranges=False) as url:
            yield open_store(f"{url}/data")


class TestS3(StoreContract):
    """rclone as an S3 server."""

    @pytest.fixture
    def store(self, s3, name):
        return open_store(f"s3://bucket/{name}", options={"endpoint_url": s3})


class TestGs(StoreContract):
    """The Google Cloud Storage emulator."""

    @pytest.fixture
    def store(self, gcs, name, monkeypatch):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs)
        return open_store(f"gs://bucket/{name}")


class TestGsHmac(StoreContract):
    """Google's S3 dialect with HMAC keys, spoken to an S3 server."""

    @pytest.fixture
    def store(self, s3, name, monkeypatch):
        monkeypatch.setenv("GCS_KEY", "access")
        monkeypatch.setenv("GCS_SECRET", "secret")
        return open_store(f"gs://bucket/{name}", options={"endpoint_url": s3})


class TestAzure(StoreContract):
    """Azurite."""

    @pytest.fixture
    def store(self, azure, name):
        return open_store(f"azure://container/{name}", options={"connection_string": azure})


class TestAzureDataLake(StoreContract):
    """The same account under its other scheme, found by environment variables."""

    @pytest.fixture
    def store(self, azure, name, monkeypatch):
        facts = dict(part.split("=", 1) for part in azure.strip(";").split(";"))
        monkeypatch.setenv("AZURE_ACCOUNT_NAME", facts["AccountName"])
        monkeypatch.setenv("AZURE_ACCOUNT_ACCESS_KEY", facts["AccountKey"])
        return open_store(
            f"azure-dl://container/{name}", options={"endpoint": facts["BlobEndpoint"]}
        )


class TestSftp(StoreContract):
    """paramiko as an SFTP server, with a password in the URL."""

    @pytest.fixture
    def store(self, sftp, name, monkeypatch, tmp_path):
        (tmp_path / "known_hosts").write_text(sftp.known_hosts)
        monkeypatch.setenv("COMPOSER_SFTP_KNOWN_HOSTS_FILE", str(tmp_path / "known_hosts"))
        return open_store(f"sftp://{sftp.user}:se%3Acr%40t@127.0.0.1:{sftp.port}/{name}")


class TestFsspec(StoreContract):
    """A scheme that only fsspec knows."""

    @pytest.fixture
    def store(self, tmp_path):
        return open_store(f"local://{tmp_path}/data")


class TestOci(StoreContract):
    """Oracle's SDK, spoken to a server of its dialect."""

    @pytest.fixture
    def store(self, tmp_path):
        pytest.importorskip("oci", reason='pip install "mds-streaming[oci]"')
        with http_server(str(tmp_path / "bucket"), handler=dialects.Oci) as url:
            config = dialects.oci_config(tmp_path)
            options = {"config_file": str(config), "endpoint": url}
            yield open_store("oci://bucket@namespace/data", options=options)


class TestHub(StoreContract):
    """huggingface_hub and plain HTTP, spoken to a server of the Hub's dialect."""

    @pytest.fixture
    def store(self, tmp_path, monkeypatch):
        with http_server(str(tmp_path), handler=dialects.Hub) as url:
            monkeypatch.setenv("HF_TOKEN", "token")
            yield open_store("hf://datasets/org/name/folder", options={"endpoint": url})


class TestVolume(StoreContract):
    """A Unity Catalog volume."""

    @pytest.fixture
    def store(self, tmp_path, monkeypatch):
        with http_server(str(tmp_path), handler=dialects.Databricks) as url:
            monkeypatch.setenv("DATABRICKS_HOST", url)
            monkeypatch.setenv("DATABRICKS_TOKEN", "token")
            yield open_store("dbfs:/Volumes/catalog/schema/volume/data")


class TestDbfs(StoreContract):
    """The root of DBFS."""

    @pytest.fixture
    def store(self, tmp_path, monkeypatch):
        with http_server(str(tmp_path), handler=dialects.Databricks) as url:
            monkeypatch.setenv("DATABRICKS_HOST", url)
            monkeypatch.setenv("DATABRICKS_TOKEN", "token")
            yield open_store("dbfs:/data")
