"""Imports at first use: the public names of a package (PEP 562), and plugins of other packages.

Plugins are entry points. The metadata of installed packages is read only for a name that this
library does not define.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any


def on_first_touch(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package that imports its names at first use.

    Args:
        package: Name of the package.
        homes: By public name: the module of the package that defines it, such as
            ``{"StreamingDataset": "dataset.streaming"}``.
    """

    def import_name(name: str) -> Any:
        """Import the module that defines a public name, and return the name's value.

        Python calls this, the package's ``__getattr__``, for a name that the package lacks.
        """
        if name not in homes:
            message = f"module {package!r} has no attribute {name!r}"
            advice = _advice(package, name)
            if advice and _is_importing(sys._getframe(1)):  # noqa: SLF001 - the caller
                raise ImportError(f"cannot import name {name!r} from {package!r}.{advice}")
            if advice:
                raise AttributeError(f"{message}.{advice}")
            # With `name` and `obj`, Python suggests the nearest name.
            raise AttributeError(message, name=name, obj=sys.modules[package])
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)  # so later uses do not call this function
        return value

    def list_names() -> list[str]:
        """Return the names of the package, imported or not: its __dir__."""
        return sorted({*vars(sys.modules[package]), *homes})

    return import_name, list_names


def _advice(package: str, name: str) -> str:
    """Return what to write in place of a name of another library, with a space before it, or ''."""
    if package != "mds":
        return ""
    from mds.foreign_words import package_advice  # on the way to an error only

    return package_advice(name)


def _is_importing(frame: FrameType) -> bool:
    """Whether a frame executes ``from package import name`` now, and not ``package.name``.

    Python replaces an AttributeError by an ImportError of its own there, without the message.
    """
    import dis  # on the way to an error only

    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "IMPORT_FROM"


def plugin_names(group: str) -> list[str]:
    """Return the names that installed packages offer in a group such as ``mds.shuffles``."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=group).names)


def load_plugin(group: str, name: str, what: str) -> Any:
    """Return the object that an installed package offers under a name, or None.

    Args:
        group: Group of entry points, such as ``mds.shuffles``.
        name: Name of the entry point.
        what: Kind of the object in errors, such as "shuffle".

    Raises ConfigError if the import of the package fails.
    """
    from importlib.metadata import entry_points

    # Several packages may offer the name; the first one is taken.
    points = tuple(entry_points(group=group, name=name))
    if not points:
        return None
    try:
        return points[0].load()
    except Exception as error:  # a package may raise anything
        from mds.errors import ConfigError

        raise ConfigError(
            f"the {what} {name!r} ({points[0].value}) cannot be loaded: {error}. Mend or remove "
            "the package that brings it."
        ) from error
