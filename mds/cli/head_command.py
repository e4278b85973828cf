"""mds head: the first samples."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

import click

from mds.cli.terminal import cell, console, errors, is_lively, plural, print_table, table
from mds.preview import Undecodable, is_picture, shorten_value, to_half_blocks

if TYPE_CHECKING:
    from rich.console import Console

_PICTURE_COLUMNS = 48


@click.command(short_help="The first samples.")
@click.argument("dataset")
@click.option(
    "-n",
    "--samples",
    "count",
    type=click.IntRange(min=0),
    metavar="N",
    default=5,
    show_default=True,
    help="How many.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, bytes by their length.")
@click.option("--html", metavar="FILE", help="Write a page with pictures and sound to FILE.")
def head(dataset: str, count: int, as_json: bool, html: str | None) -> None:
    """Show the first samples of DATASET, a folder or URL.

    A terminal with colours shows pictures, in small. The page of --html is one file without
    script: pictures are made small and encoded anew, text is escaped.

    JSON has no word for nan and infinity: --json prints null.
    """
    with errors():
        from mds.cli import dataset_info as inspecting
        from mds.errors import EncodingError
        from mds.storage import redact

        datasets = inspecting.find_datasets(dataset)
        if html is not None:
            _write_page(datasets, count, html)
            return
        terminal = console()
        faulty = 0
        for url in datasets:
            for number, sample in enumerate(inspecting.head(url, count)):
                faulty += any(isinstance(value, Undecodable) for value in sample.values())
                if as_json:
                    _print_json(sample)
                else:
                    _show(number, sample, terminal)
        if faulty:
            raise EncodingError(
                f"{redact(dataset)}: {plural(faulty, 'sample')} of these cannot be decoded. "
                "'mds verify' lists all that is wrong."
            )


def _show(number: int, sample: dict[str, Any], terminal: Console) -> None:
    """Print a sample: a table of its values, and its pictures where the terminal can."""
    rows = table(f"sample {number}", "")
    for name, value in sample.items():
        rows.add_row(cell(name), cell(shorten_value(value, 6 * min(terminal.width, 120))))
        if is_picture(value) and _can_draw(terminal):
            picture = to_half_blocks(value, min(_PICTURE_COLUMNS, terminal.width // 2))
            if picture is not None:
                rows.add_row("", picture)
    print_table(terminal, rows)


def _can_draw(terminal: Console) -> bool:
    """Whether a picture in coloured letters can be seen: a terminal with all colours."""
    return (
        is_lively(terminal)
        and terminal.color_system in {"256", "truecolor"}
        and not terminal.no_color
        and terminal.encoding.lower().startswith("utf")
    )


def _write_page(datasets: list[str], count: int, place: str) -> None:
    """Write the first samples into one file of HTML, whole or not at all."""
    from mds.cli import dataset_info as inspecting
    from mds.preview import element, make_page, samples_table, table
    from mds.storage import publish, redact
    from mds.storage.url import path_on_disk

    place = path_on_disk(place, "--html")

    pieces = []
    for url in datasets:
        facts = inspecting.describe(url)
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
            samples_table(enumerate(inspecting.head(url, count))),
        ]
    page = make_page(redact(datasets[0]), pieces)
    with publish(os.path.abspath(place)) as temporary, open(temporary, "wb") as file:
        file.write(page.encode())
    click.echo(place)


def _print_json(sample: dict[str, Any]) -> None:
    import json

    printable = {name: _to_json_value(value) for name, value in sample.items()}
    click.echo(json.dumps(printable, allow_nan=False))


def _to_json_value(value: Any) -> Any:
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
