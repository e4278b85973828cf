"""Datasets as a source and a sink of Ray Data.

A read task reads a group of shards, and gives Arrow blocks of about 4 MB, which Ray joins. A write
task writes shards to a folder of its own; the index over all of them is published last, so a task
that Ray runs again leaves nothing twice (`mds.writers._parts`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mds._dataset.run import source_of
from mds._dataset.samples import Samples
from mds.errors import ConfigError, need
from mds.formats._arrow_values import pyarrow
from mds.writers._parts import PartedDataset

try:
    import ray.data
    from ray.data.block import BlockAccessor, BlockMetadata
    from ray.data.datasource import Datasink, Datasource, ReadTask
except ImportError as error:
    raise need("ray", "ray", "mds.integrations.ray and its datasets") from error

__all__ = ["MDSDatasink", "MDSDatasource"]


class MDSDatasource(Datasource):  # type: ignore[misc] # no types of ray are checked
    """All rows of a dataset for `ray.data.read_datasource`, one read task per group of shards.

    - ``dataset`` (StreamingDataset): The dataset, or a part of it: `select`, `limit` or `split`.
      Its order, ranks and batch size have no effect.
    - ``columns`` (Sequence[str] | None, default None): The only columns to read; None for all.

    Columns have the types of `StreamingDataset.to_arrow_reader`. Ray chooses the number of tasks;
    ``override_num_blocks=`` sets it, and a task reads one shard at least. Each machine fetches the
    shards of its tasks into its cache folder.

    Raises ConfigError for a dataset that `to_arrow_reader` refuses.

    >>> import ray  # doctest: +SKIP
    >>> source = MDSDatasource(mds.StreamingDataset("data/train"), ["text"])  # doctest: +SKIP
    >>> ray.data.read_datasource(source).take(1)  # doctest: +SKIP
    [{'text': 'sample 0'}]
    """

    def __init__(self, dataset: Samples, columns: Sequence[str] | None = None) -> None:
        super().__init__()
        if not isinstance(dataset, Samples):
            raise ConfigError(
                f"MDSDatasource takes a StreamingDataset, got {type(dataset).__name__}. Write "
                "MDSDatasource(StreamingDataset(folder_or_url))."
            )
        self._dataset = dataset
        self._schema = dataset.to_arrow_reader(columns).schema
        self._shards = source_of(dataset).shards

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of the shards, from which Ray chooses the number of tasks."""
        return self._shards.stored_bytes(self._shards.num_samples)

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: Any = None,
    ) -> list[Any]:
        """Return at most ``parallelism`` tasks, each for a group of shards."""
        del data_context
        dataset, names = ray.put(self._dataset), self._schema.names  # once: an index may be large

        def make_task(samples: range) -> Any:
            size = self._shards.stored_bytes(len(samples))
            metadata = BlockMetadata(len(samples), size, exec_stats=None, input_files=None)
            read = functools.partial(_read, dataset, names, samples)
            return ReadTask(read, metadata, self._schema, per_task_row_limit)

        return [make_task(samples) for samples in self._shards.groups(parallelism)]


def _read(dataset: Any, columns: Sequence[str], samples: range) -> Iterator[Any]:
    """Yield samples of a dataset, which Ray stores, as Arrow tables."""
    part = ray.get(dataset).select(slice(samples.start, samples.stop))
    for batch in part.to_arrow_reader(columns):
        yield pyarrow().Table.from_batches([batch])


class MDSDatasink(Datasink):  # type: ignore[misc] # no types of ray are checked
    """A place to which `Dataset.write_datasink` of Ray writes a dataset.

    - ``out`` (str | os.PathLike[str]): A folder that all machines share, or a URL.
    - ``mode`` ("error", "append" or "overwrite", default "error"): What happens if there is
      something: an error; rows are added to the dataset; the dataset is replaced at the end.
    - ``encodings`` (Mapping[str, Any] | None, default None): Encodings of columns instead of those
      that follow from the types, such as ``{"image": "jpeg", "text": "optional[str]"}``.
    - ``storage_options`` (Mapping[str, Any] | None, default None): Settings of the store of a URL.
    - ``options``: ``lengths``, ``compression``, ``size_limit`` and others of `MDSWriter`;
      ``hashes`` is ("xxh3_64",) by default.

    Each task writes shards of its own; the index appears when all are complete. If the job fails,
    what it wrote is deleted. Raises ConfigError for invalid arguments and columns, FileExistsError
    for a place that is not empty.

    >>> table = ray.data.read_parquet("s3://bucket/table")  # doctest: +SKIP
    >>> table.write_datasink(MDSDatasink("s3://bucket/train"))  # doctest: +SKIP
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        mode: str = "error",
        encodings: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._out = PartedDataset.plan(
            type(self).__name__, out, mode, encodings, storage_options, options
        )

    @property
    def min_bytes_per_write(self) -> int:
        """Bytes of rows for which Ray starts a write task, so that shards are filled."""
        # With this Ray does not join the write with the step before, whose schema differs.
        return 64 << 20

    def on_write_start(self, schema: Any = None) -> None:
        """Choose the encodings of the columns, before Ray sends this object to its workers."""
        self._out.check_place()
        if schema is not None:  # there are rows
            self._out = self._out.with_schema(schema)

    def write(self, blocks: Iterable[Any], ctx: Any) -> str:
        """Write the rows of a task, and return the name of their folder."""
        tables = (BlockAccessor.for_block(block).to_arrow() for block in blocks)
        batches = (batch for table in tables for batch in table.to_batches())
        return self._out.write(ctx.task_idx, batches)

    def on_write_complete(self, write_result: Any) -> None:
        """Publish the index over the folders that the tasks returned."""
        self._out.publish(write_result.write_returns)

    def on_write_failed(self, error: Exception) -> None:
        """Delete what this job wrote."""
        del error
        self._out.abort()
