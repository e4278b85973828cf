"""Hugging Face datasets streaming Parquet files, as it does from its hub."""

from __future__ import annotations

import glob
import os
from typing import Any, ClassVar

from benchmarks.systems.arrow import Arrow, features, packed
from benchmarks.systems.base import Data

_FILES = 8


class Parquet(Arrow):
    """``load_dataset("parquet", streaming=True)``: samples in sequence, no random access."""

    name = "parquet"
    label = "HF datasets (Parquet)"
    answers: ClassVar = {
        "iterate": ("iterable",),
        "batches": ("iterable",),
        "collate": ("iterable",),
        "images": ("iterable",),
        "augmented": ("iterable",),
        "small": ("iterable",),
        "memory": ("iterable",),
        "write": ("",),
    }
    note = "load_dataset('parquet', streaming=True), shuffle(buffer_size=1000); no random access."

    def write(self, workload: str, columns: dict[str, str], samples: Any, folder: str) -> None:
        from datasets import Dataset

        table_rows = [*packed(samples)]
        table = {name: [sample[name] for sample in table_rows] for name in columns}
        dataset = Dataset.from_dict(table, features=features(workload))
        for number in range(_FILES):
            shard = dataset.shard(num_shards=_FILES, index=number, contiguous=True)
            shard.to_parquet(os.path.join(folder, f"{number:05d}.parquet"))

    def _dataset(self, data: Data, shuffled: bool, variant: str, kind: str | None) -> Any:
        from datasets import load_dataset

        paths = sorted(glob.glob(os.path.join(data.folder, "*.parquet")))
        dataset = load_dataset("parquet", data_files=paths, split="train", streaming=True)
        if shuffled:
            dataset = dataset.shuffle(seed=1, buffer_size=1000)
        return dataset.with_format(kind)


SYSTEM = Parquet()
