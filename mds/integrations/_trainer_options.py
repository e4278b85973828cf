"""Arguments of a trainer of transformers or TRL that is given a StreamingDataset."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def name_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with positional ones by name, if all of these have names."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters.values()):
        return args, dict(kwargs)
    names = [*parameters][: len(args)]
    named = dict(zip(names, args, strict=False))
    if len(named) < len(args) or named.keys() & kwargs:  # Python raises the error
        return args, dict(kwargs)
    return (), {**named, **kwargs}
