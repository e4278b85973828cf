"""Grain over ArrayRecord files."""

from __future__ import annotations

import glob
import json
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from benchmarks.systems.base import (
    Batching,
    Begin,
    Data,
    System,
    augment_images,
    collate_samples,
    stack_images,
)

_SAMPLES = 1 << 26  # bytes of a file, about
_SMALL = struct.Struct("<qdB")
_HEAD = struct.Struct("<I")


class Grain(System):
    """Records of one sample each (``group_size:1``, for random access), of plain packed bytes."""

    name = "grain"
    label = "ArrayRecord + Grain"
    packages = ("array_record", "grain")
    requires = ("array_record", "grain")
    module = "grain"
    answers: ClassVar = {
        "iterate": ("", "one thread"),
        "random_access": ("",),
        "rows": ("",),
        "batches": ("", "one thread"),
        "collate": ("",),
        "images": ("",),
        "augmented": ("",),
        "small": ("", "one thread"),
        "imports": ("",),
        "memory": ("",),
        "write": ("", "uncompressed"),
    }
    note = (
        "MapDataset.source(ArrayRecordDataSource).shuffle().map().batch().to_iter_dataset(), "
        "mp_prefetch for workers; 'one thread' reads without its 16 reading threads."
    )

    def write(self, workload: str, columns: dict[str, str], samples: Any, folder: str) -> None:
        self.write_as(workload, columns, samples, folder, "")

    def write_as(
        self, workload: str, columns: dict[str, str], samples: Any, folder: str, variant: str
    ) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        pack, writer, size, number = _PACK[workload], None, 0, 0
        options = ",".join(("group_size:1", *filter(None, [variant])))
        for sample in samples:
            if writer is None:
                path = os.path.join(folder, f"{number:05d}.array_record")
                writer, size, number = ArrayRecordWriter(path, options), 0, number + 1
            data = pack(sample)
            writer.write(data)
            size += len(data)
            if size >= _SAMPLES:
                writer.close()
                writer = None
        if writer is not None:
            writer.close()

    def _source(self, data: Data) -> Any:
        import grain

        paths = sorted(glob.glob(os.path.join(data.folder, "*.array_record")))
        return grain.sources.ArrayRecordDataSource(paths)

    def _dataset(self, data: Data, shuffled: bool) -> Any:
        import grain

        dataset = grain.MapDataset.source(self._source(data))
        if shuffled:
            dataset = dataset.shuffle(seed=1)
        return dataset.map(_UNPACK[data.workload])

    def iterate(self, data: Data, shuffled: bool, variant: str) -> Begin:
        dataset = self._dataset(data, shuffled).to_iter_dataset(_reading(variant))
        return lambda: iter(dataset)

    def getter(self, data: Data, variant: str) -> Callable[[int], Any]:
        return self._dataset(data, shuffled=False).__getitem__

    def rows(self, data: Data, variant: str) -> Callable[[list[int]], Any]:
        source, unpack = self._source(data), _UNPACK[data.workload]
        # The source reads many records in one call, in parallel.
        return lambda numbers: [unpack(record) for record in source.__getitems__(numbers)]

    def batches(self, data: Data, batching: Batching, variant: str) -> Begin:
        dataset = self._dataset(data, batching.shuffled).batch(batching.size)
        return self._loader(dataset, batching, variant)

    def images(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._batched(data, batching, variant, stack_images)

    def collated(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._batched(data, batching, variant, collate_samples)

    def augmented(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._batched(data, batching, variant, augment_images)

    def _batched(self, data: Data, batching: Batching, variant: str, collate: Any) -> Begin:
        dataset = self._dataset(data, batching.shuffled)
        return self._loader(dataset.batch(batching.size, batch_fn=collate), batching, variant)

    def _loader(self, dataset: Any, batching: Batching, variant: str) -> Begin:
        import grain

        epoch = dataset.to_iter_dataset(_reading(variant))
        if batching.workers:
            epoch = epoch.mp_prefetch(grain.MultiprocessingOptions(num_workers=batching.workers))

        def begin() -> Iterator[Any]:
            return map(_tensors, iter(epoch))

        return begin


def _reading(variant: str) -> Any:
    import grain

    return grain.ReadOptions(num_threads=0, prefetch_buffer_size=0) if variant else None


def _tensors(batch: Any) -> Any:
    import torch

    return {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in batch.items()
    }


def _pack_text(sample: dict[str, Any]) -> bytes:
    text = sample["text"].encode()
    return _HEAD.pack(len(text)) + text + json.dumps(sample["meta"]).encode()


def _unpack_text(record: bytes) -> dict[str, Any]:
    end = 4 + _HEAD.unpack_from(record)[0]
    return {"text": record[4:end].decode(), "meta": json.loads(record[end:])}


def _unpack_small(record: bytes) -> dict[str, Any]:
    a, b, c = _SMALL.unpack(record)
    return {"a": a, "b": b, "c": c}


# Workers import these by name, so they need one.
def _unpack_tokens(record: bytes) -> dict[str, Any]:
    return {"tokens": np.frombuffer(record, np.int32)}


def _unpack_image(record: bytes) -> dict[str, Any]:
    return {"image": record[4:], "label": _HEAD.unpack_from(record)[0]}


_PACK: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "tokens": lambda sample: sample["tokens"].tobytes(),
    "text": _pack_text,
    "images": lambda sample: _HEAD.pack(sample["label"]) + sample["image"],
    "small": lambda sample: _SMALL.pack(sample["a"], sample["b"], sample["c"]),
}
_UNPACK: dict[str, Callable[[bytes], dict[str, Any]]] = {
    "tokens": _unpack_tokens,
    "text": _unpack_text,
    "images": _unpack_image,
    "small": _unpack_small,
}

SYSTEM = Grain()
