"""mds info, head and lengths: look into a dataset."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import TYPE_CHECKING, Any

import click

from mds._arguments import did_you_mean
from mds._cli.storage_options import storage_option, with_options
from mds._cli.terminal import (
    FAULTY,
    Command,
    cell,
    console,
    errors,
    fail,
    format_option,
    is_lively,
    json_option,
    limit_option,
    print_datasets,
    print_json_line,
    print_table,
    refuse_together,
    table,
)
from mds._preview import Undecodable, is_picture, shorten_value, to_half_blocks
from mds._units import format_bytes
from mds._words import plural
from mds.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from mds._cli.datasets import DatasetInfo

_SHOWN_CLASSES = 4
_PICTURE_COLUMNS = 48


# --------------------------------------------------------------------------------------------- info


@click.command(cls=Command, short_help="Columns, samples, shards, sizes, compression, hashes.")
@click.argument("dataset")
@format_option
@storage_option
@json_option()
def info(
    dataset: str, file_format: str | None, storage_options: dict[str, str], as_json: bool
) -> None:
    """Print columns, samples, shards, sizes, compression and hashes of DATASET.

    DATASET is the folder or URL of a dataset, or the folder of its splits.
    """
    with errors():
        from mds._cli.datasets import describe, find_datasets

        (place,) = with_options(storage_options, dataset)
        urls = find_datasets(place, file_format)
        summaries = [describe(url, file_format) for url in urls]
        if as_json:
            print_datasets(map(_facts, urls, summaries))
            return
        terminal = console()
        for url, each in zip(urls, summaries, strict=True):
            _show_info(each, terminal)
            _show_lengths(url, terminal)


def _facts(url: str, info: DatasetInfo) -> dict[str, Any]:
    """Return the summary of a dataset as values of JSON; unknown values are None."""
    from mds._cli.datasets import lengths_facts, read_lengths

    facts = dataclasses.asdict(info)
    facts["lengths"] = {each.column: lengths_facts(each) for each in read_lengths(url)}
    for name in ("samples_per_shard", "bytes_per_shard"):
        names = ("smallest", "middle", "largest")
        facts[name] = dict(zip(names, facts[name], strict=True)) if info.shards else None
    return facts


def _show_info(info: DatasetInfo, terminal: Console) -> None:
    """Print the table of columns of a dataset, and a line for each other fact."""
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
    """Print the distribution of the recorded lengths of each column of a dataset."""
    from mds._cli.datasets import read_lengths
    from mds._cli.plots import plot_lengths

    for lengths in read_lengths(url):
        terminal.print(cell(f"lengths of {lengths.column!r}"))
        for line in plot_lengths(lengths.all()):
            terminal.print(cell(f"  {line}"))
        terminal.print()


def _note(info: DatasetInfo, column: str) -> str:
    """Describe a column: whether it differs between shards, its description, its classes."""
    words = ["differs between shards"] if column in info.mixed else []
    if text := info.descriptions.get(column):
        words.append(text)
    if names := info.class_names.get(column):
        listed = ", ".join(f"{number} {name}" for number, name in enumerate(names[:_SHOWN_CLASSES]))
        ellipsis = ", ..." if len(names) > _SHOWN_CLASSES else ""
        words.append(f"{len(names):,} class{'es' * (len(names) != 1)}: {listed}{ellipsis}")
    return "; ".join(words)


def _spread(words: list[str]) -> str:
    """Describe the smallest, the middle and the largest of some numbers."""
    low, middle, high = words
    return low if low == high else f"{low} to {high}, half below {middle}"


def _compressed(info: DatasetInfo) -> str:
    """Describe the compressed size of a dataset, the algorithms and the share of the raw size."""
    if not info.zip_size:
        return "no"
    percent = 100 * info.zip_size / max(1, info.raw_size)
    return f"{format_bytes(info.zip_size)} ({', '.join(info.compressions)}), {percent:.0f} % of raw"


# --------------------------------------------------------------------------------------------- head


@click.command(cls=Command, short_help="The first samples.")
@click.argument("dataset")
@limit_option("Number of samples.", default=5)
@click.option("--columns", metavar="NAME,...", help="Show only these columns.")
@json_option("Print a JSON line for each sample, with the length of bytes instead of their value.")
@click.option("--html", metavar="FILE", help="Write an HTML page with pictures and sound to FILE.")
@format_option
@storage_option
def head(
    dataset: str,
    limit: int,
    columns: str | None,
    as_json: bool,
    html: str | None,
    file_format: str | None,
    storage_options: dict[str, str],
) -> None:
    """Show the first samples of DATASET, a folder or URL.

    A terminal with colours shows pictures, in small. The page of --html is one file without
    script: pictures are made small and encoded anew, text is escaped.

    JSON has no nan and no infinity: --json prints null. The exit code is 1 if a sample cannot be
    decoded.
    """
    refuse_together("--json", "--html", as_json and html is not None)
    refuse_together("--columns", "--html", columns is not None and html is not None)
    with errors():
        from mds._cli import datasets as inspecting
        from mds.errors import EncodingError
        from mds.storage._url import redact

        (place,) = with_options(storage_options, dataset)
        urls = inspecting.find_datasets(place, file_format)
        if html is not None:
            _write_page(urls, limit, html, file_format)
            return
        terminal = console()
        faulty = 0
        for url in urls:
            for number, whole_sample in enumerate(inspecting.head(url, limit, file_format)):
                sample = _choose(whole_sample, columns, redact(url))
                faulty += any(isinstance(value, Undecodable) for value in sample.values())
                if as_json:
                    print_json_line({name: _to_json_value(each) for name, each in sample.items()})
                else:
                    _show_sample(number, sample, terminal)
        if faulty:
            error = EncodingError(
                f"{redact(dataset)}: {plural(faulty, 'sample')} of these cannot be decoded. "
                "'mds verify' lists all faults."
            )
            fail(str(error), FAULTY)


def _choose(sample: dict[str, Any], columns: str | None, place: str) -> dict[str, Any]:
    """Return the named columns of a sample, in the order of their names.

    - ``columns`` (str | None): Names, separated by commas; None for all columns.
    - ``place`` (str): The dataset, for messages.

    Raises ConfigError for a name that the sample does not have.
    """
    if columns is None or "" in sample:  # "": a sample without columns that does not decode
        return sample
    names = [name.strip() for name in columns.split(",")]
    for name in names:
        if name not in sample:
            raise ConfigError(
                f"{place}: there is no column {name!r} among {', '.join(map(repr, sample))}."
                f"{did_you_mean(name, sample)} Separate names by commas: --columns id,text."
            )
    return {name: sample[name] for name in names}


def _show_sample(number: int, sample: dict[str, Any], terminal: Console) -> None:
    """Print a table of the values of a sample, with pictures if the terminal can show them."""
    rows = table(f"sample {number}", "")
    for name, value in sample.items():
        rows.add_row(cell(name), cell(shorten_value(value, 6 * min(terminal.width, 120))))
        if is_picture(value) and _can_draw(terminal):
            picture = to_half_blocks(value, min(_PICTURE_COLUMNS, terminal.width // 2))
            if picture is not None:
                rows.add_row("", picture)
    print_table(terminal, rows)


def _can_draw(terminal: Console) -> bool:
    """Whether the terminal can show a picture as coloured block characters."""
    return (
        is_lively(terminal)
        and terminal.color_system in {"256", "truecolor"}
        and not terminal.no_color
        and terminal.encoding.lower().startswith("utf")
    )


def _write_page(urls: list[str], count: int, path: str, file_format: str | None) -> None:
    """Write the first ``count`` samples of each dataset into one HTML file at ``path``.

    The file appears whole or not at all.
    """
    from mds._cli import datasets as inspecting
    from mds._preview import element, make_page, samples_table, table
    from mds.storage._files import publish
    from mds.storage._url import path_on_disk, redact

    path = path_on_disk(path, "--html")
    pieces = []
    for url in urls:
        facts = inspecting.describe(url, file_format)
        rows = [
            (
                name,
                encoding,
                facts.descriptions.get(name, ""),
                ", ".join(facts.class_names.get(name, [])),
            )
            for name, encoding in facts.columns.items()
        ]
        pieces += [
            element("h3", f"{facts.url}: {plural(facts.samples, 'sample')}"),
            table(["column", "encoding", "description", "classes"], rows),
            samples_table(enumerate(inspecting.head(url, count, file_format))),
        ]
    page = make_page(redact(urls[0]), pieces)
    with publish(os.path.abspath(path)) as temporary, open(temporary, "wb") as file:
        file.write(page.encode())
    click.echo(path)


def _to_json_value(value: Any) -> Any:
    """Return a value as JSON can hold it: arrays as lists, nan as None, bytes in words."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [_to_json_value(each) for each in value]
    if isinstance(value, dict):
        return {str(name): _to_json_value(each) for name, each in value.items()}
    if isinstance(value, (str, int)) or value is None:
        return value
    return shorten_value(value)


# ------------------------------------------------------------------------------------------ lengths


@click.command(cls=Command, short_help="Store the lengths of a column with the index.")
@click.argument("dataset")
@click.option("--column", default="tokens", show_default=True, help="Name of a column of arrays.")
@storage_option
@json_option()
def lengths(dataset: str, column: str, storage_options: dict[str, str], as_json: bool) -> None:
    """Record how long the arrays of a column are, in a file beside the index of DATASET.

    The index and the shards are not changed. DATASET is the folder or URL of a dataset, or the
    folder of its splits; it is read once, whole.
    """
    with errors():
        from mds._cli.datasets import find_datasets, lengths_facts, record_lengths
        from mds._cli.plots import plot_lengths
        from mds.storage._url import redact

        terminal, facts = console(), []
        for url in find_datasets(*with_options(storage_options, dataset)):
            recorded = record_lengths(url, column)
            if as_json:
                of_column = {column: lengths_facts(recorded)}
                facts.append({"url": redact(url), "samples": len(recorded), "lengths": of_column})
                continue
            terminal.print(
                cell(f"{url}: lengths of {column!r} of {plural(len(recorded), 'sample')}"),
                soft_wrap=True,
            )
            for line in plot_lengths(recorded.all()):
                terminal.print(cell(f"  {line}"))
        if as_json:
            print_datasets(facts)
