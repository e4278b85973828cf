"""LanceDB: one table, read by its Permutation and its StreamingDataset."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from benchmarks.suite.workloads import TOKENS
from benchmarks.systems.arrow import packed
from benchmarks.systems.base import (
    Batching,
    Begin,
    Data,
    System,
    augment_images,
    collate_samples,
    stack_images,
    torch_loader,
)

_TABLE = "samples"
_SEED = 1


class Lancedb(System):
    """Tokens are a column of fixed-size lists, so that rows become arrays without a copy."""

    name = "lancedb"
    label = "lancedb"
    packages = ("lancedb", "pylance")
    requires = ("lancedb", "pylance")
    module = "lancedb"
    answers: ClassVar = {
        "iterate": ("permutation", "streaming"),
        "random_access": ("",),
        "rows": ("",),
        "batches": ("permutation", "streaming"),
        "collate": ("permutation", "streaming"),
        "images": ("permutation", "streaming"),
        "augmented": ("permutation", "streaming"),
        "small": ("permutation", "streaming"),
        "imports": ("",),
        "memory": ("permutation",),
        "write": ("",),
    }
    note = (
        "'permutation' is Permutation.identity(table), a map-style dataset whose __getitems__ "
        "reads a batch at once, in torch's DataLoader, which shuffles it, and with_transform for "
        "arrays; 'streaming' is its StreamingDataset, read_batch_size=256, in its "
        "StreamingDataLoader, a split for each worker. JSON is kept as text and parsed. Its "
        "objects are pickled into spawned workers, as its documentation asks for."
    )

    def write(self, workload: str, columns: dict[str, str], samples: Any, folder: str) -> None:
        import lancedb
        import pyarrow as pa

        schema = _schema(workload)

        def batches() -> Iterator[Any]:
            rows = packed(samples)
            while chunk := list(itertools.islice(rows, 4096)):
                yield pa.RecordBatch.from_pylist(chunk, schema)

        reader = pa.RecordBatchReader.from_batches(schema, batches())
        lancedb.connect(folder).create_table(_TABLE, reader)

    def _table(self, data: Data) -> Any:
        import lancedb

        return lancedb.connect(data.folder).open_table(_TABLE)

    def _permutation(self, data: Data) -> Any:
        from lancedb.permutation import Permutation

        return Permutation.identity(self._table(data)).with_transform(_READ[data.workload])

    def _shuffled(self, data: Data) -> Any:
        """The rows in a random order that lancedb draws and stores as a table of row numbers."""
        from lancedb.permutation import Permutation, permutation_builder

        table = self._table(data)
        order = permutation_builder(table).shuffle(seed=_SEED).execute()
        return Permutation.from_tables(table, order).with_transform(_READ[data.workload])

    def _streaming(self, data: Data, shuffled: bool, splits: int = 1) -> Any:
        from lancedb.streaming import StreamingDataset

        return StreamingDataset(
            self._table(data),
            num_splits=splits,
            shuffle=shuffled,
            shuffle_seed=_SEED,
            read_batch_size=256,
            transform=_READ[data.workload],
        )

    def iterate(self, data: Data, shuffled: bool, variant: str) -> Begin:
        if variant == "streaming":
            return lambda: iter(self._streaming(data, shuffled))
        rows = self._shuffled(data) if shuffled else self._permutation(data)

        def begin() -> Iterator[Any]:
            for batch in rows.iter(batch_size=256):
                yield from batch

        return begin

    def getter(self, data: Data, variant: str) -> Callable[[int], Any]:
        rows = self._permutation(data)
        return lambda number: rows[number][0]  # its __getitem__ gives a batch of one

    def rows(self, data: Data, variant: str) -> Callable[[list[int]], Any]:
        return self._permutation(data).__getitems__  # type: ignore[no-any-return]

    def batches(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, variant, collate_samples)

    def collated(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, variant, collate_samples)

    def images(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, variant, stack_images)

    def augmented(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, variant, augment_images)

    def _loader(self, data: Data, batching: Batching, variant: str, collate: Any) -> Begin:
        # Its threads do not survive a fork.
        context = {"multiprocessing_context": "spawn"} if batching.workers else {}
        if variant == "streaming":
            from lancedb.streaming import StreamingDataLoader

            def begin() -> Iterator[Any]:
                # A dataset is for one iterator at a time; its loader has no persistent workers.
                dataset = self._streaming(data, batching.shuffled, max(batching.workers, 1))
                return iter(
                    StreamingDataLoader(
                        dataset,
                        batch_size=batching.size,
                        num_workers=batching.workers,
                        collate_fn=collate,
                        **context,
                    )
                )

            return begin
        loader = torch_loader(
            self._permutation(data),
            batching,
            batch_size=batching.size,
            shuffle=batching.shuffled,
            collate_fn=collate,
            **context,
        )
        return lambda: iter(loader)


def _schema(workload: str) -> Any:
    import pyarrow as pa

    return pa.schema(
        {
            "tokens": {"tokens": pa.list_(pa.int32(), TOKENS)},
            "text": {"meta": pa.string(), "text": pa.string()},
            "images": {"image": pa.binary(), "label": pa.int32()},
            "small": {"a": pa.int64(), "b": pa.float64(), "c": pa.uint8()},
        }[workload]
    )


# Worker processes import these by name. Each gives a list with a sample for each row.
def _read_tokens(batch: Any) -> list[dict[str, Any]]:
    values = batch.column(0).flatten().to_numpy(zero_copy_only=True).reshape(-1, TOKENS)
    return [{"tokens": row} for row in np.array(values)]


def _read_text(batch: Any) -> list[dict[str, Any]]:
    rows = batch.to_pylist()
    return [{"text": row["text"], "meta": json.loads(row["meta"])} for row in rows]


def _read_rows(batch: Any) -> list[dict[str, Any]]:
    return batch.to_pylist()  # type: ignore[no-any-return]


_READ: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "tokens": _read_tokens,
    "text": _read_text,
    "images": _read_rows,
    "small": _read_rows,
}

SYSTEM = Lancedb()
