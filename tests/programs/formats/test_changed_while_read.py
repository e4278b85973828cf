"""A file that changes while it is read in place is an error soon, in every format."""

import io
import itertools
import json
import os
import tarfile

import numpy as np
import pytest

from mds import StreamingDataLoader, StreamingDataset
from mds.errors import NotFoundError, ReplacedError

COUNT, READ, NEW = 300, 80, 1000  # samples, those that are read first, and first number of others


def write_lines(path, numbers):
    path.write_text("".join(json.dumps({"x": number, "y": "z" * 99}) + "\n" for number in numbers))


def write_text(path, numbers):
    path.write_text("".join(f"{number}\n" for number in numbers))


def write_arrow(path, numbers):
    import pyarrow as pa

    table = pa.table({"x": pa.array(numbers, pa.int64())})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def write_tar(path, numbers):
    with tarfile.open(path, "w") as tar:
        for number in numbers:
            data = str(number).encode()
            member = tarfile.TarInfo(f"{number}.cls")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def write_tokens(path, numbers):
    np.array(numbers, "<u2").tofile(path)
    count = len(numbers)
    head = np.array([1], "<u8").tobytes() + b"\x08" + np.array([count, count + 1], "<u8").tobytes()
    lengths, offsets = np.ones(count, "<i4"), 2 * np.arange(count, dtype="<i8")
    cuts = np.arange(count + 1, dtype="<i8")
    index = b"MMIDIDX\0\0" + head + lengths.tobytes() + offsets.tobytes() + cuts.tobytes()
    path.with_suffix(".idx").write_bytes(index)


#: By format: ending, function that writes numbers as samples, function of the number of a sample.
FORMATS = {
    "jsonl": ("jsonl", write_lines, lambda sample: int(sample["x"])),
    "lines": ("txt", write_text, lambda sample: int(sample["text"])),
    "arrow": ("arrow", write_arrow, lambda sample: int(sample["x"])),
    "tar": ("tar", write_tar, lambda sample: int(sample["cls"])),
    "megatron": ("bin", write_tokens, lambda sample: int(sample["tokens"][0])),
}


def rewrite(path, other):
    """Write other bytes into the file itself."""
    with open(path, "r+b") as file:
        file.write(other.read_bytes())


def replace(path, other):
    """Put another file of the same size and time in its place."""
    state = path.stat()
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    os.replace(other, path)


CHANGES = {
    "append": lambda path, _: os.truncate(path, path.stat().st_size + 600),
    "cut": lambda path, _: os.truncate(path, path.stat().st_size * 9 // 10),
    "rewrite": rewrite,
    "replace": replace,
    "touch": lambda path, _: os.utime(path, ns=(1, 1)),
    "delete": lambda path, _: path.unlink(),
}
WAYS = {
    "number": lambda dataset: (dataset[number] for number in range(COUNT)),
    "iterator": iter,
    "batches": lambda dataset: (
        {name: values[row] for name, values in batch.items()}
        for batch in StreamingDataLoader(dataset, num_workers=0)
        for row in range(4)
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", FORMATS)
def test_a_local_file(tmp_path, name, change, way):
    """At most 64 samples come from other bytes; in batches of columns, none."""
    ending, write, number_of = FORMATS[name]
    (tmp_path / "data").mkdir()
    (tmp_path / "other").mkdir()
    path, other = tmp_path / "data" / f"a.{ending}", tmp_path / "other" / f"a.{ending}"
    write(path, range(NEW, NEW + COUNT))
    write(other, range(2 * NEW, 2 * NEW + COUNT))
    assert path.stat().st_size == other.stat().st_size
    dataset = StreamingDataset(str(path.parent), format=name, batch_size=4)
    samples = WAYS[way](dataset)
    numbers = [number_of(sample) for sample in itertools.islice(samples, READ)]
    CHANGES[change](path, other)
    with pytest.raises((ReplacedError, NotFoundError), match=path.name):
        numbers.extend(map(number_of, samples))
    new = sum(number >= 2 * NEW for number in numbers)
    assert new <= (0 if way == "batches" else 64)
