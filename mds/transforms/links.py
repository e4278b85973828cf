"""Links of a function chain: a function of the caller, where it stands, and what it asks for."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from multiprocessing import context
from typing import Any

from mds.errors import ConfigError, FunctionError

# What a function of each kind may ask for by an argument of that name.
_OFFERED = {"map": "rng", "map_batches": "keys"}


@dataclasses.dataclass(frozen=True)
class Link:
    """One function of a chain: ``kind`` is the name of the method that added it.

    ``is_keyed``: it takes random numbers, by an argument ``rng`` (of map) or ``keys``. ``is_ours``:
    it is the library's own, and fit for threads.
    """

    kind: str
    function: Callable[..., Any]
    is_keyed: bool = False
    is_ours: bool = False

    @classmethod
    def parse(cls, kind: str, function: Any, *, is_ours: bool = False) -> Link:
        """Return the link of a function. Its signature is inspected here only.

        Raises ConfigError for what is no function.
        """
        if not callable(function):
            raise ConfigError(
                f"{kind}() takes a function, got {type(function).__name__} {str(function)[:60]!r}. "
                f"Write {kind}(function), without calling it."
            )
        is_keyed = function.needs_keys if is_ours else _takes(function, _OFFERED.get(kind))
        return cls(kind, function, is_keyed, is_ours)

    @property
    def name(self) -> str:
        """The method with the function's name, as ``map(crop)``."""
        return f"{self.kind}({name_of(self.function)})"

    def failed(self, where: str, error: BaseException) -> FunctionError:
        """Return the error that names the sample, to be raised from ``error``."""
        return FunctionError(f"{self.name} failed on {where}: {type(error).__name__}: {error}")

    def gave_nothing(self, where: str) -> FunctionError:
        """Return the error for a function that returned None, perhaps without a return."""
        what = "sample" if self.kind == "map" else "batch"
        return FunctionError(f"{self.name} returned None for {where}: let it return the {what}.")

    def __getstate__(self) -> dict[str, Any]:
        # Asked only where a process is being spawned: tools that pickle by value may take lambdas.
        if context.get_spawning_popen() is not None and _is_local(self.function):
            raise ConfigError(
                f"{self.name} cannot go to a worker process that is spawned: lambdas and functions "
                "inside functions have no name there. Define it at the top of a module, or take "
                "multiprocessing_context='fork' or workers='threads'."
            )
        return dict(self.__dict__)


def name_of(function: Any) -> str:
    """Return the name of a function as its author knows it."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    if name is None:
        return repr(function) if _has_own_repr(function) else type(function).__name__
    return str(name).rpartition("<locals>.")[2]


def _has_own_repr(function: Any) -> bool:
    return type(function).__module__.startswith("mds.transforms")


def _takes(function: Any, argument: str | None) -> bool:
    """Whether a function has an argument of that name."""
    if argument is None:
        return False
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins may have none
        return False
    found = parameters.get(argument)
    return found is not None and found.kind in {found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY}


def _is_local(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    name = str(getattr(function, "__qualname__", ""))
    return "<lambda>" in name or ("<locals>" in name and not hasattr(function, "__self__"))
