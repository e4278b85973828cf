"""This library, at its defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from benchmarks.systems.base import Batching, Begin, Data, System, collate_samples, stack_images

_BATCHES = ("processes", "threads")


class Mds(System):
    """Local shards of 64 MiB, not compressed, read in place."""

    name = "mds"
    label = "mds"
    packages = ("mds-streaming",)
    requires = ()
    module = "mds"
    classes = ("StreamingDataset", "StreamingDataLoader")
    answers: ClassVar = {
        "iterate": ("",),
        "random_access": ("",),
        "rows": ("",),
        "batches": _BATCHES,
        "collate": _BATCHES,
        "images": _BATCHES,
        "augmented": _BATCHES,
        "functions": ("plain", "rng", "processes"),
        "small": ("",),
        "resume": ("py1e first", "py1e again", "seekable"),
        "start": ("first time", "again"),
        "cold": _BATCHES,
        "requests": ("",),
        "shuffled_requests": _BATCHES,
        "write": ("",),
        "eviction": ("",),
        "causes": ("",),
        "imports": ("",),
        "memory": ("processes",),
    }
    note = (
        "Defaults, images as arrays. 'processes' and 'threads' are the loader's worker_type=; left "
        "to itself it takes threads where no code of the caller stands between file and batch."
    )

    def write(self, workload: str, columns: dict[str, str], samples: Any, folder: str) -> None:
        from mds import MDSWriter

        with MDSWriter(columns=columns, out=folder) as writer:
            for sample in samples:
                writer.write(sample)

    def _dataset(self, data: Data, *, shuffled: bool = False, batch_size: int = 256) -> Any:
        from mds import StreamingDataset

        extra = {"images": "array"} if data.workload == "images" else {}
        return StreamingDataset(local=data.folder, shuffle=shuffled, batch_size=batch_size, **extra)

    def iterate(self, data: Data, shuffled: bool, variant: str) -> Begin:
        dataset = self._dataset(data, shuffled=shuffled)
        return lambda: iter(dataset)

    def getter(self, data: Data, variant: str) -> Callable[[int], Any]:
        return self._dataset(data).__getitem__

    def rows(self, data: Data, variant: str) -> Callable[[list[int]], Any]:
        return self._dataset(data).__getitem__

    def batches(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, variant)

    def collated(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, variant, collate_fn=collate_samples)

    def images(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, variant, collate_fn=stack_images)

    def augmented(self, data: Data, batching: Batching, variant: str) -> Begin:
        from benchmarks.suite.augment import MEAN, STD, cut_sample, normalise
        from benchmarks.suite.workloads import CROP
        from mds.transforms import images

        dataset = self._dataset(data, shuffled=batching.shuffled, batch_size=batching.size)
        if variant == "threads":
            ours = images("image", size=CROP, crop="random", flip=True, mean=MEAN, std=STD)
            loader = self._over(dataset, batching, variant, collate_fn=ours)
        else:
            mapped = dataset.map(cut_sample)
            loader = self._over(mapped, batching, variant, collate_fn=normalise)
        return lambda: iter(loader)

    def with_function(
        self, data: Data, batching: Batching, variant: str, method: str, function: Any
    ) -> Begin:
        dataset = self._dataset(data, shuffled=True, batch_size=batching.size or 256)
        if method:
            dataset = getattr(dataset, method)(function)
        if not batching.size:
            return lambda: iter(dataset)
        loader = self._over(dataset, batching, variant)
        return lambda: iter(loader)

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

    def ranges(self, data: Data, name: str, url: str) -> Callable[[int, int], bytes]:
        from mds.storage import open_store

        store = open_store("s3://mds", options={"endpoint_url": url})
        return lambda start, end: store.get_range(name, start, end)

    def remote(
        self, data: Data, batching: Batching, variant: str, url: str, cache: str, collate: Any
    ) -> Begin:
        from mds import StreamingDataset

        def begin() -> Iterator[Any]:
            dataset = StreamingDataset(
                remote=f"s3://{self.name}",
                local=cache,
                shuffle=batching.shuffled,
                batch_size=batching.size,
            )
            extra = {} if collate is None else {"collate_fn": collate}
            return iter(self._over(dataset, batching, variant, **extra))

        return begin

    def _loader(self, data: Data, batching: Batching, variant: str, **extra: Any) -> Begin:
        dataset = self._dataset(data, shuffled=batching.shuffled, batch_size=batching.size)
        loader = self._over(dataset, batching, variant, **extra)
        return lambda: iter(loader)

    def _over(self, dataset: Any, batching: Batching, variant: str, **extra: Any) -> Any:
        from mds import StreamingDataLoader

        return StreamingDataLoader(
            dataset,
            batch_size=batching.size,
            num_workers=batching.workers,
            persistent_workers=batching.workers > 0 and variant == "processes",
            **worker_type(variant if batching.workers else "auto"),
            **extra,
        )


def worker_type(kind: str) -> dict[str, str]:
    """Return the argument of a loader for a kind of workers, also in commits that name it so."""
    from mds import StreamingDataLoader

    names = inspect.signature(StreamingDataLoader).parameters
    return {"worker_type" if "worker_type" in names else "workers": kind}


SYSTEM = Mds()
