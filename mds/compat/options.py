"""The parameters of the incumbent's dataset classes, which kept the defaults of older versions."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, TypeVar

C = TypeVar("C", bound=type)

_REQUIRED = Parameter.empty
_OLD: dict[str, Any] = {
    "remote": None,
    "local": None,
    "split": None,
    "download_retry": 2,
    "download_timeout": 60,
    "validate_hash": None,
    "keep_zip": False,
    "epoch_size": None,
    "predownload": None,
    "cache_limit": None,
    "partition_algo": "orig",
    "num_canonical_nodes": None,
    "batch_size": None,
    "shuffle": False,
    "shuffle_algo": "py1s",
    "shuffle_seed": 9176,
    "shuffle_block_size": 1 << 18,
}


def keywords(required: tuple[str, ...] = (), **own: Any) -> Callable[[C], C]:
    """Give a class the old keyword-only parameters, those of ``own``, and some without a default.

    Its ``__init__`` finds all of them, filled with defaults, in its ``**options``; a name that is
    not among them is a TypeError, as for a written-out signature.
    """
    defaults = {**_OLD, **own, **dict.fromkeys(required, _REQUIRED)}
    signature = Signature(
        [Parameter(n, Parameter.KEYWORD_ONLY, default=d) for n, d in defaults.items()]
    )

    def decorate(kind: C) -> C:
        inner = kind.__init__  # type: ignore[misc]

        def __init__(self: Any, **options: Any) -> None:  # noqa: N807 - it becomes the class's
            # A subclass inherits this and may pass on what its own signature allows.
            bound = signature.bind(**options)
            bound.apply_defaults()
            inner(self, **bound.arguments)

        # On the function and not on the class: a subclass may have an __init__ of its own.
        own_self = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
        __init__.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[own_self, *signature.parameters.values()]
        )
        kind.__init__ = __init__  # type: ignore[misc]
        return kind

    return decorate
