"""mds clean: list or remove what writers left that did not finish."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from mds._cli.storage_options import storage_option, with_options
from mds._cli.terminal import Command, cell, console, errors, json_option, print_json

if TYPE_CHECKING:
    from mds.storage import Store
    from mds.writers._leftovers import Leftovers


@click.command(cls=Command, short_help="List or remove the files of unfinished writers.")
@click.argument("place")
@click.option("--remove", is_flag=True, help="Remove everything listed.")
@storage_option
@json_option()
def clean(place: str, remove: bool, storage_options: dict[str, str], as_json: bool) -> None:
    """List the files at PLACE of writers that were killed before they finished.

    The files are shards that are in no index, also those of Ray and Spark, unfinished multipart
    uploads, and temporary folders on this machine for PLACE. Files are removed only with --remove.
    Folders in use by a writer are refused. For a URL, and for Ray and Spark, make sure yourself
    that no writer uses it.
    """
    with errors():
        from mds.errors import NotFoundError
        from mds.storage import open_store

        (url,) = with_options(storage_options, place)
        with open_store(url) as store:
            if store.local_path is not None and not os.path.lexists(store.local_path):
                raise NotFoundError(f"{place}: there is no such folder.")
            if store.local_path is None or not os.path.isdir(store.local_path):
                # Behind a URL there is no lock of writers.
                _clean(store, place, remove, as_json)
                return
            _clean_folder(store, place, store.local_path, remove, as_json)


def _clean_folder(store: Store, place: str, folder: str, remove: bool, as_json: bool) -> None:
    """Clean a local folder, under the lock of its writers.

    Raises ConfigError if a writer is at work, or if an unfinished conversion can be resumed.
    """
    from mds.errors import ConfigError
    from mds.storage._locks import try_lock_folder
    from mds.writers.convert._checkpoint import NAME as CHECKPOINT_NAME

    lock = try_lock_folder(os.path.abspath(folder))
    if lock is None:
        raise ConfigError(f"{folder} is in use by a writer. Wait until it has finished.")
    try:
        if os.path.isdir(os.path.join(folder, CHECKPOINT_NAME)):
            raise ConfigError(
                f"{folder}: a conversion was started here and not finished. Continue with "
                "mds-convert --resume, or start again with --overwrite."
            )
        _clean(store, place, remove, as_json)
    finally:
        lock.close()


def _clean(store: Store, place: str, remove: bool, as_json: bool) -> None:
    """Print what unfinished writers left in a store, and delete it if ``remove``.

    - ``place`` (str): The place as the user typed it.
    """
    from mds.storage._url import redact

    main = console()
    leftovers = _find_leftovers(store)
    place = redact(place)
    if as_json:
        if remove:
            leftovers.remove(store)
        uploads = [{"key": each.key, "id": each.identifier} for each in leftovers.uploads]
        listed = {
            "shards": leftovers.shards,
            "uploads": uploads,
            "folders": leftovers.folders,
            "parts": leftovers.parts,
        }
        print_json({"url": store.url_of(""), "leftovers": listed, "is_removed": remove})
        return
    if not leftovers:
        main.print(cell(f"{place}: no files of unfinished writers"))
        if _is_cache(store):
            main.print(
                cell(f"{place} is a cache: to empty it, delete the folder when no process uses it"),
                soft_wrap=True,
            )
        return
    for name in leftovers.shards:
        main.print(cell(f"shard: {name}"), soft_wrap=True)
    for upload in leftovers.uploads:
        main.print(cell(f"unfinished upload: {upload.key} ({upload.identifier})"), soft_wrap=True)
    for part in leftovers.parts:
        main.print(cell(f"folder of a task: {part}"), soft_wrap=True)
    for folder in leftovers.folders:
        main.print(cell(f"folder: {folder}"), soft_wrap=True)
    if remove:
        leftovers.remove(store)
    state = "removed" if remove else "not removed; add --remove"
    main.print(cell(f"{place}: {leftovers.describe()}: {state}"), soft_wrap=True)


def _is_cache(store: Store) -> bool:
    """Whether a place is a local folder in which datasets keep what they fetched."""
    from mds._cache.ownership import CONTROL

    return store.local_path is not None and os.path.isdir(os.path.join(store.local_path, CONTROL))


def _find_leftovers(store: Store) -> Leftovers:
    """Return the files that killed writers left at a place, with or without a dataset."""
    from mds._index.table import Index
    from mds._shardfile.layout import INDEX_NAME
    from mds.errors import NotFoundError
    from mds.writers._leftovers import Leftovers

    try:
        index = Index.parse(store.get(INDEX_NAME), store.url_of(INDEX_NAME))
    except NotFoundError:
        return Leftovers.find(store, store.url_of(""), has_parts=True)
    named_files = frozenset(name for shard in index.file_names() for _, name in shard)
    return Leftovers.find(store, store.url_of(""), named_files, has_parts=True)
