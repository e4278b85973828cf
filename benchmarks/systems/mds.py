"""This library, at its defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from benchmarks.systems.base import Batching, Begin, Data, System, stack_images

_BATCHES = ("processes", "threads")


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
        "resume": ("py1e first", "py1e again", "seekable"),
        "start": ("first time", "again"),
        "cold": _BATCHES,
        "imports": ("",),
        "memory": ("processes",),
    }
    note = (
        "Defaults, images as arrays. 'processes' and 'threads' are the loader's workers=; left to "
        "itself it takes threads where no code of the caller stands between file and batch."
    )

    def write(self, workload: str, columns: dict[str, str], samples: Any, folder: str) -> None:
        from mds import MDSWriter

        with MDSWriter(columns=columns, out=folder) as writer:
            for sample in samples:
                writer.write(sample)

    def _dataset(self, data: Data, *, shuffled: bool = False, batch_size: int = 256) -> Any:
        from mds import StreamingDataset

        more = {"images": "array"} if data.workload == "images" else {}
        return StreamingDataset(local=data.folder, shuffle=shuffled, batch_size=batch_size, **more)

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

    def half_way(self, data: Data, variant: str) -> Any:
        from mds import StreamingDataset

        dataset = StreamingDataset(
            local=data.folder,
            shuffle=True,
            batch_size=32,
            shuffle_algo=variant.split(maxsplit=1)[0],
        )
        dataset.load_state_dict(
            {
                "epoch": 0,
                "sample_in_epoch": data.count // 2,
                "num_canonical_nodes": 1,
                "shuffle_seed": 9176,
                "initial_physical_nodes": 1,
            }
        )
        return dataset

    def remote(self, data: Data, batching: Batching, variant: str, url: str, cache: str) -> Begin:
        from mds import StreamingDataset

        def begin() -> Iterator[Any]:
            dataset = StreamingDataset(
                remote=f"s3://{self.name}",
                local=cache,
                shuffle=batching.shuffled,
                batch_size=batching.size,
            )
            return iter(self._over(dataset, batching, variant))

        return begin

    def _loader(self, data: Data, batching: Batching, variant: str, **more: Any) -> Begin:
        dataset = self._dataset(data, shuffled=batching.shuffled, batch_size=batching.size)
        loader = self._over(dataset, batching, variant, **more)
        return lambda: iter(loader)

    def _over(self, dataset: Any, batching: Batching, variant: str, **more: Any) -> Any:
        from mds import StreamingDataLoader

        return StreamingDataLoader(
            dataset,
            batch_size=batching.size,
            num_workers=batching.workers,
            persistent_workers=batching.workers > 0 and variant == "processes",
            workers=variant,
            **more,
        )


SYSTEM = Mds()
