"""mds info: a dataset at a glance."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from mds.cli.terminal import cell, console, errors, print_table, table
from mds.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from mds.cli.dataset_info import DatasetInfo


_SHOWN_CLASSES = 4


@click.command(short_help="Columns, samples, shards, sizes, compression, hashes.")
@click.argument("dataset")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(dataset: str, as_json: bool) -> None:
    """Tell columns, samples, shards, sizes, compression and hashes of DATASET.

    DATASET is the folder or URL of a dataset, or the folder of its splits.
    """
    with errors():
        from mds.cli.dataset_info import describe, find_datasets

        urls = find_datasets(dataset)
        summaries = [describe(url) for url in urls]
        if as_json:
            import json

            click.echo(json.dumps([_facts(each) for each in summaries], indent=1))
            return
        terminal = console()
        for url, each in zip(urls, summaries, strict=True):
            _show(each, terminal)
            _show_lengths(url, terminal)


def _facts(info: DatasetInfo) -> dict[str, Any]:
    """Return the summary of a dataset as plain JSON; None stands for unknown values."""
    facts = dataclasses.asdict(info)
    for name in ("samples_per_shard", "bytes_per_shard"):
        names = ("smallest", "middle", "largest")
        facts[name] = dict(zip(names, facts[name], strict=True)) if info.shards else None
    return facts


def _show(info: DatasetInfo, terminal: Console) -> None:
    terminal.print(cell(info.url), style="bold", soft_wrap=True)
    columns = table("column", "encoding", "")
    for name, encoding in info.columns.items():
        columns.add_row(cell(name), cell(encoding), cell(_note(info, name)))
    print_table(terminal, columns)
    rows = {
        "samples": f"{info.samples:,}",
        "shards": f"{info.shards:,} ({', '.join(info.formats)})",
        "raw": format_bytes(info.raw_size),
        "compressed": _compressed(info),
        "hashes": ", ".join(info.hashes) or "none",
        "size limit": format_bytes(info.size_limit) if info.size_limit else "none",
    }
    if info.shards:
        rows["samples of a shard"] = _spread([f"{each:,}" for each in info.samples_per_shard])
        rows["bytes of a shard"] = _spread([format_bytes(each) for each in info.bytes_per_shard])
        rows["bytes of a sample"] = format_bytes(info.raw_size / max(1, info.samples))
    for name, value in rows.items():
        terminal.print(cell(f"{name:<18} {value}"))
    terminal.print()


def _show_lengths(url: str, terminal: Console) -> None:
    from mds.cli.dataset_lengths import read_lengths
    from mds.cli.plots import plot_lengths

    for lengths in read_lengths(url):
        terminal.print(cell(f"lengths of {lengths.column!r}"))
        for line in plot_lengths(lengths.all()):
            terminal.print(cell(f"  {line}"))
        terminal.print()


def _note(info: DatasetInfo, column: str) -> str:
    """Return the description and the classes of a column, in words."""
    words = ["differs between shards"] if column in info.mixed else []
    if text := info.descriptions.get(column):
        words.append(text)
    if names := info.class_names.get(column):
        listed = ", ".join(f"{number} {name}" for number, name in enumerate(names[:_SHOWN_CLASSES]))
        ellipsis = ", ..." if len(names) > _SHOWN_CLASSES else ""
        words.append(f"{len(names):,} class{'es' * (len(names) != 1)}: {listed}{ellipsis}")
    return "; ".join(words)


def _spread(words: list[str]) -> str:
    low, middle, high = words
    return low if low == high else f"{low} to {high}, half below {middle}"


def _compressed(info: DatasetInfo) -> str:
    if not info.zip_size:
        return "no"
    percent = 100 * info.zip_size / max(1, info.raw_size)
    return f"{format_bytes(info.zip_size)} ({', '.join(info.compressions)}), {percent:.0f} % of raw"
