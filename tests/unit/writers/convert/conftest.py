"""Small inputs of every kind, and a look at what came out."""

import io
import json
import os
import pathlib
import shutil
import struct
import sys
import tarfile

import pytest

from mds import _lazy_imports as lazy_imports
from mds._cli.datasets import head
from mds.writers.convert._inputs.mds import MdsInput

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # for the table of folders


class Kit:
    """What the tests of conversions share."""

    # The smallest things that begin like what they are; a conversion decodes none of them.
    jpeg = b"\xff\xd8\xff\xe0 a picture \xff\xd9"
    png = b"\x89PNG\r\n\x1a\n a drawing"

    def __init__(self, folder):
        self.source = folder / "source"
        self.source.mkdir()
        self.out = str(folder / "out")

    def write(self, name, content):
        """Write a file of the source and give its path."""
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def lines(self, records):
        """Records as JSON lines."""
        return "".join(json.dumps(record) + "\n" for record in records)

    def many(self, count=6000):
        """A JSON lines file of about 3 MB, which is three parts."""
        records = [{"id": i, "text": f"number {i} " * (i % 80), "more": [i]} for i in range(count)]
        return self.write("many.jsonl", self.lines(records)), records

    def wav(self, number):
        """A sound of 40 frames."""
        data = bytes((number + i) % 256 for i in range(40))
        form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8)
        return b"RIFF" + struct.pack("<I", 76) + b"WAVE" + form + b"data\x28\0\0\0" + data

    def tar(self, members):
        """A tar of (name, bytes) in that order."""
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name, data in members:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        return file.getvalue()

    def samples(self, folder=None):
        """The samples of a dataset, decoded."""
        return list(head(str(folder or self.out), 1 << 60))

    def stored(self, folder=None):
        """The samples of a dataset as the bytes that are stored."""
        source = MdsInput(str(folder or self.out))
        return [record for part in source.cut_parts(0) for _, record in source.read(part)]

    def files(self, folder=None):
        """Every file below a folder, hidden ones too, with its bytes."""
        folder = pathlib.Path(folder or self.out)
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in paths}

    def encodings(self, conversion):
        """Name to encoding of the columns of a conversion."""
        return {column.name: column.encoding for column in conversion.columns}


@pytest.fixture(autouse=True)
def _no_plugins(monkeypatch):
    """No package of this environment brings inputs, and to look for one takes 20 ms each time."""
    monkeypatch.setattr(lazy_imports, "plugin_names", lambda group: [])


@pytest.fixture
def kit(tmp_path):
    """Tools, a folder for the source and a place for the dataset."""
    return Kit(tmp_path)


@pytest.fixture(scope="session")
def spark():
    """A local Spark of two threads, or a skipped test."""
    sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
