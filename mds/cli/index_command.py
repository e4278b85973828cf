"""mds index: the table of files that are read as they lie, made once for all machines."""

from __future__ import annotations

import click

from mds.cli.terminal import errors, plural


@click.command(short_help="Pin files that are read as they lie, and plan them once.")
@click.argument("source")
@click.option("-o", "--out", metavar="OUT", help="Folder or URL of the index.  [SOURCE]")
@click.option("--as", "kind", metavar="FORMAT", help="What the files are: parquet, tar, ...")
@click.option("--overwrite", is_flag=True, help="Replace the index that is at OUT.")
def index(source: str, out: str | None, kind: str | None, overwrite: bool) -> None:
    """Write an index of the files at SOURCE, a folder, URL or pattern, to OUT.

    A dataset of OUT reads these files and no others, and no start lists or looks at them again: one
    that changes, or goes, is refused by name.
    """
    with errors():
        from mds.formats.opening import open_files
        from mds.formats.pinned import write_files_index
        from mds.storage import redact

        data, files = open_files(source, kind)
        out = write_files_index(data, files, out, overwrite=overwrite)
        samples = plural(int(data.table.samples.sum()), "sample")
        shards, count = plural(len(data.table), "shard"), plural(len(data.table.keys), "file")
        click.echo(f"{redact(out)}: {samples} in {shards} of {count}")
