"""Options of a store: what the caller gives, else what the environment says, as frozen values.

Every provider declares a frozen dataclass; its fields are the names of its options. Frozen
values are hashable, so two streams with the same settings share one client of the process.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from typing import Any, TypeVar

from mds.errors import ConfigError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Common:
    """Options that every provider takes.

    ``part_size`` and ``part_connections``: large objects come in parts of so many bytes, so many
    at a time. ``concurrency``: most requests at a time through this store. ``hedge``: seconds
    after which a slow range is asked for again; 0 for never. ``compare_versions``: whether parts
    of an object must have one version (etag, ...); False where servers disagree about it.
    ``min_rate``: bytes a second, on average over the timeout, below which a transfer has stalled.
    """

    part_size: int = 16 << 20
    part_connections: int = 4
    concurrency: int = 64
    hedge: float = 0.0
    compare_versions: bool = True
    min_rate: float = 1024.0

    def __post_init__(self) -> None:
        if self.min_rate < 0:
            raise ConfigError(f"min_rate={self.min_rate}: bytes a second are not negative.")
        if self.part_size < 1 or self.part_connections < 1 or self.concurrency < 1:
            raise ConfigError(
                f"part_size={self.part_size}, part_connections={self.part_connections} and "
                f"concurrency={self.concurrency} must be at least 1."
            )


def split_options(options: Mapping[str, Any] | None) -> tuple[Common, dict[str, Any]]:
    """Split options into those of every provider and the rest."""
    names = {field.name for field in dataclasses.fields(Common)}
    provider_options = dict(options or {})
    return Common(
        **{name: provider_options.pop(name) for name in names & provider_options.keys()}
    ), provider_options


def parse_options(kind: type[T], options: Mapping[str, Any] | None, scheme: str) -> T:
    """Build the settings of a provider. Raises ConfigError for an unknown option."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in options or {}:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"{scheme}:// URLs take no storage option {name!r}.{hint} They take "
                f"{', '.join(names)} and {', '.join(_COMMON_NAMES)}."
            )
    return kind(**(options or {}))


_COMMON_NAMES = [field.name for field in dataclasses.fields(Common)]


def env(name: str) -> str | None:
    """Return an environment variable, or None if it is unset or empty."""
    return os.environ.get(name) or None
