"""README's table of figures, out of a run: what a user meets first, beside the best known peers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import questions
from benchmarks.suite import report
from benchmarks.suite.bars import best
from benchmarks.suite.runs import Measured

_HEADS = {
    "mds": "mds",
    "incumbent": "mosaicml-streaming {mosaicml-streaming}",
    "litdata": "litdata {litdata}",
    "lancedb": "lancedb {lancedb}",
}
_OPTIONAL = ("lancedb",)  # has a column in runs that measured it
_BATCHES = "tokens, 32 a batch"

# What a line says, its question, and its cases, whose figures stand side by side.
_ROWS = (
    ("iterate 8 KB token samples, shuffled (samples/s)", "iterate", ("tokens, shuffled",)),
    ("iterate text with a JSON column, shuffled (samples/s)", "iterate", ("text, shuffled",)),
    ("`dataset[i]` at random, tokens (samples/s)", "random_access", ("tokens",)),
    (
        "batches of 32 token samples as tensors, one process (samples/s)",
        "batches",
        (f"{_BATCHES}, 0 workers",),
    ),
    ("the same through two worker processes (samples/s)", "batches", (f"{_BATCHES}, 2 workers",)),
    ("the same on two threads, the default (samples/s)", "batches", (f"{_BATCHES}, threads",)),
    (
        "the same through a collate function of your own, two worker processes (samples/s)",
        "collate",
        (f"{_BATCHES}, own collate, 2 processes",),
    ),
    (
        "first sample of 50,000 shards (seconds, MB)",
        "start",
        ("50,000 shards, again", "50,000 shards, again, memory"),
    ),
    ("`import` (seconds, MB)", "imports", ("import, seconds", "import, memory of the process")),
)
_COLD = "cold shuffled epoch from S3, 0.5 GB (times a plain parallel download)"


def table(run: dict[str, Any]) -> str:
    """The table of a run; a line of which nothing was measured is left out."""
    measured = report.entries(run)
    versions = {name: " ".join(v.split(".dev")[:1]) for name, v in run["versions"].items() if v}
    present = {entry.system for entry in measured if entry.values}
    shown = [name for name in _HEADS if name in present or name not in _OPTIONAL]
    names = [_HEADS[name].format_map(_Known(versions)).strip() for name in shown]
    lines = [f"| | {' | '.join(names)} |", "|---|" + "---:|" * len(shown)]
    for label, question, cases in _ROWS:
        cells = [_cell(measured, question, cases, system) for system in shown]
        if cells[0]:
            lines.append(f"| {label} | **{cells[0]}** | {' | '.join(cells[1:])} |")
    cold = _bests(measured, "cold", "loopback, 0 ms")
    if {"mds", "limit"} <= cold.keys():
        share = cold["mds"].median / cold["limit"].median
        lines.append(f"| {_COLD} | **{share:.2f}** |{' |' * (len(shown) - 1)}")
    return "\n".join(lines)


class _Known(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return ""


def _cell(measured: list[Measured], question: str, cases: tuple[str, ...], system: str) -> str:
    entries = [_bests(measured, question, case).get(system) for case in cases]
    return ", ".join(_figure(entry.median) for entry in entries if entry is not None)


def _bests(measured: list[Measured], question: str, case: str) -> Mapping[str, Measured]:
    mine = [entry for entry in measured if (entry.question, entry.case) == (question, case)]
    return best(mine, questions.find(question))


def _figure(value: float) -> str:
    """Three digits, and thousands apart."""
    if value < 10:
        return f"{value:.1g}" if value < 1 else f"{value:.2g}"
    digits = max(0, len(str(int(value))) - 3)
    return f"{round(value, -digits):,.0f}"
