"""mds verify, in one process and in two, compares recorded lengths with the samples."""

import numpy as np
import pytest
from click.testing import CliRunner

from mds import MDSWriter
from mds._cli import main
from mds._index.lengths import emit_lengths, lengths_name
from mds._index.sidecar import write_sidecar
from mds._index.table import Index
from mds.storage import open_store


@pytest.mark.parametrize("workers", ["1", "2"])
def test_verify_compares_each_length_with_its_sample(tmp_path, workers):
    """Lengths that fit the index and not the samples are named, with both numbers."""
    out = str(tmp_path / "data")
    columns = {"tokens": "ndarray:int32", "n": "int"}
    settings = {"lengths": "tokens", "size_limit": 300, "hashes": ["xxh3_64"]}
    with MDSWriter(out=out, columns=columns, **settings) as writer:
        for i in range(40):
            writer.write({"tokens": np.zeros(i % 7 + 1, np.int32), "n": i})
    verify = ["verify", out, "--num-workers", workers]
    assert CliRunner().invoke(main, verify).exit_code == 0
    with open_store(out) as store:
        index = Index.parse(store.get("index.json"), out)
        told = np.arange(40) % 7 + 1
        told[[3, 33]] = [9, 300]
        payload = emit_lengths("tokens", told)
        write_sidecar(store, lengths_name("tokens"), "lengths", index.fingerprint(), payload)
    result = CliRunner().invoke(main, verify)
    assert result.exit_code == 1
    first, second, last = result.output.splitlines()[-3:]
    assert "column 'tokens' has 4 elements, " in first
    assert "says 9. Record them again with mds lengths." in first
    assert "has 6 elements" in second
    assert "says 300" in second
    assert "2 faults" in last
