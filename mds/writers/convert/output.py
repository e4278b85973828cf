"""The place a conversion writes to: is it free, and what of an old one must go."""

from __future__ import annotations

import os
import re

from mds.errors import ConfigError, NotFoundError
from mds.index import Index
from mds.layout import INDEX_NAME
from mds.storage import Store, join, open_store, redact
from mds.writers.convert.assemble import Output
from mds.writers.convert.spec import ConvertSpec
from mds.writers.convert.work import NAME, remove_temporaries

_SHARD = re.compile(r"shard\.[0-9]{5,}\.mds(\.[a-z0-9]+)?")


def check_output(output: Output, spec: ConvertSpec) -> bool:
    """Whether the output holds this very dataset, whole; else make sure that it can be written.

    Raises FileExistsError where something is in the way and neither `resume` nor `overwrite` asks
    to go on with it or to replace it. Only shards and indexes are ever removed.
    """
    where = redact(output.url)
    plan = output.work.plan()
    if plan is not None and spec.resume:
        return output.work.is_finished()
    if spec.overwrite:
        output.work.remove()
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
    if local is None or not os.path.lexists(local):
        return False
    if not os.path.isdir(local):
        raise ConfigError(f"{where} is a file. The output is a folder.")
    if inside := sorted(set(os.listdir(local)) - {NAME}):
        raise FileExistsError(
            f"{where}: the folder is not empty (it holds {inside[0]!r}"
            f"{f' and {len(inside) - 1} more' if len(inside) > 1 else ''}). Choose another one, or "
            "say --overwrite: files that are no shards stay."
        )
    return False


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
    for folder, _, _ in os.walk(output.work.folder):
        remove_temporaries(folder)


def _remove(output: Output) -> None:
    store = open_store(output.url)
    for split in range(len(output.splits)):
        index = read_index(output, split)
        # The index goes first: without it nobody takes the rest for a dataset.
        store.delete(output.key(split, INDEX_NAME))
        for shard in index or ():
            for raw, zipped in shard.files:
                store.delete(output.key(split, (zipped or raw).basename))
        _remove_shards(store, output.splits[split])


def _remove_shards(store: Store, split: str) -> None:
    if store.local_path is None:
        return
    folder = os.path.join(store.local_path, split)
    if os.path.isdir(folder):
        for name in os.listdir(folder):
            if _SHARD.fullmatch(name):
                os.unlink(os.path.join(folder, name))
