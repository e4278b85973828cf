"""Files of every kind over wires that break, in spawned workers, in commands."""

import json
import os
import shutil

import pytest
from click.testing import CliRunner
from file_kinds import COUNTS, KINDS, name_of

from devtools import servers
from devtools.httpserver import http_server
from devtools.proxy import Fault, FaultProxy
from mds import StreamingDataLoader, StreamingDataset
from mds._cli import main
from mds.formats import RawFiles
from mds.formats._base import Format

TOTAL = sum(COUNTS)
FAULTS = [
    ("s3", Fault("status", times=2, status=503)),
    ("s3", Fault("cut", times=3, after=300)),
    ("http", Fault("reset", times=3, after=700)),
]


@pytest.fixture(scope="module")
def buckets(tmp_path_factory):
    """A folder with a bucket of each kind, their formats, an S3 server and an HTTP server of it."""
    root = tmp_path_factory.mktemp("kinds")
    kinds = {}
    for write in KINDS:
        name = write.__name__[6:].replace("_", "-")
        os.mkdir(root / name)
        kinds[name] = write(root / name)
    with servers.s3_server(str(root)) as s3, http_server(str(root)) as http:
        yield root, kinds, s3, http


NAMES = [write.__name__[6:].replace("_", "-") for write in KINDS]


def pattern(root, name, kind):
    """What a store that cannot list is asked for."""
    if isinstance(kind, RawFiles):
        return name
    return f"{name}/{{{','.join(sorted(os.listdir(root / name)))}}}"


@pytest.mark.slow
@pytest.mark.parametrize(("store", "fault"), FAULTS, ids=["s3-status", "s3-cut", "http-reset"])
@pytest.mark.parametrize("name", NAMES)
def test_a_wire_that_breaks_is_not_noticed(buckets, tmp_path, monkeypatch, name, store, fault):
    """While files are listed and counted, and while samples come: each once, in order."""
    root, kinds, s3, http = buckets
    for key, value in (("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", "secret"), ("REGION", "x")):
        monkeypatch.setenv(f"AWS_{key}", value)
    with FaultProxy(s3 if store == "s3" else http) as proxy:
        monkeypatch.setenv("S3_ENDPOINT_URL", proxy.url)
        place = pattern(root, name, kinds[name])
        remote = f"s3://{name}" if store == "s3" else f"{proxy.url}/{place}"
        proxy.add(fault)
        dataset = StreamingDataset(
            remote=remote, local=str(tmp_path / "c"), format=kinds[name], download_retry=7
        )
        assert dataset[3] is not None
        proxy.add(fault)
        found = list(dataset)
    assert [name_of(sample) for sample in found] == list(range(TOTAL))


@pytest.mark.parametrize("name", NAMES)
def test_spawned_workers_read_all_kinds(buckets, tmp_path, name):
    """Two processes, which get the format in a pickle and the table from the cache folder."""
    root, kinds, _, _ = buckets
    dataset = StreamingDataset(
        remote=str(root / name), local=str(tmp_path / "c"), format=kinds[name], batch_size=4
    )
    loader = StreamingDataLoader(
        dataset, batch_size=4, num_workers=2, worker_type="processes", collate_fn=list
    )
    found = [name_of(sample) for batch in loader for sample in batch]
    assert sorted(found) == list(range(TOTAL))


@pytest.mark.parametrize("name", NAMES)
def test_commands_take_all_kinds(buckets, tmp_path, name):
    """index, info, head, verify and convert --keep-shards, of the files and of their index."""
    root, kinds, _, _ = buckets
    kind: Format = kinds[name]
    place = tmp_path / "files"
    shutil.copytree(root / name, place)

    def run(*arguments):
        done = CliRunner().invoke(main, [*map(str, arguments)])
        assert done.exit_code == 0, done.output
        return done.output

    if isinstance(kind, RawFiles):  # its manifest is a setting, which no command takes
        from mds.formats._dataset import open_files, write_files_index

        write_files_index(*open_files(str(place), kind), str(tmp_path / "index"))
        places = [tmp_path / "index"]
    else:
        assert f"{TOTAL} samples" in run("index", place, tmp_path / "index", "--format", kind.name)
        places = [place, tmp_path / "index"] if kind.name != "lines" else [tmp_path / "index"]
    for each in places:
        assert kind.name in run("info", each)
        lines = [json.loads(line) for line in run("head", each, "-n", 5, "--json").splitlines()]
        assert [name_of(line) for line in lines] == list(range(5))
        assert f"{TOTAL} samples" in run("verify", each)
