"""The packers of other libraries, in a Python that has them; `benchmarks.packing` starts it.

    python packers.py lengths.npy FOLDER    # a line of JSON for each result

Each packer gets the same lengths. Those that pack arrays and not lengths get as many documents as
memory takes, and the bound on the padding is that of their documents.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

CAPACITY = 8192
TOKENS, DOCUMENTS = 40_000_000, 30_000  # that packers of arrays get at most
END = 60_000  # the token that ends documents, where there has to be one


_MODULES = {"ai2-olmo-core": "olmo_core", "llm-foundry": "llmfoundry"}


def main() -> None:
    """Measure every packer that is installed."""
    lengths, folder = np.load(sys.argv[1]), sys.argv[2]
    for name, package, packer in (
        ("OLMo-core", "ai2-olmo-core", olmo),
        ("TRL, bfd_split", "trl", trl),
        ("Grain, best fit of 64", "grain", grain),
        ("llm-foundry", "llm-foundry", foundry),
        ("lhotse, padded batches", "lhotse", lhotse),
    ):
        if importlib.util.find_spec(_MODULES.get(package, package)) is None:
            continue
        is_of_lengths = packer in {olmo, foundry}
        short_lengths = (
            lengths
            if is_of_lengths
            else lengths[:DOCUMENTS][np.cumsum(lengths[:DOCUMENTS]) < TOKENS]
        )
        packs, tokens, seconds = packer(short_lengths)
        tell(
            kind="packer", name=f"{name} {importlib.metadata.version(package)}",
            documents=len(short_lengths), rate=len(short_lengths) / seconds, packs=packs,
            lost=int(short_lengths.sum()) - tokens, padding=1 - tokens / max(packs * CAPACITY, 1),
        )  # fmt: skip
    if folder:
        for name, batches in (("Grain", grain_batches), ("OLMo-core", olmo_batches)):
            try:
                tell(kind="batches", name=name, rate=rate(batches(folder)))
            except ImportError:
                continue


def tell(**found: Any) -> None:
    """Print a result."""
    print(json.dumps(found), flush=True)


def rate(batches: Iterator[int]) -> float:
    """Real tokens for each second of the processor."""
    first, start_time = next(batches), time.process_time()
    del first
    return sum(batches) / (time.process_time() - start_time)


def olmo(lengths: Any) -> tuple[int, int, float]:
    """Best fit decreasing of everything at once, over a tree of rooms."""
    from olmo_core.data.utils import InstancePacker

    pieces = split(lengths)
    ends = np.cumsum(pieces)
    start_time = time.process_time()
    packer = InstancePacker(CAPACITY)
    packs, _, tokens = packer.pack_documents(np.stack([ends - pieces, ends], axis=1))
    return len(packs), int(tokens), time.process_time() - start_time


def trl(lengths: Any) -> tuple[int, int, float]:
    """The same in stretches of the rows of a table, with their tokens."""
    import datasets
    import pyarrow as pa
    from trl.data_utils import pack_dataset

    datasets.disable_caching()
    datasets.disable_progress_bars()
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rows = pa.LargeListArray.from_arrays(offsets, np.zeros(int(lengths.sum()), np.int32))
    table = datasets.Dataset(pa.table({"input_ids": rows}))
    start_time = time.process_time()
    packed = pack_dataset(table, CAPACITY, strategy="bfd_split")
    seconds = time.process_time() - start_time
    return len(packed), sum(map(sum, packed["seq_lengths"])), seconds


def grain(lengths: Any) -> tuple[int, int, float]:
    """Best fit into bins that are open while documents go by; long ones are cut beforehand."""
    from grain import MapDataset
    from grain.experimental import BestFitPackIterDataset

    pieces, zeros = split(lengths).tolist(), np.zeros(CAPACITY, np.int32)
    documents = MapDataset.range(len(pieces)).map(lambda i: {"tokens": zeros[: pieces[i]]})
    start_time, packs, tokens = time.process_time(), 0, 0
    for pack in BestFitPackIterDataset(
        documents.to_iter_dataset(), length_struct={"tokens": CAPACITY}, num_packing_bins=64
    ):
        packs += 1
        tokens += int((pack["tokens_segment_ids"] > 0).sum())
    return packs, tokens, time.process_time() - start_time


def foundry(lengths: Any) -> tuple[int, int, float]:
    """First fit into 8 packs of a batch, what is over going to the next one.

    A batch gets as many documents as fill it in the mean; its packer leaves out making tensors.
    """
    from llmfoundry.data.packing import BinPackCollator

    pieces = split(lengths)
    count = int(8 * CAPACITY / pieces.mean())
    packer = BinPackCollator(list, 8, CAPACITY, 0, "right", is_profiling=True)
    start_time = time.process_time()
    for start in range(0, len(pieces), count):
        window = pieces[start : start + count].tolist()
        packer._pack_trimmed_examples([{}] * len(window), window)  # noqa: SLF001 - as it profiles itself
    seconds = time.process_time() - start_time
    return packer.n_packed_examples, packer.n_packed_tokens, seconds


def lhotse(lengths: Any) -> tuple[int, int, float]:
    """Batches of like lengths, each of eight packs' tokens when padded; packs are their room."""
    from lhotse import CutSet
    from lhotse.dataset.sampling import DynamicBucketingSampler
    from lhotse.testing.dummies import dummy_cut

    pieces = split(lengths)
    cuts = CutSet.from_cuts(dummy_cut(i, duration=float(n)) for i, n in enumerate(pieces.tolist()))
    settings = {"max_duration": 8.0 * CAPACITY, "num_buckets": 30, "shuffle": True}
    start_time = time.process_time()
    sampler = DynamicBucketingSampler(cuts, **settings)
    room, tokens = 0.0, 0.0
    for batch in sampler:
        sizes = [cut.duration for cut in batch]
        room += max(sizes) * len(sizes)
        tokens += sum(sizes)
    seconds = time.process_time() - start_time
    start_time = time.process_time()
    resumed = DynamicBucketingSampler(cuts, **settings)
    resumed.load_state_dict(sampler.state_dict())
    next(iter(resumed), None)  # lhotse 2 reads what came before when it is iterated
    restored = time.process_time() - start_time
    tell(kind="restore", name="lhotse", documents=len(pieces), seconds=restored)
    return round(room / CAPACITY), int(tokens), seconds


def grain_batches(folder: str) -> Iterator[int]:
    """Batches of eight packs from ArrayRecord files."""
    from grain import MapDataset, ReadOptions
    from grain.experimental import BestFitPackIterDataset
    from grain.sources import ArrayRecordDataSource

    path = os.path.join(folder, "documents.array_record")
    if not os.path.exists(path):
        from array_record.python.array_record_module import ArrayRecordWriter

        writer = ArrayRecordWriter(path, "group_size:1,uncompressed")
        for document in documents_of(folder):
            writer.write(document.tobytes())
        writer.close()

    def cut(record: bytes) -> dict[str, Any]:
        return {"tokens": np.frombuffer(record, np.int32)[:CAPACITY]}

    documents = MapDataset.source(ArrayRecordDataSource(path)).seed(1).shuffle().map(cut)
    packs = BestFitPackIterDataset(
        documents.to_iter_dataset(ReadOptions(num_threads=1, prefetch_buffer_size=16)),
        length_struct={"tokens": CAPACITY},
        num_packing_bins=64,
    )
    for batch in packs.batch(8):
        yield int((batch["tokens_segment_ids"] > 0).sum())


def olmo_dataset(folder: str, capacity: int, documents: Callable[[], Iterable[Any]]) -> Any:
    """A dataset of packs, of a file of tokens that is made once; ``END`` ends each document."""
    from olmo_core.data import NumpyPackedFSLDataset

    path = os.path.join(folder, "documents.npy")
    if not os.path.exists(path):
        ended = [np.append(document[: capacity - 1], END) for document in documents()]
        np.concatenate(ended).astype(np.uint16).tofile(path)
    dataset = NumpyPackedFSLDataset(
        path, sequence_length=capacity, pad_token_id=END + 1, eos_token_id=END, vocab_size=END + 2,
        dtype=np.uint16,
    )  # fmt: skip
    dataset.work_dir = os.path.join(folder, "olmo")
    dataset.prepare()
    return dataset


def olmo_batches(folder: str) -> Iterator[int]:
    """Batches of eight packs from one file of tokens, which are packed beforehand."""
    import torch

    dataset = olmo_dataset(folder, CAPACITY, lambda: documents_of(folder))
    order = np.random.default_rng(1).permutation(len(dataset)).tolist()
    for start in range(0, len(order) - 7, 8):
        rows = [dataset[i]["input_ids"] for i in order[start : start + 8]]
        yield int((torch.stack(rows) != END + 1).sum())


def documents_of(folder: str) -> Iterator[Any]:
    """The documents, from the file that holds their tokens end to end."""
    tokens = np.load(os.path.join(folder, "tokens.npy"), mmap_mode="r")
    ends = np.cumsum(np.load(os.path.join(folder, "lengths.npy")))
    for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        yield np.array(tokens[begin:end])


def split(lengths: Any) -> Any:
    """Documents that fit, and long ones in pieces of the capacity and a rest."""
    pieces = -(-lengths // CAPACITY)
    ends = np.cumsum(pieces)
    number = np.arange(int(ends[-1])) - np.repeat(ends - pieces, pieces)
    return np.minimum(np.repeat(lengths, pieces) - number * CAPACITY, CAPACITY)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
