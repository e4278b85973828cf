"""Mixtures of other libraries whose weights change at a resume; `benchmarks.schedule` starts it.

    python mixtures.py FOLDER    # a line of JSON for each result

Two streams of the same length, in order and as each library shuffles a stream that does not fit
into memory. A run draws by the first weights, writes its state, and goes on by the others from it
in new objects, until the second stream is used up: how many samples came twice before one of their
stream had to, and how many of the second stream never.

Megatron has two ways to change the weights of a blend. Both are run on the data sets that
megatron-core makes, with files of one document a sample. The training loop, which is not in the
package, says which samples they start at (megatron/training/training.py of Megatron-LM):

blend    restarted with other weights: the blend of the whole training, from the samples consumed
         (`consumed_train_samples`)
phases   `--phase-transition-iterations`: a training saves and exits where a phase ends, and is
         started again with other weights; the blend of the new phase begins with its first sample
         (`get_train_valid_test_num_samples` and `build_train_valid_test_data_loaders`)
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar

import numpy as np

SAMPLES, DRAWN = 10_000, 4000
BEFORE, AFTER = (0.8, 0.2), (0.2, 0.8)
USED_UP = round(SAMPLES / AFTER[1])  # samples of a blend by AFTER that use up the second stream
Drawn = Iterable[tuple[int, int]]  # stream and number of each sample


def main() -> None:
    """Measure every mixture that is installed."""
    for name, package, mixture in (
        ("interleave_datasets", "datasets", interleaved),
        ("interleave_datasets, shuffle(1000)", "datasets", interleaved_and_shuffled),
        ("CombinedStreamingDataset", "litdata", combined),
        ("blend", "megatron-core", blended),
        ("blend, --phase-transition-iterations", "megatron-core", blended_in_phases),
    ):
        try:
            samples = list(mixture(sys.argv[1]))
            version = importlib.metadata.version(package)
        except ImportError as error:
            print(json.dumps({"name": f"{package} {name}", "skipped": str(error)}), flush=True)
            continue
        print(json.dumps({"name": f"{package} {version} {name}", **judge(samples)}), flush=True)


def judge(samples: Drawn) -> dict[str, int]:
    """Samples that came more than once, and those of the stream that was used up that never did."""
    counts = Counter(samples)
    never = SAMPLES - sum(stream == 1 for stream, _ in counts)
    return {"twice": sum(n > 1 for n in counts.values()), "never": never}


def interleaved(folder: str, buffer: int = 0) -> Drawn:
    """`interleave_datasets` of Hugging Face, with the state that it gives."""
    del folder
    from datasets import IterableDataset, interleave_datasets

    def rows(stream: int, shards: list[int]) -> Iterator[dict[str, int]]:
        for shard in shards:
            for number in range(shard * 100, shard * 100 + 100):
                yield {"stream": stream, "number": number}

    def make(weights: tuple[float, float]) -> Any:
        streams = []
        for stream in range(2):
            kwargs = {"stream": stream, "shards": list(range(SAMPLES // 100))}
            dataset = IterableDataset.from_generator(rows, gen_kwargs=kwargs)
            streams.append(dataset.shuffle(seed=1, buffer_size=buffer) if buffer else dataset)
        return interleave_datasets(streams, probabilities=list(weights), seed=1)

    first = make(BEFORE)
    yield from ((row["stream"], row["number"]) for row in islice(first, DRAWN))
    second = make(AFTER)
    second.load_state_dict(first.state_dict())
    yield from ((row["stream"], row["number"]) for row in second)


def interleaved_and_shuffled(folder: str) -> Drawn:
    """The same of streams that a buffer shuffles."""
    return interleaved(folder, 1000)


def combined(folder: str) -> Drawn:
    """`CombinedStreamingDataset` of litdata, with the state of its loader."""
    from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, optimize

    for stream in range(2):
        optimize(
            fn=_Row(stream),
            inputs=list(range(SAMPLES)),
            output_dir=f"{folder}/{stream}",
            chunk_size=500,
            num_workers=1,
            mode="overwrite",
        )

    def make(weights: tuple[float, float]) -> Any:
        streams = [StreamingDataset(f"{folder}/{k}", shuffle=True, seed=1) for k in range(2)]
        mixed = CombinedStreamingDataset(
            streams, weights=list(weights), seed=1, iterate_over_all=False
        )
        return StreamingDataLoader(mixed, batch_size=8)

    first = make(BEFORE)
    batches = iter(first)
    yield from _pairs(islice(batches, DRAWN // 8))
    second = make(AFTER)
    second.load_state_dict(first.state_dict())
    yield from _pairs(second)


class _Row:
    """Makes a sample of a stream; a class, so that worker processes can have it."""

    def __init__(self, stream: int) -> None:
        self.stream = stream

    def __call__(self, number: int) -> dict[str, int]:
        return {"stream": self.stream, "number": number}


def _pairs(batches: Iterable[dict[str, Any]]) -> Drawn:
    for batch in batches:
        yield from zip(batch["stream"].tolist(), batch["number"].tolist(), strict=True)


def blended(folder: str) -> Drawn:
    """A blend of Megatron made anew with other weights, from the samples consumed on."""
    yield from _blend(folder, BEFORE, DRAWN)
    yield from islice(_blend(folder, AFTER, USED_UP), DRAWN, None)


def blended_in_phases(folder: str) -> Drawn:
    """Two phases of Megatron with the same files, each of which begins with its first sample."""
    yield from _blend(folder, BEFORE, DRAWN)
    yield from _blend(folder, AFTER, USED_UP)


def _blend(folder: str, weights: tuple[float, float], size: int) -> Drawn:
    """Yield the samples of a blend of two files."""
    import torch
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    paths = [os.path.join(folder, f"megatron-{stream}") for stream in range(2)]
    for path in paths:
        if not os.path.exists(f"{path}.idx"):
            os.makedirs(folder, exist_ok=True)
            writer = IndexedDatasetBuilder(f"{path}.bin", dtype=np.int32)
            for number in range(SAMPLES):
                writer.add_document(torch.tensor([number + 1, number + 1]), [2])
            writer.finalize(f"{path}.idx")
    config = GPTDatasetConfig(
        random_seed=1, sequence_length=2, blend=(paths, [*weights]), split="1,0,0",
        tokenizer=_Tokenizer(), reset_position_ids=False, reset_attention_mask=False,
        eod_mask_loss=False, create_attention_mask=False, add_extra_token_to_sequence=False,
    )  # fmt: skip
    builder = BlendedMegatronDatasetBuilder(GPTDataset, [size, 0, 0], lambda: True, config)
    dataset = builder.build()[0]
    for index in range(size):
        yield int(dataset.dataset_index[index]), int(dataset[index]["tokens"][0]) - 1


class _Tokenizer:
    """What Megatron asks a tokenizer for."""

    eod, pad, vocab_size = 0, -1, SAMPLES + 1
    unique_identifiers: ClassVar = {"class": "numbers"}


if __name__ == "__main__":
    main()
