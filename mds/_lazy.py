"""Names of a package that are imported when they are first touched (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def on_first_touch(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for a package; ``homes``: in which module of it a name is."""

    def find(name: str) -> Any:
        if name not in homes:
            told = f"module {package!r} has no attribute {name!r}"
            # With both, Python offers the nearest name.
            raise AttributeError(told, name=name, obj=sys.modules[package])
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return find, names
