"""Files of ours beside an index.json: lengths, names of classes, tables of a made index.

    one line  JSON: kind, version, digest of the index.json's bytes, digest and size of the payload
    payload   whatever the kind says

They begin with ``index.`` and belong to one index.json, which does not know them: its digest in the
header binds them, so one that was left from another index is told and never believed. None is
needed to read a dataset; each is asked for where it is used, and that there is none (404, or 403
of a store that hides what is missing) is an answer. Digests tell damage and not intent, so a
reader of a payload checks its numbers.
"""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mds.errors import ConfigError, DeniedError, IndexFileError, NotFoundError
from mds.index.table import fingerprint_of
from mds.storage.relative_name import INDEX_NAME, MAX_PART_BYTES, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mds.storage import Store

PREFIX = "index."
#: Bytes of a payload that are read at most unless the caller says otherwise.
MAX_PAYLOAD_BYTES = 64 << 20
_MAX_HEADER_BYTES = 1024
_KIND = re.compile(r"[a-z][a-z0-9-]{0,40}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"index\.[a-z][0-9A-Za-z_.=~-]*\.(bin|json)")


@dataclass(frozen=True, slots=True)
class Companion:
    """A companion that was checked: its kind, its version, its payload, and the index it is of."""

    kind: str
    version: int
    index: str
    payload: memoryview


def companion_name(kind: str, column: str | None = None, end: str = "bin") -> str:
    """The name of the file of a kind, or of a kind and a column.

    >>> companion_name("lengths", "tokens")
    'index.lengths-tokens.bin'
    """
    part = "" if column is None else "-" + urllib.parse.quote(column, safe="").replace("%", "=")
    name = f"{PREFIX}{kind}{part}.{end}"
    if len(name) > MAX_PART_BYTES:
        raise ConfigError(f"the name of column {shown(column)} is too long for a file beside it.")
    return name


def is_companion(name: str) -> bool:
    """Whether a file has the name of a companion; index.json has not."""
    return name != INDEX_NAME and _NAME.fullmatch(name) is not None


def pack_companion(kind: str, version: int, index: str, payload: bytes | memoryview) -> bytes:
    """The bytes of a companion; ``index`` is the fingerprint of its `Index`."""
    header = {
        "kind": kind,
        "version": version,
        "index": index,
        "digest": fingerprint_of(payload),
        "bytes": memoryview(payload).nbytes,
    }
    line = json.dumps(header).encode("ascii")
    # The payload begins at a multiple of 64 bytes: numbers are used as they lie in the file.
    return line + b" " * (-(len(line) + 1) % 64) + b"\n" + payload


def parse_companion(
    data: Any, where: str, kind: str | None = None, index: str | None = None, version: int = 1
) -> Companion:
    """What the bytes of a companion hold; ``where`` is named in errors.

    ``kind`` and ``index``: what it must be of, None for anything. ``version``: the highest that the
    caller knows. Raises IndexFileError (a ValueError) for one that is damaged, of another kind, of
    a later version, or of another index.json.
    """
    view = memoryview(data)
    end = bytes(view[:_MAX_HEADER_BYTES]).find(b"\n")
    try:
        header = json.loads(bytes(view[: max(end, 0)]))
        found = (header["kind"], header["version"], header["index"], header["digest"])
        size = header["bytes"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise IndexFileError(
            f"{where}: begins with no header of a file beside an index. Remove it."
        ) from error
    payload = view[end + 1 :]
    is_header = (
        isinstance(found[0], str)
        and _KIND.fullmatch(found[0]) is not None
        and type(found[1]) is int
        and found[1] >= 1
        and all(isinstance(text, str) and _DIGEST.fullmatch(text) for text in found[2:])
    )
    if not is_header or kind not in (None, found[0]):
        raise IndexFileError(
            f"{where}: is of kind {shown(found[0])}, version {shown(found[1])}; expected "
            f"{kind or 'one of ours'}. Remove it."
        )
    if kind is not None and found[1] > version:
        raise IndexFileError(
            f"{where}: has version {found[1]}, this library knows up to {version}: update it."
        )
    if index not in (None, found[2]):
        raise IndexFileError(
            f"{where}: belongs to another {INDEX_NAME} than the one beside it. Make it anew, or "
            "remove it."
        )
    if type(size) is not int or size != len(payload) or fingerprint_of(payload) != found[3]:
        raise IndexFileError(
            f"{where}: is damaged: {len(payload)} bytes behind its header, and {shown(size)} of "
            f"digest {found[3]} were written. Make it anew, or remove it."
        )
    return Companion(found[0], found[1], found[2], payload)


def write_companion(
    store: Store, name: str, kind: str, index: str, payload: bytes, version: int = 1
) -> None:
    """Put a companion beside the index.json of a place, whole or not at all.

    ``name``: of `companion_name`. ``index``: the fingerprint of its `Index`. Raises StoreError.
    """
    if not is_companion(name):
        raise ConfigError(f"{shown(name)} is not a name for a file beside {INDEX_NAME}.")
    store.put(name, pack_companion(kind, version, index, payload))


def read_companion(
    store: Store,
    name: str,
    kind: str,
    index: str | None,
    version: int = 1,
    most: int = MAX_PAYLOAD_BYTES,
) -> Companion | None:
    """A companion of the index.json of a place; None where there is none.

    ``most``: bytes of a payload that are plausible; a larger file is refused before it is read
    whole. Raises IndexFileError as `parse_companion`, and the StoreError of a place that cannot be
    asked.
    """
    where = store.url_of(name)
    pieces, size = [], 0
    try:
        with store.stream(name) as body:
            for piece in body:
                size += len(piece)
                if size > most + _MAX_HEADER_BYTES:
                    raise IndexFileError(
                        f"{where}: has more than {most} bytes, and its dataset has no room for "
                        "so many. Remove it."
                    )
                pieces.append(bytes(piece))
    except (NotFoundError, DeniedError):
        return None
    return parse_companion(b"".join(pieces), where, kind, index, version)


def find_companions(names: Iterable[str], read: Callable[[str], bytes]) -> Iterator[str]:
    """Those of the files of a place that are companions: by their names, and by what they hold.

    A file of another program that has such a name is none.
    """
    for name in sorted(filter(is_companion, names)):
        try:
            parse_companion(read(name), name)
        except (IndexFileError, NotFoundError, DeniedError):
            continue
        yield name


def companions_of(store: Store) -> list[str]:
    """The names that companions of a place have, as far as it can be listed."""
    if store.local_path is not None:
        names = os.listdir(store.local_path) if os.path.isdir(store.local_path) else []
        return sorted(filter(is_companion, names))
    if not store.can_list:
        return []
    try:
        return sorted(info.key for info in store.list(PREFIX) if is_companion(info.key))
    except DeniedError:
        return []  # credentials may read and not list


def remove_stale_companions(store: Store, index: str) -> None:
    """Remove the companions of an index.json that another one, of a fingerprint, has replaced."""
    for name in find_companions(companions_of(store), store.get):
        if parse_companion(store.get(name), name).index != index:
            store.delete(name)
