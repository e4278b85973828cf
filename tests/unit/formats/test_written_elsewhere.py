"""Parquet files that DuckDB 2.0 and Polars 2.1 wrote give the values that DuckDB reads in them.

They lie in `tests/golden/parquet`: 150 rows of each kind of column, in the pages, encodings and
statistics that these writers choose, and what DuckDB says of them as JSON.
"""

import json
import pathlib
import shutil

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from mds import StreamingDataset

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "parquet"
VALUES = json.loads((GOLDEN / "values.json").read_text(encoding="utf-8"))


def as_json(value):
    """A value of a sample as the record of DuckDB's reading has it."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, (int, float, str, list, dict, type(None))) else str(value)


@pytest.mark.parametrize("name", ["duckdb", "duckdb-v2", "polars", "polars-lz4"])
def test_files_of_other_writers_have_the_values_that_duckdb_reads(tmp_path, name):
    """Each value of each column; nothing is left out and nothing made up."""
    (tmp_path / "files").mkdir()
    shutil.copy(GOLDEN / f"{name}.parquet", tmp_path / "files")
    dataset = StreamingDataset(
        remote=str(tmp_path / "files"), local=str(tmp_path / "cache"), batch_size=8
    )
    found = [dataset[number] for number in range(dataset.num_samples)]
    assert {each for sample in found for each in sample} == VALUES.keys()
    for column, values in VALUES.items():
        assert [as_json(sample[column]) for sample in found] == values, column
