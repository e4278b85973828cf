"""Datasets as a data source of Spark 4, for `spark.read` and `DataFrame.write`.

A partition is a group of shards, read as Arrow batches. Each attempt of a write task writes a
folder of shards; the commit publishes an index over those that count (`mds.writers._parts`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mds._arguments import refuse_unknown
from mds._dataset.run import source_of
from mds._dataset.samples import Samples
from mds.errors import ConfigError, need
from mds.formats._arrow_values import pyarrow, stored_type
from mds.storage._url import is_local, local_path
from mds.writers._parts import PartedDataset

try:
    from pyspark import TaskContext
    from pyspark.sql import datasource as spark
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
except ImportError as error:
    raise need("pyspark", "spark", "data sources in Python (Spark 4 or later)") from error

__all__ = ["MDSDataSource"]

#: Types of Spark for numbers that it does not have; `uint64` is a decimal.
_WIDER = {"uint8": "int16", "uint16": "int32", "uint32": "int64", "halffloat": "float32"}
_READ = ("path", "columns", "partitions", "cache_limit", "storage_options")
_PLACE = ("path", "encodings", "storage_options")
_WRITE = (*_PLACE, "compression", "hashes", "size_limit", "lengths")


class MDSDataSource(spark.DataSource):  # type: ignore[misc] # no types of pyspark are checked
    """The format "mds": ``spark.read.format("mds")`` and ``frame.write.format("mds")``.

    - To read: ``columns`` (such as "id,text"), ``partitions`` (default one for 128 MB, and one
      shard at least), ``cache_limit`` of `StreamingDataset`, and ``storage_options`` (JSON).
    - To write: ``encodings`` (JSON) of columns instead of those that follow from the types;
      ``compression``, ``hashes`` (such as "sha1,xxh3_64"), ``size_limit`` and ``lengths`` of
      `MDSWriter`, and ``storage_options`` (JSON).

    The mode "append" adds to a dataset or begins one, "overwrite" replaces it at the end; Spark
    refuses other modes. Raises ConfigError for options and columns that make no sense.

    >>> spark.dataSource.register(MDSDataSource)  # doctest: +SKIP
    >>> frame = spark.read.format("mds").load("data/train")  # doctest: +SKIP
    >>> frame.write.format("mds").mode("append").save("data/copy")  # doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "mds"

    def schema(self) -> Any:
        """Return the columns to read, with their types of Spark."""
        options, dataset = self._dataset()
        schema = dataset.to_arrow_reader(options.get("columns")).schema
        types = map(_spark_type, schema.types)
        return from_arrow_schema(pyarrow().schema(zip(schema.names, types, strict=True)))

    def reader(self, schema: Any) -> Any:
        """Return the reader of the columns of a schema."""
        options, dataset = self._dataset()
        shards = source_of(dataset).shards
        usual = shards.stored_bytes(shards.num_samples) // (128 << 20) + 1
        groups = shards.groups(int(options.get("partitions", usual))) or [range(0)]
        return _SparkReader(dataset, to_arrow_schema(schema, timezone="UTC"), groups)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Return the writer of rows with a schema."""
        options = self._parse("frame.write", _WRITE)
        out, encodings, settings = (options.pop(name, None) for name in _PLACE)
        mode = "overwrite" if overwrite else "append"
        for field in schema.fields:
            if field.dataType.typeName() == "variant":
                raise ConfigError(
                    f"frame.write: column {field.name!r} is a variant, which mds cannot store. "
                    f"Write to_json({field.name}), with the encoding 'json'."
                )
        parted = PartedDataset.plan("frame.write", out, mode, encodings, settings, options)
        return _SparkWriter(parted.with_schema(to_arrow_schema(schema, timezone="UTC")))

    def _dataset(self) -> tuple[dict[str, Any], Samples]:
        """Return the options to read, and the dataset."""
        options = self._parse("spark.read", _READ)
        limit, settings = options.get("cache_limit"), options.get("storage_options")
        return options, Samples(options["path"], cache_limit=limit, storage_options=settings)

    def _parse(self, call: str, names: Sequence[str]) -> dict[str, Any]:
        """Return the options, which are texts, as values. Raises ConfigError for invalid ones."""
        values: dict[str, Any] = dict(self.options)
        if not (path := values.get("path")):
            raise ConfigError(
                f"{call}: give one path. Join several datasets with union, and use no tables of a "
                "catalog, which have no path."
            )
        refuse_unknown(call, self.options, names)
        if not values.get("partitions", "1").isdecimal():
            raise ConfigError(
                f"{call}: {values['partitions']!r} is not a whole number of partitions, such as 64."
            )
        values["path"] = os.path.abspath(local_path(path)) if is_local(path) else path
        for name in {"columns", "hashes"} & values.keys():
            values[name] = [part.strip() for part in values[name].split(",")]
        try:
            for name in {"encodings", "storage_options"} & values.keys():
                values[name] = dict(json.loads(values[name]))
        except (ValueError, TypeError) as error:
            example = json.dumps({"image": "jpeg"})
            raise ConfigError(f"{call}: {name} is a JSON object, such as {example}.") from error
        return values


def _spark_type(kind: Any) -> Any:
    """Return the nearest Arrow type that Spark has, without extension types and fixed sizes."""
    pa, kind = pyarrow(), stored_type(kind)
    if hasattr(kind, "value_type"):
        return pa.list_(_spark_type(kind.value_type))
    if pa.types.is_uint64(kind):
        return pa.decimal128(20, 0)
    return pa.type_for_alias(_WIDER.get(str(kind), str(kind)))


def _cast(array: Any, field: Any) -> Any:
    """Return a column with the type of a field. Raises ConfigError if the values do not fit."""
    try:
        return array.cast(field.type)
    except pyarrow().ArrowException as error:
        reason = str(error).rstrip(".")
        raise ConfigError(
            f"spark.read: column {field.name!r} has the type {array.type}, but the schema of the "
            f"caller says {field.type}: {reason}. Leave out the schema, and convert the column in "
            "Spark, for example with cast or from_json."
        ) from error


@dataclass
class _SparkReader(spark.DataSourceReader):  # type: ignore[misc]
    dataset: Samples
    schema: Any  # of Arrow, with the types that Spark has
    groups: Sequence[range]  # of samples, one for each partition

    def partitions(self) -> Sequence[Any]:
        return [spark.InputPartition(samples) for samples in self.groups]

    def read(self, partition: Any) -> Iterator[Any]:
        part = self.dataset.select(slice(partition.value.start, partition.value.stop))
        for batch in part.to_arrow_reader(self.schema.names):
            arrays = [getattr(array, "storage", array) for array in batch]  # tensors are lists
            columns = [*map(_cast, arrays, self.schema)]
            yield pyarrow().record_batch(columns, schema=self.schema)


@dataclass
class _SparkWriter(spark.DataSourceArrowWriter):  # type: ignore[misc]
    out: PartedDataset

    def write(self, iterator: Iterator[Any]) -> Any:
        message = spark.WriterCommitMessage()
        message.part = self.out.write(TaskContext.get().partitionId(), iterator)
        return message

    def commit(self, messages: Sequence[Any]) -> None:
        self.out.publish(message.part for message in messages)

    def abort(self, _: Sequence[Any]) -> None:
        self.out.abort()
