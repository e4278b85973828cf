"""Opens the door for the tests of this folder, and writes the small datasets that they read."""

import os

import numpy as np
import pytest

import mds.compat.streaming  # noqa: F401 - the tests import `streaming`


@pytest.fixture
def numbers(tmp_path):
    """A folder of 200 samples in 20 shards or so: n (int), text (str), value (float)."""
    from streaming import MDSWriter

    out = tmp_path / "numbers"
    columns = {"n": "int", "text": "str", "value": "float64"}
    with MDSWriter(columns=columns, out=str(out), size_limit=600) as writer:
        for n in range(200):
            writer.write({"n": n, "text": f"sample {n}", "value": n / 2})
    return str(out)


@pytest.fixture
def tokens(tmp_path):
    """A folder of 64 blocks of 16 tokens, as data preparation scripts write them."""
    from streaming import MDSWriter

    out = tmp_path / "tokens"
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
