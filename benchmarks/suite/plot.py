"""The plot: every case a row of dots, each system's rate as a share of the limit's."""

from __future__ import annotations

import os
from typing import Any

from benchmarks import questions, systems
from benchmarks.suite.bars import best
from benchmarks.suite.report import entries

_SHOWN = ("iterate", "small", "random_access", "rows", "batches", "images")


def draw(run: dict[str, Any], path: str) -> None:
    """Write the plot of a run as SVG."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "mds"  # the same results draw the same file
    from matplotlib import pyplot as plt

    rows = _rows(run)
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.36 * len(rows)))
    for name in systems.NAMES:
        points = [(share[name], y) for y, (_, share) in enumerate(rows) if name in share]
        if name == "limit" or not points:
            continue
        ours = name == "mds"
        axes.scatter(
            *zip(*points, strict=True),
            label=systems.find(name).label,
            s=70 if ours else 32,
            marker="D" if ours else "o",
            color="black" if ours else None,
            zorder=3 if ours else 2,
        )
    axes.axvline(1.0, color="0.4", linewidth=1)
    axes.text(1.0, -0.9, "limit", ha="center", va="bottom", color="0.4", fontsize=8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [label for label, _ in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("samples per second, as a share of the limit (log scale)")
    axes.grid(axis="x", color="0.9")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    figure.tight_layout()
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def _rows(run: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    rows = []
    measured = entries(run)
    for name in _SHOWN:
        question = questions.find(name)
        for case in question.cases:
            mine = [e for e in measured if e.question == name and e.case == case.name]
            top = best(mine, question)
            if "limit" in top:
                limit = top["limit"].median
                shares = {system: entry.median / limit for system, entry in top.items()}
                rows.append((f"{question.title}: {case.name}", shares))
    return rows
