"""alipan:// is known and refused: its only SDK is unmaintained and takes no ranges.

Data there are best copied once to a store that is spoken here, or mounted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from mds.errors import ConfigError


def refuse(url: str, options: Mapping[str, Any], timeout: float) -> NoReturn:
    """Raise a ConfigError that says what to do instead."""
    del options, timeout
    raise ConfigError(
        f"{url!r}: Alipan is not supported. Copy the dataset to a store that is, mount the drive "
        f"and use its path, or register a store of your own: "
        f"mds.storage.register_store('alipan', factory)."
    )
