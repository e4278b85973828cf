"""DuckDB, Polars and pandas read a dataset as a table, in bounded memory."""

import subprocess
import sys

import pytest

from mds import LocalDataset, MDSWriter, StreamingDataset

pytest.importorskip("pyarrow", reason='pyarrow is not installed: pip install "pyarrow>=21"')
ROWS = 5000


def missing(package):
    return f"needs the libraries of the tables: pip install {package}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = str(tmp_path_factory.mktemp("consumers") / "data")
    with MDSWriter(out, {"id": "int", "meta": "json", "text": "str"}, size_limit="64kb") as writer:
        for number in range(ROWS):
            writer.write({"id": number, "meta": {"k": number % 3}, "text": "é" * (number % 50)})
    return out


@pytest.mark.parametrize("kind", [LocalDataset, StreamingDataset])
def test_duckdb(kind, folder):
    duckdb = pytest.importorskip("duckdb", reason=missing("duckdb"))
    dataset = kind(folder)
    query = "SELECT count(*), sum(id), sum(length(text)) FROM dataset WHERE id >= 10"
    numbers = range(10, ROWS)
    expected = (ROWS - 10, sum(numbers), sum(number % 50 for number in numbers))
    assert duckdb.query(query).fetchall() == [expected]
    reader = dataset.to_arrow_reader(columns=["meta"])  # noqa: F841 - named in the query
    query = "SELECT count(*) FROM reader WHERE CAST(meta ->> 'k' AS INT) = 2"
    assert duckdb.query(query).fetchall() == [(len(range(2, ROWS, 3)),)]


def test_polars(folder):
    polars = pytest.importorskip("polars", reason=missing("polars"))
    frame = polars.DataFrame(StreamingDataset(folder))
    assert frame["id"].to_list() == list(range(ROWS))
    assert frame["text"].str.len_chars().to_list() == [number % 50 for number in range(ROWS)]


def test_pandas(folder):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install pandas")
    import pyarrow as pa

    frame = pa.table(StreamingDataset(folder)).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["id"].tolist() == list(range(ROWS))


_MEASURE = """
import resource, sys
from mds import StreamingDataset

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

dataset = StreamingDataset(sys.argv[1])
reader = dataset.to_arrow_reader(columns=["text"])
next(reader)
before, size = peak(), 0
for batch in reader:
    size += batch.nbytes
print(size >> 10, peak() - before)
"""


def test_memory_does_not_grow_with_the_dataset(tmp_path):
    """All shards have 200 MB; a reader keeps a few batches, and no pages of read shards."""
    with MDSWriter(str(tmp_path), {"id": "int", "text": "str"}, size_limit="32mb") as writer:
        text = "some words " * 400
        for number in range(200 * 1000 * 1000 // len(text)):
            writer.write({"id": number, "text": text})
    command = [sys.executable, "-c", _MEASURE, str(tmp_path)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    size, growth = map(int, output.split())  # KB
    assert size > 190_000
    assert growth < 70_000
