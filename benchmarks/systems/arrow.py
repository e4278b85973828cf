"""Hugging Face datasets over Arrow files (``save_to_disk``), memory-mapped."""

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
    torch_loader,
)

_BUFFER = 1000  # samples of the shuffle buffer


def features(workload: str) -> Any:
    """The columns of a workload in the words of the datasets library."""
    from datasets import Features, List, Value

    return Features(
        {
            "tokens": {"tokens": List(Value("int32"), length=TOKENS)},
            "text": {"meta": Value("string"), "text": Value("string")},
            "images": {"image": Value("binary"), "label": Value("int32")},
            "small": {"a": Value("int64"), "b": Value("float64"), "c": Value("uint8")},
        }[workload]
    )


def packed(samples: Any) -> Any:
    """Samples with the JSON column as text, for it has no fixed schema."""
    for sample in samples:
        if "meta" in sample:
            yield {**sample, "meta": json.dumps(sample["meta"])}
        else:
            yield sample


class Arrow(System):
    """Numpy format for samples, torch format for batches; both of its kinds of datasets."""

    name = "arrow"
    label = "HF datasets (Arrow)"
    packages = ("datasets", "pyarrow")
    requires = ("datasets", "pyarrow")
    module = "datasets"
    answers: ClassVar = {
        "iterate": ("map", "iterable"),
        "random_access": ("",),
        "rows": ("",),
        "batches": ("map", "iterable"),
        "collate": ("map", "iterable"),
        "images": ("map", "iterable"),
        "augmented": ("map", "iterable"),
        "small": ("map", "iterable"),
        "imports": ("",),
        "memory": ("map",),
        "write": ("",),
    }
    note = (
        "with_format('numpy') for samples and 'torch' for batches; 'map' is a Dataset, 'iterable' "
        "its to_iterable_dataset(), which its documentation recommends for speed."
    )

    def write(self, workload: str, columns: dict[str, str], samples: Any, folder: str) -> None:
        from datasets import Dataset

        table_rows = [*packed(samples)]
        table = {name: [sample[name] for sample in table_rows] for name in columns}
        dataset = Dataset.from_dict(table, features=features(workload))
        dataset.save_to_disk(folder, max_shard_size="64MB")

    def _dataset(self, data: Data, shuffled: bool, variant: str, kind: str | None) -> Any:
        from datasets import load_from_disk

        dataset = load_from_disk(data.folder)
        if variant == "iterable":
            dataset = dataset.to_iterable_dataset(num_shards=4)
            if shuffled:
                dataset = dataset.shuffle(seed=1, buffer_size=_BUFFER)
        elif shuffled:
            dataset = dataset.shuffle(seed=1, keep_in_memory=True)
        return dataset.with_format(kind)

    def iterate(self, data: Data, shuffled: bool, variant: str) -> Begin:
        kind = "numpy" if data.workload == "tokens" else None
        dataset = self._dataset(data, shuffled, variant, kind)
        if data.workload == "text":
            return lambda: map(_with_meta, dataset)
        return lambda: iter(dataset)

    def getter(self, data: Data, variant: str) -> Callable[[int], Any]:
        kind = "numpy" if data.workload == "tokens" else None
        get = self._dataset(data, shuffled=False, variant="map", kind=kind).__getitem__
        return (lambda number: _with_meta(get(number))) if data.workload == "text" else get

    def rows(self, data: Data, variant: str) -> Callable[[list[int]], Any]:
        return self._dataset(data, shuffled=False, variant="map", kind="numpy").__getitem__  # type: ignore[no-any-return]

    def batches(self, data: Data, batching: Batching, variant: str) -> Begin:
        dataset = self._dataset(data, False, variant, "torch")
        return loaded(dataset, batching, variant)

    def images(self, data: Data, batching: Batching, variant: str) -> Begin:
        dataset = self._dataset(data, False, variant, None)
        return loaded(dataset, batching, variant, collate_fn=stack_images)

    def collated(self, data: Data, batching: Batching, variant: str) -> Begin:
        dataset = self._dataset(data, False, variant, "torch")
        return loaded(dataset, batching, variant, collate_fn=collate_samples)

    def augmented(self, data: Data, batching: Batching, variant: str) -> Begin:
        dataset = self._dataset(data, False, variant, None)
        return loaded(dataset, batching, variant, collate_fn=augment_images)


def loaded(dataset: Any, batching: Batching, variant: str, **options: Any) -> Begin:
    """Torch's loader over a dataset of this library; it shuffles a map-style one."""
    if variant == "iterable":
        if batching.shuffled:
            dataset = dataset.shuffle(seed=1, buffer_size=_BUFFER)
    else:
        options["shuffle"] = batching.shuffled
    loader = torch_loader(dataset, batching, batch_size=batching.size, **options)
    return lambda: iter(loader)


def _with_meta(sample: dict[str, Any]) -> dict[str, Any]:
    return {"text": sample["text"], "meta": json.loads(sample["meta"])}


SYSTEM = Arrow()
