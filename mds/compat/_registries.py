"""Registries of objects by name: `streaming.base.registry_utils`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from mds._lazy_imports import load_plugin, plugin_names
from mds.errors import ConfigError

T = TypeVar("T")
#: All registries of this process, for `save_registry`.
_registries: list[TypedRegistry[Any]] = []


class TypedRegistry(Generic[T]):
    """Registry of objects by name.

    - ``namespace`` (Sequence[str]): words that name the registry; joined by ``_`` they are the
      group of its entry points.
    - ``entry_points`` (bool, default False): whether installed packages add objects.
    - ``description`` (str, default ""): text about the registry.
    """

    def __init__(
        self, namespace: Sequence[str], entry_points: bool = False, description: str = ""
    ) -> None:
        self.namespace = tuple(namespace)
        self.entry_points = entry_points
        self.description = description
        self._objects: dict[str, T] = {}
        _registries.append(self)

    def register(self, name: str, *, func: T | None = None) -> Any:
        """Register ``func`` under a name and return it; without ``func``, return a decorator."""
        if func is None:
            return lambda decorated: self.register(name, func=decorated)
        self._objects[name] = func
        return func

    def __call__(self, name: str, func: T | None = None) -> Any:
        """Register an object; see `register`."""
        return self.register(name, func=func)

    def register_class(self, name: str, *, func: T | None = None) -> Any:
        """Register a class; see `register`."""
        return self.register(name, func=func)

    def get(self, name: str) -> T:
        """Return the object of a name. Raises ConfigError (a ValueError) for an unknown name."""
        objects = self.get_all()
        if name not in objects:
            raise ConfigError(
                f"{'.'.join(self.namespace)} has no {name!r}, only {', '.join(sorted(objects))}."
            )
        return objects[name]

    def get_all(self) -> dict[str, T]:
        """Return all objects by name; a registered one precedes that of an installed package."""
        return {**self.get_entry_points(), **self._objects}

    def get_entry_point(self, name: str, default: T | None = None) -> Any:
        """Return the object that an installed package has under a name, or ``default``."""
        return self.get_entry_points().get(name, default)

    def get_entry_points(self) -> dict[str, T]:
        """Return the objects of installed packages by name."""
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
    """Return a new registry; see `TypedRegistry`. ``generic_type``: type of its objects, unused."""
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
    """Return an object made by a class or function of a registry.

    - ``name`` (str): name of the class or function.
    - ``registry`` (TypedRegistry): registry that has the name.
    - ``partial_function`` (bool, default True): whether a function is returned with ``kwargs``
      bound to it, and not called.
    - ``pre_validation_function`` (type | Callable | None, default None): base that the class must
      have, or a function that is called with the class or function.
    - ``post_validation_function`` (Callable | None, default None): function that is called with the
      object.
    - ``kwargs`` (Mapping | None, default None): arguments by name.

    Raises ConfigError (a ValueError) for a class with another base.
    """
    import functools

    registered = registry.get(name)
    if isinstance(pre_validation_function, type):
        if not (isinstance(registered, type) and issubclass(registered, pre_validation_function)):
            raise ConfigError(f"{name!r} must be a {pre_validation_function.__name__}.")
    elif pre_validation_function is not None:
        pre_validation_function(registered)
    if isinstance(registered, type) or not partial_function:
        constructed = registered(**(kwargs or {}))
    else:
        constructed = functools.partial(registered, **(kwargs or {}))
    if post_validation_function is not None:
        post_validation_function(constructed)
    return constructed


def import_file(loc: str | os.PathLike[str]) -> Any:
    """Run a Python file and return it as a module. Raises ConfigError for any other file."""
    path = os.fspath(loc)
    spec = importlib.util.spec_from_file_location(os.path.basename(path).removesuffix(".py"), path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def save_registry() -> Iterator[None]:
    """Restore the entries of all registries at the end of a ``with`` block.

    These are the registries of this module, and the registry of streams.
    """
    from mds._dataset.stream import streams_registry

    tables = [
        *(registry._objects for registry in _registries),  # noqa: SLF001 - of this module
        streams_registry._classes,  # noqa: SLF001 - has no method to remove a class
    ]
    copies = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, copy in zip(tables, copies, strict=True):
            table.clear()
            table.update(copy)
