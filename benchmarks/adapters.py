"""What does the adapter of a trainer cost beside the StreamingDataLoader that it reads?

    python -m benchmarks.adapters         a minute a trainer; --smoke: seconds

Trainers exclude each other, so each is measured in a Python that has it; those that are missing
are named. An epoch of the adapter and one of a loop over the loader take turns, without workers
and with two threads. The ratios are those of the loop to the adapter in the same round: of
processor time, which a busy machine disturbs less and which has the bar of 0.97, and of seconds.

packs   rows of 4,096 tokens of documents of some 600 tokens. The loop does nothing.
blocks  4,097 tokens, uint16. The loop converts them as a trainer without an adapter has to: to
        int64, to inputs and labels, to positions for torchtitan.

Automodel reads samples, so its loop cuts batches into rows, too. A data_collator of transformers
takes samples of int64, so its loop converts blocks in `map`, and calls the same data_collator. For
Lightning, both sides are a `fit` of a model that does nothing, with and without the callback.

Bias: no model is trained, so a batch costs what it takes to make it, some 0.1 ms of blocks and
0.5 ms of packs. The data is in the page cache.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import itertools
import logging
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from mds import MDSWriter, Packing, StreamingDataLoader, StreamingDataset

LENGTH, BATCH, VOCABULARY = 4096, 8, 50_000
BAR = 0.97
Epoch = Callable[[], int]  # reads an epoch, and returns its number of batches
Pair = tuple[Epoch, Epoch]  # of the adapter, and of the loader


def write(root: str, rows: int) -> dict[str, str]:
    """Documents of some 600 tokens for so many rows, and three times as many blocks."""
    rng = np.random.default_rng(0)
    documents = np.minimum(rng.lognormal(6, 0.8, rows * 7).astype(int) + 1, LENGTH)
    for name, sizes in (("blocks", np.full(rows * 3, LENGTH + 1)), ("packs", documents)):
        with MDSWriter(f"{root}/{name}", {"tokens": "ndarray:uint16"}) as writer:
            for size in sizes.tolist():
                writer.write({"tokens": rng.integers(0, VOCABULARY, size, np.uint16)})
    return {name: f"{root}/{name}" for name in ("blocks", "packs")}


def count(batches: Iterable[Any]) -> int:
    """Read all batches."""
    return sum(1 for _ in batches)


def loader_of(place: str, kind: str, workers: int, **options: Any) -> StreamingDataLoader:
    """The loader beside which an adapter is measured; ``options`` are those of the packing."""
    drop_last = options.pop("drop_last", False)
    packing = Packing(LENGTH, **options) if kind == "packs" else None
    dataset = StreamingDataset(
        place, batch_size=BATCH, shuffle=True, remainder="mask", packing=packing
    )
    return StreamingDataLoader(dataset, num_workers=workers, drop_last=drop_last)


def loop_of(place: str, kind: str, workers: int, **options: Any) -> Callable[[], Iterator[Any]]:
    """A function that begins an epoch of rows with shifted labels, without an adapter."""
    loader = loader_of(place, kind, workers, layout="dense", labels="shifted", **options)
    return lambda: map(convert, loader) if kind == "blocks" else iter(loader)


def convert(batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Inputs and labels of blocks, which models need as int64."""
    tokens = batch["tokens"]
    return {"tokens": tokens[:, :-1].long(), "labels": tokens[:, 1:].long()}


def with_positions(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A batch with the positions of its tokens."""
    if "position_ids" not in batch:
        batch["position_ids"] = torch.arange(LENGTH).repeat(len(batch["tokens"]), 1)
    return batch


def samples_of(batch: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The rows of a batch, with the mask that Automodel needs."""
    columns = {name: batch[name] for name in ("tokens", "labels")}
    if "document_ids" in batch:
        columns["position_ids"] = batch["position_ids"]
        columns["attention_mask"] = batch["document_ids"] + 1
    else:
        columns["attention_mask"] = torch.ones_like(batch["tokens"])
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def torchtitan(place: str, kind: str, workers: int) -> Pair:
    """Its batches are inputs with positions, and labels."""
    from mds.integrations.torchtitan import DataLoader

    config = DataLoader.Config(
        dataset_path=place, arguments=arguments_of(kind), num_workers=workers, infinite=False
    )
    loader = DataLoader(config, dp_world_size=1, dp_rank=0, seq_len=LENGTH, local_batch_size=BATCH)
    loop = loop_of(place, kind, workers)
    return lambda: count(loader), lambda: count(map(with_positions, loop()))


def olmo_core(place: str, kind: str, workers: int) -> Pair:
    """Its batches are inputs and labels, with the lengths of documents."""
    from olmo_core.data import TokenizerConfig

    from mds.integrations.olmo_core import MDSDataLoaderConfig

    tokenizer = TokenizerConfig(vocab_size=VOCABULARY, eos_token_id=0, pad_token_id=1)
    loader = MDSDataLoaderConfig(
        LENGTH, BATCH * LENGTH, tokenizer, place, arguments_of(kind), num_workers=workers
    ).build()

    def epoch() -> int:
        loader.reshuffle()
        batches = count(loader)
        loader.reset()
        return batches

    loop = loop_of(place, kind, workers, drop_last=True)
    return epoch, lambda: count(loop())


def automodel(place: str, kind: str, workers: int) -> Pair:
    """Its dataset gives rows, which Automodel collates again."""
    from mds.integrations.automodel import Dataset

    length = {"seq_len": LENGTH} if kind == "blocks" else {}
    arguments = {**arguments_of(kind), **length, "num_workers": workers}
    dataset = Dataset(place, global_batch_size=BATCH, **arguments).shard(1, 0)
    loop = loop_of(place, kind, workers)

    def samples() -> Iterator[Any]:
        return itertools.chain.from_iterable(map(samples_of, loop()))

    return lambda: count(dataset) // BATCH, lambda: count(samples()) // BATCH


def transformers(place: str, kind: str, workers: int) -> Pair:
    """The loader of a Trainer, which is that of TRL too."""
    from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

    from mds.integrations.transformers import StreamingTrainer

    config = LlamaConfig(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1,
    )  # fmt: skip
    arguments = TrainingArguments(
        os.path.dirname(place), per_device_train_batch_size=BATCH, use_cpu=True, report_to=[],
        dataloader_num_workers=workers, max_steps=1,
    )  # fmt: skip
    dataset = loader_of(place, kind, 0).dataset
    dataset.batch_size = None
    trainer = StreamingTrainer(
        LlamaForCausalLM(config), arguments, train_dataset=dataset, data_collator=stack
    )
    adapter = trainer.get_train_dataloader()
    loader = loader_of(place, kind, workers)
    if kind == "blocks":
        collate = trainer._get_collator_with_removed_columns(stack)  # noqa: SLF001 - as a Trainer
        dataset = loader.dataset.map(as_trainers_sample)
        loader = StreamingDataLoader(dataset, num_workers=workers, collate_fn=collate)
    return lambda: count(adapter), lambda: count(loader)


def as_trainers_sample(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample as a Trainer needs it."""
    return {"input_ids": sample["tokens"].astype(np.int64)}


def stack(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch of a model of transformers, which shifts labels itself."""
    tokens = np.stack([sample["input_ids"] for sample in samples])
    return {"input_ids": torch.from_numpy(tokens), "labels": torch.from_numpy(tokens.copy())}


def lightning(place: str, kind: str, workers: int) -> Pair:
    """Epochs of `fit`, with the callback and without."""
    from lightning import pytorch

    from mds.integrations.lightning import StreamingCallback

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # it describes each fit

    class Nothing(pytorch.LightningModule):
        automatic_optimization = False
        batches = 0

        def training_step(self, batch: Any, number: int) -> None:
            self.batches += 1

        def configure_optimizers(self) -> None:
            pass

    def fit(*callbacks: Any) -> int:
        trainer = pytorch.Trainer(
            accelerator="cpu", max_epochs=1, logger=False, callbacks=[*callbacks],
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        )  # fmt: skip
        model = Nothing()
        trainer.fit(model, loader_of(place, kind, workers))
        return model.batches

    return lambda: fit(StreamingCallback()), fit


def arguments_of(kind: str) -> dict[str, Any]:
    """The user's arguments of an adapter."""
    return {"shuffle": True, **({"packing": LENGTH} if kind == "packs" else {})}


#: Trainers by package: modules that must be there, what to install, and what is measured.
TRAINERS: dict[str, tuple[str, str, Callable[[str, str, int], Pair]]] = {
    "torchtitan": ("torchtitan", "torchtitan triton", torchtitan),
    "ai2-olmo-core": ("olmo_core", "ai2-olmo-core", olmo_core),
    "nemo-automodel": ("nemo_automodel", 'nemo-automodel "triton<3.9"', automodel),
    "transformers": ("transformers accelerate", "transformers accelerate", transformers),
    "lightning": ("lightning", "lightning", lightning),
}


def spent(epoch: Epoch) -> tuple[float, float, int]:
    """Processor time and seconds of an epoch, and its number of batches."""
    begin, processor = time.perf_counter(), time.process_time()
    batches = epoch()
    return time.process_time() - processor, time.perf_counter() - begin, batches


def measure(pairs: dict[str, Pair], rounds: int) -> Iterator[str]:
    """A line for each pair, whose sides take turns; the first round warms both."""
    results: dict[str, list[Any]] = {name: [] for name in pairs}
    for number in range(rounds + 1):
        for name, pair in pairs.items():
            order = (0, 1) if number % 2 else (1, 0)
            round_results = {side: spent(pair[side]) for side in order}
            if number:
                results[name].append((round_results[0], round_results[1]))
    for name, pair_results in results.items():
        (_, _, batches), (_, _, expected) = pair_results[0]
        if batches != expected:
            raise AssertionError(f"{name}: {batches} batches instead of {expected}")
        rate, of_loop = (
            batches / statistics.median(each[side][1] for each in pair_results) for side in (0, 1)
        )
        processor, clock = (
            [loop_result[kind] / adapter[kind] for adapter, loop_result in pair_results]
            for kind in (0, 1)
        )
        missed = "" if statistics.median(processor) >= BAR else "  below the bar"
        yield (
            f"{name:40} {rate:8,.0f} batches/s, the loop {of_loop:8,.0f}; processor "
            f"{describe(processor)}, seconds {describe(clock)}{missed}"
        )


def describe(ratios: list[float]) -> str:
    """The median of ratios, the lowest and the highest."""
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def main() -> None:
    """Write the data, and measure the trainers that are installed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="little data, one round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--trainers", default=",".join(TRAINERS), help="some of them")
    options = parser.parse_args()
    rows, rounds = (64, 1) if options.smoke else (8000, options.rounds)
    warnings.simplefilter("ignore")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "numpy")]
    print(f"python {platform.python_version()}, {', '.join(versions)}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as root:
        os.environ["MDS_CACHE_DIR"] = f"{root}/cache"
        places = write(root, rows)
        for package in options.trainers.split(","):
            modules, install, pair_of = TRAINERS[package]
            if not all(map(importlib.util.find_spec, modules.split())):
                print(f"{package}: not measured. pip install {install}")
                continue
            name = f"{package} {importlib.metadata.version(package)}"
            pairs = {
                f"{name}, {kind}, {workers} workers": pair_of(places[kind], kind, workers)
                for kind in places
                for workers in (0, 2)
            }
            print(*measure(pairs, rounds), sep="\n")


if __name__ == "__main__":
    main()
