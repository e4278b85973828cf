"""What packing costs: documents a second, padding, a window far in, batches, balance.

    python benchmarks/packing.py [--smoke]

Lengths are drawn by a seed from a lognormal distribution, about 540 tokens in the mean, as texts of
the web have them. Each rate stands beside a physical limit or the same work without packs, in the
same process. One core; torch and NumPy get one thread.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from typing import Any

import numpy as np

from mds.plan import EpochPlan, Packing, PackPlan
from mds.plan.packing import balance, pack_window
from mds.world import World

CAPACITY = 8192
WINDOW = 16_384


def main() -> None:
    """Measure one thing after the other, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a hundredth of the work")
    is_smoke = parser.parse_args().smoke
    for measure in (packer, window, ranks, batches):
        for name, value, bar in measure(is_smoke):
            print(f"{name:<58} {value:>14}  (bar {bar})")


def drawn(count: int, seed: int = 1) -> Any:
    """Lengths of documents."""
    found = np.random.default_rng(seed).lognormal(np.log(600) - 0.6, 1.1, count)
    return np.clip(found.astype(np.int64), 1, 4 * CAPACITY)


class Lengths:
    """Lengths of any number of documents, of which a million are held."""

    digest = "drawn"

    def __init__(self, count: int) -> None:
        self._held = drawn(count)
        self.total, self.count = int(self._held.sum()), count

    def take(self, ids: Any) -> Any:
        """The lengths of documents."""
        return self._held[ids % len(self._held)]


def packer(is_smoke: bool) -> Any:
    """Documents a second through the packer, lengths in memory, and the padding."""
    lengths = drawn(WINDOW * (2 if is_smoke else 64))
    ids, packing = np.arange(len(lengths)), Packing(CAPACITY, overflow="split")
    best = 0.0
    for _ in range(1 if is_smoke else 5):
        begun, packs = time.perf_counter(), 0
        for at in range(0, len(lengths), WINDOW):
            some = slice(at, at + WINDOW)
            packs += len(pack_window(ids[some], lengths[some], packing, at))
        best = max(best, len(lengths) / (time.perf_counter() - begun))
    yield "documents a second, one core", f"{best:,.0f}", "800,000"
    yield "padding", f"{1 - lengths.sum() / (packs * CAPACITY):.4%}", "0.1 %"


def window(is_smoke: bool) -> Any:
    """Any window of 100 million documents in 5,000 shards, by a seekable order."""
    count = 10**5 if is_smoke else 10**8
    plan = EpochPlan(
        [{"shards": np.full(5000, count // 5000)}],
        World(8, 8, 1, 0),
        batch_size=8,
        shuffle=True,
        shuffle_algo="seekable",
        num_canonical_nodes=8,
        packing=Packing(CAPACITY, overflow="split"),
    )
    packs = PackPlan(plan, Lengths(10**4 if is_smoke else 10**6))
    packs.load(0, 0)
    seconds = []
    for node in range(8):
        begun = time.perf_counter()
        packs.load(node, int(packs.windows[node]) // 2)
        seconds.append(time.perf_counter() - begun)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    yield (
        f"a window anywhere in {count:,} documents",
        f"{1000 * np.median(seconds):.1f} ms",
        "60 ms",
    )
    yield "the whole process, at most", f"{memory} MB", "250 MB a canonical node"


def ranks(is_smoke: bool) -> Any:
    """The attention work of the slowest of 8 ranks over the mean, 64 packs a step."""
    steps = 20 if is_smoke else 1000
    work = np.concatenate(
        [
            pack_window(
                np.arange(WINDOW), drawn(WINDOW, seed), Packing(CAPACITY, overflow="split"), 1
            ).work
            for seed in range(2 if is_smoke else 60)
        ]
    )
    found, plain, begun = [], [], time.perf_counter()
    chosen = [work[at : at + 64] for at in range(0, len(work) - 64, 64)][:steps]
    for mine in chosen:
        sums = np.bincount(balance(mine, 8), mine)
        found.append(sums.max() / sums.mean())
    each = (time.perf_counter() - begun) / len(chosen)
    for mine in chosen:
        sums = mine.reshape(8, 8).sum(axis=1)
        plain.append(sums.max() / sums.mean())
    name = f"slowest of 8 ranks over the mean, {len(chosen):,} steps"
    yield name, f"{np.mean(found):.4f}", "1.02"
    yield "the same without balance", f"{np.mean(plain):.4f}", "-"
    yield "balancing a step", f"{1e6 * each:.0f} us", "-"


def batches(is_smoke: bool) -> Any:
    """Tokens a second in packed batches of 8 packs, over those of the documents gathered alone."""
    import torch

    from mds import MDSWriter, StreamingDataLoader, StreamingDataset

    torch.set_num_threads(1)
    count = 2000 if is_smoke else 60_000
    lengths, rng = drawn(count), np.random.default_rng(0)
    words = rng.integers(0, 50_000, 8 * CAPACITY).astype(np.int32)
    with tempfile.TemporaryDirectory() as folder:
        columns = {"tokens": "ndarray:int32"}
        with MDSWriter(out=folder, columns=columns, lengths="tokens") as writer:
            for length in lengths.tolist():
                writer.write({"tokens": words[:length]})

        def rate(**settings: Any) -> float:
            dataset = StreamingDataset(
                local=folder, shuffle=True, shuffle_algo="seekable", **settings
            )
            begun, tokens = time.perf_counter(), 0
            for batch in StreamingDataLoader(dataset):
                found = batch["tokens"]
                tokens += found.numel() if hasattr(found, "numel") else sum(map(len, found))
            return tokens / (time.perf_counter() - begun)

        packing = Packing(CAPACITY, overflow="split")
        documents = int(8 * CAPACITY * count / lengths.sum())
        rounds = [
            (rate(batch_size=8, packing=packing), rate(batch_size=documents))
            for _ in range(1 if is_smoke else 5)
        ]
    best = max(mine for mine, _ in rounds)
    ratio = float(np.median([mine / plain for mine, plain in rounds]))
    yield "tokens a second in packed batches of 8 x 8,192", f"{best:,.0f}", "-"
    yield "over the same documents gathered unpacked", f"{ratio:.2f}", "0.8"


if __name__ == "__main__":
    main()
