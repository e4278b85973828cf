"""Draw the pictures of docs on packing and schedules: ``python docs/pictures/packing.py``."""

import os

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from mds.plan._pack_windows import pack_window
from mds.plan._packing import Packing
from mds.plan._schedule import Schedule, ScheduledRun

HERE = os.path.dirname(os.path.abspath(__file__))


def save(figure, name):
    figure.tight_layout()
    figure.savefig(os.path.join(HERE, f"{name}.png"), dpi=110)
    plt.close(figure)


def draw_window():
    """Documents in the order of a window, and the packs that they become; a colour a document."""
    capacity, rng = 1000, np.random.default_rng(4)
    lengths = np.clip(rng.lognormal(5.4, 0.9, 44).astype(int), 10, 1600)
    packs = pack_window(np.arange(len(lengths)), lengths, Packing(capacity, overflow="split"), 1)
    colors = plt.get_cmap("tab20")(rng.permutation(len(lengths)) % 20)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2), sharey=True)
    left.bar(range(len(lengths)), lengths, color=colors, width=0.9)
    left.axhline(capacity, color="black", linewidth=1, linestyle=":")
    left.set_xlabel("document, in the order of the window")
    left.set_ylabel("tokens")
    for pack in range(len(packs)):
        low = 0
        for piece in range(packs.bounds[pack], packs.bounds[pack + 1]):
            size = int(packs.sizes[piece])
            right.bar(pack, size, bottom=low, color=colors[packs.ids[piece]], width=0.9)
            low += size
    right.axhline(capacity, color="black", linewidth=1, linestyle=":")
    right.set_xlabel("pack")
    save(figure, "packing-window")


def draw_mixture():
    """The shares of the schedule of docs/schedule.md, and the samples that come, step by step."""
    early = {"web": 0.80, "code": 0.15, "math": 0.05}
    late = {"web": 0.20, "code": 0.50, "math": 0.30}
    schedule = Schedule({0: early, 40: early, 60: late}, between="linear")
    run = ScheduledRun(schedule, tuple(early))
    steps = np.arange(81)
    mixture = run.mixture([10_000] * 3, 16)
    counts, due = np.diff(mixture.counts(steps), axis=0), np.diff(mixture.integrals(steps), axis=0)
    figure, axis = plt.subplots(figsize=(8, 2.8))
    base = np.zeros(80)
    for i, (name, color) in enumerate(zip(early, ("#2b6fd9", "#2a9d5c", "#d98b2b"), strict=True)):
        axis.bar(steps[:-1] + 0.5, counts[:, i], 1.0, base, color=color, alpha=0.75, label=name)
        base += counts[:, i]
        axis.plot(steps[:-1] + 0.5, due[:, : i + 1].sum(axis=1), color="black", linewidth=0.9)
    axis.set_xlabel("step")
    axis.set_ylabel("samples of a batch")
    axis.set_xlim(0, 80)
    axis.legend(loc="lower left", fontsize=8, framealpha=1)
    save(figure, "schedule-mixture")


if __name__ == "__main__":
    draw_window()
    draw_mixture()
