"""One adapter a file. The order is that of the tables."""

from __future__ import annotations

import importlib

from benchmarks.systems.base import System

NAMES = (
    "limit",
    "plain",
    "mds",
    "incumbent",
    "litdata",
    "webdataset",
    "grain",
    "arrow",
    "parquet",
    "lancedb",
    "boto3",
)
OURS = ("limit", "plain", "mds", "boto3")  # need no peer


def find(name: str) -> System:
    """The adapter of that name."""
    module = importlib.import_module(f"benchmarks.systems.{name}")
    return module.SYSTEM  # type: ignore[no-any-return]
