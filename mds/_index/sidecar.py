"""Sidecars: files beside an index.json, with lengths, names of classes, or a table of files.

    one line  JSON: kind, version, digest of the index.json's bytes, digest and size of the payload
    payload   depends on the kind

Names of sidecars begin with ``index.``. A sidecar belongs to one index.json, which does not mention
it: the header has the digest of the index, so a sidecar of an earlier index is refused. No sidecar
is needed to read samples. Each is fetched where it is used; a missing one (404, or 403 from a store
that hides missing objects) is not an error. Digests detect damage, not malice, so a reader checks
the numbers in a payload.
"""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mds._index.table import fingerprint_of
from mds.errors import ConfigError, DeniedError, IndexFileError, NotFoundError
from mds.storage._relative_name import INDEX_NAME, MAX_PART_BYTES, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mds.storage import Store

PREFIX = "index."
#: Most bytes of a payload, unless the caller sets another limit.
MAX_PAYLOAD_BYTES = 64 << 20
_MAX_HEADER_BYTES = 1024
_KIND = re.compile(r"[a-z][a-z0-9-]{0,40}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"index\.[a-z][0-9A-Za-z_.=~-]*\.(bin|json)")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A parsed sidecar.

    - ``kind``, ``version``: kind of the payload, such as "lengths", and version of its form.
    - ``index``: fingerprint of the index that it belongs to.
    - ``payload``: its content.
    """

    kind: str
    version: int
    index: str
    payload: memoryview


def sidecar_name(kind: str, column: str | None = None, end: str = "bin") -> str:
    """Return the file name of a sidecar.

    - ``kind`` (str): Kind of the sidecar, such as "lengths".
    - ``column`` (str | None, default None): The column, for a kind with one sidecar a column.
    - ``end`` (str, default "bin"): Extension, without the dot.

    >>> sidecar_name("lengths", "tokens")
    'index.lengths-tokens.bin'
    """
    # Special characters are escaped by "=" and hex digits, since "%" would be decoded in URLs.
    part = "" if column is None else "-" + urllib.parse.quote(column, safe="").replace("%", "=")
    name = f"{PREFIX}{kind}{part}.{end}"
    if len(name) > MAX_PART_BYTES:
        raise ConfigError(f"the name of column {shown(column)} is too long for a sidecar file.")
    return name


def is_sidecar(name: str) -> bool:
    """Whether a file name is one of a sidecar."""
    return name != INDEX_NAME and _NAME.fullmatch(name) is not None


def pack_sidecar(kind: str, version: int, index: str, payload: bytes | memoryview) -> bytes:
    """Return the bytes of a sidecar: a padded header line, and the payload.

    ``kind`` and ``version`` tell how the payload is coded, ``index`` is the fingerprint of the
    `Index` that the sidecar belongs to.
    """
    header = {
        "kind": kind,
        "version": version,
        "index": index,
        "digest": fingerprint_of(payload),
        "bytes": memoryview(payload).nbytes,
    }
    line = json.dumps(header).encode("ascii")
    # The payload begins at a multiple of 64 bytes, so that NumPy can map its numbers.
    return line + b" " * (-(len(line) + 1) % 64) + b"\n" + payload


def parse_sidecar(
    data: Any, location: str, kind: str | None = None, index: str | None = None, version: int = 1
) -> Sidecar:
    """Parse the bytes of a sidecar.

    - ``location`` (str): Name of the file, for errors.
    - ``kind`` (str | None, default None): Expected kind; None takes any.
    - ``index`` (str | None, default None): Expected fingerprint of the index; None takes any.
    - ``version`` (int, default 1): Highest version that the caller can read.

    Raises IndexFileError (a ValueError) for a sidecar that is damaged, of another kind, of a later
    version, or of another index.json.
    """
    view = memoryview(data)
    end = bytes(view[:_MAX_HEADER_BYTES]).find(b"\n")
    try:
        header = json.loads(bytes(view[: max(end, 0)]))
        header_kind, header_version = header["kind"], header["version"]
        header_index, digest, size = header["index"], header["digest"], header["bytes"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise IndexFileError(
            f"{location} does not begin with the header of a sidecar file. Remove the file."
        ) from error
    payload = view[end + 1 :]
    is_header = (
        isinstance(header_kind, str)
        and _KIND.fullmatch(header_kind) is not None
        and type(header_version) is int
        and header_version >= 1
        and all(isinstance(t, str) and _DIGEST.fullmatch(t) for t in (header_index, digest))
    )
    if not is_header or kind not in (None, header_kind):
        raise IndexFileError(
            f"{location} has the kind {shown(header_kind)}, version {shown(header_version)}; "
            f"expected {kind or 'a sidecar of mds'}. Remove the file."
        )
    if kind is not None and header_version > version:
        raise IndexFileError(
            f"{location} has version {header_version}, but mds reads versions up to {version}: "
            "update mds."
        )
    if index not in (None, header_index):
        raise IndexFileError(
            f"{location} belongs to another {INDEX_NAME} than the one in its folder. Write it "
            "again, or remove it."
        )
    if type(size) is not int or size != len(payload) or fingerprint_of(payload) != digest:
        raise IndexFileError(
            f"{location} is damaged: {len(payload)} bytes follow its header, but {shown(size)} "
            f"with digest {digest} were written. Write it again, or remove it."
        )
    return Sidecar(header_kind, header_version, header_index, payload)


def write_sidecar(
    store: Store, name: str, kind: str, index: str, payload: bytes, version: int = 1
) -> None:
    """Write a sidecar beside the index.json of a store, whole or not at all.

    ``name`` comes from `sidecar_name`, ``index`` is the fingerprint of the `Index`. Raises
    ConfigError for another name, and StoreError if the store cannot be written.
    """
    if not is_sidecar(name):
        raise ConfigError(f"{shown(name)} is not a valid name for a sidecar file.")
    store.put(name, pack_sidecar(kind, version, index, payload))


def read_sidecar(
    store: Store,
    name: str,
    kind: str,
    index: str | None,
    version: int = 1,
    max_bytes: int = MAX_PAYLOAD_BYTES,
) -> Sidecar | None:
    """Read a sidecar of the index.json of a store; return None if there is no such file.

    ``name`` comes from `sidecar_name`; ``kind``, ``index`` and ``version`` are what `parse_sidecar`
    expects. A payload of more than ``max_bytes`` is refused before it is read whole. Raises
    IndexFileError as `parse_sidecar` does, and StoreError if the store cannot be read.
    """
    location = store.url_of(name)
    pieces, size = [], 0
    try:
        with store.stream(name) as body:
            for piece in body:
                size += len(piece)
                if size > max_bytes + _MAX_HEADER_BYTES:
                    raise IndexFileError(
                        f"{location} has more than {max_bytes} bytes, the maximum for its dataset. "
                        "Remove the file."
                    )
                pieces.append(bytes(piece))
    except (NotFoundError, DeniedError):  # some stores deny access to objects that do not exist
        return None
    return parse_sidecar(b"".join(pieces), location, kind, index, version)


def find_sidecars(names: Iterable[str], read: Callable[[str], bytes]) -> Iterator[str]:
    """Yield the names of the sidecars among ``names``, the names of files beside an index.json.

    A sidecar has a name and a header of one, of any kind and index. Files of other programs with
    such names, and files that are gone, are left out. ``read`` returns the bytes of a file.
    """
    for name in sorted(filter(is_sidecar, names)):
        try:
            parse_sidecar(read(name), name)
        except (IndexFileError, NotFoundError, DeniedError):
            continue
        yield name


def sidecars_of(store: Store) -> list[str]:
    """Return the names of sidecars in a store, sorted; [] if the store cannot be listed."""
    if store.local_path is not None:
        names = os.listdir(store.local_path) if os.path.isdir(store.local_path) else []
        return sorted(filter(is_sidecar, names))
    if not store.can_list:
        return []
    try:
        return sorted(info.key for info in store.list(PREFIX) if is_sidecar(info.key))
    except DeniedError:
        return []  # the credentials may allow reading but not listing


def remove_stale_sidecars(store: Store, index: str) -> None:
    """Delete all sidecars of a store except those of the index with fingerprint ``index``."""
    for name in find_sidecars(sidecars_of(store), store.get):
        if parse_sidecar(store.get(name), name).index != index:
            store.delete(name)
