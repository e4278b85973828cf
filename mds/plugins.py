"""Objects that installed packages offer by entry points: found by name, loaded when asked for.

Metadata of packages is read when a name is not ours, never at import.
"""

from __future__ import annotations

from typing import Any

from mds.errors import ConfigError


def plugin_names(group: str) -> list[str]:
    """Return the names that installed packages offer in a group such as ``mds.shuffles``."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=group).names)


def load_plugin(group: str, name: str, what: str) -> Any:
    """Return the object that a package offers under ``name``, or None; ``what`` names its kind.

    Raises ConfigError when the package fails while it is imported.
    """
    from importlib.metadata import entry_points

    points = tuple(entry_points(group=group, name=name))
    if not points:
        return None
    try:
        return points[0].load()
    except Exception as error:  # a package may raise anything
        raise ConfigError(
            f"the {what} {name!r} ({points[0].value}) cannot be loaded: {error}. Mend or remove "
            "the package that brings it."
        ) from error
