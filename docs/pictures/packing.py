"""Draw the pictures of the pages on packing and schedules: ``python docs/pictures/packing.py``."""

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
    from PIL import Image

    figure.tight_layout()
    path = os.path.join(HERE, f"{name}.png")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    # A palette makes the file a third as large.
    colors = Image.open(path).convert("RGB").quantize(48, dither=Image.Dither.NONE)
    colors.save(path, optimize=True)


def draw_window():
    """Draw the documents of a window, and the packs that they fill; each document has a color."""
    capacity, rng = 1000, np.random.default_rng(4)
    lengths = np.clip(rng.lognormal(5.6, 0.7, 22).astype(int), 10, 1600)
    lengths[13] = 1350
    packs = pack_window(np.arange(len(lengths)), lengths, Packing(capacity, overflow="split"), 1)
    colors = plt.get_cmap("tab20")(np.arange(len(lengths)) % 20)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 3.4), sharey=True, gridspec_kw={"width_ratios": [len(lengths), 14]}
    )
    bars = {"width": 0.9, "edgecolor": "white", "linewidth": 0.8}
    left.bar(range(len(lengths)), lengths, color=colors, **bars)
    left.set_title(f"{len(lengths)} documents, 1 to {len(lengths)}")
    left.set_ylabel("tokens")
    left.text(0, capacity + 20, f"capacity of a pack: {capacity:,} tokens", fontsize=9)
    left.annotate(
        "longer than a pack:\nsplit into two pieces", (12.5, 1250), (4, 1230), fontsize=9,
        arrowprops={"arrowstyle": "->"},
    )  # fmt: skip
    for document, length in enumerate(lengths):
        left.text(document, length / 2, document + 1, ha="center", va="center", fontsize=7)
    for pack in range(len(packs)):
        low = 0
        for piece in range(packs.bounds[pack], packs.bounds[pack + 1]):
            size, document = int(packs.sizes[piece]), packs.ids[piece]
            right.bar(pack, size, bottom=low, color=colors[document], **bars)
            right.text(pack, low + size / 2, document + 1, ha="center", va="center", fontsize=7)
            low += size
        label = {"label": "padding"} if pack == 0 else {}
        right.bar(
            pack, capacity - low, bottom=low, width=0.9, color="white", edgecolor="gray",
            hatch="////", linewidth=0, **label,
        )  # fmt: skip
    right.set_title(f"the {len(packs)} packs that they fill")
    right.legend(loc="upper right", fontsize=9)
    for axes in (left, right):
        axes.axhline(capacity, color="black", linewidth=1, linestyle=":")
        axes.set_xticks([])
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, "packing-window")


def draw_mixture():
    """Draw the shares of the schedule of docs/schedule.md, and the samples of each batch."""
    early = {"web": 0.80, "code": 0.15, "math": 0.05}
    late = {"web": 0.20, "code": 0.50, "math": 0.30}
    schedule = Schedule({0: early, 40: early, 60: late}, between="linear")
    run = ScheduledRun(schedule, tuple(early))
    steps = np.arange(81)
    mixture = run.mixture([10_000] * 3, 16)
    counts, due = np.diff(mixture.counts(steps), axis=0), np.diff(mixture.integrals(steps), axis=0)
    figure, axes = plt.subplots(figsize=(9, 3.2))
    base = np.zeros(80)
    for i, (name, color) in enumerate(zip(early, ("#7fb3ff", "#7ed3a3", "#f2b872"), strict=True)):
        axes.bar(steps[:-1] + 0.5, counts[:, i], 1.0, base, color=color)
        base += counts[:, i]
        label = {"label": "schedule"} if i == 0 else {}
        axes.plot(steps[:-1] + 0.5, due[:, : i + 1].sum(axis=1), color="black", lw=1, **label)
        for step, weights in ((4, early), (65, late)):
            middle = due[step, :i].sum() + due[step, i] / 2
            text = f"{name} {weights[name]:.0%}"
            axes.text(step, middle, text, va="center", fontsize=9)
    axes.set_title("Samples of each stream in a batch of 16", fontsize=11)
    axes.set_xlabel("step")
    axes.set_ylabel("samples")
    axes.set_yticks(range(0, 17, 4))
    axes.set_xlim(0, 80)
    axes.set_ylim(0, 16)
    axes.legend(loc="lower center", fontsize=9)
    save(figure, "schedule-mixture")


if __name__ == "__main__":
    draw_window()
    draw_mixture()
