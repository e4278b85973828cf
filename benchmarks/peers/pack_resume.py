"""Documents lost or read twice where packed runs of several libraries resume after a stop.

    python -m benchmarks.peers.pack_resume    # in a Python that has this library and the others

    pip install grain lancedb trl ai2-olmo-core accelerate datasets "lhotse>=2.0.0a7"

Each run reads packs on two ranks with a global batch of 16, is stopped after 20 steps, and resumes
from its states up to the end of the epoch: on two ranks, and on four with the same global batch.
Every token of a document is the number of the document, so a document is lost where fewer tokens
than it has were seen, and read twice where more were seen. The first line of a library is a run
without a stop. A library that is not installed is left out, with a line that says so.

Every library resumes in the way that its documentation names:

this library    the state of any rank, on all ranks
grain           packs: the state of each rank on the same rank; other numbers of ranks are not
                supported. ElasticIterator: the state of any rank, on all ranks; it takes datasets
                with random access, so documents, and no packs
lancedb         `StreamingDataset.merge_state_dicts` of the states of all ranks, on all ranks
trl             the number of steps, by accelerate's `skip_first_batches`, as in Trainer
ai2-olmo-core   the state of any rank, on all ranks
lhotse          the state of each rank on the same rank; cuts in memory, in a file that is read in
                sequence, and in a file with an index (from 2.0 on). How many cuts are decoded
                again before the first batch is counted for the files
"""

from __future__ import annotations

import copy
import importlib.metadata
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.peers.packers import END, olmo_dataset

COUNT, CAPACITY, BATCH, STEPS = 6000, 2048, 16, 20

# Starts a rank, of (ranks, rank, states of all ranks or None): its batches, and a function that
# takes its state. A batch is the number of tokens of each document, an array of COUNT numbers.
Run = Callable[[int, int, list[Any] | None], tuple[Iterator[Any], Callable[[], Any]]]
REFUSALS = (AssertionError, RuntimeError, TypeError, ValueError)


def main() -> None:
    """Print a line for each library and number of ranks."""
    warnings.simplefilter("ignore")
    documents = make_documents()
    lengths = np.array([len(document) for document in documents])
    with tempfile.TemporaryDirectory() as folder:
        for label, package, make, is_elastic in (
            ("this library", "", ours, True),
            ("grain, packs", "grain", grain, False),
            ("grain, ElasticIterator of documents", "grain", grain_elastic, True),
            ("grain, ElasticIterator of packs", "grain", grain_elastic_packs, True),
            ("lancedb", "lancedb", lancedb, True),
            ("trl", "trl", trl, True),
            ("olmo-core", "ai2-olmo-core", olmo, True),
            ("lhotse", "lhotse", lhotse, True),
            ("lhotse, a file", "lhotse", lhotse_file, True),
            ("lhotse, a file with an index", "lhotse", lhotse_indexed, True),
        ):
            try:
                name = f"{label} ({importlib.metadata.version(package)})" if package else label
                run = make(documents, folder)
            except ImportError as error:
                tell(name=label, missing=str(error))
                continue
            measure(name, run, lengths, is_elastic=is_elastic)


def make_documents() -> list[Any]:
    """Return documents of 2 to 2,047 tokens, each of which is the number of the document."""
    lengths = np.random.default_rng(2).lognormal(5, 1, COUNT).astype(int) + 2
    lengths = np.minimum(lengths, CAPACITY - 1)  # OLMo-core adds a token to each document
    return [np.full(length, i + 1, np.int32) for i, length in enumerate(lengths)]


def measure(name: str, run: Run, lengths: Any, *, is_elastic: bool) -> None:
    """Stop and resume, and count the tokens that all ranks saw; first without a stop.

    Where a library does not support another number of ranks, only the loading of states is tried.
    """
    try:
        seen = sum(batch for rank in range(2) for batch in run(2, rank, None)[0])
    except REFUSALS as error:
        tell(name=name, refused=first_line(error))
        return
    tell(name=name, **lost_and_twice(seen, lengths))
    for ranks in (2, 4):
        seen, states = np.zeros(COUNT, np.int64), []
        for rank in range(2):
            batches, state = run(2, rank, None)
            for _ in range(STEPS):
                seen += next(batches)
            states.append(copy.deepcopy(state()))
        is_supported = is_elastic or ranks == 2
        try:
            for rank in range(ranks):
                batches, _ = run(ranks, rank, copy.deepcopy(states))
                seen += sum(batches if is_supported else [next(batches)])
        except REFUSALS as error:
            tell(name=name, resumed_on=ranks, refused=first_line(error))
            continue
        counts = lost_and_twice(seen, lengths) if is_supported else {"not": "supported, prevented"}
        tell(name=name, resumed_on=ranks, **counts, **decoded_again())


def lost_and_twice(seen: Any, lengths: Any) -> dict[str, Any]:
    """Count the documents of which tokens are missing, and those with tokens seen again."""
    return {"lost": int((seen < lengths).sum()), "twice": int((seen > lengths).sum())}


def first_line(error: Exception) -> str:
    """Return the type of an error and the beginning of its message."""
    return f"{type(error).__name__}: {str(error)[:160]}"


def tell(**result: Any) -> None:
    """Print a result."""
    print(json.dumps(result), flush=True)


def tokens_of_documents(tokens: Any) -> Any:
    """Count the tokens of each document in packs."""
    numbers = np.asarray(tokens).reshape(-1)
    numbers = numbers[(numbers > 0) & (numbers < END)]
    return np.bincount(numbers, minlength=COUNT + 1)[1:]


def ours(documents: list[Any], folder: str) -> Run:
    """Packs of this library."""
    from mds import MDSWriter, Packing, StreamingDataLoader, StreamingDataset
    from mds.world import World

    place = os.path.join(folder, "mds")
    with MDSWriter(out=place, columns={"tokens": "ndarray:int32"}, lengths="tokens") as writer:
        for document in documents:
            writer.write({"tokens": document})

    def run(
        ranks: int, rank: int, states: list[Any] | None
    ) -> tuple[Iterator[Any], Callable[[], Any]]:
        dataset = StreamingDataset(
            local=place, shuffle=True, shuffle_algo="seekable", batch_size=BATCH // ranks,
            packing=Packing(CAPACITY), num_canonical_nodes=1, topology=World(1, ranks, 1, rank),
        )  # fmt: skip
        loader = StreamingDataLoader(dataset)
        if states is not None:
            loader.load_state_dict(states[0])
        return (tokens_of_documents(batch["tokens"]) for batch in loader), loader.state_dict

    return run


def grain(documents: list[Any], folder: str) -> Run:
    """Pack a slice of the documents for each rank, best fit into 64 open packs."""
    del folder
    from grain import MapDataset
    from grain.experimental import BestFitPackIterDataset

    def run(
        ranks: int, rank: int, states: list[Any] | None
    ) -> tuple[Iterator[Any], Callable[[], Any]]:
        order = MapDataset.range(len(documents)).seed(1).shuffle()[rank::ranks]
        samples = order.map(lambda i: {"tokens": documents[i]}).to_iter_dataset()
        packs = BestFitPackIterDataset(
            samples, length_struct={"tokens": CAPACITY}, num_packing_bins=64
        )
        iterator = iter(packs.batch(BATCH // ranks))
        if states is not None:
            iterator.set_state(states[rank % len(states)])
        batches = (tokens_of_documents(batch["tokens"]) for batch in iterator)
        return batches, iterator.get_state

    return run


def grain_elastic(documents: list[Any], folder: str) -> Run:
    """Read documents without packs, in batches of 16 documents of all ranks."""
    del folder
    from grain import MapDataset, sharding
    from grain.experimental import ElasticIterator

    lengths = np.array([len(document) for document in documents])

    def run(
        ranks: int, rank: int, states: list[Any] | None
    ) -> tuple[Iterator[Any], Callable[[], Any]]:
        order = MapDataset.range(len(documents)).seed(1).shuffle()
        shard = sharding.ShardOptions(shard_index=rank, shard_count=ranks)
        iterator = iter(ElasticIterator(order, BATCH, shard))
        if states is not None:
            iterator.set_state(states[0])
        batches = (np.bincount(batch, lengths[batch], COUNT).astype(int) for batch in iterator)
        return batches, iterator.get_state

    return run


def grain_elastic_packs(documents: list[Any], folder: str) -> Run:
    """Give packs to ElasticIterator."""
    del folder
    from grain import MapDataset, sharding
    from grain.experimental import BestFitPackIterDataset, ElasticIterator

    def run(
        ranks: int, rank: int, states: list[Any] | None
    ) -> tuple[Iterator[Any], Callable[[], Any]]:
        order = MapDataset.range(len(documents)).seed(1).shuffle()
        samples = order.map(lambda i: {"tokens": documents[i]}).to_iter_dataset()
        packs = BestFitPackIterDataset(
            samples, length_struct={"tokens": CAPACITY}, num_packing_bins=64
        )
        shard = sharding.ShardOptions(shard_index=rank, shard_count=ranks)
        iterator = iter(ElasticIterator(packs, BATCH, shard))
        if states is not None:
            iterator.set_state(states[0])
        batches = (tokens_of_documents(batch["tokens"]) for batch in iterator)
        return batches, iterator.get_state

    return run


def lancedb(documents: list[Any], folder: str) -> Run:
    """Pack each of four splits of a table: documents end to end, cut where a pack is full."""
    import lancedb
    import pyarrow as pa
    from lancedb.streaming import StreamingDataLoader, StreamingDataset

    table = pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))})
    rows = lancedb.connect(os.path.join(folder, "lancedb")).create_table("documents", table)
    # Splits have unequal tokens and equal numbers of packs, so leave room for the longest split.
    tokens = sum(map(len, documents)) + len(documents)
    packs = -(-int(1.15 * tokens / CAPACITY) // BATCH) * BATCH

    def run(
        ranks: int, rank: int, states: list[Any] | None
    ) -> tuple[Iterator[Any], Callable[[], Any]]:
        dataset = StreamingDataset(
            rows, num_splits=4, shuffle_seed=1, rank=rank, world_size=ranks, columns=["tokens"],
            pack_sequences=CAPACITY, eos_id=END, pad_id=0, blocks_per_epoch=packs,
        )  # fmt: skip
        if states is not None:
            dataset.load_state_dict(StreamingDataset.merge_state_dicts(states))
        loader = StreamingDataLoader(dataset, batch_size=BATCH // ranks)
        batches = (tokens_of_documents(batch["input_ids"]) for batch in loader)
        return batches, dataset.state_dict

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

    def run(
        ranks: int, rank: int, states: list[Any] | None
    ) -> tuple[Iterator[Any], Callable[[], Any]]:
        loader = prepare_data_loader(
            DataLoader(packs, BATCH // ranks, shuffle=True, collate_fn=list),
            num_processes=ranks, process_index=rank, put_on_device=False,
            use_seedable_sampler=True, data_seed=1,
        )  # fmt: skip
        progress = [states[0] if states else 0]
        remaining_batches = skip_first_batches(loader, progress[0]) if states else loader

        def batches() -> Iterator[Any]:
            for batch in remaining_batches:
                progress[0] += 1
                yield tokens_of_documents([token for pack in batch for token in pack["input_ids"]])

        return batches(), lambda: progress[0]

    return run


def olmo(documents: list[Any], folder: str) -> Run:
    """Packed once for all epochs, of a file of tokens; documents end with a token of their own."""
    from olmo_core.data import DataCollator, NumpyFSLDataLoader

    dataset = olmo_dataset(folder, CAPACITY, lambda: documents)

    def run(
        ranks: int, rank: int, states: list[Any] | None
    ) -> tuple[Iterator[Any], Callable[[], Any]]:
        loader = NumpyFSLDataLoader(
            dataset, collator=DataCollator(pad_token_id=END + 1),
            global_batch_size=BATCH * CAPACITY, work_dir=os.path.join(folder, "resume"), seed=1,
            dp_world_size=ranks, dp_rank=rank, fs_local_rank=rank,
        )  # fmt: skip
        if states is not None:
            loader.load_state_dict(states[0])
        loader.reshuffle(epoch=1)
        return (tokens_of_documents(batch["input_ids"]) for batch in loader), loader.state_dict

    return run


def lhotse(documents: list[Any], folder: str) -> Run:
    """Batches of cuts of like lengths, which are in memory; a second is a token."""
    del folder
    cuts = lhotse_cuts(documents)
    return lhotse_run(lambda: cuts)


def lhotse_file(documents: list[Any], folder: str) -> Run:
    """The same cuts, in a file that is read in sequence."""
    from lhotse import CutSet

    path = os.path.join(folder, "cuts.jsonl")
    lhotse_cuts(documents).to_file(path)
    count_decoded_cuts()
    return lhotse_run(lambda: CutSet.from_jsonl_lazy(path))


def lhotse_indexed(documents: list[Any], folder: str) -> Run:
    """The same cuts, in a file with an index."""
    from lhotse import CutSet
    from lhotse.indexing import create_jsonl_index

    path = os.path.join(folder, "indexed.jsonl")
    lhotse_cuts(documents).to_file(path)
    create_jsonl_index(path)
    count_decoded_cuts()
    return lhotse_run(lambda: CutSet.from_files([path], shuffle_iters=True, seed=1, indexed=True))


def lhotse_cuts(documents: list[Any]) -> Any:
    """Return a cut for each document, whose duration in seconds is the number of tokens."""
    from lhotse import CutSet
    from lhotse.testing.dummies import dummy_cut

    return CutSet.from_cuts(
        dummy_cut(i, duration=float(len(document))) for i, document in enumerate(documents)
    )


def lhotse_run(open_cuts: Callable[[], Any]) -> Run:
    """Run a sampler with buckets over cuts, a thousand of which are buffered."""
    from lhotse.dataset.sampling import DynamicBucketingSampler

    def run(
        ranks: int, rank: int, states: list[Any] | None
    ) -> tuple[Iterator[Any], Callable[[], Any]]:
        sampler = DynamicBucketingSampler(
            open_cuts(), max_duration=float(BATCH * CAPACITY // ranks), num_buckets=16,
            shuffle=True, buffer_size=1000, num_cuts_for_bins_estimate=1000, seed=1,
            world_size=ranks, rank=rank,
        )  # fmt: skip
        if states is not None:
            decoded["before the first batch"] = decoded["cuts"]
            sampler.load_state_dict(states[rank % len(states)])

        def batches() -> Iterator[Any]:
            for number, batch in enumerate(sampler):
                if number == 0 and states is not None:
                    decoded["again"] = decoded["cuts"] - decoded["before the first batch"]
                seen = np.zeros(COUNT, np.int64)
                for cut in batch:  # a cut that fills up the last batches has "_dup0" in its id
                    seen[int(cut.id.rpartition("-")[2].partition("_")[0])] += int(cut.duration)
                yield seen

        return batches(), sampler.state_dict

    return run


decoded = {"cuts": 0, "before the first batch": 0, "again": 0}


def decoded_again() -> dict[str, int]:
    """Return how many cuts of a file were decoded before the first batch after a resume."""
    again = decoded.pop("again", 0)
    return {"decoded_again": again} if again else {}


def count_decoded_cuts() -> None:
    """Have lhotse count the cuts that it decodes."""
    from lhotse import lazy

    decode = lazy.deserialize_item
    if decode.__name__ == "counted":
        return

    def counted(data: Any) -> Any:
        decoded["cuts"] += 1
        return decode(data)

    lazy.deserialize_item = counted


if __name__ == "__main__":
    main()
