"""The incumbent's ``base.registry_utils``: named classes, for code that registers its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from mds.errors import ConfigError
from mds.lazy_imports import load_plugin, plugin_names

T = TypeVar("T")
_all: list[TypedRegistry[Any]] = []


class TypedRegistry(Generic[T]):
    """Objects by name, from ``register`` and from installed packages' entry points."""

    def __init__(
        self, namespace: Sequence[str], entry_points: bool = False, description: str = ""
    ) -> None:
        self.namespace = tuple(namespace)
        self.entry_points = entry_points
        self.description = description
        self._objects: dict[str, T] = {}
        _all.append(self)

    def register(self, name: str, *, func: T | None = None) -> Any:
        """Have ``func`` under ``name``; without it, a decorator that does."""
        if func is None:
            return lambda found: self.register(name, func=found)
        self._objects[name] = func
        return func

    def __call__(self, name: str, func: T | None = None) -> Any:
        """The same as ``register``."""
        return self.register(name, func=func)

    def register_class(self, name: str, *, func: T | None = None) -> Any:
        """The same as ``register``, for classes."""
        return self.register(name, func=func)

    def get_entry_point(self, name: str, default: T | None = None) -> Any:
        """The object that an installed package offers under a name, or the default."""
        return self.get_entry_points().get(name, default)

    def get(self, name: str) -> T:
        """The object of that name. Raises ConfigError (a ValueError) naming those there are."""
        known = self.get_all()
        if name not in known:
            raise ConfigError(
                f"{'.'.join(self.namespace)} has no {name!r}, only {', '.join(sorted(known))}."
            )
        return known[name]

    def get_all(self) -> dict[str, T]:
        """Every object by name."""
        return {**self.get_entry_points(), **self._objects}

    def get_entry_points(self) -> dict[str, T]:
        """The objects that installed packages offer."""
        if not self.entry_points:
            return {}
        group = "_".join(self.namespace)
        return {name: load_plugin(group, name, group) for name in plugin_names(group)}

    def __contains__(self, name: str) -> bool:
        return name in self.get_all()


def create_registry(
    *namespace: str,
    generic_type: Any,
    entry_points: bool = False,
    description: str = "",
) -> TypedRegistry[Any]:
    """A registry of objects of a type; the type is for readers of the code."""
    del generic_type
    return TypedRegistry(namespace, entry_points, description)


def construct_from_registry(
    name: str,
    registry: Any,
    partial_function: bool = True,
    pre_validation_function: Any = None,
    post_validation_function: Callable[[Any], None] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """What the registered ``name`` makes of ``kwargs``, checked before and after.

    A function is called, or with ``partial_function`` given back bound to ``kwargs``; a class is
    made an object of. Raises ValueError when a check by type fails.
    """
    import functools

    found = registry.get(name)
    if isinstance(pre_validation_function, type):
        if not (isinstance(found, type) and issubclass(found, pre_validation_function)):
            raise ConfigError(f"{name!r} must be a {pre_validation_function.__name__}.")
    elif pre_validation_function is not None:
        pre_validation_function(found)
    if isinstance(found, type) or not partial_function:
        made = found(**(kwargs or {}))
    else:
        made = functools.partial(found, **(kwargs or {}))
    if post_validation_function is not None:
        post_validation_function(made)
    return made


def import_file(loc: str | os.PathLike[str]) -> Any:
    """The module that the Python file at a path makes."""
    path = os.fspath(loc)
    spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def save_registry() -> Iterator[None]:
    """Take back, at the end of the block, whatever was registered in it."""
    from mds.dataset.stream import streams_registry

    places = [*(r._objects for r in _all), streams_registry._classes]  # noqa: SLF001
    before = [dict(place) for place in places]
    try:
        yield
    finally:
        for place, saved in zip(places, before, strict=True):
            place.clear()
            place.update(saved)
