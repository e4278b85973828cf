"""What docs/files.md, docs/parquet.md and docs/lake.md show runs as it stands."""

import io
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import tars
from megatron_files import write
from PIL import Image

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "files.md"


@pytest.fixture
def _sources(tmp_path, monkeypatch):
    """The files that the page speaks of, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "mine"))
    for name in ("tars", "lines", "photos", "tokens"):
        (tmp_path / "data" / name).mkdir(parents=True)
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (1, 2, 3)).save(file, "JPEG")
    picture = file.getvalue()
    for number in range(3):
        samples = [tars.sample(i, jpg=picture) for i in range(20)]
        files = tars.members(samples, f"{number}-{{:06}}")
        tars.by_python(tmp_path / f"data/tars/{number:05}.tar", files)
    lines = "".join(json.dumps({"id": i, "text": f"text {i}"}) + "\n" for i in range(50))
    (tmp_path / "data/lines/a.jsonl").write_text(lines)
    write(tmp_path / "data/tokens/web", [[[1, 2, 3]]] * 40)
    rows = ["file,label\n"]
    for i in range(20):
        (tmp_path / f"data/photos/{i}.jpg").write_bytes(picture)
        rows.append(f"{i}.jpg,{i % 3}\n")
    (tmp_path / "data/photos/labels.csv").write_text("".join(rows))


@pytest.mark.usefixtures("_sources")
def test_the_page_runs(capsys):
    """Every snippet, in the order of the page."""
    text, space = PAGE.read_text(encoding="utf-8"), {}
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), space)
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("60 samples, 3 shards, ['__key__', 'cls', 'jpg', 'json'")
    assert told[1:] == [
        "{'__key__': '0-000007', 'txt': 'number 7 é'}",
        "{'id': 0, 'text': 'text 0'}",
        "40 documents, 3 tokens in the first",
        "(8, 8, 3) 0",
    ]


@pytest.fixture
def _tables(tmp_path, monkeypatch):
    """The tables that the page on Parquet speaks of, in the working directory."""
    pytest.importorskip("pyarrow")
    import datasets
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "mine"))
    (tmp_path / "data" / "events").mkdir(parents=True)
    for number in range(3):
        tokens = np.arange(200 * 8, dtype=np.int32).reshape(200, 8) + number
        rows = {"tokens": list(tokens), "label": np.arange(200) + 200 * number, "text": ["x"] * 200}
        path = tmp_path / "data" / "events" / f"{number}.parquet"
        pq.write_table(pa.table(rows), path, row_group_size=64)
    datasets.Dataset.from_dict({"n": list(range(50))}).save_to_disk(str(tmp_path / "data/saved"))


@pytest.mark.usefixtures("_tables")
def test_the_page_on_parquet_runs(capsys):
    """Every snippet and every command, in the order of the page."""
    tools = os.path.dirname(sys.executable)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    text, space = PAGE.with_name("parquet.md").read_text(encoding="utf-8"), {}
    blocks = re.findall(r"^```(python|bash)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [kind for kind, _ in blocks] == [
        *("python", "python", "bash", "python", "bash", "python", "python"),
    ]
    for kind, block in blocks:
        if kind == "python":
            exec(compile(block, "parquet.md", "exec"), space)
            continue
        done = subprocess.run(
            ["bash", "-c", f"set -e\n{block}"], env={**os.environ, "PATH": path},
            capture_output=True, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
    assert capsys.readouterr().out.splitlines() == ["{'label': 0}", "{'n': 3}"]


@pytest.fixture
def _lake(tmp_path, monkeypatch):
    """The tables that the page on Delta and Iceberg speaks of, in the working directory."""
    deltalake, pa = pytest.importorskip("deltalake"), pytest.importorskip("pyarrow")
    catalogs = pytest.importorskip("pyiceberg.catalog.sql")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "mine"))
    rows = {"id": list(range(100)), "text": ["x"] * 100, "day": ["a", "b"] * 50}
    for _ in range(3):
        deltalake.write_deltalake(
            "lake/events", pa.table(rows), mode="append", partition_by=["day"]
        )
    catalog = catalogs.SqlCatalog("docs", uri="sqlite:///c.db", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("db")
    made = catalog.create_table("db.visits", schema=pa.table(rows).schema)
    made.append(pa.table(rows))
    yield
    catalog.close()


@pytest.mark.usefixtures("_lake")
def test_the_page_on_tables_runs(capsys):
    """Every snippet, in the order of the page."""
    text, space = PAGE.with_name("lake.md").read_text(encoding="utf-8"), {}
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "lake.md", "exec"), space)
    assert "snapshot 7264561230987 does not exist" in capsys.readouterr().out
    assert space["dataset"].num_samples == 200
    assert space["visits"].num_samples == 100
    assert space["mix"].num_samples == 300
