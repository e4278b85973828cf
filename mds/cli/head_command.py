"""mds head: the first samples."""

from __future__ import annotations

import math
from typing import Any

import click

from mds.cli.terminal import cell, console, errors, table


@click.command(short_help="The first samples.")
@click.argument("dataset")
@click.option("-n", "--samples", "count", default=5, show_default=True, help="How many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, bytes by their length.")
def head(dataset: str, count: int, as_json: bool) -> None:
    """Show the first samples of DATASET, a folder or URL.

    JSON has no word for nan and infinity: --json prints null.
    """
    with errors():
        from mds.cli import dataset_info as inspecting

        where = console()
        for url in inspecting.find_datasets(dataset):
            for number, sample in enumerate(inspecting.head(url, count)):
                if as_json:
                    _print_json(sample)
                    continue
                rows = table(f"sample {number}", "")
                for name, value in sample.items():
                    rows.add_row(cell(name), cell(shorten_value(value, 6 * min(where.width, 120))))
                where.print(rows)


def shorten_value(value: Any, width: int = 200) -> str:
    """A decoded value in a few words, its content where that is short."""
    if isinstance(value, (bytes, memoryview)):
        start = bytes(value[:16])
        return f"{len(value):,} bytes, {start!r}{'...' if len(value) > 16 else ''}"
    if hasattr(value, "dtype") and getattr(value, "shape", None):
        first = ", ".join(map(str, value.reshape(-1)[:8].tolist()))
        more = ", ..." if value.size > 8 else ""
        return f"{value.dtype} {'x'.join(map(str, value.shape))}: {first}{more}"
    if hasattr(value, "getbands"):
        return f"{value.format or 'raw'} image, {value.width} x {value.height} {value.mode}"
    if hasattr(value, "dtype"):  # repr says np.float64(0.5)
        return str(value)
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= width else f"{text[:width]}... ({len(text):,} characters)"


def _print_json(sample: dict[str, Any]) -> None:
    import json

    shown = {name: _to_json_value(value) for name, value in sample.items()}
    click.echo(json.dumps(shown, allow_nan=False))


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
