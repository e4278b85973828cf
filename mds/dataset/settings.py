"""Checks and defaults of a dataset's settings, apart from those of the order (OrderSpec)."""

from __future__ import annotations

from mds.errors import ConfigError


def check_settings(predownload: int | None, on_error: str) -> None:
    """Refuse settings that no dataset can have (ConfigError)."""
    if predownload is not None and predownload < 0:
        raise ConfigError(f"predownload must not be negative, got {predownload}.")
    if on_error not in {"raise", "skip"}:
        raise ConfigError(f"on_error is 'raise' or 'skip', got {on_error!r}.")


def resolve_predownload(predownload: int | None, batch_size: int | None) -> int:
    """Samples ahead of each worker: as given, else eight batches, else 64."""
    if predownload is not None:
        return predownload
    return 8 * batch_size if batch_size else 64
