"""mds lengths: record the lengths of a column, which packing goes by."""

from __future__ import annotations

import click

from mds.cli.terminal import cell, console, errors, plural


@click.command(short_help="Record the lengths of a column beside the index.")
@click.argument("dataset")
@click.option("--column", default="tokens", show_default=True, help="A column of arrays.")
def lengths(dataset: str, column: str) -> None:
    """Record how long the arrays of a column are, in a file beside the index of DATASET.

    The index and the shards stay as they are. DATASET is the folder or URL of a dataset, or the
    folder of its splits; it is read once, whole.
    """
    with errors():
        from mds.cli.dataset_info import find_datasets
        from mds.cli.dataset_lengths import record_lengths
        from mds.cli.plots import plot_lengths

        terminal = console()
        for url in find_datasets(dataset):
            recorded = record_lengths(url, column)
            terminal.print(
                cell(f"{url}: lengths of {column!r} of {plural(len(recorded), 'sample')}"),
                soft_wrap=True,
            )
            for line in plot_lengths(recorded.all()):
                terminal.print(cell(f"  {line}"))
