"""webdataset: tar files read in sequence."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator
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

_BUFFER = 1000  # samples of the shuffle buffer, as in its documentation


class Webdataset(System):
    """Tar shards of 64 MB, decoded by its own ``decode()``; batches are made in the dataset."""

    name = "webdataset"
    label = "webdataset"
    packages = ("webdataset",)
    requires = ("webdataset",)
    module = "webdataset"
    answers: ClassVar = {
        "iterate": ("",),
        "batches": ("",),
        "collate": ("",),
        "images": ("",),
        "augmented": ("",),
        "small": ("",),
        "cold": ("",),
        "imports": ("",),
        "memory": ("",),
        "write": ("",),
    }
    note = (
        "WebDataset(shardshuffle=100).shuffle(1000).decode(), batched in the dataset, WebLoader "
        "with batch_size=None, as its documentation recommends. No random access."
    )

    def write(self, workload: str, columns: dict[str, str], samples: Any, folder: str) -> None:
        import webdataset

        pattern = os.path.join(folder, "%05d.tar")
        with webdataset.ShardWriter(pattern, maxsize=1 << 26, verbose=0) as writer:
            for number, sample in enumerate(samples):
                writer.write({"__key__": f"{number:08d}", **_entries(sample)})

    def _dataset(self, data: Data, shuffled: bool, place: str = "") -> Any:
        import webdataset

        urls = sorted(glob.glob(os.path.join(data.folder, "*.tar")))
        if place:  # a command whose output is read, as its documentation does for object stores
            urls = [f"pipe:curl -s -f {place}/{os.path.basename(url)}" for url in urls]
        dataset = webdataset.WebDataset(
            urls,
            shardshuffle=100 if shuffled else False,
            empty_check=False,  # of two workers one may have no shard of a small set
        )
        if shuffled:
            dataset = dataset.shuffle(_BUFFER)
        if data.workload == "images":
            return dataset.to_tuple("jpg", "cls").map(_labelled)
        return dataset.decode().map(_READ[data.workload])

    def iterate(self, data: Data, shuffled: bool, variant: str) -> Begin:
        dataset = self._dataset(data, shuffled)
        return lambda: iter(dataset)

    def batches(self, data: Data, batching: Batching, variant: str) -> Begin:
        from torch.utils.data import default_collate

        return self._loader(data, batching, default_collate)

    def images(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, stack_images)

    def collated(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, collate_samples)

    def augmented(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, augment_images)

    def remote(
        self, data: Data, batching: Batching, variant: str, url: str, cache: str, collate: Any
    ) -> Begin:
        from torch.utils.data import default_collate

        def begin() -> Iterator[Any]:
            collate_function = collate or default_collate
            return self._loader(data, batching, collate_function, f"{url}/{self.name}")()

        return begin

    def _loader(self, data: Data, batching: Batching, collate: Any, place: str = "") -> Begin:
        import webdataset

        dataset = self._dataset(data, batching.shuffled, place)
        dataset = dataset.batched(batching.size, collation_fn=collate)
        loader = webdataset.WebLoader(
            dataset,
            batch_size=None,
            num_workers=batching.workers,
            persistent_workers=batching.workers > 0,
        )
        return lambda: iter(loader)


def _entries(sample: dict[str, Any]) -> dict[str, Any]:
    if "tokens" in sample:
        return {"npy": sample["tokens"]}
    if "text" in sample:
        return {"txt": sample["text"], "json": json.dumps(sample["meta"]).encode()}
    if "image" in sample:
        return {"jpg": sample["image"], "cls": str(sample["label"])}
    return {"json": json.dumps(sample).encode()}


def _tokens(sample: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": np.asarray(sample["npy"])}


def _text(sample: dict[str, Any]) -> dict[str, Any]:
    return {"text": sample["txt"], "meta": sample["json"]}


def _small(sample: dict[str, Any]) -> dict[str, Any]:
    return sample["json"]  # type: ignore[no-any-return]


def _labelled(pair: tuple[bytes, bytes]) -> tuple[bytes, int]:
    return pair[0], int(pair[1])


_READ = {"tokens": _tokens, "text": _text, "small": _small}

SYSTEM = Webdataset()
