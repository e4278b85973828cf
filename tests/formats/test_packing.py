"""Documents of files in a format are packed as those of their copy are."""

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402

from mds import Packing, StreamingDataLoader, StreamingDataset  # noqa: E402
from mds.errors import ConfigError  # noqa: E402
from mds.formats import Parquet  # noqa: E402
from mds.writers.convert.keep_shards import keep_shards  # noqa: E402


@pytest.fixture
def pair(tmp_path):
    """Documents of 1 to 300 tokens in Parquet beside a text each, and their copy."""
    folder = tmp_path / "files"
    folder.mkdir()
    rng = np.random.default_rng(3)
    docs = [np.arange(n, dtype=np.int32) for n in rng.integers(1, 300, 200)]
    rows = pa.table({"tokens": docs, "text": [f"document {n}" for n in range(200)]})
    pq.write_table(rows, folder / "a.parquet", row_group_size=32)
    keep_shards(str(folder), str(tmp_path / "copy"), columns=["tokens"])
    return folder, tmp_path / "copy"


def packs(packing=None, **place):
    packing = packing or Packing(512)
    dataset = StreamingDataset(
        **place, batch_size=2, packing=packing, shuffle=True, num_canonical_nodes=1
    )
    loader = StreamingDataLoader(dataset, batch_size=2)
    return [{k: np.asarray(v).tolist() for k, v in b.items()} for b in loader], loader.state_dict()


def test_packs_are_those_of_the_copy(pair, tmp_path):
    """The lengths come from the files, with one column or several, and give the same packs."""
    files, copy = pair
    of_copy, _ = packs(local=str(copy))
    of_files, _ = packs(
        remote=str(files), local=str(tmp_path / "c"), format=Parquet(columns=["tokens"])
    )
    assert len(of_files) > 10
    assert of_files == of_copy


def test_columns_without_a_length_are_told(pair, tmp_path):
    """A column of text is no document of tokens."""
    with pytest.raises(ConfigError, match="it is stored as 'str'"):
        packs(
            remote=str(pair[0]),
            local=str(tmp_path / "c"),
            format=Parquet(columns=["text"]),
            packing=Packing(512, lengths="text"),
        )
