"""No byte of an Arrow or Parquet file makes a process read memory that is not the file's.

pyarrow believes lengths and places of a file, and whoever reads by a wrong one ends with a signal.
So each file is read by a process of its own, which must end by itself.
"""

import io
import subprocess
import sys

import pytest

from mds import StreamingDataset
from mds.errors import FormatError
from mds.formats._parquet_footer import check_footer

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PROGRAM = """
import pathlib, sys
from mds import StreamingDataset
from mds.errors import MdsError

whole, work, ending = pathlib.Path(sys.argv[1]).read_bytes(), pathlib.Path(sys.argv[2]), sys.argv[3]
step = int(sys.argv[4])
VALUES = [bytes(each) for each in ([255, 255, 255, 127], [255] * 4, [1, 0, 0, 0], [6] * 4)]
refused = 0
for at in range(0, len(whole) - 4, 4):
    number = at // 4
    if number % step:
        continue
    value = VALUES[number // step % len(VALUES)]
    folder = work / str(number)
    folder.mkdir()
    (folder / f"x{ending}").write_bytes(whole[:at] + value + whole[at + 4 :])
    for how in ({"local": str(folder)}, {"remote": folder.as_uri(), "local": f"{folder}-cache"}):
        try:
            dataset = StreamingDataset(**how, batch_size=4)
            dataset[list(range(dataset.num_samples))]
        except MdsError:
            refused += 1
print("refused", refused)
"""


def columns():
    words = ["", "a", "", "bcd", "efgh", None, "i"]
    return pa.table(
        {
            "text": words,
            "long": pa.array([word and word.encode() for word in words], pa.large_binary()),
            "view": pa.array(words, pa.string_view()),
            "array": pa.array([[], [1], [2, 3], [], [4], [5, 6], []], pa.list_(pa.int16())),
            "lists": [[[1], []], [[2, 3]], [], [[4]], [[5], [6]], [[]], []],
            "words": [["a"], [], ["bc", "d"], ["e"], [], ["f"], []],
            "struct": [{"x": 1, "y": word} for word in words],
            "map": pa.array([[("a", 1)]] * 7, pa.map_(pa.string(), pa.int8())),
            "flag": [True, None] * 3 + [False],
            "fixed": pa.array([b"1234"] * 7, pa.binary(4)),
        }
    )


def arrow_file(whole, **more):
    out = io.BytesIO()
    with pa.ipc.new_file(out, whole.schema, options=pa.ipc.IpcWriteOptions(**more)) as writer:
        writer.write_table(whole, max_chunksize=4)
    return out.getvalue()


def parquet_file():
    """Floats, of which a row group says that they are doubles: pyarrow ends by its statistics."""
    number = pa.field("x", pa.float32(), nullable=False)
    out = io.BytesIO()
    pq.write_table(pa.table([[1.0, 2.0, 3.0]], schema=pa.schema([number])), out)
    chunk = b"\x15\x08\x19"  # its type, and the head of its list of encodings
    assert out.getvalue().count(chunk) == 1
    return out.getvalue().replace(chunk, b"\x15\x0a\x19")


def levels_file():
    """Lists whose values may be null by the histogram of their levels and not by the schema."""
    out = io.BytesIO()
    pq.write_table(pa.table({"x": [[1, None], [2], [], None]}), out, store_schema=False)
    element = b"\x25\x02\x18\x07element"  # its repetition and its name
    assert out.getvalue().count(element) == 1
    return out.getvalue().replace(element, b"\x25\x00\x18\x07element")


FILES = {
    "arrow": lambda: (arrow_file(columns()), ".arrow", 7),
    "compressed": lambda: (arrow_file(columns(), compression="zstd"), ".arrow", 11),
    "dictionary": lambda: (
        arrow_file(pa.table({"kind": pa.array(["a", "b", "a", None] * 2).dictionary_encode()})),
        ".arrow",
        1,
    ),
    "parquet": lambda: (parquet_file(), ".parquet", 7),
    "levels": lambda: (levels_file(), ".parquet", 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_a_number_that_cannot_be_is_refused(tmp_path, kind):
    """Wherever the file has another number, reading it ends with values or with our error."""
    data, ending, step = FILES[kind]()
    path, work = tmp_path / "whole", tmp_path / "work"
    path.write_bytes(data)
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, work, ending, str(step)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > 20


def test_a_footer_whose_levels_contradict_the_schema_is_refused(tmp_path):
    """The error says what is wrong, where pyarrow would end the process."""
    path = tmp_path / "x.parquet"
    path.write_bytes(levels_file())
    with pytest.raises(FormatError, match="a histogram has 4 levels, but the column has 3"):
        StreamingDataset(remote=str(path), local=str(tmp_path / "cache"), batch_size=1)


@pytest.mark.parametrize("version", ["1.0", "2.6"])
def test_every_footer_that_is_written_is_accepted(version):
    """What the check of a footer reads are the structures that Parquet has."""
    out = io.BytesIO()
    whole = columns().drop_columns(["view"])
    pq.write_table(whole, out, version=version, row_group_size=3, write_page_index=True)
    data = out.getvalue()
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") :]
    check_footer(footer, pq.read_metadata(io.BytesIO(data)))
    for end in range(8, len(footer) - 8, 5):
        with pytest.raises(ValueError, match=r"early|type|bytes|column|levels"):
            check_footer(footer[:end], pq.read_metadata(io.BytesIO(data)))
