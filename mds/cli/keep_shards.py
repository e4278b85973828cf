"""mds-convert --keep-shards: files in a format as MDS, shard by shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mds.cli.terminal import cell, console, plural, table
from mds.errors import ConfigError

if TYPE_CHECKING:
    from mds.writers.convert.run import Progress, Summary

_TAKEN = {
    "kind": "format",
    "only": "columns",
    "compression": "compression",
    "hashes": "hashes",
    "overwrite": "overwrite",
    "durable": "durable",
}
#: Options that have a default, which is not asked for.
_DEFAULTS = {"size_limit": "64mb", "engine": "local"}


def keep_shards(
    source: str,
    out: str,
    options: Mapping[str, Any],
    *,
    dry_run: bool,
    quiet: bool,
    progress: Callable[[Progress], None] | None,
) -> Summary | None:
    """Convert, and print what is written; ``options`` are those of the command line."""
    from mds.formats.opening import open_files
    from mds.writers.convert.keep_shards import keep_shards as write

    asked = {k: v for k, v in options.items() if _DEFAULTS.get(k) != v}
    for name in asked:
        if name not in _TAKEN:
            raise ConfigError(
                f"--keep-shards keeps shards and samples as they are, and goes without "
                f"--{name.replace('_', '-')}."
            )
    given = {_TAKEN[name]: value for name, value in asked.items()}
    if "hashes" in given:
        given["hashes"] = [name for name in given["hashes"] if name != "none"]
    if "columns" in given:
        given["columns"] = [name for each in given["columns"] for name in each.split(",")]
    side = console(stderr=True)
    if not quiet:
        data, files = open_files(source, given.get("format"), given.get("columns"))
        samples = int(data.table.samples.sum())
        side.print(
            cell(
                f"{files.url('')}: {data.format.name}, {plural(len(data.table.keys), 'file')}, "
                f"{plural(len(data.table), 'shard')}, {plural(samples, 'sample')}"
            )
        )
        shown = table("column", "encoding")
        for name, encoding in zip(data.columns.names, data.columns.encodings, strict=True):
            shown.add_row(cell(name), cell(encoding))
        side.print(shown)
    return None if dry_run else write(source, out, progress=progress, **given)
