"""Every provider that a real server can stand for passes the contract."""

import pytest

from mds.storage import open_store
from mds.testing.contract import StoreContract


class TestHttp(StoreContract):
    """A web server with ranges."""

    @pytest.fixture
    def store(self, web, name):
        return open_store(f"{web[0]}/{name}")


class TestHttpWithoutRanges(StoreContract):
    """A web server that sends everything whatever is asked for."""

    @pytest.fixture
    def store(self, tmp_path):
        from mds.testing.httpserver import http_server

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
