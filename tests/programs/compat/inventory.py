"""What `import streaming` gives: every module, name, method and parameter, as JSON.

Run under a Python with mosaicml-streaming it makes tests/unit/compat/inventory.json:

    other/bin/python tests/programs/compat/inventory.py > tests/unit/compat/inventory.json

Only what can be seen from outside is taken: names, kinds, parameters and their defaults.
"""

import importlib
import inspect
import json
import pkgutil
import sys
import typing
import warnings

SPECIAL = {"__init__", "__getitem__", "__iter__", "__len__", "__call__", "__contains__"}


def parameters_of(value):
    """Each parameter as [name, kind, default], or None where there is no signature."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    return [
        [p.name, p.kind.name, "" if p.default is p.empty else shown(p.default)]
        for p in signature.parameters.values()
    ]


def shown(default):
    """A default as text: numbers that are equal look equal."""
    if isinstance(default, float) and default.is_integer():
        return repr(int(default))
    return f"class {default.__name__}" if inspect.isclass(default) else repr(default)


def member_of(value):
    """A method, or what else a class has under a name."""
    function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
    if isinstance(value, property) or not callable(function):
        return {"kind": "attribute"}
    return {"kind": "method", "parameters": parameters_of(function)}


def is_shown(name):
    """Whether a name is there to be used: no dunder, nothing of abc or enum."""
    if name.startswith("__"):
        return name in SPECIAL
    return name != "_abc_impl" and not (name.startswith("_") and name.endswith("_"))


def describe(value):
    """One name of a module."""
    if inspect.isclass(value):
        members = {name: member_of(v) for name, v in vars(value).items() if is_shown(name)}
        return {"kind": "class", "parameters": parameters_of(value), "members": members}
    if callable(value):
        return {"kind": "function", "parameters": parameters_of(value)}
    return {"kind": "value"}


def modules_below(package):
    """The names of a package and all modules below it."""
    yield package.__name__
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not found.ispkg:
            yield found.name
            continue
        try:
            yield from modules_below(importlib.import_module(found.name))
        except ImportError:
            yield found.name


def main():
    """Print the inventory."""
    warnings.simplefilter("ignore")
    import streaming

    out = {}
    for name in sorted(modules_below(streaming)):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            out[name] = {"error": str(error)}
            continue
        names, imported = {}, {}
        for key, value in sorted(vars(module).items()):
            if inspect.ismodule(value) or (key.startswith("__") and key != "__version__"):
                continue
            home = getattr(value, "__module__", None)
            if isinstance(value, typing.TypeVar):
                continue
            if home == name or not isinstance(home, str):
                if key not in {"annotations", "logger", "TYPE_CHECKING"}:
                    names[key] = describe(value)
            elif home.partition(".")[0] == "streaming":
                imported[key] = home
        out[name] = {"names": names, "imported": imported}
    json.dump(out, sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
