"""Bytes from anywhere and to anywhere, one provider a file; see docs/storage.md.

`open_store` gives a `Store`: get, get_range, get_file, stream, put, put_file, head, list, delete.
Cloud SDKs are imported when a store of theirs is first used.
"""

from __future__ import annotations

from mds.storage.base import CHUNK, Body, ObjectInfo, Store
from mds.storage.files import publish, temporary_owner, write_at, write_file
from mds.storage.registry import open_store, register_store, schemes
from mds.storage.retry import Retrying, RetryPolicy
from mds.storage.url import is_local, join, local_path, redact
from mds.storage.wrappers import Hedged, Limited, Prefixed, Wrapper

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
    "temporary_owner",
    "write_at",
    "write_file",
]
