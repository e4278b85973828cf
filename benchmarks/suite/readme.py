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
    "arrow": "HF datasets {datasets}",
    "grain": "Grain {grain}",
    "lancedb": "lancedb {lancedb}",
    "webdataset": "WebDataset {webdataset}",
}
_ALWAYS = ("mds", "incumbent", "litdata")  # the others have a column in runs that measured them
_NOT_MEASURED = "-"
_BATCHES = "tokens, 32 a batch"
_IMAGES = "images, 32 a batch"

# Label of a row, its question, and its cases, whose figures stand side by side.
_ROWS = (
    ("samples of 8 KB, shuffled", "iterate", ("tokens, shuffled",)),
    ("samples of text and JSON, shuffled", "iterate", ("text, shuffled",)),
    ("`dataset[i]` at random, 8 KB", "random_access", ("tokens",)),
    (
        "batches of 32 x 8 KB: two processes (mds also: two threads)",
        "batches",
        (f"{_BATCHES}, 2 workers", f"{_BATCHES}, threads"),
    ),
    (
        "batches of 32 x 8 KB, your own `collate_fn`: two processes",
        "collate",
        (f"{_BATCHES}, own collate, 2 processes",),
    ),
    (
        "batches of 32 photographs: two processes (mds also: two threads)",
        "images",
        (f"{_IMAGES}, 2 workers", f"{_IMAGES}, 2 threads"),
    ),
    (
        "import dataset and loader, or the package, with torch already imported (s)",
        "imports",
        ("dataset and loader, torch loaded, seconds",),
    ),
    (
        "first sample of 50,000 shards, first start (s; MB of memory)",
        "start",
        ("50,000 shards, first time", "50,000 shards, first time, memory"),
    ),
    (
        "first sample of 50,000 shards, started again (s; MB of memory)",
        "start",
        ("50,000 shards, again", "50,000 shards, again, memory"),
    ),
)


def table(run: dict[str, Any]) -> str:
    """Return the table of a run; a row or column of which nothing was measured is left out."""
    measured = report.entries(run)
    versions = {name: " ".join(v.split(".dev")[:1]) for name, v in run["versions"].items() if v}
    present = {entry.system for entry in measured if entry.values}
    shown = [name for name in _HEADS if name in present or name in _ALWAYS]
    names = [_HEADS[name].format_map(_Known(versions)).strip() for name in shown]
    lines = [f"| samples/s unless stated | {' | '.join(names)} |", "|---|" + "---:|" * len(shown)]
    for label, question, cases in _ROWS:
        cells = [_cell(measured, question, cases, system) for system in shown]
        if cells[0] != _NOT_MEASURED:
            lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


class _Known(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return ""


def _cell(measured: list[Measured], question: str, cases: tuple[str, ...], system: str) -> str:
    entries = [_bests(measured, question, case).get(system) for case in cases]
    figures = [_figure(entry.median) for entry in entries if entry is not None]
    return "; ".join(figures) or _NOT_MEASURED


def _bests(measured: list[Measured], question: str, case: str) -> Mapping[str, Measured]:
    mine = [entry for entry in measured if (entry.question, entry.case) == (question, case)]
    return best(mine, questions.find(question))


def _figure(value: float) -> str:
    """Three digits, and thousands apart."""
    if value < 10:
        return f"{value:.1g}" if value < 1 else f"{value:.2g}"
    digits = max(0, len(str(int(value))) - 3)
    return f"{round(value, -digits):,.0f}"
