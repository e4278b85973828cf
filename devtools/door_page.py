"""Script that writes docs/door.md: names of mosaicml-streaming 0.13 that differ in mds.

    python -m devtools.door_page            # writes the page
    python -m devtools.door_page --check    # exits with 1 if the page is out of date

tests/unit/compat/inventory.json has the names of 0.13 with their parameters, as
tests/programs/compat/inventory.py finds them. Each name is looked up in mds and compared; the page
lists the differences.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pathlib
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

import mds.compat.streaming  # noqa: F401 - makes `import streaming` mean mds
from mds.compat._names import ABSENT
from mds.compat._overrides import uncalled_of

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "door.md"
INVENTORY = ROOT / "tests" / "unit" / "compat" / "inventory.json"

#: Calls of tests/programs/compat/bad_calls.py that end differently under 0.13, and how.
DIFFERENT_CALLS = {
    "StreamingDataset(local=d, batch_size=2).load_state_dict({})": (
        "a ValueError at once; 0.13 raises a KeyError at the next iteration"
    ),
}
_HEAD = """\
# Names of mosaicml-streaming that differ in mds

mds can [provide the `streaming` package](migrating.md#keep-import-streaming) to code that you
cannot change. A script compared this package with mosaicml-streaming 0.13: {modules} modules,
the {count} functions, classes and constants that they define (*names*), and the methods of these
classes. This page lists all differences. A name that is not listed has the same parameters and
defaults.

"""
_MISSING_MODULES = """\
## Missing modules

These modules of mosaicml-streaming convert datasets. With mds, importing one raises
`ModuleNotFoundError`. Use [`mds-convert`](convert.md) instead:

"""
_NO_SIMULATOR = """
The simulator, `streaming.simulation`, is missing too. Use `dataset.explain()` to see what a run
downloads and caches, and `mds.plan.EpochPlan` to compute the order of the samples.

"""
_MONKEY_PATCHING = """\
## Monkey patching

If your code assigns to names of `streaming`, as in
`streaming.base.distributed.get_rank = my_function`, mds uses the new values of these names:

- classes in `streaming`, `streaming.base`, `streaming.text`, `streaming.vision` and
  `streaming.multimodal`;
- `get_rank`, `get_world_size` and `get_local_world_size`;
- entries of `batching_methods`, `shuffle.algos` and `partition.algos`;
- `generate_work` in `streaming.base.dataset`;
- `get_partitions` and `get_shuffle` in `streaming.base.batching.random`;
- `_encodings` and `streams_registry`;
- `__getitem__`, `get_item` and [other methods](migrating.md#subclasses-of-streamingdataset), also
  on `StreamingDataset` itself.

If a function of yours computes the order of samples, each worker computes the order of the whole
epoch. Spawned workers receive your functions by pickle, so these must be importable.

Assigning to a name of shared memory or process groups, such as `TICK` and `barrier`, has no effect
and causes one warning. Assigning to any other name of a module or any other method of a class
raises `SealedNameError` ([design](decisions/0027-replaced-names-take-effect-or-raise.md)). On a
single dataset or stream, you cannot replace a method such as `get_item` either: override it in a
subclass. For some names that raise the error, there is another way:

| name that raises the error | use instead |
|---|---|
| `World` | `get_rank`, `get_world_size`, `get_local_world_size`, or the argument `topology=` |
| `get_shuffle`, `get_partitions` outside `streaming.base.batching.random` \
| entries of `shuffle.algos`, `partition.algos` |
| downloaders, uploaders | `mds.storage.register_store()`, or a Stream's `_download_file` |
| readers, `mds_decode` | `get_item` of a subclass, or a class in `_encodings` |

"""
_OVERRIDES = """\
## Methods that you cannot override

mds never calls the methods in the two tables below. In mosaicml-streaming, an override from the
first table could change samples, so mds raises `SealedNameError` when Python defines the class. For
an override from the second table, mds only warns.

"""
_OTHER_PARAMETERS = """\
## Other parameters

"""
_MORE_PARAMETERS = """\
## Additional parameters

These parameters have defaults, so code that was written for mosaicml-streaming runs unchanged.

"""
_PLACEHOLDERS = """\
## Names that you can import but not use

In mosaicml-streaming, these names manage shared memory and background threads. mds does not need
them. Calling one of them raises `SealedNameError`: {}.

"""
_MISSING_NAMES = """\
## Missing names

Importing one of these functions or classes, or calling one of these methods, raises an error:

| module | names |
|---|---|
"""
_NOT_COMPARED = """
## Modules that were not compared

The script could not import these modules from mosaicml-streaming, because they need further
packages. mds has only the first one:

{}
## Calls that end differently

In this call, `d` is the folder of a dataset:

| call | with mds |
|---|---|
"""
_END = """
Next: [migrate from mosaicml-streaming](migrating.md).
"""
#: A module whose names can be imported and raise an error if they are called.
_PLACEHOLDER_MODULE = "mds.compat._placeholders"


class Difference(NamedTuple):
    """A name of 0.13 that differs in mds.

    ``kind`` is "more" or "other" (parameters), "refused" or "warning" (overrides of a method),
    "placeholder" or "missing". ``detail`` has the parameters, or what to use instead.
    """

    kind: str
    name: str
    detail: str = ""


def parameters_of(value: Any) -> list[list[str]] | None:
    """Return the parameters as lists [name, kind, default], as in the inventory.

    A default is its ``repr``, and an empty text if there is none. Returns None for an object
    without a signature.
    """
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    return [
        [p.name, p.kind.name, "" if p.default is p.empty else _default_text(p.default)]
        for p in signature.parameters.values()
    ]


def _default_text(default: Any) -> str:
    if isinstance(default, float) and default.is_integer():
        return repr(int(default))
    return f"class {default.__name__}" if inspect.isclass(default) else repr(default)


def compare(
    name: str, theirs: list[list[str]] | None, ours: list[list[str]] | None
) -> list[Difference]:
    """Return the difference between the parameters of a function or class, or an empty list."""
    if theirs is None or ours is None or theirs == ours:
        return []
    # Parameters given by name may come in any order.
    theirs, ours = sorted(theirs, key=_sort_key), sorted(ours, key=_sort_key)
    their_names = {name for name, _, _ in theirs}
    added = [parameter for parameter in ours if parameter[0] not in their_names]
    common = [parameter for parameter in ours if parameter[0] in their_names]
    are_optional = all(default or kind.startswith("VAR") for _, kind, default in added)
    if common == theirs and are_optional:
        names = ", ".join(f"`{name}`" for name, _, _ in added)
        return [Difference("more", name, names)] if added else []
    text = f"`({', '.join(_parameter_text(parameter) for parameter in ours)})`"
    return [Difference("other", name, text)]


def _sort_key(parameter: list[str]) -> str:
    return parameter[0] if parameter[1] == "KEYWORD_ONLY" else ""


def _parameter_text(parameter: list[str]) -> str:
    name, kind, default = parameter
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(kind, "")
    return f"{stars}{name}={default}" if default else f"{stars}{name}"


def differences_of(name: str, theirs: dict[str, Any], module: Any) -> list[Difference]:
    """Return the differences of a name of a module, and of the members of a class.

    ``theirs``: facts of the name in the inventory.
    """
    ours = getattr(module, name, None)
    if ours is None:
        return [Difference("missing", name)]
    if theirs["kind"] == "value":
        return []
    if _is_placeholder(ours):
        return [Difference("placeholder", name)]
    if theirs["kind"] == "class" and not inspect.isclass(ours):
        return [Difference("other", name, "a function")]
    differences = compare(name, theirs["parameters"], parameters_of(ours))
    uncalled = uncalled_of(ours) if inspect.isclass(ours) else {}
    refused = {name for kind in getattr(ours, "__mro__", ()) for name in _refused_of(kind)}
    for member, facts in sorted(theirs.get("members", {}).items()):
        if member in uncalled:
            kind = "refused" if member in refused else "warning"
            differences.append(Difference(kind, f"{name}.{member}", uncalled[member]))
        elif member != "__init__":
            differences += _member_differences(ours, member, facts, f"{name}.{member}")
    return differences


def _is_placeholder(value: Any) -> bool:
    """Return whether calling a class or a function of mds only raises SealedNameError."""
    takes_anything = {kind for _, kind, _ in parameters_of(value) or []} == {
        "VAR_POSITIONAL",
        "VAR_KEYWORD",
    }
    return takes_anything and getattr(value, "__module__", "") == _PLACEHOLDER_MODULE


def _refused_of(kind: type) -> dict[str, str]:
    refused: dict[str, str] = vars(kind).get("_refused", {})
    return refused


def _member_differences(
    kind: type, member: str, facts: dict[str, Any], name: str
) -> list[Difference]:
    ours = inspect.getattr_static(kind, member, None)
    if facts["kind"] != "method":
        return []  # an attribute that is set on each object does not show on the class
    if ours is None:
        return [Difference("missing", name)]
    function = ours.__func__ if isinstance(ours, (classmethod, staticmethod)) else ours
    if not callable(function):
        return []
    return compare(name, _without_self(facts["parameters"]), _without_self(parameters_of(function)))


def _without_self(parameters: list[list[str]] | None) -> list[list[str]] | None:
    if parameters and parameters[0][0] in {"self", "cls"}:
        return parameters[1:]
    return parameters


def make_page() -> str:
    """Return the text of the page."""
    inventory = json.loads(INVENTORY.read_text(encoding="utf-8"))
    differences: list[Difference] = []
    missing_names: dict[str, list[str]] = {}
    missing_modules = []
    modules = count = 0
    for module, facts in sorted(inventory.items()):
        if "error" in facts:
            continue
        try:
            ours = importlib.import_module(module)
        except ImportError:
            missing_modules.append(module)
            continue
        modules += 1
        count += len(facts["names"])
        differences_here = [
            difference
            for name, theirs in sorted(facts["names"].items())
            for difference in differences_of(name, theirs, ours)
        ]
        differences += [
            difference for difference in differences_here if difference.kind != "missing"
        ]
        missing_here = {
            difference.name for difference in differences_here if difference.kind == "missing"
        }
        missing_here |= {name for name in facts["imported"] if not hasattr(ours, name)}
        if missing_here:
            missing_names[module] = sorted(missing_here)
    unknown = [name for name in missing_modules if "mds-convert" not in _remedy_of(name)]
    if unknown:
        raise RuntimeError(f"these modules convert no datasets, but are missing: {unknown}.")
    not_compared = [name for name, facts in sorted(inventory.items()) if "error" in facts]
    placeholders = sorted({entry.name for entry in differences if entry.kind == "placeholder"})
    return "".join(
        [
            _HEAD.format(count=count, modules=modules),
            _MISSING_MODULES,
            *(f"- `{module}`\n" for module in missing_modules),
            _NO_SIMULATOR,
            _OVERRIDES,
            _table(differences, "refused", "methods whose override is an error", "use instead"),
            _table(
                differences, "warning", "methods whose override causes a warning", "use instead"
            ),
            _MONKEY_PATCHING,
            _OTHER_PARAMETERS,
            _table(differences, "other", "functions and classes", "parameters in mds"),
            _MORE_PARAMETERS,
            _table(differences, "more", "functions and classes", "additional parameters"),
            _wrap(_PLACEHOLDERS.format(_names_text(placeholders))),
            _MISSING_NAMES,
            *(
                f"| `{module}` | {_names_text(names)} |\n"
                for module, names in missing_names.items()
            ),
            _NOT_COMPARED.format("".join(f"- `{module}`\n" for module in not_compared)),
            *(f"| `{call}` | {end} |\n" for call, end in DIFFERENT_CALLS.items()),
            _END,
        ]
    )


def _remedy_of(module: str) -> str:
    """Return what to do without a module, or an empty text if mds says nothing about it."""
    parent = max((name for name in ABSENT if module.startswith(name)), key=len, default="")
    return ABSENT.get(parent, "")


def _names_text(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _wrap(text: str) -> str:
    """Return paragraphs with lines of at most 100 columns."""
    paragraphs = [
        textwrap.fill(part, 100, break_long_words=False, break_on_hyphens=False)
        for part in text.strip().split("\n\n")
    ]
    return "\n\n".join(paragraphs) + "\n\n"


def _table(differences: list[Difference], kind: str, names: str, detail: str) -> str:
    """Return the differences of a kind as a table, with a row for each detail."""
    rows: dict[str, list[str]] = {}
    for difference in differences:
        if difference.kind == kind:
            rows.setdefault(difference.detail, []).append(difference.name)
    lines = [f"| {_names_text(dict.fromkeys(row))} | {text} |\n" for text, row in rows.items()]
    return f"| {names} | {detail} |\n|---|---|\n{''.join(lines)}\n"


def main(arguments: list[str]) -> int:
    """Write the page; with ``--check`` return 1 if the file differs from it, else 0."""
    page = make_page()
    if "--check" not in arguments:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    return int(PAGE.read_text(encoding="utf-8") != page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
