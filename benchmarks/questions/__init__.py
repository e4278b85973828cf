"""One question a file: what is measured, on which material, and how."""

from __future__ import annotations

import importlib

from benchmarks.questions.base import Case, Question

NAMES = (
    "iterate",
    "small",
    "random_access",
    "rows",
    "batches",
    "collate",
    "images",
    "augmented",
    "functions",
    "cold",
    "requests",
    "shuffled_requests",
    "write",
    "eviction",
    "causes",
    "start",
    "resume",
    "imports",
    "memory",
)

__all__ = ["NAMES", "Case", "Question", "find"]


def find(name: str) -> Question:
    """The question of that name."""
    module = importlib.import_module(f"benchmarks.questions.{name}")
    return module.QUESTION  # type: ignore[no-any-return]
