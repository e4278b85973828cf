"""Output of a conversion: is it free, what of an old one must go, and the index at the end."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from mds.errors import DeniedError, NotFoundError, WriterError
from mds.format.layout import INDEX_NAME
from mds.index import Index
from mds.index.column_notes import NAME as NOTES_NAME
from mds.index.column_notes import pack_notes
from mds.index.companion import companions_of, find_companions
from mds.index.lengths import emit_lengths_file, lengths_name
from mds.index.table import fingerprint_of
from mds.storage import Store, join, open_store, redact
from mds.storage.directory import sync_file
from mds.storage.files import sync
from mds.storage.folder_lock import LOCK_NAME
from mds.writers.convert.checkpoint import NAME, remove_temporaries
from mds.writers.convert.locks import ConversionLocks
from mds.writers.convert.spec import ConvertSpec
from mds.writers.convert.write_shard import Output
from mds.writers.leftovers import Leftovers, is_shard
from mds.writers.presence import ExpectedFile, check_presence

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The index entry of a shard, and the version that the store gave its file.
Entry = tuple[dict[str, Any], str]


def check_output(output: Output, spec: ConvertSpec) -> bool:
    """Whether the output holds this very dataset, whole; else make sure that it can be written.

    Raises FileExistsError where something is in the way and neither `resume` nor `overwrite` asks
    to go on with it or to replace it. Only shards and indexes are ever removed.
    """
    where = redact(output.url)
    plan = output.checkpoint.load_plan()
    if plan is not None and spec.resume:
        return output.checkpoint.is_finished()
    if spec.overwrite:
        output.checkpoint.remove()
        _remove(output)
        return False
    if plan is not None:
        raise FileExistsError(
            f"{where}: a conversion was begun here and not finished. Go on with --resume, or start "
            "again with --overwrite."
        )
    found = [split for split in range(len(output.splits)) if read_index(output, split) is not None]
    if spec.resume and len(found) == len(output.splits):
        return True
    if found:
        raise FileExistsError(
            f"{where}: there is a dataset already. Choose another folder, or replace it with "
            "--overwrite."
        )
    local = open_store(output.url).local_path
    if local is None:
        warn_of_leftovers(output)
        return False
    if inside := sorted(set(os.listdir(local)) - {NAME, LOCK_NAME}):
        raise FileExistsError(
            f"{where}: the folder is not empty (it holds {inside[0]!r}"
            f"{f' and {len(inside) - 1} more' if len(inside) > 1 else ''}). Choose another one, or "
            "say --overwrite: files that are not shards stay."
        )
    return False


def warn_of_leftovers(output: Output) -> None:
    """Log what an unfinished writer left in the places of the splits, and how to remove it."""
    for split in output.splits:
        place = join(output.url, split) if split else output.url
        Leftovers.find(open_store(place), redact(place)).warn()


def publish_index(
    output: Output,
    split: int,
    entries: list[Entry],
    locks: ConversionLocks,
    lengths: NDArray[Any] | None = None,
) -> None:
    """Publish the index over shards, which are given with the versions of their files.

    ``lengths``: what is recorded of the samples, or None.

    Raises WriterError unless all of them are there, or where an index of another writer is.
    """
    data = Index.build(entry for entry, _ in entries).to_json()
    folder = locks.folder(output.splits[split])
    # Before the index, to which it is bound: a dataset that is there has it.
    _put_notes(output, split, fingerprint_of(data))
    _put_lengths(output, split, fingerprint_of(data), lengths)
    if folder is None:
        _put_index(output, output.key(split, INDEX_NAME), data)
        return
    if output.durable:
        folder.sync()
        sync(os.path.dirname(folder.folder) or ".")
    with folder.publish(INDEX_NAME) as file:
        file.write(data)
        file.flush()
        if output.durable:
            sync_file(file)
        # Once more, right before it appears: syncing takes a while.
        check_shards(output, split, entries, locks)
        locks.check_in_place()
    if output.durable:
        folder.sync()


def _put_notes(output: Output, split: int, index: str) -> None:
    store, key = open_store(output.url), output.key(split, NOTES_NAME)
    if output.notes:
        store.put(key, pack_notes(output.notes, index))
    else:
        store.delete(key)  # of what was here before


def _put_lengths(output: Output, split: int, index: str, lengths: NDArray[Any] | None) -> None:
    if output.lengths is not None and lengths is not None:
        data = emit_lengths_file(output.lengths, lengths, index)
        open_store(output.url).put(output.key(split, lengths_name(output.lengths)), data)


def _put_index(output: Output, key: str, data: bytes) -> None:
    store = open_store(output.url)
    with contextlib.suppress(NotFoundError, DeniedError):
        if store.get(key) != data:
            raise WriterError(
                f"{redact(output.url)}: a dataset appeared at {key} while this conversion was at "
                "work; another one writes there at the same time. It stays; choose another output."
            )
    store.put(key, data)


def check_shards(output: Output, split: int, entries: list[Entry], locks: ConversionLocks) -> None:
    """See that every shard of a split is there, whole. Raises WriterError."""
    folder = locks.folder(output.splits[split])
    files = []
    for entry, version in entries:
        info = entry["zip_data"] or entry["raw_data"]
        name = output.key(split, info["basename"]) if folder is None else info["basename"]
        files.append(ExpectedFile(name, info["bytes"], version))
    where = redact(output.url) if folder is None else folder.folder
    check_presence(files, folder or open_store(output.url), where, "--overwrite")


def read_index(output: Output, split: int) -> Index | None:
    """The index of a split that is published; None when there is none."""
    key = output.key(split, INDEX_NAME)
    try:
        data = open_store(output.url).get(key)
    except NotFoundError:
        return None
    return Index.parse(data, join(redact(output.url), key))


def clean(output: Output) -> None:
    """Remove what killed processes left half-written."""
    local = open_store(output.url).local_path
    for split in output.splits if local is not None else ():
        remove_temporaries(os.path.join(local or "", split))
    for folder, _, _ in os.walk(output.checkpoint.folder):
        remove_temporaries(folder)


def _remove(output: Output) -> None:
    store = open_store(output.url)
    for split in range(len(output.splits)):
        index = read_index(output, split)
        # The index goes first: without it the rest is not taken for a dataset.
        store.delete(output.key(split, INDEX_NAME))
        beside = open_store(
            join(output.url, output.splits[split]) if output.splits[split] else output.url
        )
        for name in find_companions(companions_of(beside), beside.get):
            beside.delete(name)
        for shard in index or ():
            for raw, zipped in shard.files:
                name = (zipped or raw).basename
                # An index may name any file of the folder; only shards are ours to remove, and
                # those of folders below are of datasets that were merged, or behind a link.
                if is_shard(name):
                    store.delete(output.key(split, name))
        _remove_shards(store, output.splits[split])


def _remove_shards(store: Store, split: str) -> None:
    if store.local_path is None:
        return
    folder = os.path.join(store.local_path, split)
    if os.path.isdir(folder):
        for name in os.listdir(folder):
            if is_shard(name):
                os.unlink(os.path.join(folder, name))
