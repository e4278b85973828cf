"""Conversion of a Spark data frame: one dataset per partition, and one index over all of them.

Each partition is written by the machine that holds it, to a folder with the number of the
partition, so no data pass through the driver. pyspark is imported when a name is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mds._shardfile.layout import INDEX_NAME
from mds.encodings import parse_encoding
from mds.errors import ConfigError, WriterError, need
from mds.formats._arrow_values import python_values
from mds.storage import open_store
from mds.storage._url import Url, is_local, join, local_path, options_of, path_on_disk, reveal
from mds.writers._mds import MDSWriter
from mds.writers._merge import lock_places, merge_locked

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    Sample = dict[str, Any]

_SCALARS = {
    "ByteType": "uint8",
    "ShortType": "uint16",
    "IntegerType": "int32",
    "LongType": "int64",
    "FloatType": "float32",
    "DoubleType": "float64",
    "DecimalType": "str_decimal",
    "StringType": "str",
    "BinaryType": "bytes",
}
#: Types of the elements of arrays, by the type in Spark.
_ELEMENTS = {
    "ShortType": "int16",
    "IntegerType": "int32",
    "LongType": "int64",
    "FloatType": "float32",
    "DoubleType": "float64",
}
_JSON = {"StringType", "BooleanType", "NullType", *_ELEMENTS, "ByteType"}
#: Encodings that a column of bytes may be given; the bytes are stored unchanged.
_OF_BYTES = {"bytes", "pil", "png", "jpeg", "pkl", "json", "str"}


@dataclass(frozen=True, slots=True)
class _PartitionSpec:
    """Settings with which every partition is written.

    - ``columns`` (Mapping[str, str]): The encoding of each column.
    - ``local`` (str), ``remote`` (str): The places of the dataset; '' for one that is not used.
    - ``writer`` (Mapping[str, Any]): Further arguments of `MDSWriter`.
    - ``udf`` (function | None), ``udf_kwargs``: The user's function and its arguments; it makes
      samples of a batch of rows.
    """

    columns: Mapping[str, str]
    local: str
    remote: str
    writer: Mapping[str, Any]
    udf: Callable[..., Iterable[Sample]] | None
    udf_kwargs: Mapping[str, Any]


def dataframe_to_mds(
    dataframe: Any,
    merge_index: bool = True,
    mds_kwargs: dict[str, Any] | None = None,
    udf_iterable: Callable[..., Iterable[Sample]] | None = None,
    udf_kwargs: dict[str, Any] | None = None,
) -> tuple[str, str]:
    """Write a Spark data frame as an MDS dataset, and return its (local, remote) places.

    - ``dataframe`` (pyspark.sql.DataFrame): The rows.
    - ``merge_index`` (bool, default True): Whether one index is written over all partitions.
      Without it each partition is a dataset in a numbered folder.
    - ``mds_kwargs`` (dict[str, Any] | None, default None): Arguments of `MDSWriter`. ``out`` is
      needed. ``columns`` are inferred, and ``compression`` is "zstd", unless they are given.
    - ``udf_iterable`` (Callable | None, default None): Function that is called with each batch of
      rows, a pandas data frame, and yields samples. ``columns`` are then needed.
    - ``udf_kwargs`` (dict[str, Any] | None, default None): More arguments of that function.

    The places are those of ``out``; '' stands for one that it does not have. Raises ConfigError (a
    ValueError) for arguments and types that make no sense, FileExistsError where there is a
    dataset, and whatever a partition raised.

    >>> from mds.writers import dataframe_to_mds  # doctest: +SKIP
    >>> frame = spark.read.parquet("s3://bucket/table")  # doctest: +SKIP
    >>> dataframe_to_mds(frame, mds_kwargs={"out": "data/train"})  # doctest: +SKIP
    ('data/train', '')
    """
    options = dict(mds_kwargs or {})
    if not options.get("out"):
        raise ConfigError("mds_kwargs needs out: a folder, a URL, or a (local, remote) pair.")
    local, remote = _places(options.pop("out"), options.pop("storage_options", None))
    columns = options.pop("columns", None)
    if udf_iterable is not None and not columns:
        raise ConfigError(
            "udf_iterable yields its own samples: declare their columns in mds_kwargs['columns']."
        )
    if udf_iterable is None:
        columns = infer_dataframe_schema(dataframe, columns)
    exist_ok = bool(options.pop("exist_ok", False))
    options.setdefault("compression", "zstd")
    work = _PartitionSpec(
        columns=columns or {},
        local=local,
        remote=remote,
        writer=options,
        udf=udf_iterable,
        udf_kwargs=dict(udf_kwargs or {}),
    )
    with lock_places([place for place in (local, remote) if place]):
        _clear_places(local, remote, exist_ok=exist_ok)
        # Spark writes the partitions, and returns the number of samples of each.
        rows = dataframe.mapInArrow(_Partition(work), "partition long, samples long").collect()
        partitions = sorted(row["partition"] for row in rows if row["samples"])
        if merge_index:
            _merge(partitions, local, remote, keep_local=bool(options.get("keep_local", False)))
    return local, reveal(remote)


def infer_dataframe_schema(
    dataframe: Any, user_defined_cols: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the encoding of each column of a Spark data frame.

    With ``user_defined_cols`` only these columns are returned, if the encodings fit their types.

    Raises ConfigError (a ValueError) naming the column whose type has no encoding or another one.
    """
    fields = {field.name: field.dataType for field in dataframe.schema.fields}
    if user_defined_cols is None:
        return {name: _encoding(name, kind) for name, kind in fields.items()}
    for name, encoding in user_defined_cols.items():
        if name not in fields:
            raise ConfigError(f"there is no column {name!r}. The columns are {', '.join(fields)}.")
        if not _fits(fields[name], encoding):
            raise ConfigError(
                f"column {name!r} is {fields[name].simpleString()}, which {encoding!r} cannot "
                "store."
            )
    return dict(user_defined_cols)


def is_json_compatible(data_type: Any) -> bool:
    """Return whether values of a Spark type, also nested ones, can be written as JSON."""
    kind = type(data_type).__name__
    if kind == "StructType":
        return all(is_json_compatible(field.dataType) for field in data_type.fields)
    if kind == "ArrayType":
        return is_json_compatible(data_type.elementType)
    if kind == "MapType":
        is_text = type(data_type.keyType).__name__ == "StringType"
        return is_text and is_json_compatible(data_type.valueType)
    return kind in _JSON


def __getattr__(name: str) -> Any:
    if name == "SPARK_TO_MDS":
        return _spark_to_mds()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@lru_cache(maxsize=1)
def _spark_to_mds() -> dict[Any, str]:
    """Return the encoding of a column for each type of Spark."""
    try:
        from pyspark.sql import types
    except ImportError as error:
        raise need("pyspark", "spark", "Spark data frames") from error
    scalars = {getattr(types, name)(): encoding for name, encoding in _SCALARS.items()}
    arrays = {
        types.ArrayType(getattr(types, name)()): f"ndarray:{dtype}"
        for name, dtype in _ELEMENTS.items()
    }
    return {**scalars, **arrays}


def _encoding(name: str, kind: Any) -> str:
    """Return the encoding of a column of a Spark type. Raises ConfigError if there is none."""
    family = type(kind).__name__
    if family in _SCALARS:
        return _SCALARS[family]
    if family == "ArrayType" and type(kind.elementType).__name__ in _ELEMENTS:
        return f"ndarray:{_ELEMENTS[type(kind.elementType).__name__]}"
    if family in ("StructType", "MapType", "ArrayType") and is_json_compatible(kind):
        return "json"
    way_out = "cast it to int or string" if family == "BooleanType" else "cast it to string"
    raise ConfigError(
        f"column {name!r} is {kind.simpleString()}, for which there is no encoding: {way_out} "
        "first, or leave it out."
    )


def _fits(kind: Any, encoding: str) -> bool:
    """Return whether an encoding can store the values of a Spark type."""
    parse_encoding(encoding)  # raises for an unknown one
    family, encoding_family = type(kind).__name__, encoding.split(":", 1)[0]
    if family == "BinaryType":
        return encoding_family in _OF_BYTES or encoding_family.startswith(
            ("ndarray", "list", "audio")
        )
    if family == "StringType":
        return encoding_family in ("str", "json")
    if family in ("ByteType", "ShortType", "IntegerType", "LongType"):
        return encoding_family.lstrip("u").startswith("int") or encoding_family in (
            "str_int",
            "json",
        )
    if family in ("FloatType", "DoubleType"):
        return encoding_family.startswith("float") or encoding_family in ("str_float", "json")
    if family == "DecimalType":
        return encoding_family == "str_decimal"
    if family == "ArrayType" and encoding_family == "ndarray":
        return type(kind.elementType).__name__ in (*_ELEMENTS, "ByteType")
    return encoding_family == "json" and is_json_compatible(kind)


@dataclass(frozen=True, slots=True)
class _Partition:
    """The function that Spark calls with the batches of one partition."""

    work: _PartitionSpec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Yields one row with the number of the partition and of its samples.
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        number = context.partitionId() if context is not None else 0
        samples = self._write(number, batches)
        yield pa.RecordBatch.from_pydict({"partition": [number], "samples": [samples]})

    def _write(self, number: int, batches: Iterator[pa.RecordBatch]) -> int:
        """Write a partition to its folder, and return its number of samples; 0 writes nothing."""
        samples = 0
        records = self._samples(batches)
        first = next(records, None)
        if first is None:
            return 0
        work = self.work
        places = [os.path.join(work.local, folder_name(number))] if work.local else []
        places += [join(work.remote, folder_name(number))] if work.remote else []
        # If Spark runs a task again, the folder holds files of the first try, and is overwritten.
        with MDSWriter(
            out=tuple(places) if len(places) == 2 else places[0],
            columns=dict(work.columns),
            exist_ok=True,
            # Columns that were not chosen are left out, unless the user's function yields samples.
            **{"strict": False if work.udf is None else None, **work.writer},
        ) as writer:
            writer.write(first)
            samples = 1
            for record in records:
                writer.write(record)
                samples += 1
        return samples

    def _samples(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Sample]:
        """Yield a sample for each row, or those that the user's function yields."""
        for batch in batches:
            if self.work.udf is None:
                columns = [python_values(column) for column in batch.columns]
                for values in zip(*columns, strict=True):
                    yield dict(zip(batch.schema.names, values, strict=True))
                continue
            frame: pd.DataFrame = batch.to_pandas()
            for sample in self.work.udf(frame, **self.work.udf_kwargs):
                if not isinstance(sample, dict):
                    raise WriterError(
                        f"udf_iterable must yield samples as dicts, got {type(sample).__name__}."
                    )
                yield sample


def folder_name(partition: int) -> str:
    """Return the name of the folder of a partition; names sort as the numbers do."""
    return f"{partition:05}"


def _places(out: Any, storage_options: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return local folder and remote of `out`; '' for one that there is not.

    The remote carries the settings of its store, ``storage_options``.
    """
    if isinstance(out, (str, os.PathLike)):
        place = os.fspath(out)
        if not place:
            raise ConfigError("out is an empty text. Give a folder, such as './data', or a URL.")
        # Each executor then uses a temporary folder, and the index is merged from the remote.
        return (local_path(place), "") if is_local(place) else ("", Url(place, storage_options))
    local, remote = (os.fspath(place) for place in out)
    return path_on_disk(local, "the first of out=(local, remote)"), Url(remote, storage_options)


def _clear_places(local: str, remote: str, *, exist_ok: bool) -> None:
    """Delete the indexes of an old dataset; its other files are replaced or stay.

    Raises FileExistsError if a place is not empty and ``exist_ok`` is False.
    """
    for place in filter(None, (local, remote)):
        store = open_store(place)
        folder = store.local_path
        file_name: str | None = None  # any file there, as an example for the message
        if folder is not None and os.path.isdir(folder):
            file_name = min(os.listdir(folder), default=None)
        elif folder is None and store.can_list:
            file_name = next((info.key for info in store.list()), None)
        if file_name is not None and not exist_ok:
            raise FileExistsError(
                f"{place} is not empty (it holds {file_name!r}). Choose another place, or replace "
                "the dataset in it with exist_ok=True."
            )
        # The old index would name files that are being replaced.
        store.delete(INDEX_NAME)
        if file_name is not None and store.can_list:
            _remove_partition_indexes(store)


def _remove_partition_indexes(store: Any) -> None:
    """Delete the indexes of partitions of an earlier dataset, which may have had more of them.

    Their keys are ``00000/index.json``, ``00001/index.json``, ... (`folder_name`).
    """
    for info in list(store.list()):
        folder, _, name = info.key.rpartition("/")
        if name == INDEX_NAME and folder.isdecimal():
            store.delete(info.key)


def _merge(partitions: list[int], local: str, remote: str, *, keep_local: bool) -> None:
    """Write one index over those of the partitions. Raises WriterError if there are none."""
    if not partitions:
        raise WriterError("the data frame has no rows; there is nothing to write.")
    # Of each partition the index, or (local, remote) if it is at two places.
    indexes: list[Any] = []
    for number in partitions:
        places = [
            join(each, f"{folder_name(number)}/{INDEX_NAME}") for each in (local, remote) if each
        ]
        indexes.append(tuple(places) if len(places) > 1 else places[0])
    out: Any = (local, remote) if local and remote else local or remote
    merge_locked(
        indexes, out, keep_local=keep_local or not remote, storage_options=options_of(remote)
    )
