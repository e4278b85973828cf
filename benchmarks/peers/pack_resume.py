"""Documents lost or read twice where packed runs of several libraries go on after a stop.

    python -m benchmarks.peers.pack_resume    # in a Python that has this library and the others

Each run reads packs on two ranks with a global batch of 16, is stopped after 20 steps, and goes on
from its state to the end of the epoch: on two ranks, or on four with the same global batch. What a
run without a stop loses or repeats at the end of its epoch is told first. What is not installed is
left out, with a line that says so.
"""

from __future__ import annotations

import copy
import importlib.metadata
import json
import os
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.peers.packers import END, olmo_dataset

COUNT, CAPACITY, BATCH, STEPS = 6000, 2048, 16, 20


def main() -> None:
    """Print a line for each library and world."""
    warnings.simplefilter("ignore")
    lengths = np.minimum(np.random.default_rng(2).lognormal(5, 1, COUNT).astype(int) + 2, CAPACITY)
    # Every token of a document is its number, so that a pack tells its documents.
    documents = [np.full(length, i + 1, np.int32) for i, length in enumerate(lengths)]
    with tempfile.TemporaryDirectory() as folder:
        for package, make in (
            ("mosaicml-streaming", ours),
            ("grain", grain),
            ("trl", trl),
            ("ai2-olmo-core", olmo),
            ("lhotse", lhotse),
        ):
            try:
                name = package if make is not ours else "this library"
                if make is not ours:
                    name = f"{package} {importlib.metadata.version(package)}"
                run = make(documents, folder)
            except ImportError as error:
                tell(name=package, missing=str(error))
                continue
            measure(name, run)


Run = Callable[[int, int, Any], tuple[Iterator[Any], Callable[[], Any]]]


def measure(name: str, run: Run) -> None:
    """Stop and go on, and count the documents of all ranks; first without a stop."""
    usual: Counter[int] = Counter()
    for rank in range(2):
        for found in run(2, rank, None)[0]:
            usual.update(found)
    tell(name=name, **lost_and_twice(usual))
    for ranks in (2, 4):
        counts: Counter[int] = Counter()
        states = []
        for rank in range(2):
            batches, state = run(2, rank, None)
            for _ in range(STEPS):
                counts.update(next(batches))
            states.append(copy.deepcopy(state()))
        try:
            for rank in range(ranks):
                batches, _ = run(ranks, rank, states[rank % 2])
                for found in batches:
                    counts.update(found)
        except (AssertionError, RuntimeError, ValueError) as error:
            tell(name=name, resumed_on=ranks, refused=str(error)[:160])
            continue
        tell(name=name, resumed_on=ranks, **lost_and_twice(counts))


def lost_and_twice(counts: Counter[int]) -> dict[str, int]:
    """Count the documents that are missing, and those that came more than once."""
    twice = sum(count > 1 for count in counts.values())
    return {"lost": COUNT - len(counts), "twice": twice}


def tell(**found: Any) -> None:
    """Print a result."""
    print(json.dumps(found), flush=True)


def numbers(tokens: Any) -> list[int]:
    """The documents of some packs."""
    found = np.unique(np.asarray(tokens)).tolist()
    return [number for number in found if 0 < number < END]


def ours(documents: list[Any], folder: str) -> Run:
    """Packs of this library."""
    from mds import MDSWriter, Packing, StreamingDataLoader, StreamingDataset
    from mds.world import World

    place = os.path.join(folder, "mds")
    with MDSWriter(out=place, columns={"tokens": "ndarray:int32"}, lengths="tokens") as writer:
        for document in documents:
            writer.write({"tokens": document})

    def run(ranks: int, rank: int, state: Any) -> tuple[Iterator[Any], Callable[[], Any]]:
        dataset = StreamingDataset(
            local=place, shuffle=True, shuffle_algo="seekable", batch_size=BATCH // ranks,
            packing=Packing(CAPACITY), num_canonical_nodes=1, topology=World(1, ranks, 1, rank),
        )  # fmt: skip
        loader = StreamingDataLoader(dataset)
        if state is not None:
            loader.load_state_dict(state)
        return (numbers(batch["tokens"]) for batch in loader), loader.state_dict

    return run


def grain(documents: list[Any], folder: str) -> Run:
    """Best fit into 64 open packs, a slice of the documents for each rank."""
    del folder
    from grain import MapDataset
    from grain.experimental import BestFitPackIterDataset

    def run(ranks: int, rank: int, state: Any) -> tuple[Iterator[Any], Callable[[], Any]]:
        order = MapDataset.range(len(documents)).seed(1).shuffle()[rank::ranks]
        samples = order.map(lambda i: {"tokens": documents[i]}).to_iter_dataset()
        packs = BestFitPackIterDataset(
            samples, length_struct={"tokens": CAPACITY}, num_packing_bins=64
        )
        iterator = iter(packs.batch(BATCH // ranks))
        if state is not None:
            iterator.set_state(state)
        return (numbers(batch["tokens"]) for batch in iterator), iterator.get_state

    return run


def trl(documents: list[Any], folder: str) -> Run:
    """Packed once for all epochs; batches are dealt and skipped as by transformers' Trainer."""
    del folder
    import datasets
    from accelerate import skip_first_batches
    from accelerate.data_loader import prepare_data_loader
    from torch.utils.data import DataLoader
    from trl.data_utils import pack_dataset

    datasets.disable_caching()
    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_dict({"input_ids": [d.tolist() for d in documents]})
    packs = pack_dataset(rows, CAPACITY, strategy="bfd")

    def run(ranks: int, rank: int, state: Any) -> tuple[Iterator[Any], Callable[[], Any]]:
        loader = prepare_data_loader(
            DataLoader(packs, BATCH // ranks, shuffle=True, collate_fn=list),
            num_processes=ranks, process_index=rank, put_on_device=False,
            use_seedable_sampler=True, data_seed=1,
        )  # fmt: skip
        progress = [state or 0]
        remaining_batches = skip_first_batches(loader, state) if state else loader

        def batches() -> Iterator[Any]:
            for batch in remaining_batches:
                progress[0] += 1
                yield numbers([token for pack in batch for token in pack["input_ids"]])

        return batches(), lambda: progress[0]

    return run


def olmo(documents: list[Any], folder: str) -> Run:
    """Packed once for all epochs, of a file of tokens; documents end with a token of their own."""
    from olmo_core.data import DataCollator, NumpyFSLDataLoader

    dataset = olmo_dataset(folder, CAPACITY, lambda: documents)

    def run(ranks: int, rank: int, state: Any) -> tuple[Iterator[Any], Callable[[], Any]]:
        loader = NumpyFSLDataLoader(
            dataset, collator=DataCollator(pad_token_id=END + 1),
            global_batch_size=BATCH * CAPACITY, work_dir=os.path.join(folder, "resume"), seed=1,
            dp_world_size=ranks, dp_rank=rank, fs_local_rank=rank,
        )  # fmt: skip
        if state is not None:
            loader.load_state_dict(state)
        loader.reshuffle(epoch=1)
        return (numbers(batch["input_ids"]) for batch in loader), loader.state_dict

    return run


def lhotse(documents: list[Any], folder: str) -> Run:
    """Batches of like lengths; a second is a token."""
    del folder
    from lhotse import CutSet
    from lhotse.dataset.sampling import DynamicBucketingSampler
    from lhotse.testing.dummies import dummy_cut

    cuts = CutSet.from_cuts(
        dummy_cut(i, duration=float(len(document))) for i, document in enumerate(documents)
    )

    def run(ranks: int, rank: int, state: Any) -> tuple[Iterator[Any], Callable[[], Any]]:
        sampler = DynamicBucketingSampler(
            cuts, max_duration=float(BATCH * CAPACITY // ranks), num_buckets=16, shuffle=True,
            seed=1, world_size=ranks, rank=rank,
        )  # fmt: skip
        if state is not None:
            sampler.load_state_dict(state)
        return (_cut_numbers(batch) for batch in iter(sampler)), sampler.state_dict

    return run


def _cut_numbers(batch: Any) -> list[int]:
    return [int(cut.id.rpartition("-")[2]) + 1 for cut in batch]


if __name__ == "__main__":
    main()
