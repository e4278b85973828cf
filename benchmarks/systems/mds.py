"""This library, at its defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from benchmarks.systems.base import Batching, Begin, Data, System, stack_images

_BATCHES = ("loader", "threads")


class Mds(System):
    """Local shards of 64 MiB, not compressed, read in place."""

    name = "mds"
    label = "mds"
    packages = ("mds",)
    requires = ()
    module = "mds"
    answers: ClassVar = {
        "iterate": ("",),
        "random_access": ("",),
        "rows": ("",),
        "batches": _BATCHES,
        "images": _BATCHES,
        "small": ("",),
        "start": ("first time", "again"),
        "imports": ("",),
        "memory": ("loader",),
    }
    note = "Defaults. 'threads' is StreamingDataLoader(workers='threads')."

    def write(self, workload: str, columns: dict[str, str], samples: Any, folder: str) -> None:
        from mds import MDSWriter

        with MDSWriter(columns=columns, out=folder) as writer:
            for sample in samples:
                writer.write(sample)

    def _dataset(self, data: Data, *, shuffled: bool = False, batch_size: int = 256) -> Any:
        from mds import StreamingDataset

        return StreamingDataset(local=data.folder, shuffle=shuffled, batch_size=batch_size)

    def iterate(self, data: Data, shuffled: bool, variant: str) -> Begin:
        dataset = self._dataset(data, shuffled=shuffled)
        return lambda: iter(dataset)

    def getter(self, data: Data, variant: str) -> Callable[[int], Any]:
        return self._dataset(data).__getitem__

    def rows(self, data: Data, variant: str) -> Callable[[list[int]], Any]:
        return self._dataset(data).__getitem__

    def batches(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, variant)

    def images(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, variant, collate_fn=stack_images)

    def start(self, data: Data, variant: str) -> Any:
        return next(iter(self._dataset(data)))

    def _loader(self, data: Data, batching: Batching, variant: str, **more: Any) -> Begin:
        from mds import StreamingDataLoader

        dataset = self._dataset(data, shuffled=batching.shuffled, batch_size=batching.size)
        if variant == "threads":
            more["workers"] = "threads"
        loader = StreamingDataLoader(
            dataset,
            batch_size=batching.size,
            num_workers=batching.workers,
            persistent_workers=batching.workers > 0 and variant != "threads",
            **more,
        )
        return lambda: iter(loader)


SYSTEM = Mds()
