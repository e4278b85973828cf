"""mosaicml-streaming, the library whose format this one takes over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from benchmarks.systems.base import Batching, Begin, Data, System, collate_samples, stack_images


class Incumbent(System):
    """Local shards of 64 MiB, not compressed."""

    name = "incumbent"
    label = "mosaicml-streaming"
    packages = ("mosaicml-streaming",)
    requires = ("mosaicml-streaming==0.13.0",)
    module = "streaming"
    classes = ("StreamingDataset", "StreamingDataLoader")
    answers: ClassVar = {
        "iterate": ("",),
        "random_access": ("",),
        "rows": ("",),
        "batches": ("",),
        "collate": ("",),
        "images": ("",),
        "augmented": ("",),
        "small": ("",),
        "resume": ("",),
        "start": ("",),
        "cold": ("",),
        "imports": ("",),
        "memory": ("",),
        "write": ("",),
    }
    note = "StreamingDataset and StreamingDataLoader at their defaults, as its user guide shows."

    def write(self, workload: str, columns: dict[str, str], samples: Any, folder: str) -> None:
        from streaming import MDSWriter

        with MDSWriter(columns=columns, out=folder) as writer:
            for sample in samples:
                writer.write(sample)

    def _dataset(self, data: Data, *, shuffled: bool = False, batch_size: int = 256) -> Any:
        from streaming import StreamingDataset

        return StreamingDataset(local=data.folder, shuffle=shuffled, batch_size=batch_size)

    def iterate(self, data: Data, shuffled: bool, variant: str) -> Begin:
        dataset = self._dataset(data, shuffled=shuffled)
        return lambda: iter(dataset)

    def getter(self, data: Data, variant: str) -> Callable[[int], Any]:
        return self._dataset(data).__getitem__

    def rows(self, data: Data, variant: str) -> Callable[[list[int]], Any]:
        return self._dataset(data).__getitem__

    def batches(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching)

    def collated(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, collate_fn=collate_samples)

    def images(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, collate_fn=stack_images)

    def augmented(self, data: Data, batching: Batching, variant: str) -> Begin:
        import numpy as np
        from streaming import StreamingDataset

        from benchmarks.suite.augment import cut_sample, normalise

        rng = np.random.default_rng()

        class Augmented(StreamingDataset):
            def __getitem__(self, index: Any) -> Any:
                sample = super().__getitem__(index)
                pixels = np.asarray(sample["image"].convert("RGB"))
                return cut_sample({"image": pixels, "label": sample["label"]}, rng)

        dataset = Augmented(local=data.folder, shuffle=batching.shuffled, batch_size=batching.size)
        loader = self._over(dataset, batching, collate_fn=normalise)
        return lambda: iter(loader)

    def start(self, data: Data, variant: str) -> Any:
        return next(iter(self._dataset(data)))

    def half_way(self, data: Data, variant: str) -> Any:
        from streaming import StreamingDataset

        dataset = StreamingDataset(
            local=data.folder, shuffle=True, batch_size=32, shuffle_algo="py1e"
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

    def remote(
        self, data: Data, batching: Batching, variant: str, url: str, cache: str, collate: Any
    ) -> Begin:
        from streaming import StreamingDataset

        def begin() -> Iterator[Any]:
            dataset = StreamingDataset(
                remote=f"s3://{self.name}",
                local=cache,
                shuffle=batching.shuffled,
                batch_size=batching.size,
            )
            options = {} if collate is None else {"collate_fn": collate}
            return iter(self._over(dataset, batching, **options))

        return begin

    def _loader(self, data: Data, batching: Batching, **options: Any) -> Begin:
        dataset = self._dataset(data, shuffled=batching.shuffled, batch_size=batching.size)
        loader = self._over(dataset, batching, **options)
        return lambda: iter(loader)

    def _over(self, dataset: Any, batching: Batching, **options: Any) -> Any:
        from streaming import StreamingDataLoader

        return StreamingDataLoader(
            dataset,
            batch_size=batching.size,
            num_workers=batching.workers,
            persistent_workers=batching.workers > 0,
            **options,
        )


SYSTEM = Incumbent()
