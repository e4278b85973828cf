"""mds index and merge: write an index of existing files or datasets."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from mds._cli.storage_options import storage_option, with_options
from mds._cli.terminal import Command, errors, json_option, print_datasets
from mds._words import plural
from mds.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mds.formats import Format


@click.command(cls=Command, short_help="Pin the files of a dataset that is read in place.")
@click.argument("source")
@click.argument("out", required=False)
@click.option("--format", "kind", metavar="FORMAT", help="Format of the files: parquet, tar, ...")
@click.option(
    "--set", "pairs", metavar="NAME=VALUE", multiple=True,
    help="Setting of the format, such as manifest=labels.csv. May be repeated.",
)  # fmt: skip
@click.option(
    "--split", metavar="NAME", default="",
    help="Only the files of this split, such as train; all mixes the files of all splits.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an existing index at OUT.")
@storage_option
@json_option()
def index(
    source: str,
    out: str | None,
    kind: str | None,
    pairs: tuple[str, ...],
    split: str,
    overwrite: bool,
    storage_options: dict[str, str],
    as_json: bool,
) -> None:
    """Write an index of the files at SOURCE, a folder, URL or pattern, to OUT.

    OUT is a folder or URL; without it the index is written to SOURCE. A dataset of OUT reads these
    files and no others. It does not list or inspect them at a start; if a file is changed or
    deleted, the run stops with an error that names it.

    If SOURCE has MDS shards whose index.json was lost, it is written again from their headers.
    """
    with errors():
        from mds._cli.datasets import index_facts
        from mds.formats._dataset import open_files, write_files_index
        from mds.formats._facts import describe_left_out
        from mds.storage._relative_name import split_folder
        from mds.storage._url import redact
        from mds.writers._rebuild import has_shards

        source, *outs = with_options(storage_options, source, *([out] if out else []))
        if not kind and not pairs and not split and has_shards(source):
            _rebuild(source, outs, as_json)
            return
        if split and not outs:
            raise ConfigError(
                f"{redact(source)}: --split needs OUT. Give a folder or URL for the index of the "
                "split."
            )
        file_format = _format(source, kind, pairs) if pairs else kind
        data, files = open_files(source, file_format, split=split_folder(split))
        out = write_files_index(data, files, outs[0] if outs else None, overwrite=overwrite)
        if as_json:
            print_datasets([index_facts(out, data.index()) | {"files": len(data.table.keys)}])
            return
        samples = plural(int(data.table.samples.sum()), "sample")
        shards, count = plural(len(data.table), "shard"), plural(len(data.table.keys), "file")
        click.echo(f"{redact(out)}: {samples} in {shards} of {count}")
        if left_out := describe_left_out(data.costs().left_out):
            click.echo(f"left out: {left_out}")


def _rebuild(source: str, outs: Sequence[str], as_json: bool) -> None:
    """Write the lost index.json of MDS shards, and print what it has.

    Raises ConfigError if OUT is another place, because an index names shards beside it.
    """
    from mds._cli.datasets import index_facts
    from mds.storage._url import redact
    from mds.writers._merge import normalize_place
    from mds.writers._rebuild import rebuild_index

    if outs and normalize_place(outs[0]) != normalize_place(source):
        raise ConfigError(
            f"{redact(source)} has MDS shards, whose index is written beside them. Leave out OUT."
        )
    index = rebuild_index(source)
    if as_json:
        print_datasets([index_facts(source, index)])
        return
    samples, shards = plural(index.total_samples, "sample"), plural(len(index), "shard")
    click.echo(f"{redact(source)}: {samples} in {shards}")
    click.echo(
        "Note: shards do not show whether others followed the last one. Compare the number of "
        "samples with what you wrote.",
        err=True,
    )


def _format(source: str, kind: str | None, pairs: tuple[str, ...]) -> Format:
    """Return the format of the files at ``source``, with the settings of ``--set``.

    Args:
        source: Folder, URL or pattern of the files.
        kind: Name of the format; None to detect it by the endings of the files.
        pairs: Settings as texts NAME=VALUE, such as "manifest=labels.csv".

    Raises ConfigError for a text without "=", and if the format cannot be detected.
    """
    from mds.formats._detect import format_of_files
    from mds.formats._registry import find_format, make_format
    from mds.storage._url import redact

    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set takes NAME=VALUE, got {pair!r}.")
        settings[name.strip()] = value
    if kind:
        return make_format(find_format(kind), settings)
    # An index.json at the source may be that of an earlier `mds index`, so it is no sign of MDS.
    detected_format = format_of_files(source, beside_index=True)
    if detected_format is None:
        raise ConfigError(
            "--set needs --format: the endings do not say what the files of "
            f"{redact(source)!r} are."
        )
    given = make_format(type(detected_format), settings)
    return dataclasses.replace(detected_format, **{name: getattr(given, name) for name in settings})


@click.command(cls=Command, short_help="Write one index for several datasets.")
@click.argument("parts", nargs=-1)
@click.argument("out")
@click.option("--overwrite", is_flag=True, help="Replace an existing index at OUT.")
@storage_option
@json_option()
def merge(
    parts: tuple[str, ...],
    out: str,
    overwrite: bool,
    storage_options: dict[str, str],
    as_json: bool,
) -> None:
    """Write one index at OUT over PARTS, the datasets below it, in that order.

    Without PARTS all datasets below OUT are taken, in the order of their names. No shard is moved
    or read.
    """
    with errors():
        from mds._cli.datasets import index_facts, read_index
        from mds._shardfile.layout import INDEX_NAME
        from mds.errors import NotFoundError
        from mds.storage import open_store
        from mds.storage._url import join, redact
        from mds.writers import merge_index

        _check_parts(parts, out)
        (url,) = with_options(storage_options, out)
        options = storage_options or None
        if not overwrite:  # refuse to replace an index
            try:
                open_store(url).head(INDEX_NAME)
            except NotFoundError:
                has_index = False
            else:
                has_index = True
            if has_index:
                raise FileExistsError(
                    f"{redact(out)}: there is an {INDEX_NAME} already; replace it with --overwrite."
                )
        if parts:
            merge_index([join(part, INDEX_NAME) for part in parts], out, storage_options=options)
        else:
            merge_index(out, storage_options=options)
        index = read_index(url)
        if as_json:
            print_datasets([index_facts(out, index)])
            return
        samples, shards = plural(index.total_samples, "sample"), plural(len(index), "shard")
        click.echo(f"{redact(out)}: {samples} in {shards}")


def _check_parts(parts: tuple[str, ...], out: str) -> None:
    """Raise ConfigError if a part is not below ``out``, because an index names files below it.

    In earlier versions OUT came first: such a command line has all other places below the first.
    """
    import shlex

    from mds.storage._url import redact
    from mds.writers._merge import normalize_place

    def is_below(place: str, folder: str) -> bool:
        return normalize_place(place).startswith(normalize_place(folder).rstrip("/") + "/")

    outside = [part for part in parts if not is_below(part, out)]
    if not outside:
        return
    first, *other_places = *parts, out
    if all(is_below(place, first) for place in other_places):
        command = shlex.join(["mds", "merge", *map(redact, (*other_places, first))])
        raise ConfigError(f"OUT comes last, after the datasets. Write: {command}")
    raise ConfigError(
        f"{redact(outside[0])} is not below OUT, {redact(out)}. An index names shards of its "
        "folder and of subfolders. So OUT, the last argument, must be a folder above all "
        "datasets. Give that folder, or move the dataset into OUT."
    )
