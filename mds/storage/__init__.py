"""Bytes from anywhere and to anywhere, one provider a file; see docs/storage.md.

`open_store` gives a `Store`: get, get_range, get_file, stream, put, put_file, head, list, delete.
Cloud SDKs are imported when a store of theirs is first used, and the stores themselves when a name
of theirs is first touched: to read a folder takes none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mds._lazy_imports import on_first_touch

if TYPE_CHECKING:
    from mds.storage._base import Body, ObjectInfo, Store
    from mds.storage._memory import MemoryStore
    from mds.storage._registry import open_store, register_store
    from mds.storage._retry import RetryPolicy

_HOMES = {
    "Body": "_base",
    "MemoryStore": "_memory",
    "ObjectInfo": "_base",
    "RetryPolicy": "_retry",
    "Store": "_base",
    "open_store": "_registry",
    "register_store": "_registry",
}

__all__ = [
    "Body",
    "MemoryStore",
    "ObjectInfo",
    "RetryPolicy",
    "Store",
    "open_store",
    "register_store",
]

__getattr__, __dir__ = on_first_touch(__name__, _HOMES)
