"""Importing this module makes ``import streaming``, and the modules below it, mean mds.

A finder at the front of ``sys.meta_path`` makes a module for each name in `mds.compat._names`. The
module looks an attribute up when it is first read, so importing it is cheap and loads no torch. An
installed ``streaming`` is never imported. If one was imported before, `install` raises CompatError:
two libraries under one name would mix their classes.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

from mds.compat._names import ABSENT, MISSING_PRIVATE_NAMES, MODULES, VERSION
from mds.compat._overrides import (
    HARMLESS,
    find_remedy,
    forget_replacement,
    ignore,
    is_live,
    record_replacement,
    refuse,
)
from mds.errors import CompatError

ROOT = "streaming"
#: Folder for PYTHONPATH, whose only module imports this one in every process that inherits it.
FOLDER = os.path.join(os.path.dirname(__file__), "door")
_ABSENT: Any = object()


class Facade(ModuleType):
    """Module of mosaicml-streaming whose attributes are those of modules of mds.

    Setting an attribute replaces a live name, raises for a sealed one, and warns of a harmless one;
    see `mds.compat._overrides`.
    """

    def __getattr__(self, name: str) -> Any:
        # Called only while vars(self) does not have the attribute, so once for each.
        value = self._find_original(name)
        if value is _ABSENT:
            raise AttributeError(f"module {self.__name__!r}, of mds.compat, has no {name!r}.")
        vars(self)[name] = value
        return value

    def _find_original(self, name: str) -> Any:
        """Return what the name means before code has set it, or `_ABSENT`.

        It is an object of mds, or a module below this one (``streaming.base`` of ``streaming``).
        """
        names = MODULES[self.__name__]
        if name in names:
            home, attribute = names[name]
            return getattr(importlib.import_module(home), attribute)
        if f"{self.__name__}.{name}" in MODULES:
            return importlib.import_module(f"{self.__name__}.{name}")
        return _ABSENT

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_live(name):
            # Setting the original again, as tests do, ends a replacement.
            forget_replacement(self.__name__, name)
            if value is not self._find_original(name):
                record_replacement(self.__name__, name, value)
        elif self._replaces(name, value):
            full_name = f"{self.__name__}.{name}"
            if name in HARMLESS:
                ignore(full_name)
                return
            refuse(full_name, find_remedy(name, vars(self).get(name)))
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        # Deleting a live name brings the original back; a sealed name cannot be deleted.
        if self._is_live(name):
            forget_replacement(self.__name__, name)
        elif name in MODULES[self.__name__]:
            refuse(f"{self.__name__}.{name}", find_remedy(name, vars(self).get(name)))
        super().__delattr__(name)

    def _is_live(self, name: str) -> bool:
        return is_live(self.__name__, name) and f"{self.__name__}.{name}" not in MODULES

    def _replaces(self, name: str, value: Any) -> bool:
        """Whether setting a name would make mosaicml-streaming use another object.

        It would not if the value is what the name means already. Python itself sets each module on
        its parent when it imports the module.
        """
        child = f"{self.__name__}.{name}"
        is_import = isinstance(value, Facade) and value.__name__ == child
        if name in MODULES[self.__name__]:
            is_same = name in vars(self) and vars(self)[name] is value
            return not (is_same or is_import)
        if child in MODULES:
            return not is_import
        # A public name that mds does not have may be one of mosaicml-streaming. A private name is
        # not, except for the listed ones: code sets such a name to mark a module as changed.
        is_private = name.startswith("_")
        return not is_private or name in MISSING_PRIVATE_NAMES.get(self.__name__, ())

    def __dir__(self) -> list[str]:
        below = f"{self.__name__}."
        children = (name[len(below) :] for name in MODULES if name.startswith(below))
        return sorted({*super().__dir__(), *MODULES[self.__name__], *children})


class Door(MetaPathFinder, Loader):
    """Finder and loader of the modules in `mds.compat._names.MODULES`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module below ``streaming``, and None for any other module.

        Raises ModuleNotFoundError, which says what to use, for a module that mds does not have.
        """
        del path, target
        if fullname in MODULES:
            return ModuleSpec(fullname, self, origin=__name__, is_package=True)
        if fullname.partition(".")[0] == ROOT:
            # Python would import the module from an installed mosaicml-streaming.
            reason = ABSENT.get(fullname, "Write to the maintainers if your code needs it.")
            raise ModuleNotFoundError(
                f"mds.compat.streaming has no module {fullname!r}. {reason}", name=fullname
            )
        return None

    def create_module(self, spec: ModuleSpec) -> Facade:
        """Return a module without attributes."""
        return Facade(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Set the special attributes of a module; it looks up all others when they are read."""
        names = MODULES[module.__name__]
        module.__file__ = __file__  # debuggers and inspect need a file
        module.__doc__ = f"The names of {module.__name__}, answered by mds."
        vars(module)["__all__"] = sorted(name for name in names if not name.startswith("_"))
        if module.__name__ == ROOT:
            vars(module)["__version__"] = VERSION


def facade(name: str) -> ModuleType:
    """Return a new module of `mds.compat._names.MODULES` without importing it."""
    door = Door()
    spec = door.find_spec(name)
    assert spec is not None
    module = module_from_spec(spec)
    door.exec_module(module)
    return module


def install() -> None:
    """Make ``import streaming`` mean mds; a second call does nothing.

    Raises CompatError (an ImportError) if another ``streaming`` was imported before.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != ROOT or isinstance(module, Facade):
            continue
        path = getattr(module, "__file__", None) or "an unknown file"
        if os.path.dirname(path) == FOLDER:  # the module that imports this one
            continue
        if os.path.dirname(path).endswith(os.path.join("mds", "compat", "door")):
            raise CompatError(
                f"the file {path} belongs to another installation of mds than {FOLDER}, which is "
                "imported. Put the folder on PYTHONPATH that `python -m mds.compat` prints in this "
                "environment."
            )
        raise CompatError(
            f"a module {name!r} from {path} is already imported, so `import streaming` cannot "
            "mean mds any more. Put `import mds.compat.streaming` before its first import."
        )
    if not any(isinstance(finder, Door) for finder in sys.meta_path):
        sys.meta_path.insert(0, Door())


install()
