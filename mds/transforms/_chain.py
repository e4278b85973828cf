"""Function chain of a dataset: the functions that map, filter and map_batches added, in order."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from multiprocessing import context
from typing import Any

from mds.errors import ArgumentError, ConfigError, FunctionError

# Argument by which a function of each kind may request random numbers.
_RANDOM_ARGUMENTS = {"map": "rng", "map_batches": "keys"}


@dataclasses.dataclass(frozen=True)
class FunctionChain:
    """Chain of the caller's functions, with facts that every epoch needs.

    Attributes:
        links: All functions, in the order of their calls.
        of_samples: Functions that take samples one by one (map, filter).
        of_batches: Functions that take whole batches (map_batches).
        drops: Whether a function of filter is among ``links``.
        maps: Whether a function of map is among ``links``.
    """

    links: tuple[Link, ...] = ()
    of_samples: tuple[Link, ...] = dataclasses.field(init=False)
    of_batches: tuple[Link, ...] = dataclasses.field(init=False)
    drops: bool = dataclasses.field(init=False)
    maps: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        kinds = [link.kind for link in self.links]
        facts = {
            "of_samples": tuple(link for link in self.links if link.kind != "map_batches"),
            "of_batches": tuple(link for link in self.links if link.kind == "map_batches"),
            "drops": "filter" in kinds,
            "maps": "map" in kinds,
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen

    @property
    def is_keyed(self) -> bool:
        """Whether a function of samples requests random numbers."""
        return any(link.is_keyed for link in self.of_samples)

    def with_link(self, link: Link) -> FunctionChain:
        """Return the chain with one more function at its end.

        Raises ConfigError for a function of samples after a function of batches.
        """
        if self.of_batches and link.kind != "map_batches":
            raise ConfigError(
                f"{link.kind}() changes samples, but {self.of_batches[0].name} has already made "
                f"batches of them: call {link.kind}() first."
            )
        return FunctionChain((*self.links, link))

    def refuse_samples(self) -> None:
        """Raise ConfigError if a function takes batches, so that single samples cannot be read."""
        if self.of_batches:
            raise ConfigError(
                f"{self.of_batches[0].name} needs batches, so a single sample cannot be read: read "
                "this dataset with StreamingDataLoader, or use the dataset before map_batches()."
            )

    def __str__(self) -> str:
        return ", ".join(link.name for link in self.links)


@dataclasses.dataclass(frozen=True)
class Link:
    """One function of a chain.

    Attributes:
        kind: Name of the method that added it, such as "map".
        function: The function of the caller.
        is_keyed: Whether it requests random numbers, by an argument ``rng`` (of map) or ``keys``
            (of map_batches).
        is_ours: Whether it is a function of this library, which may run in threads.
        call: Call that the user wrote, as errors show it: ``{}`` is the function. '' is the method
            ``kind`` with the function.
    """

    kind: str
    function: Callable[..., Any]
    is_keyed: bool = False
    is_ours: bool = False
    call: str = ""

    @classmethod
    def parse(cls, kind: str, function: Any, *, is_ours: bool = False, call: str = "") -> Link:
        """Return the link of a function, whose signature is inspected here only.

        Args:
            kind: Name of the method that adds it, such as "map".
            function: Function of the caller, or of this library.
            is_ours: Whether it is a function of this library.
            call: Call that the user wrote if it is another method, such as "select(where={})".

        Raises ConfigError if ``function`` cannot be called with what it will be given.
        """
        if not callable(function):
            raise ConfigError(
                f"{kind}() needs a function, got {type(function).__name__} {str(function)[:60]!r}. "
                f"Write {kind}(function), without calling it."
            )
        is_keyed = function.needs_keys if is_ours else _takes(function, _RANDOM_ARGUMENTS.get(kind))
        if not is_ours:
            _check_parameters(kind, function, call or f"{kind}({{}})", is_keyed=is_keyed)
        return cls(kind, function, is_keyed, is_ours, call)

    @property
    def name(self) -> str:
        """The method and the name of the function, such as ``map(crop)``."""
        return (self.call or f"{self.kind}({{}})").format(name_of(self.function))

    def failed(self, sample: str, error: BaseException, value: Any) -> FunctionError:
        """Return an error that describes the ``sample`` at which the function raised ``error``.

        ``value`` is what the function was given.
        """
        keys = ""
        if type(error) is KeyError and isinstance(value, dict):
            names = ", ".join(map(repr, itertools.islice(value, 20)))
            keys = f". It has {names or 'no keys'}{', ...' if len(value) > 20 else ''}."
        return FunctionError(
            f"{self.name} failed on {sample}: {type(error).__name__}: {error}{keys}"
        )

    def gave_nothing(self, sample: str) -> FunctionError:
        """Return the error for a function that returned None, perhaps without a return."""
        results = {"map": "the sample", "map_batches": "the batch", "filter": "True or False"}
        return FunctionError(
            f"{self.name} returned None for {sample}. It must return {results[self.kind]}."
        )

    def __getstate__(self) -> dict[str, Any]:
        # Checked only while a process is spawned: tools that pickle by value accept lambdas.
        if context.get_spawning_popen() is not None and _is_local(self.function):
            raise ConfigError(
                f"{self.name} cannot be sent to a spawned worker process, which cannot import "
                "lambdas and nested functions. Define it at the top of a module, or use "
                "multiprocessing_context='fork' or worker_type='threads'."
            )
        return dict(self.__dict__)


def name_of(function: Any) -> str:
    """Return the name of a function for messages, without the names of outer functions."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    if name is None:  # an object with ``__call__``
        return repr(function) if _has_own_repr(function) else type(function).__name__
    return str(name).rpartition("<locals>.")[2]


def _has_own_repr(function: Any) -> bool:
    """Whether an object is a function of this library, whose repr is a call such as pad('x')."""
    return type(function).__module__.startswith("mds.transforms")


def _takes(function: Any, argument: str | None) -> bool:
    """Whether a function has an argument of a name, which can be given by keyword."""
    if argument is None:
        return False
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins may have none
        return False
    parameter = parameters.get(argument)
    kinds = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    return parameter is not None and parameter.kind in kinds


def _check_parameters(kind: str, function: Any, call: str, *, is_keyed: bool) -> None:
    """Raise ArgumentError if a function cannot be called as a method of a dataset will call it.

    Args:
        kind: Name of the method, such as "map".
        function: Function of the caller.
        call: Call of the user with ``{}`` for the function, such as "map({})", for messages.
        is_keyed: Whether it is also given random numbers.
    """
    is_object = inspect.isclass(function) and any("__call__" in vars(c) for c in function.__mro__)
    name, random = name_of(function), _RANDOM_ARGUMENTS.get(kind)
    if is_object:
        raise ArgumentError(
            f"{call.format(name)}: {name} is a class, but its objects are the functions. Write "
            f"{call.format(f'{name}(...)')}."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # builtins may have none
        return
    try:
        signature.bind(None, **({random: None} if random is not None and is_keyed else {}))
    except TypeError:
        parameter = "columns" if kind == "map_batches" else "sample"
        optional = f", or {parameter} and {random} for random numbers" if random else ""
        raise ArgumentError(
            f"{call.format(name)}: the function is called with {parameter}{optional}, but its "
            f"arguments are {signature}. Write lambda {parameter}: "
            f"{_call_of(function, parameter)}."
        ) from None


def _call_of(function: Any, parameter: str) -> str:
    """Return a call of a function, as Python code, that gives ``parameter`` to its first one."""
    name = name_of(function)
    parameters = inspect.signature(function).parameters.items()
    variadic_kinds = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    names = [n for n, p in parameters if p.default is p.empty and p.kind not in variadic_kinds]
    if not names or not name.isidentifier():
        return "..."
    return f"{name}({', '.join([parameter, *(f'{each}=...' for each in names[1:])])})"


def _is_local(function: Any) -> bool:
    """Whether a function is a lambda or inside another one, so that no import finds it."""
    while isinstance(function, functools.partial):
        function = function.func
    name = str(getattr(function, "__qualname__", ""))
    # A method (with ``__self__``) is pickled as its object and its name.
    return "<lambda>" in name or ("<locals>" in name and not hasattr(function, "__self__"))


def describe_costs(chain: FunctionChain) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each function: its name, when it runs, and what it costs or gets."""
    has_sample_functions = False
    for link in chain.links:
        if link.kind == "map_batches":
            notes = (
                "columns of the samples" if has_sample_functions else "columns as they are gathered"
            )
            if link.is_keyed:
                notes += "; a random key for each row"
            if link.is_ours:
                notes += "; in threads as well"
            yield link.name, "once a batch", notes
            continue
        costs = []
        if not has_sample_functions:
            costs.append("batches are no longer gathered by column")
        if link.is_keyed:
            costs.append("2 us a sample for random numbers")
        if link.kind == "filter":
            costs.append("batches become smaller and have a mask")
        yield link.name, "once a sample", "; ".join(costs)
        has_sample_functions = True
