"""Warnings about overrides that 0.13 calls and this library does not."""

from __future__ import annotations

import warnings
from collections.abc import Mapping


def warn_uncalled(kind: type, uncalled: Mapping[str, str]) -> None:
    """Say what a class overrides that is never called here, and what to use in its place."""
    if kind.__module__.startswith("mds."):
        return
    for name, instead in uncalled.items():
        if name in vars(kind):
            warnings.warn(
                f"{kind.__name__} overrides {name}, which mosaicml-streaming calls and mds does "
                f"not. In its place there is {instead}.",
                stacklevel=4,
            )
