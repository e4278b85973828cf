"""Every environment variable that the docs name has an effect, or raises.

For each variable there is a check, which gives what is observed without the variable and with it. A
variable without a check fails the test.
"""

import dataclasses
import pathlib
import re
import tempfile
import warnings

import pytest

from devtools.httpserver import QuietHandler, QuietServer, running
from mds import MDSWriter, Stream, StreamingDataset, World
from mds._dataset.run import begin_epoch
from mds._iteration.node_order import NodeOrder
from mds._loader.worker_batches import tune_malloc
from mds._process.mmaps import max_maps
from mds.errors import MdsError
from mds.storage import open_store
from mds.storage._control_files import private_temporary_folder
from mds.storage._http import find_proxy
from mds.storage._retry import RetryPolicy
from mds.storage._wrappers import Wrapper
from mds.world import find_ranks

pytestmark = pytest.mark.slow

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "environment.md"
TABLE = PAGE.read_text(encoding="utf-8").partition("\n## Variables that mds sets")[0]
VARIABLES = [
    name
    for row in re.findall(r"^\| (`.*?) \|", TABLE, re.MULTILINE)
    for name in re.findall(r"`(\w+)`", row)
]


RANK_VARIABLES = {
    "torchrun": {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"},
    "slurm": {
        "SLURM_PROCID": "1",
        "SLURM_NTASKS": "4",
        "SLURM_NPROCS": "4",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_STEP_ID": "0",
    },
    "mpi": {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "mvapich": {
        "MV2_COMM_WORLD_RANK": "1",
        "MV2_COMM_WORLD_SIZE": "4",
        "MV2_COMM_WORLD_LOCAL_SIZE": "2",
    },
    "mpich": {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"},
}
# Each has the same meaning as another, which is left out where it is looked at.
TWINS = {"SLURM_NPROCS": "SLURM_NTASKS"}
JOB_VARIABLES = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "PMIX_NAMESPACE",
}
STORE_VARIABLES = {
    "S3_ENDPOINT_URL": ("s3://bucket/x", "http://127.0.0.1:1"),
    "S3_CANNED_ACL": ("s3://bucket/x", "bucket-owner-full-control"),
    "MOSAICML_STREAMING_AWS_REQUESTER_PAYS": ("s3://bucket/x", "other,bucket"),
    "GCS_KEY": ("gs://bucket/x", "key"),
    "GCS_SECRET": ("gs://bucket/x", "secret"),
    "STORAGE_EMULATOR_HOST": ("gs://bucket/x", "127.0.0.1:1"),
    "AZURE_ACCOUNT_NAME": ("azure://container/x", "other"),
    "AZURE_ACCOUNT_ACCESS_KEY": ("azure://container/x", "a2V5"),
    "AZURE_STORAGE_CONNECTION_STRING": (
        "azure://container/x",
        "AccountName=other;AccountKey=a2V5",
    ),
    "HF_TOKEN": ("hf://datasets/org/name", "token"),
    "HF_ENDPOINT": ("hf://datasets/org/name", "http://127.0.0.1:1"),
    "COMPOSER_SFTP_KEY_FILE": ("sftp://user@127.0.0.1/x", "/nowhere/key"),
    "COMPOSER_SFTP_KNOWN_HOSTS_FILE": ("sftp://user@127.0.0.1/x", "/nowhere/hosts"),
}
# What a variable needs beside it.
BESIDE = {
    "GCS_KEY": {"GCS_SECRET": "secret"},
    "GCS_SECRET": {"GCS_KEY": "key"},
    "AZURE_ACCOUNT_NAME": {"AZURE_ACCOUNT_ACCESS_KEY": "a2V5"},
    "AZURE_ACCOUNT_ACCESS_KEY": {"AZURE_ACCOUNT_NAME": "name"},
}


def settings_of(url):
    """Return the type and the settings of a store, or the class of the error."""
    try:
        store = open_store(url)
    except MdsError as error:
        return type(error)
    while isinstance(store, Wrapper):
        store = store.inner
    options = vars(store).get("_options")
    settings = dataclasses.asdict(options) if dataclasses.is_dataclass(options) else options
    return type(store).__name__, settings, vars(store).get("_bucket"), vars(store).get("_payer")


class VariableChecks:
    """What is observed of a variable, by a method for each kind of variable."""

    def __init__(self, monkeypatch, folder):
        self.monkeypatch, self.folder = monkeypatch, folder

    def observe(self, name):
        """Return what is observed without the variable and with it."""
        for launcher, variables in RANK_VARIABLES.items():
            if name in variables:
                return self.ranks(name, launcher)
        if name in JOB_VARIABLES:
            return self.change(name, "other", self.job)
        if name in STORE_VARIABLES:
            url, value = STORE_VARIABLES[name]
            for other, its_value in BESIDE.get(name, {}).items():
                self.monkeypatch.setenv(other, its_value)
            return self.change(name, value, lambda: settings_of(url))
        return getattr(self, name.lower().rstrip("_"))()

    def change(self, name, value, observe):
        self.monkeypatch.delenv(name, raising=False)
        before = observe()
        self.monkeypatch.setenv(name, value)
        return before, observe()

    def ranks(self, name, launcher):
        """All variables of a launcher are set; then one of them is taken away."""
        variables = dict(RANK_VARIABLES[launcher])
        if name == "SLURM_STEP_ID":  # a batch script has the number 0
            variables["SLURM_PROCID"] = "0"
        if name in TWINS:
            variables.pop(TWINS[name])
        elif name in TWINS.values():
            variables.pop({twin: other for other, twin in TWINS.items()}[name])
        for each, value in variables.items():
            self.monkeypatch.setenv(each, value)
        with_it = self.place()
        self.monkeypatch.delenv(name)
        return self.place(), with_it

    def place(self):
        """Return what a process takes for its place in the world, or the class of the error."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                place = find_ranks(None).world(1, 0).to_json()
                return place, World.detect().to_json(), len(caught)
            except MdsError as error:
                return type(error)

    def job(self):
        """Return what the ranks of a job on one machine have in common."""
        write_dataset(self.folder / "data")
        dataset = StreamingDataset(
            local=str(self.folder / "data"), batch_size=2, topology=World(1, 2, 1, 0)
        )
        return NodeOrder(begin_epoch(dataset, 0, 1, 0).order, dataset._shards).team

    def mds_cache_dir(self):
        return self.change("MDS_CACHE_DIR", "/other", lambda: Stream(remote="s3://b/x").local)

    def xdg_cache_home(self):
        self.monkeypatch.delenv("MDS_CACHE_DIR", raising=False)
        return self.change("XDG_CACHE_HOME", "/other", lambda: Stream(remote="s3://b/x").local)

    def mds_max_maps(self):
        def maps():
            max_maps.cache_clear()
            return max_maps()

        return self.change("MDS_MAX_MAPS", "77", maps)

    def tmpdir(self):
        def folder():
            tempfile.tempdir = None
            return private_temporary_folder()

        try:
            return self.change("TMPDIR", str(self.folder), folder)
        finally:
            tempfile.tempdir = None

    def malloc(self, name):
        return self.change(name, "1", tune_malloc)

    def malloc_mmap_threshold(self):
        return self.malloc("MALLOC_MMAP_THRESHOLD_")

    def malloc_trim_threshold(self):
        return self.malloc("MALLOC_TRIM_THRESHOLD_")

    def glibc_tunables(self):
        return self.malloc("GLIBC_TUNABLES")

    def ld_preload(self):
        return self.malloc("LD_PRELOAD")

    def hf_hub_offline(self):
        """Nothing listens at the address, so a request would be an error of another kind."""
        self.monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")

        def ask():
            store = open_store("hf://datasets/org/name", retry=RetryPolicy(attempts=1))
            with pytest.raises(MdsError) as caught:
                store.head("index.json")
            return "HF_HUB_OFFLINE" in str(caught.value)

        return self.change("HF_HUB_OFFLINE", "1", ask)

    def databricks(self, name, value):
        """The server of the workspace records what comes."""
        seen = []

        class Workspace(QuietHandler):
            def do_HEAD(self):
                seen.append(self.headers.get("Authorization"))
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_HEAD

        server = QuietServer(("127.0.0.1", 0), Workspace)
        with running(server, "workspace"):
            host = f"http://127.0.0.1:{server.server_address[1]}"
            self.monkeypatch.setenv("DATABRICKS_HOST", host)
            self.monkeypatch.setenv("DATABRICKS_TOKEN", "token")

            def ask():
                seen.clear()
                with pytest.raises(MdsError):
                    open_store("dbfs:/Volumes/a/b/c", retry=RetryPolicy(attempts=1)).head("x")
                return [*seen]

            with_it = ask()
            self.monkeypatch.setenv(name, value)
            return ask(), with_it

    def databricks_host(self):
        return self.databricks("DATABRICKS_HOST", "http://127.0.0.1:1")

    def databricks_token(self):
        return self.databricks("DATABRICKS_TOKEN", "another")

    def http_proxy(self):
        return self.change("HTTP_PROXY", "http://proxy:1", lambda: find_proxy("http://a/b"))

    def https_proxy(self):
        return self.change("HTTPS_PROXY", "http://proxy:1", lambda: find_proxy("https://a/b"))

    def no_proxy(self):
        self.monkeypatch.setenv("HTTP_PROXY", "http://proxy:1")
        return self.change("NO_PROXY", "a", lambda: find_proxy("http://a/b"))


def write_dataset(folder):
    """Write a dataset of eight samples, once."""
    if not folder.exists():
        with MDSWriter(out=str(folder), columns={"id": "int"}) as writer:
            for number in range(8):
                writer.write({"id": number})


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_has_an_effect(name, monkeypatch, tmp_path):
    """Something else is observed with the variable than without it."""
    for variable in VARIABLES:
        if variable not in {"TMPDIR", "LD_PRELOAD"}:
            monkeypatch.delenv(variable, raising=False)
    without, changed = VariableChecks(monkeypatch, tmp_path).observe(name)
    assert without != changed


def test_a_number_of_files_that_is_no_number_warns(monkeypatch):
    """A warning names the variable and its value; the number is the usual one."""
    max_maps.cache_clear()
    usual = max_maps()
    max_maps.cache_clear()
    monkeypatch.setenv("MDS_MAX_MAPS", "many")
    with pytest.warns(RuntimeWarning, match="MDS_MAX_MAPS='many' is not used"):
        assert max_maps() == usual
    max_maps.cache_clear()
