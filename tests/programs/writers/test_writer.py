"""Writers of large shards and texts."""

import os
import tracemalloc

import pytest

from mds import CSVWriter, JSONWriter, LocalDataset, MDSWriter
from mds.errors import (
    WriterError,
)


def test_no_limit_is_one_shard(out, written):
    """Without a limit everything is in one shard, larger than what was set aside for it."""
    blob = os.urandom(1 << 20)
    with MDSWriter(out=out, columns={"b": "bytes"}, size_limit=None) as writer:
        for _ in range(70):
            writer.write({"b": blob})
    assert written(out).counts() == [70]
    assert written(out).samples() == [(1 << 20).to_bytes(4, "little") + blob] * 70


@pytest.mark.parametrize("kind", [JSONWriter, CSVWriter])
def test_large_text_is_refused_before_it_is_encoded(out, kind):
    """What its letters take as they are stored is counted in pieces; the writer goes on."""

    class Small(kind):
        max_shard_size = 40_000_000

    text = "é" * 21_000_000
    with Small(out=out, columns={"a": "str"}, size_limit=None) as writer:
        tracemalloc.start()
        with pytest.raises(WriterError, match=r"sample 0 has \d+ bytes.*Split the sample"):
            writer.write({"a": text})
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        writer.write({"a": text[: 40_000_000 // 7]})
    assert peak < 8_000_000
    assert len(LocalDataset(out)) == 1
