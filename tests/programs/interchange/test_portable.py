"""What `--portable` writes is read by mosaicml-streaming, from files and from Python."""

import json
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq

import mds
from devtools import incumbent

pytestmark = incumbent.NEEDED

READ = """
import json, sys
from streaming import StreamingDataset
plain = lambda value: value.tolist() if hasattr(value, "tolist") else value
for folder in sys.argv[1:]:
    rows = StreamingDataset(local=folder, batch_size=1, shuffle=False)
    print("RESULT" + json.dumps([{n: plain(v) for n, v in sorted(row.items())} for row in rows]))
"""
COLUMNS = {
    "i": [1, None],
    "s": ["a", None],
    "y": [True, False],
    "e": [[1, 2], []],
    "v": [[1, 2], [3, 4]],
    "d": [{"k": [None, "x"]}, None],
}


def test_portable_datasets_are_read_by_mosaicml_streaming(tmp_path):
    """The values are those of a file, a table and samples of Python, nulls included."""
    table = pa.table(COLUMNS)
    pq.write_table(table, tmp_path / "a.parquet")
    sources = [str(tmp_path / "a.parquet"), table, table.to_pylist()]
    outs = [str(tmp_path / f"out{number}") for number in range(len(sources))]
    for source, out in zip(sources, outs, strict=True):
        mds.convert(source, out, portable=True)
    with incumbent.alone():
        done = subprocess.run(
            [incumbent.PYTHON, "-c", READ, *outs],
            capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
    expected = [dict(sorted(row.items())) for row in table.to_pylist()]
    assert [json.loads(each.removeprefix("RESULT")) for each in results] == [expected] * 3
