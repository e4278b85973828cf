"""Parquet files of the tests: rows of which every value says where it is."""

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mds import MDSWriter, Stream, StreamingDataLoader, StreamingDataset


def table(first, rows, seed=0):
    """Rows of tokens, text, an id and a score; ``first`` is the id of the first one."""
    rng = np.random.default_rng(seed + first)
    ids = np.arange(first, first + rows)
    tokens = rng.integers(0, 50_000, (rows, 16), dtype=np.int32)
    return pa.table(
        {
            "id": ids,
            "text": pa.array([f"row {n} ü" + "x" * (n % 7) for n in ids], pa.string()),
            "tokens": pa.array(list(tokens), pa.list_(pa.int32())),
            "score": rng.random(rows, dtype=np.float32),
        }
    )


def write_files(folder, groups=((5, 7, 3), (4,), (6, 1)), compression="zstd"):
    """A file for each of ``groups``, with row groups of so many rows; ids count through."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, sizes in enumerate(groups):
        path = folder / f"part-{number:03}.parquet"
        with pq.ParquetWriter(path, table(0, 1).schema, compression=compression) as writer:
            for rows in sizes:
                writer.write_table(table(first, rows))
                first += rows
    return folder


def every_type(rows=23):
    """A column of each type that is read, some of them with nulls."""
    days = [dt.date(2020, 1, 1) + dt.timedelta(n) for n in range(rows)]
    times = [dt.datetime(2020, 1, 1, 2, 3, n % 60, n, dt.timezone.utc) for n in range(rows)]
    some = [None if n % 3 == 0 else n for n in range(rows)]
    numbers = {
        f"{kind}": pa.array(np.arange(rows).astype(kind))
        for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                     "float16", "float32", "float64")
    }  # fmt: skip
    return pa.table(
        {
            **numbers,
            "bool": [n % 2 == 0 for n in range(rows)],
            "bytes": [bytes([n]) * n for n in range(rows)],
            "fixed_bytes": pa.array([bytes([n]) * 3 for n in range(rows)], pa.binary(3)),
            "large_text": pa.array([str(n) for n in range(rows)], pa.large_string()),
            "dictionary": pa.array(["ab"[n % 2] for n in range(rows)]).dictionary_encode(),
            "date": days,
            "time": times,
            "time_ns": pa.array(np.arange(rows).astype("M8[ns]")),
            "decimal": [decimal.Decimal(n) / 4 for n in range(rows)],
            "lists": [list(range(n % 4 + 1)) for n in range(rows)],
            "empty_lists": pa.array([[1.5] * (n % 3) for n in range(rows)], pa.list_(pa.float32())),
            "null_lists": [None if n % 5 == 0 else [n] * (n % 3) for n in range(rows)],
            "fixed_lists": pa.array([[n, n + 1] for n in range(rows)], pa.list_(pa.int16(), 2)),
            "some": pa.array(some, pa.int32()),
            "some_text": [None if n is None else str(n) for n in some],
            "some_bool": [None if n is None else n % 2 == 0 for n in some],
            "struct": [{"a": n, "b": [str(n), None], "c": days[n]} for n in range(rows)],
            "map": pa.array([[(str(n), n)] for n in range(rows)], pa.map_(pa.string(), pa.int64())),
            "all_null": pa.nulls(rows),
        }
    )


def as_told(name, value):
    """A value of pyarrow's as a sample has it."""
    if value is None:
        return None
    if isinstance(value, (dt.date, dt.datetime)):
        return value.isoformat()
    if name in ("lists", "empty_lists", "null_lists", "fixed_lists", "tokens"):
        return list(value)
    if name == "struct":
        return {**value, "c": value["c"].isoformat()}
    return dict(value) if name == "map" else value


def mixed_with_mds(remote, reads, tmp_path):
    """Ids of an epoch over a table, whose ids are below 1000, and shards of MDS, from there on.

    Three of ten are of the table, which ``reads`` reads.
    """
    with MDSWriter(out=str(tmp_path / "mds"), columns={"id": "int", "text": "str"}) as writer:
        for number in range(1000, 1030):
            writer.write({"id": number, "text": str(number)})
    streams = [
        Stream(remote=str(remote), local=str(tmp_path / "a"), proportion=0.3, format=reads),
        Stream(local=str(tmp_path / "mds"), proportion=0.7),
    ]
    dataset = StreamingDataset(streams=streams, shuffle=True, epoch_size=40, batch_size=4)
    loader = StreamingDataLoader(dataset, batch_size=4)
    found = [number for batch in loader for number in batch["id"].tolist()]
    assert len(found) == 40
    assert sum(number < 1000 for number in found) == 12
    return found


def write_arrow(path, whole, rows, kind="file", compression=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with make(str(path), whole.schema, options=options) as writer:
        writer.write_table(whole, max_chunksize=rows)
