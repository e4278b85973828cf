"""Bytes from anywhere and to anywhere, one provider a file; see docs/storage.md.

`open_store` gives a `Store`: get, get_range, get_file, stream, put, put_file, head, list, delete.
Cloud SDKs are imported when a store of theirs is first used, and the stores themselves when a name
of theirs is first touched: to read a folder takes none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds.lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds.storage.base import CHUNK, Body, ObjectInfo, Store
    from mds.storage.files import publish, temporary_owner, write_at, write_file
    from mds.storage.registry import open_store, register_store, schemes
    from mds.storage.retry import Retrying, RetryPolicy
    from mds.storage.url import is_local, join, local_path, redact, source_name
    from mds.storage.wrappers import Hedged, Limited, Prefixed, Wrapper

_HOMES = {
    "CHUNK": "base",
    "Body": "base",
    "Hedged": "wrappers",
    "Limited": "wrappers",
    "ObjectInfo": "base",
    "Prefixed": "wrappers",
    "RetryPolicy": "retry",
    "Retrying": "retry",
    "Store": "base",
    "Wrapper": "wrappers",
    "is_local": "url",
    "join": "url",
    "local_path": "url",
    "open_store": "registry",
    "publish": "files",
    "redact": "url",
    "register_store": "registry",
    "schemes": "registry",
    "source_name": "url",
    "temporary_owner": "files",
    "write_at": "files",
    "write_file": "files",
}

__all__ = [
    "CHUNK",
    "Body",
    "Hedged",
    "Limited",
    "ObjectInfo",
    "Prefixed",
    "RetryPolicy",
    "Retrying",
    "Store",
    "Wrapper",
    "is_local",
    "join",
    "local_path",
    "open_store",
    "publish",
    "redact",
    "register_store",
    "schemes",
    "source_name",
    "temporary_owner",
    "write_at",
    "write_file",
]

__getattr__, __dir__ = on_first_touch(__name__, _HOMES)
