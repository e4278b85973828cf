"""Imports at first use: the public names of a package (PEP 562), and things that users add by name.

Users add packers, stores and the like by a function ``register_KIND`` (`Registry`), or by an entry
point of a package that they install. The metadata of installed packages is read only for a name
that this library does not define.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable, Collection, Mapping, MutableMapping
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar, overload

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
Decorated = TypeVar("Decorated")


def on_first_touch(
    package: str, homes: Mapping[str, str], modules: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package that imports its names at first use.

    Args:
        package: Name of the package.
        homes: By public name: the module of the package that defines it, such as
            ``{"StreamingDataset": "dataset.streaming"}``.
        modules: Names of modules of the package that are attributes of it without an import.
    """

    def import_name(name: str) -> Any:
        """Import the module that defines a public name, and return the name's value.

        Python calls this, the package's ``__getattr__``, for a name that the package lacks.
        """
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            message = f"module {package!r} has no attribute {name!r}"
            advice = _advice(package, name)
            if advice and _is_importing(sys._getframe(1)):  # noqa: SLF001 - the caller
                raise ImportError(f"cannot import name {name!r} from {package!r}.{advice}")
            if advice:
                raise AttributeError(f"{message}.{advice}")
            # With `name` and `obj`, Python suggests the nearest name.
            raise AttributeError(message, name=name, obj=sys.modules[package])
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)  # so later uses do not call this function
        return value

    def list_names() -> list[str]:
        """Return the names of the package, imported or not: its __dir__."""
        return sorted({*vars(sys.modules[package]), *homes, *modules})

    return import_name, list_names


def _advice(package: str, name: str) -> str:
    """Return what to write in place of a name of another library, with a space before it, or ''."""
    from mds._foreign_words import package_advice  # on the way to an error only

    return package_advice(name, package)


def _is_importing(frame: FrameType) -> bool:
    """Whether a frame executes ``from package import name`` now, and not ``package.name``.

    Python replaces an AttributeError by an ImportError of its own there, without the message.
    """
    import dis  # on the way to an error only

    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "IMPORT_FROM"


def plugin_names(group: str) -> list[str]:
    """Return the names that installed packages offer in a group such as ``mds.shuffles``."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=group).names)


def load_plugin(group: str, name: str, kind: str) -> Any:
    """Return the object that an installed package offers under a name, or None.

    Args:
        group: Group of entry points, such as ``mds.shuffles``.
        name: Name of the entry point.
        kind: Kind of the object in errors, such as "shuffle".

    Raises ConfigError if the import of the package fails.
    """
    from importlib.metadata import entry_points

    # Several packages may offer the name; the first one is taken.
    points = tuple(entry_points(group=group, name=name))
    if not points:
        return None
    try:
        return points[0].load()
    except Exception as error:  # a package may raise anything
        from mds.errors import ConfigError

        raise ConfigError(
            f"the {kind} {name!r} ({points[0].value}) cannot be loaded: "
            f"{str(error).rstrip('.')}. Repair or remove the package that registers it."
        ) from error


# ------------------------------------------------------------------------- things that users add


class Registry(Generic[T]):
    """Things of one kind by name: those that users register, and those of installed packages.

    Names are letters, digits, ``_``, ``.``, ``+`` and ``-``. A name that is built in or already
    registered is taken, unless ``replace=True`` is given: what was written or computed under it
    then means something else in this process. A function or class that is defined again, as by a
    cell of a notebook, replaces itself.

    A package offers a thing by an entry point of the group ``mds.KINDs``, such as ``mds.packers``.

    Args:
        kind: Kind of the things, such as "packer"; the function is ``register_packer``.
        entries: Things by name. It may hold built-in ones, too.
        built_in: Names of the built-in things.
        accepts: Whether an object is a thing of this kind.
        requirement: What to give instead of another object, such as "give a function of ...".
        contract: Class below `mds.testing` whose tests every thing of this kind passes.
    """

    def __init__(
        self,
        kind: str,
        entries: MutableMapping[str, T],
        built_in: Collection[str],
        accepts: Callable[[Any], bool],
        requirement: str,
        contract: str,
    ) -> None:
        self.kind, self.entries, self.built_in = kind, entries, built_in
        self._accepts, self._requirement, self._contract = accepts, requirement, contract

    def add(self, name: str, thing: T, *, replace: bool) -> None:
        """Add a thing under a name.

        Raises ConfigError for a name that is taken or has other characters, and for a thing of
        another kind.
        """
        from mds.errors import ConfigError

        if not re.fullmatch(r"[\w.+-]+", name):
            article = "an" if self.kind[0] in "aeiou" else "a"
            raise ConfigError(
                f"{name!r} cannot be the name of {article} {self.kind}. Use letters, digits, '_', "
                "'.', '+' and '-'."
            )
        checked_thing = self._checked(name, thing)
        is_built_in = name in self.built_in
        earlier = None if is_built_in else self.entries.get(name)
        if not replace and (is_built_in or not _is_again(earlier, thing)):
            state = "built in" if is_built_in else "already registered"
            raise ConfigError(
                f"the {self.kind} {name!r} is {state}. Use another name, or pass replace=True."
            )
        self.entries[name] = checked_thing

    def find(self, name: str) -> T | None:
        """Return the thing that was registered under a name, or that a package offers, or None.

        Raises ConfigError for a package that cannot be imported or offers another kind of thing.
        """
        if name not in self.entries and name not in self.built_in:
            loaded = load_plugin(f"mds.{self.kind}s", name, self.kind)
            if loaded is not None:
                return self.entries.setdefault(name, self._checked(name, loaded))
        return self.entries.get(name)

    def names(self) -> list[str]:
        """Return all names: registered and built-in ones, then those of installed packages."""
        own_names = [*self.entries, *self.built_in]
        return list(dict.fromkeys([*own_names, *plugin_names(f"mds.{self.kind}s")]))

    def _checked(self, name: str, thing: Any) -> T:
        """Return a thing if it is of this kind. Raises ConfigError otherwise."""
        if not self._accepts(thing):
            from mds.errors import ConfigError

            raise ConfigError(
                f"the {self.kind} {name!r} cannot be {thing!r}: {self._requirement}. See the "
                f"contract mds.testing.{self._contract}."
            )
        checked: T = thing
        return checked


def _is_again(earlier: Any, thing: Any) -> bool:
    """Whether nothing is registered yet, or the same function or class, perhaps defined again."""
    if earlier is None or earlier is thing:
        return True
    paths = [
        (getattr(each, "__module__", ""), getattr(each, "__qualname__", "<"))
        for each in (earlier, thing)
    ]
    return paths[0] == paths[1] and "<" not in paths[0][1]  # not a lambda, nor local to a function


def is_class(thing: Any, base: type) -> bool:
    """Whether a thing is a class derived from ``base`` that defines all its abstract methods."""
    is_derived = isinstance(thing, type) and issubclass(thing, base)
    return is_derived and not getattr(thing, "__abstractmethods__", None)


class _Adds(Protocol[T_contra]):
    """Function that adds a thing under a name to a registry."""

    def __call__(self, name: str, thing: T_contra, /, *, replace: bool = False) -> None:
        """Add it."""


class Register(Protocol[T]):
    """Function ``register_KIND(name, thing)``, or as a decorator ``@register_KIND(name)``."""

    @overload
    def __call__(self, name: str, thing: T, /, *, replace: bool = False) -> T: ...

    @overload
    def __call__(
        self, name: str, /, *, replace: bool = False
    ) -> Callable[[Decorated], Decorated]: ...


def registers(function: _Adds[T]) -> Register[T]:
    """Decorate ``register_KIND(name, thing, *, replace=False)``, to be used as a decorator, too.

    It then returns the thing.
    """
    import inspect

    owner = function.__name__  # type: ignore[attr-defined]
    names = [*inspect.signature(function).parameters]

    @functools.wraps(function)
    def register(*args: Any, **keywords: Any) -> Any:
        from mds._arguments import refuse_unknown
        from mds.errors import ConfigError

        refuse_unknown(owner, keywords, names)
        name = args[0] if args else keywords.pop("name", None)
        if not isinstance(name, str):
            label = getattr(name, "__name__", type(name).__name__)
            raise ConfigError(
                f"{owner}({label}): the first argument is the name. Write {owner}('my_name', "
                f"{label}), or @{owner}('my_name') above its definition."
            )
        if len(args) < 2 and names[1] not in keywords:
            return functools.partial(register, name, **keywords)
        function(name, *args[1:], **keywords)
        return args[1] if len(args) > 1 else keywords[names[1]]

    return register
