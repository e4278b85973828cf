"""Importing this makes ``import streaming``, and what is below it, resolve to this library.

A finder in front of ``sys.meta_path`` answers for the names in ``mds.compat.names`` with modules
whose attributes are looked up when they are first touched, so that opening the door costs nothing
and brings in no torch. An installed ``streaming`` stays closed behind it; one that was already
imported is refused, because two libraries under one name would mix their classes.
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

from mds.compat.names import ABSENT, MODULES, VERSION
from mds.compat.overrides import (
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
#: A folder for PYTHONPATH: its only module opens the door in every process that inherits it.
FOLDER = os.path.join(os.path.dirname(__file__), "door")
_ABSENT: Any = object()


class Facade(ModuleType):
    """Module of mosaicml-streaming whose names are those of modules of mds."""

    def __getattr__(self, name: str) -> Any:
        value = self._find_original(name)
        if value is _ABSENT:
            raise AttributeError(f"module {self.__name__!r}, of mds.compat, has no {name!r}.")
        vars(self)[name] = value
        return value

    def _find_original(self, name: str) -> Any:
        names = MODULES[self.__name__]
        if name in names:
            home, attribute = names[name]
            return getattr(importlib.import_module(home), attribute)
        if f"{self.__name__}.{name}" in MODULES:
            return importlib.import_module(f"{self.__name__}.{name}")
        return _ABSENT

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_live(name):
            forget_replacement(self.__name__, name)
            if value is not self._find_original(name):
                record_replacement(self.__name__, name, value)
        elif self._has_to_check(name, value):
            full = f"{self.__name__}.{name}"
            if name in HARMLESS:
                ignore(full)
                return
            refuse(full, find_remedy(name, vars(self).get(name)))
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_live(name):
            forget_replacement(self.__name__, name)
        elif name in MODULES[self.__name__]:
            refuse(f"{self.__name__}.{name}", find_remedy(name, vars(self).get(name)))
        super().__delattr__(name)

    def _is_live(self, name: str) -> bool:
        return is_live(self.__name__, name) and f"{self.__name__}.{name}" not in MODULES

    def _has_to_check(self, name: str, value: Any) -> bool:
        """Whether mosaicml-streaming would use another value of a name from now on."""
        child = f"{self.__name__}.{name}"
        if child in MODULES and name not in MODULES[self.__name__]:
            return not isinstance(value, Facade) or value.__name__ != child
        if name in MODULES[self.__name__]:
            is_import = isinstance(value, Facade) and value.__name__ == child
            is_same = name in vars(self) and vars(self)[name] is value
            return not (is_same or is_import)
        # Other names that begin with an underscore are marks of the user's own.
        return not name.startswith("_")

    def __dir__(self) -> list[str]:
        below = f"{self.__name__}."
        children = (name[len(below) :] for name in MODULES if name.startswith(below))
        return sorted({*super().__dir__(), *MODULES[self.__name__], *children})


class Door(MetaPathFinder, Loader):
    """Finds and makes the modules of the table."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of the table, None for anything that is not below ``streaming``."""
        del path, target
        if fullname in MODULES:
            return ModuleSpec(fullname, self, origin=__name__, is_package=True)
        if fullname.partition(".")[0] == ROOT:
            # A file of an installed package would be a stranger among ours.
            reason = ABSENT.get(fullname, "Write to the maintainers if your code needs it.")
            raise ModuleNotFoundError(
                f"mds.compat.streaming has no module {fullname!r}. {reason}", name=fullname
            )
        return None

    def create_module(self, spec: ModuleSpec) -> Facade:
        """The empty module."""
        return Facade(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Give the module what every module has; the rest is found when it is touched."""
        names = MODULES[module.__name__]
        module.__file__ = __file__  # tools look for the source of what they run
        module.__doc__ = f"The names of {module.__name__}, answered by mds."
        vars(module)["__all__"] = sorted(name for name in names if not name.startswith("_"))
        if module.__name__ == ROOT:
            vars(module)["__version__"] = VERSION


def facade(name: str) -> ModuleType:
    """A module of the table, made without being imported."""
    door = Door()
    spec = door.find_spec(name)
    assert spec is not None
    module = module_from_spec(spec)
    door.exec_module(module)
    return module


def install() -> None:
    """Open the door; opening it twice is fine.

    Raises CompatError (an ImportError) when another ``streaming`` is already imported.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != ROOT or isinstance(module, Facade):
            continue
        where = getattr(module, "__file__", None) or "somewhere"
        if os.path.dirname(where) == FOLDER:
            continue
        if os.path.dirname(where).endswith(os.path.join("mds", "compat", "door")):
            raise CompatError(
                f"the door {where} belongs to another installation of mds than {FOLDER}, which is "
                "imported. Put the folder on PYTHONPATH that `python -m mds.compat` prints in this "
                "environment."
            )
        raise CompatError(
            f"a module {name!r} from {where} is already imported, so `import streaming` cannot "
            "mean mds any more. Put `import mds.compat.streaming` before its first import."
        )
    if not any(isinstance(finder, Door) for finder in sys.meta_path):
        sys.meta_path.insert(0, Door())


install()
