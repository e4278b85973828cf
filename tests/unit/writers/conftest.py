"""Small things that the tests of writers share."""

import itertools
import json
import pathlib

import numpy as np
import pytest

from mds._shardfile.layout import parse_offsets


class Written:
    """A folder that a writer left, looked at without the readers."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    @property
    def names(self):
        return sorted(p.name for p in self.folder.iterdir()) if self.folder.exists() else []

    @property
    def index(self):
        return json.loads((self.folder / "index.json").read_bytes())

    def counts(self):
        return [shard["samples"] for shard in self.index["shards"]]

    def samples(self):
        """The bytes of every sample, in order."""
        found = []
        for shard in self.index["shards"]:
            info = shard["raw_data"]
            data = (self.folder / info["basename"]).read_bytes()
            offsets = parse_offsets(data, shard["samples"], info["bytes"], info["basename"])
            found += [data[a:b] for a, b in itertools.pairwise(offsets)]
        return found

    def bytes(self):
        return {p.name: p.read_bytes() for p in sorted(self.folder.iterdir())}


@pytest.fixture
def out(tmp_path):
    return str(tmp_path / "out")


@pytest.fixture
def written():
    return Written


@pytest.fixture
def noise():
    return np.random.default_rng(3).bytes


@pytest.fixture
def places(tmp_path):
    """A local folder and a remote one, as (local, remote)."""
    return str(tmp_path / "local"), str(tmp_path / "remote")
