"""litdata: chunks of 64 MB written by `optimize`, read by its StreamingDataset."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

from benchmarks.suite.workloads import TOKENS
from benchmarks.systems.base import (
    Batching,
    Begin,
    Data,
    System,
    augment_images,
    collate_samples,
    stack_images,
)


class Litdata(System):
    """Tokens are one long tensor cut by TokensLoader, as its page on LLM pre-training says."""

    name = "litdata"
    label = "litdata"
    packages = ("litdata",)
    requires = ("litdata",)
    module = "litdata"
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
        "imports": ("",),
        "memory": ("",),
        "write": ("",),
    }
    note = (
        'optimize(chunk_bytes="64MB"), TokensLoader for tokens, StreamingDataLoader for batches. '
        "JSON is kept as text and parsed in the transform; JPEGs are kept as bytes. Its S3 client "
        "refuses endpoints without TLS, so it cannot be asked for a cold epoch here."
    )

    def write(self, workload: str, columns: dict[str, str], samples: Any, folder: str) -> None:
        import litdata

        sample_list = [*samples]
        if workload == "tokens":
            litdata.optimize(
                fn=_Tensors([sample["tokens"] for sample in sample_list]),
                inputs=[*range(len(sample_list))],
                output_dir=folder,
                chunk_size=TOKENS * 8192,  # tokens: 64 MB
                num_workers=1,
                item_loader=litdata.TokensLoader(TOKENS),
                verbose=False,
            )
            return
        litdata.optimize(
            fn=_Samples([_packed(sample) for sample in sample_list]),
            inputs=[*range(len(sample_list))],
            output_dir=folder,
            chunk_bytes="64MB",
            num_workers=1,
            reorder_files=False,
            verbose=False,
        )

    def _dataset(self, data: Data, shuffled: bool = False) -> Any:
        import litdata

        if data.workload == "tokens":
            loader = litdata.TokensLoader(TOKENS)
            return litdata.StreamingDataset(data.folder, item_loader=loader, shuffle=shuffled)
        transform = _with_meta if data.workload == "text" else None
        return litdata.StreamingDataset(data.folder, shuffle=shuffled, transform=transform)

    def iterate(self, data: Data, shuffled: bool, variant: str) -> Begin:
        dataset = self._dataset(data, shuffled)
        return lambda: iter(dataset)

    def getter(self, data: Data, variant: str) -> Callable[[int], Any]:
        return self._dataset(data).__getitem__

    def rows(self, data: Data, variant: str) -> Callable[[list[int]], Any]:
        get = self._dataset(data).__getitem__
        return lambda numbers: [get(number) for number in numbers]

    def batches(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching)

    def collated(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, collate_fn=collate_samples)

    def images(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, collate_fn=stack_images)

    def augmented(self, data: Data, batching: Batching, variant: str) -> Begin:
        return self._loader(data, batching, collate_fn=augment_images)

    def _loader(self, data: Data, batching: Batching, **options: Any) -> Begin:
        import litdata

        loader = litdata.StreamingDataLoader(
            self._dataset(data, batching.shuffled),
            batch_size=batching.size,
            num_workers=batching.workers,
            persistent_workers=batching.workers > 0,
            **options,
        )
        return lambda: iter(loader)


class _Samples:
    """Inputs are numbers: text among them would be taken for paths of files to fetch."""

    def __init__(self, samples: list[Any]) -> None:
        self._samples = samples

    def __call__(self, number: int) -> Any:
        return self._samples[number]


class _Tensors(_Samples):
    def __call__(self, number: int) -> Any:
        import torch

        yield torch.from_numpy(self._samples[number])


def _packed(sample: dict[str, Any]) -> dict[str, Any]:
    if "meta" in sample:
        return {"meta": json.dumps(sample["meta"]), "text": sample["text"]}
    return sample


def _with_meta(sample: dict[str, Any]) -> dict[str, Any]:
    # A new dict: litdata keeps decoded samples and hands the same one out again.
    return {"text": sample["text"], "meta": json.loads(sample["meta"])}


SYSTEM = Litdata()
