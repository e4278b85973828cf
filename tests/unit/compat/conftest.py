"""Opens the door for the tests of this folder, and writes the small datasets that they read."""

import os
import shutil

import numpy as np
import pytest

import mds.compat.streaming  # noqa: F401 - the tests import `streaming`


@pytest.fixture(scope="session")
def numbers_once(tmp_path_factory):
    """The dataset of `numbers`, which no test changes."""
    from streaming import MDSWriter

    out = tmp_path_factory.mktemp("once") / "numbers"
    columns = {"n": "int", "text": "str", "value": "float64"}
    with MDSWriter(columns=columns, out=str(out), size_limit=600) as writer:
        for n in range(200):
            writer.write({"n": n, "text": f"sample {n}", "value": n / 2})
    return str(out)


@pytest.fixture
def numbers(numbers_once, tmp_path):
    """A folder of 200 samples in 20 shards or so: n (int), text (str), value (float)."""
    return shutil.copytree(numbers_once, str(tmp_path / "numbers"))


@pytest.fixture(scope="session")
def tokens_once(tmp_path_factory):
    """The dataset of `tokens`, which no test changes."""
    from streaming import MDSWriter

    out = tmp_path_factory.mktemp("once") / "tokens"
    writer = MDSWriter(
        columns={"tokens": "ndarray:int32"},
        out=str(out),
        compression="zstd",
        hashes=["sha1", "xxh64"],
        size_limit=1 << 10,
        keep_local=True,
    )
    with writer:
        for n in range(64):
            writer.write({"tokens": np.arange(16, dtype=np.int32) + n})
    return str(out)


@pytest.fixture
def tokens(tokens_once, tmp_path):
    """A folder of 64 blocks of 16 tokens, as data preparation scripts write them."""
    return shutil.copytree(tokens_once, str(tmp_path / "tokens"))


@pytest.fixture
def secret(tmp_path):
    """A compressed dataset whose files on the remote are scrambled."""
    from streaming import MDSWriter

    with MDSWriter(
        columns={"n": "int"}, out=str(tmp_path / "remote"), compression="zstd", size_limit=300
    ) as writer:
        for n in range(50):
            writer.write({"n": n})
    for name in os.listdir(tmp_path / "remote"):
        if name.endswith(".zstd"):
            path = tmp_path / "remote" / name
            path.write_bytes(bytes(byte ^ 0x55 for byte in path.read_bytes()))
    return str(tmp_path / "remote")
