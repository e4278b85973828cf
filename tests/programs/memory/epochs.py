"""Resident memory over many epochs with persistent workers.

Run it with ``python tests/programs/memory/epochs.py``.

Prints what the main process and each worker hold after every epoch, in MB, and ends with the slope
of a line through the last epochs. Status 1 when one of them grows by more than ``--bound`` MB over
those epochs.
"""

import argparse
import gc
import os
import tempfile

import numpy as np

from mds import MDSWriter, StreamingDataLoader, StreamingDataset


def write(folder, samples=2000):
    columns = {"n": "int64", "x": "ndarray:float32:64", "text": "str"}
    with MDSWriter(columns=columns, out=folder, size_limit=32_000) as writer:
        for n in range(samples):
            writer.write({"n": n, "x": np.full(64, n, np.float32), "text": f"sample {n}"})


def resident(pid):
    """MB of a process that are in memory, mapped files included."""
    with open(f"/proc/{pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["VmRSS"].split()[0]) / 1024


def measure(folder, epochs, workers, report=lambda *_: None):
    """After each epoch: resident MB of (main, workers...), and Python objects in main."""
    dataset = StreamingDataset(local=folder, batch_size=20, shuffle=True)
    loader = StreamingDataLoader(dataset, num_workers=workers, persistent_workers=True)
    sizes, objects = [], []
    for epoch in range(epochs):
        iterator = iter(loader)
        total = sum(int(batch["n"].sum()) for batch in iterator)
        assert total == sum(range(dataset.num_samples))
        pids = [os.getpid(), *(worker.pid for worker in iterator._workers)]
        gc.collect()
        sizes.append([resident(pid) for pid in pids])
        objects.append(len(gc.get_objects()))
        report(epoch, sizes[-1], objects[-1])
    return np.array(sizes), np.array(objects)


def growth(values):
    """What a straight line through the values gains from the first to the last."""
    slope = np.polyfit(np.arange(len(values)), values, 1)[0]
    return slope * (len(values) - 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--bound", type=float, default=1.0)
    settings = parser.parse_args()

    def report(epoch, sizes, objects):
        held = ", ".join(f"{size:.1f}" for size in sizes)
        print(f"epoch {epoch}: {held} MB, {objects} objects", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        write(os.path.join(folder, "data"))
        sizes, _ = measure(os.path.join(folder, "data"), settings.epochs, settings.workers, report)
    gains = [growth(column) for column in sizes[settings.warm_up :].T]
    print(f"growth over the last {settings.epochs - settings.warm_up} epochs, in MB:")
    for number, gain in enumerate(gains):
        print(f"  {f'worker {number - 1}' if number else 'main'}: {gain:+.2f}")
    raise SystemExit(int(max(gains) > settings.bound))


if __name__ == "__main__":
    main()
