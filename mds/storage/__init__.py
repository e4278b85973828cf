"""Bytes from anywhere and to anywhere, one provider a file; see docs/storage.md.

`open_store` gives a `Store`: get, get_range, get_file, stream, put, put_file, head, list, delete.
Cloud SDKs are imported when a store of theirs is first used, and the stores themselves when a name
of theirs is first touched: to read a folder takes none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds._lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds.storage._base import CHUNK, Body, ObjectInfo, Store
    from mds.storage._files import publish, temporary_owner, write_at, write_file
    from mds.storage._registry import open_store, register_store, schemes
    from mds.storage._retry import Retrying, RetryPolicy
    from mds.storage._url import is_local, join, local_path, redact, source_name
    from mds.storage._wrappers import Hedged, Limited, Prefixed, Wrapper

_HOMES = {
    "CHUNK": "_base",
    "Body": "_base",
    "Hedged": "_wrappers",
    "Limited": "_wrappers",
    "ObjectInfo": "_base",
    "Prefixed": "_wrappers",
    "RetryPolicy": "_retry",
    "Retrying": "_retry",
    "Store": "_base",
    "Wrapper": "_wrappers",
    "is_local": "_url",
    "join": "_url",
    "local_path": "_url",
    "open_store": "_registry",
    "publish": "_files",
    "redact": "_url",
    "register_store": "_registry",
    "schemes": "_registry",
    "source_name": "_url",
    "temporary_owner": "_files",
    "write_at": "_files",
    "write_file": "_files",
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
