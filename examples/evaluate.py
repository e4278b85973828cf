"""Evaluate on several ranks, exact to the sample: each counted once, none repeated, none dropped.

    torchrun --nproc-per-node 3 examples/evaluate.py
    python examples/evaluate.py                       # three ranks, one after the other

Training wants every rank to have the same number of batches, and so a few samples come twice. An
evaluation wants the true mean: ``remainder="short"`` gives each sample to exactly one rank.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist

from mds import MDSWriter, StreamingDataLoader, StreamingDataset

SAMPLES = 1001  # a prime factor or two, so that no number of ranks divides it by chance


def convert(out: str) -> None:
    """Numbers, and whether they are even, as the thing to predict."""
    if os.path.exists(os.path.join(out, "index.json")):
        return
    columns = {"number": "int64", "even": "uint8"}
    with MDSWriter(columns=columns, out=out, size_limit=2048) as writer:
        for number in range(SAMPLES):
            writer.write({"number": number, "even": number % 2 == 0})


def model(numbers: torch.Tensor) -> torch.Tensor:
    """Predict whether numbers are even, wrongly for multiples of seven."""
    return (numbers % 2 == 0) ^ (numbers % 7 == 0)


def evaluate(folder: str, workers: int, topology: tuple[int, int] | None = None) -> torch.Tensor:
    """Return the count of this rank's samples, of correct answers, and the sum of their numbers."""
    dataset = StreamingDataset(local=folder, batch_size=16, remainder="short", topology=topology)
    totals = torch.zeros(3, dtype=torch.int64)
    for batch in StreamingDataLoader(dataset, num_workers=workers):
        right = model(batch["number"]) == batch["even"].bool()
        totals += torch.tensor([len(right), int(right.sum()), int(batch["number"].sum())])
    return totals


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/tmp/mds-evaluate")
    parser.add_argument("--workers", type=int, default=2)
    settings = parser.parse_args()

    if "RANK" in os.environ:
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            convert(settings.data)
        dist.barrier()
        totals = evaluate(settings.data, settings.workers)
        print(f"rank {dist.get_rank()}: {totals[0]} samples", flush=True)
        dist.all_reduce(totals)
        is_first = dist.get_rank() == 0
        dist.destroy_process_group()
    else:
        convert(settings.data)
        totals = torch.zeros(3, dtype=torch.int64)
        for rank in range(3):
            totals += evaluate(settings.data, settings.workers, topology=(rank, 3))
        is_first = True

    samples, right, checksum = totals.tolist()
    if is_first:
        print(f"{right} of {samples} right: {right / samples:.6f}", flush=True)
        wrong = len(range(0, SAMPLES, 7))
        assert (samples, right) == (SAMPLES, SAMPLES - wrong)
        assert checksum == sum(range(SAMPLES))


if __name__ == "__main__":
    main()
