"""What packing costs: documents a second, padding, a window far in, batches, balance, downloads.

    python -m benchmarks.packing [--smoke] [--texts FOLDER] [--other PYTHON]...

Lengths are drawn by a seed, with replacement, from those of texts: the sources of the standard
library, whole and paragraph by paragraph, or with --texts the lines of JSON and the paragraphs in a
folder in place of paragraphs; four bytes are a token. A second kind has the short ones alone.
--other is a Python with packers of other libraries (Grain, TRL, OLMo-core, lhotse; another one for
llm-foundry), which get the same lengths in the same run.
Rates are by the seconds of the processor, of one process, so that they hold on a busy machine.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import pathlib
import resource
import subprocess
import sysconfig
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks.peers.karmarkar_karp import partition
from mds.plan import EpochPlan
from mds.plan._pack_filling import DocumentLengths, PackFilling
from mds.plan._pack_schedule import Documents
from mds.plan._pack_windows import balance, pack_window
from mds.plan._packing import Packing
from mds.world import World

CAPACITY = 8192


def main() -> None:
    """Measure one thing after the other, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a hundredth of the work")
    parser.add_argument("--texts", help="a folder of .jsonl and .txt, taken for texts too")
    parser.add_argument(
        "--other", action="append", default=[], help="a Python with packers of other libraries"
    )
    options = parser.parse_args()
    is_smoke = options.smoke
    texts, sources = sizes(options.texts, is_smoke)
    count = 20_000 if is_smoke else 10**6
    rng = np.random.default_rng(1)
    mixed = rng.choice(np.concatenate([texts, sources]), count)
    short = rng.choice(texts, count)
    with tempfile.TemporaryDirectory() as folder:
        for kind, lengths in (("texts and sources", mixed), ("texts", short)):
            print(f"{count:,} documents, {kind}: {lengths.mean():,.0f} tokens in the mean")
            show(packer(lengths, 1 if is_smoke else 3))
            show(budget(lengths))
            peers(options.other, lengths, folder, is_batch=False)
        print("windows, ranks and batches")
        show(window(is_smoke))
        show(window(is_smoke, 40))
        show(ranks(mixed, is_smoke))
        show(batches(mixed, folder, is_smoke, options.other))
        for nodes in (8, 64):
            show(downloads(nodes, is_smoke))
        show(rows(is_smoke))


def show(found: Any) -> None:
    """Print what a measurement found."""
    for name, value, bar in found:
        print(f"  {name:<58} {value:>14}  (bar {bar})", flush=True)


def sizes(folder: str | None, is_smoke: bool) -> tuple[Any, Any]:
    """Tokens of texts, and of whole sources."""
    root = sysconfig.get_path("stdlib")
    paths = glob.glob(f"{root}/*.py" if is_smoke else f"{root}/**/*.py", recursive=True)
    sources = [pathlib.Path(path).read_bytes() for path in sorted(paths)]
    if folder is None:
        texts = [part for source in sources for part in source.split(b"\n\n")[:3]]
    else:
        texts = []
        for path in sorted(glob.glob(os.path.join(folder, "*"))):
            data = pathlib.Path(path).read_bytes()
            texts += data.splitlines() if path.endswith(".jsonl") else data.split(b"\n\n")
    return tuple(np.maximum(np.array([*map(len, kind)]) // 4, 1) for kind in (texts, sources))


def peers(peer_pythons: list[str], lengths: Any, folder: str, *, is_batch: bool) -> list[Any]:
    """Run the packers of other Pythons on lengths, or on the documents in a folder."""
    if not peer_pythons:
        return []
    np.save(os.path.join(folder, "given.npy"), lengths)
    program = os.path.join(os.path.dirname(__file__), "peers", "packers.py")
    answers = []
    for other in peer_pythons:
        command = [other, program, os.path.join(folder, "given.npy"), folder if is_batch else ""]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        answers += [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    for peer in answers:
        if peer["kind"] == "restore" and not is_batch:
            print(f"  {peer['name']} goes on behind {peer['documents']:,} documents after "
                  f"{peer['seconds']:.2f} s")  # fmt: skip
        if peer["kind"] == "packer" and not is_batch:
            print(
                f"  {peer['name']:<24} {peer['documents']:>9,} documents {peer['rate']:>9,.0f}/s  "
                f"{peer['packs']:,} packs, padding {peer['padding']:.4%}, {peer['lost']:,} tokens "
                "lost"
            )
    return answers


def budget(lengths: Any) -> Any:
    """Batches of documents of like lengths, each below 65,536 tokens when it is padded."""
    ids, packing, room = np.arange(len(lengths)), Packing(budget=8 * CAPACITY, overflow="split"), 0
    start_time = time.process_time()
    samples = packing.window_documents(int(lengths.sum()), len(lengths))
    made = [
        pack_window(ids[start : start + samples], lengths[start : start + samples], packing, start)
        for start in range(0, len(lengths), samples)
    ]
    seconds = time.process_time() - start_time
    for packs in made:
        longest = np.maximum.reduceat(packs.sizes, packs.bounds[:-1])
        room += int((longest * np.diff(packs.bounds)).sum())
    yield "documents a second, batches of like lengths", f"{len(lengths) / seconds:,.0f}", "-"
    yield "their padding", f"{1 - lengths.sum() / room:.4%}", "-"


class Lengths(DocumentLengths):
    """Lengths of any number of documents, of which a million are held."""

    digest = "drawn"

    def __init__(self, count: int, mean: float = 6, deviation: float = 1.1) -> None:
        drawn = np.random.default_rng(1).lognormal(mean, deviation, count)
        self._lengths = drawn.astype(np.int64) + 1
        self.total, self.count = int(self._lengths.sum()), count

    def take(self, ids: Any) -> Any:
        """The lengths of documents."""
        return self._lengths[ids % len(self._lengths)]

    def packed(self, counts: Any, packing: Packing) -> list[Documents]:
        """The documents of streams, all of the same mean."""
        mean = packing.tokens(self._lengths).sum() / len(self._lengths)
        return [Documents(count, int(count * mean)) for count in counts]


def packer(lengths: Any, rounds: int) -> Any:
    """Documents a second through the packer, lengths in memory, the padding, and its bound."""
    ids, packing = np.arange(len(lengths)), Packing(CAPACITY, overflow="split")
    samples = packing.window_documents(int(lengths.sum()), len(lengths))
    best = 0.0
    for _ in range(rounds):
        start_time, packs = time.process_time(), 0
        for start in range(0, len(lengths), samples):
            some = slice(start, start + samples)
            packs += len(pack_window(ids[some], lengths[some], packing, start))
        best = max(best, len(lengths) / (time.process_time() - start_time))
    starts = np.arange(0, len(lengths), samples)
    least = int((-(-np.add.reduceat(lengths, starts) // CAPACITY)).sum())
    whole = -(-int(lengths.sum()) // CAPACITY)
    yield f"documents a second, windows of {samples:,}", f"{best:,.0f}", "800,000"
    yield f"padding, {packs:,} packs", f"{1 - lengths.sum() / (packs * CAPACITY):.4%}", "0.1 %"
    yield (
        "packs over the fewest that windows, and all at once, can have",
        (f"{packs / least:.6f} {packs / whole:.6f}"),
        "1.001",
    )


def window(is_smoke: bool, streams: int = 1) -> Any:
    """Any window of 100 million documents in 5,000 shards, by a seekable order.

    Of several streams a schedule says what comes of each.
    """
    count, run = 10**5 if is_smoke else 10**8, None
    if streams > 1:
        from benchmarks.schedule import run_of  # with torch, whose memory the other row is without

        run = run_of(streams)
    plan = EpochPlan(
        [{"shards": np.full(5000 // streams, count // 5000)}] * streams,
        World(8, 8, 1, 0),
        batch_size=8,
        shuffle=True,
        shuffle_algo="seekable",
        num_canonical_nodes=8,
        packing=Packing(CAPACITY, overflow="split"),
        schedule=run,
        lengths=Lengths(10**4 if is_smoke else 10**6),
    )
    packs = plan.filling
    assert isinstance(packs, PackFilling)
    packs.load(0, 0)
    rows = len(packs.windows)  # the canonical nodes
    seconds = []
    for number in range(8):
        start_time = time.process_time()
        row = number % rows
        packs.load(row, int(packs.windows[row]) * (number // rows + 1) // (8 // rows + 1))
        seconds.append(time.process_time() - start_time)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    yield (
        f"a window anywhere in {count:,} documents, streams: {streams}",
        f"{1000 * np.median(seconds):.1f} ms",
        "60 ms",
    )
    yield "the whole process, at most", f"{memory} MB", "250 MB a canonical node"


def ranks(lengths: Any, is_smoke: bool) -> Any:
    """The attention work of the slowest of 8 ranks over the mean, 64 packs a step."""
    steps = 20 if is_smoke else 1000
    packing, size = Packing(CAPACITY, overflow="split"), 16_384
    stretches = [
        lengths[start : start + size] for start in range(0, min(len(lengths), 400_000), size)
    ]
    work = np.concatenate(
        [pack_window(np.arange(len(each)), each, packing, 1).work for each in stretches]
    )
    found, plain, differencing, start_time = [], [], [], time.process_time()
    chosen = [work[start : start + 64] for start in range(0, len(work) - 64, 64)][:steps]
    for mine in chosen:
        sums = np.bincount(balance(mine, 8), mine)
        found.append(sums.max() / sums.mean())
    each = (time.process_time() - start_time) / len(chosen)
    for mine in chosen:
        sums = mine.reshape(8, 8).sum(axis=1)
        plain.append(sums.max() / sums.mean())
    start_time = time.process_time()
    for mine in chosen:
        heaviest = max(mine[items].sum() for items in partition(mine.tolist(), 8))
        differencing.append(heaviest * 8 / mine.sum())
    theirs = (time.process_time() - start_time) / len(chosen)
    name = f"slowest of 8 ranks over the mean, {len(chosen):,} steps"
    yield name, f"{np.mean(found):.4f}", "1.02"
    yield (
        "over Karmarkar-Karp's, of any counts",
        f"{np.mean(found) / np.mean(differencing):.4f}",
        "1.01",
    )
    yield "the same without balance", f"{np.mean(plain):.4f}", "-"
    yield "balancing a step", f"{1e6 * each:.0f} us", "-"
    yield "by Karmarkar-Karp", f"{1e6 * theirs:.0f} us", "-"


def batches(sampled_lengths: Any, folder: str, is_smoke: bool, peer_pythons: list[str]) -> Any:
    """Tokens a second in packed batches of 8 packs, over those of the documents gathered alone."""
    import torch

    from mds import MDSWriter, StreamingDataLoader, StreamingDataset

    torch.set_num_threads(1)
    lengths = np.minimum(sampled_lengths[: 2000 if is_smoke else 30_000], CAPACITY)
    tokens = np.random.default_rng(0).integers(0, 50_000, int(lengths.sum()), dtype=np.int32)
    np.save(os.path.join(folder, "lengths.npy"), lengths)
    np.save(os.path.join(folder, "tokens.npy"), tokens)
    place = os.path.join(folder, "mds")
    with MDSWriter(out=place, columns={"tokens": "ndarray:int32"}, lengths="tokens") as writer:
        for document in np.split(tokens, np.cumsum(lengths)[:-1]):
            writer.write({"tokens": document})

    def rate(**settings: Any) -> float:
        dataset = StreamingDataset(local=place, shuffle=True, shuffle_algo="seekable", **settings)
        start_time, count = time.process_time(), 0
        for batch in StreamingDataLoader(dataset):
            found = batch["tokens"]
            count += found.numel() if hasattr(found, "numel") else sum(map(len, found))
        return count / (time.process_time() - start_time)

    documents = max(int(8 * CAPACITY * len(lengths) / lengths.sum()), 1)
    rounds, theirs = [], []
    for _ in range(1 if is_smoke else 3):
        packed = rate(batch_size=8, packing=Packing(CAPACITY))
        rounds.append((packed, rate(batch_size=documents)))
        theirs += [
            (found["name"], packed / found["rate"])
            for found in peers(peer_pythons, lengths[:100], folder, is_batch=True)
            if found["kind"] == "batches"
        ]
    yield "tokens a second in packed batches of 8 x 8,192", f"{max(rounds)[0]:,.0f}", "-"
    ratio = float(np.median([mine / plain for mine, plain in rounds]))
    yield "over the same documents gathered unpacked", f"{ratio:.2f}", "0.8"
    for name, bar in (("Grain", 5), ("OLMo-core", 3)):
        found = [ratio for peer, ratio in theirs if peer == name]
        if found:
            yield f"over {name}", f"{np.median(found):.2f}", str(bar)


def downloads(nodes: int, is_smoke: bool) -> Any:
    """How often machines download each of 200 shards, packed and unpacked, and empty places."""
    sizes = np.full(200, 50 if is_smoke else 2727)
    order = {"batch_size": 8, "shuffle": True, "num_canonical_nodes": nodes}
    world, ends = World(nodes, 1, 1, 0), np.cumsum(sizes)

    def count(ids: Any) -> int:
        """Count the shards of samples."""
        return len(np.unique(np.searchsorted(ends, np.concatenate([*ids]), side="right")))

    plain = EpochPlan([{"shards": sizes}], world, **order)
    packing = Packing(2048, overflow="split")
    lengths = Lengths(int(sizes.sum()), 6.2, 0.9)
    plan = EpochPlan([{"shards": sizes}], world, packing=packing, lengths=lengths, **order)
    assert isinstance(plan.filling, PackFilling)
    unpacked = packed = packs = 0
    for node in range(nodes):
        unpacked += count(ids[ids >= 0] for ids in plain.blocks(node, 0, 0))
        batches_of_node = list(plan.filling.rank_packs(node, 0, 0))
        packed += count(batch.ids for batch in batches_of_node)
        packs += sum(int((batch.counts > 0).sum()) for batch in batches_of_node)
    places = plan.steps * plan.shape.global_batch
    name = f"downloads of each of 200 shards by {nodes} machines"
    yield name, f"{packed / len(sizes):.2f}", "-"
    yield "over the same without packing", f"{packed / unpacked:.3f}", "1.04"
    yield "empty places of packs", f"{1 - packs / places:.3%}", "-"


def rows(is_smoke: bool) -> Any:
    """A step of 4,096 packs in a worker that has 8 of them, on 64 machines."""
    count = 50_000 if is_smoke else 1_000_000
    plan = EpochPlan(
        [{"shards": np.full(1000, count // 1000)}],
        World(64, 8, 1, 0),
        batch_size=8,
        shuffle=True,
        num_canonical_nodes=64,
        packing=Packing(2048, overflow="split"),
        lengths=Lengths(count, 6.2, 0.9),
    )

    def milliseconds() -> float:
        """Return the time of a step, of some hundred documents a row."""
        assert isinstance(plan.filling, PackFilling)
        steps = plan.filling.rank_packs(0, 0, 0)
        start_time = time.process_time()
        made = sum(1 for _ in zip(range(40), steps, strict=False))
        return 1000 * (time.process_time() - start_time) / made

    every_row = milliseconds()
    assert plan.steps  # counts the packs of all windows
    own_row = milliseconds()
    yield "a step of 4,096 packs, every row packed", f"{every_row:.2f} ms", "-"
    yield "the same after packs were counted, own row packed", f"{own_row:.2f} ms", "1 ms"


if __name__ == "__main__":
    main()
