"""mds merge: one index over datasets that lie side by side."""

from __future__ import annotations

import click

from mds.cli.terminal import errors, plural


@click.command(short_help="One index over datasets side by side.")
@click.argument("out")
@click.argument("parts", nargs=-1)
@click.option("--overwrite", is_flag=True, help="Replace the index that is at OUT.")
def merge(out: str, parts: tuple[str, ...], overwrite: bool) -> None:
    """Write one index at OUT over PARTS, the datasets below it, in that order.

    Without PARTS all datasets below OUT are taken, in the order of their names. No shard is moved
    or read.
    """
    with errors():
        from mds.cli.dataset_info import read_index
        from mds.errors import NotFoundError
        from mds.shardfile.layout import INDEX_NAME
        from mds.storage import join, open_store, redact
        from mds.writers import merge_index

        if not overwrite:
            try:
                open_store(out).head(INDEX_NAME)
            except NotFoundError:
                is_merged = False
            else:
                is_merged = True
            if is_merged:
                raise FileExistsError(
                    f"{redact(out)}: there is an {INDEX_NAME} already; replace it with --overwrite."
                )
        if parts:
            merge_index([join(part, INDEX_NAME) for part in parts], out)
        else:
            merge_index(out)
        index = read_index(out)
        samples, shards = plural(index.total_samples, "sample"), plural(len(index), "shard")
        click.echo(f"{redact(out)}: {samples} in {shards}")
