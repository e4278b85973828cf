"""Draw the pictures of the order of samples beside this file: ``python docs/pictures/order.py``."""

import os
import warnings

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from mds.shuffle import get_shuffle

HERE = os.path.dirname(os.path.abspath(__file__))
COLORS = {"py1s": "#888888", "py1br": "#d98b2b", "py1e": "#2b6fd9", "seekable": "#2a9d5c"}
SHARDS, SHARD, BLOCK = 600, 200, 12_000


def save(figure, name):
    from PIL import Image

    figure.tight_layout()
    path = os.path.join(HERE, f"{name}.png")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    # A palette makes the file a third as large.
    colors = Image.open(path).convert("RGB").quantize(48, dither=Image.Dither.NONE)
    colors.save(path, optimize=True)


def line_of(order, size):
    """Shards numbered by where they are around the epoch, which may wrap."""
    shard = order // size
    turn = np.exp(2j * np.pi * np.arange(len(order)) / len(order))
    total = np.bincount(shard, turn.real) + 1j * np.bincount(shard, turn.imag)
    number = np.empty(len(total), np.int64)
    number[np.argsort(np.angle(total) % (2 * np.pi))] = np.arange(len(total))
    return number[shard]


def orders(algos, nodes=1, shards=SHARDS, size=SHARD, block=BLOCK):
    sizes = np.full(shards, size)
    return {algo: get_shuffle(algo, sizes, nodes, 1, 0, block) for algo in algos}


def draw_spread(found):
    """Which shards the samples at each position are from."""
    figure, axes = plt.subplots(1, len(found), figsize=(10, 2.9), sharey=True)
    for axis, (algo, order) in zip(axes, found.items(), strict=True):
        line = line_of(order, SHARD)
        some = np.arange(0, len(order), 7)
        axis.plot(some, line[some], ",", color=COLORS[algo], alpha=0.6)
        axis.set_title(algo, fontsize=10)
        axis.set_xlabel("position")
        axis.set_xticks([0, 60_000, 120_000])
    axes[0].set_ylabel("shard, in the order of the sequence")
    save(figure, "order-spread")


def touched(order, size, window):
    """How many shards a window of positions touches, for windows side by side."""
    shard = order[: len(order) // window * window].reshape(-1, window) // size
    return np.array([len(np.unique(row)) for row in shard])


def draw_open(found):
    """Shards that a stretch of positions needs, along an epoch."""
    figure, axis = plt.subplots(figsize=(8, 3))
    window = 1_000
    for algo, order in found.items():
        counts = touched(order, SHARD, window)
        axis.plot(np.arange(len(counts)) * window, counts, label=algo, color=COLORS[algo])
    axis.set_xlabel("position")
    axis.set_ylabel(f"shards in {window:,} samples")
    axis.set_ylim(0)
    axis.legend(fontsize=8, ncols=4)
    save(figure, "order-open")


def draw_balance():
    """New shards that each of eight nodes needs in a stretch of its positions."""
    nodes, shards, size, block, window = 8, 6_400, 200, 20_000, 2_000
    found = orders(("py1br", "py1e", "seekable"), nodes, shards, size, block)
    figure, axes = plt.subplots(1, 3, figsize=(10, 2.7), sharey=True)
    for axis, (algo, order) in zip(axes, found.items(), strict=True):
        per_node = order.reshape(nodes, -1) // size
        opened = []
        for shard in per_node:
            _, first = np.unique(shard, return_index=True)
            opened.append(np.bincount(first // window, minlength=per_node.shape[1] // window))
        opened = np.stack(opened)
        steady = opened[:, block // window + 1 : -block // window - 1]
        axis.plot(opened.T, color=COLORS[algo], alpha=0.35, linewidth=0.9)
        spread = steady.std() / steady.mean()
        axis.set_title(f"{algo}: spread {spread:.0%} of the mean", fontsize=10)
        axis.set_xlabel(f"stretch of {window:,} samples")
        print(f"{algo}: new shards per stretch {steady.mean():.1f}, spread {spread:.1%}")
    axes[0].set_ylabel("new shards, per node")
    save(figure, "order-balance")


def main():
    warnings.simplefilter("ignore")
    found = orders(("py1s", "py1br", "py1e", "seekable"))
    draw_spread(found)
    draw_open(found)
    draw_balance()


if __name__ == "__main__":
    main()
