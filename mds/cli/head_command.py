"""mds head: the first samples."""

from __future__ import annotations

from typing import Any

import click

from mds.cli.terminal import cell, console, errors, table


@click.command(short_help="The first samples.")
@click.argument("dataset")
@click.option("-n", "--samples", "count", default=5, show_default=True, help="How many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, bytes by their length.")
def head(dataset: str, count: int, as_json: bool) -> None:
    """Show the first samples of DATASET, a folder or URL."""
    with errors():
        from mds.cli import inspecting

        where = console()
        for url in inspecting.find_datasets(dataset):
            for number, sample in enumerate(inspecting.head(url, count)):
                if as_json:
                    _print_json(sample)
                    continue
                rows = table(f"sample {number}", "")
                for name, value in sample.items():
                    rows.add_row(cell(name), cell(in_short(value, 6 * where.width)))
                where.print(rows)


def in_short(value: Any, width: int = 200) -> str:
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
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= width else f"{text[:width]}... ({len(text):,} characters)"


def _print_json(sample: dict[str, Any]) -> None:
    import json

    click.echo(json.dumps({name: _plain(value) for name, value in sample.items()}))


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (str, int, float, bool, list, dict)) or value is None:
        return value
    return in_short(value)
