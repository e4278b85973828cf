"""Script that writes docs/door.md: how `import streaming` of mds compares with 0.13, name by name.

    python -m devtools.door_page            # writes the page
    python -m devtools.door_page --check    # exits with 1 if the page is out of date

tests/unit/compat/inventory.json has the names of 0.13 with their parameters, as
tests/programs/compat/inventory.py finds them. Each name is looked up in mds and compared.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pathlib
import sys
from typing import Any

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
# Every name of mosaicml-streaming

`import streaming` can mean mds: that is the
[door](migrating.md#code-that-you-cannot-change-the-door). This page compares every name with
mosaicml-streaming 0.13. `python -m devtools.door_page` writes it. A name of mds is

* **the same**: it has the same parameters, of the same kinds and with the same defaults;
* **more**: the same, with further parameters, which have defaults and are listed;
* **other**: it has other parameters, which are listed;
* **refused**: mds does not call this method. A class that overrides it raises SealedNameError when
  it is made, because the override could change samples;
* **a warning**: mds does not call this method. A class that overrides it warns when it is made; no
  sample changes;
* **missing**: mds does not have it.

Methods of a class are listed unless they are the same.

"""


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


def compare(theirs: list[list[str]] | None, ours: list[list[str]] | None) -> str:
    """Return the answer for a function or a class: "the same", or the differences."""
    if theirs is None or ours is None or theirs == ours:
        return "the same"
    # Parameters given by name may come in any order.
    theirs, ours = sorted(theirs, key=_sort_key), sorted(ours, key=_sort_key)
    their_names = {name for name, _, _ in theirs}
    added = [parameter for parameter in ours if parameter[0] not in their_names]
    common = [parameter for parameter in ours if parameter[0] in their_names]
    are_optional = all(default or kind.startswith("VAR") for _, kind, default in added)
    if common == theirs and are_optional:
        return f"more: {', '.join(f'`{name}`' for name, _, _ in added)}" if added else "the same"
    return f"other: `({', '.join(_parameter_text(parameter) for parameter in ours)})`"


def _sort_key(parameter: list[str]) -> str:
    return parameter[0] if parameter[1] == "KEYWORD_ONLY" else ""


def _parameter_text(parameter: list[str]) -> str:
    name, kind, default = parameter
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(kind, "")
    return f"{stars}{name}={default}" if default else f"{stars}{name}"


def answers_of(name: str, theirs: dict[str, Any], module: Any) -> list[tuple[str, str]]:
    """Return rows (name, answer) for a name of a module, and for members that are not the same.

    ``theirs``: facts of the name in the inventory.
    """
    ours = getattr(module, name, None)
    if ours is None:
        return [(name, "missing")]
    if theirs["kind"] == "value":
        return [(name, "the same")]
    rows = [(name, compare(theirs["parameters"], parameters_of(ours)))]
    if theirs["kind"] == "class" and not inspect.isclass(ours):
        return [(name, "other: a function")]
    uncalled = uncalled_of(ours) if inspect.isclass(ours) else {}
    refused = {name for kind in getattr(ours, "__mro__", ()) for name in _refused_of(kind)}
    for member, facts in sorted(theirs.get("members", {}).items()):
        if member == "__init__":
            continue
        answer = _member_answer(ours, member, facts)
        if member in uncalled:
            kind = "refused" if member in refused else "a warning"
            missing = "" if hasattr(ours, member) else " and missing"
            answer = f"{kind}{missing}; use {uncalled[member]}"
        if answer != "the same":
            rows.append((f"{name}.{member}", answer))
    return rows


def _refused_of(kind: type) -> dict[str, str]:
    refused: dict[str, str] = vars(kind).get("_refused", {})
    return refused


def _member_answer(kind: type, member: str, facts: dict[str, Any]) -> str:
    ours = inspect.getattr_static(kind, member, None)
    if ours is None:
        # An attribute that is set on each object does not show on the class.
        return "missing" if facts["kind"] == "method" else "the same"
    if facts["kind"] != "method":
        return "the same"
    function = ours.__func__ if isinstance(ours, (classmethod, staticmethod)) else ours
    if not callable(function):
        return "the same"
    return compare(_without_self(facts["parameters"]), _without_self(parameters_of(function)))


def _without_self(parameters: list[list[str]] | None) -> list[list[str]] | None:
    if parameters and parameters[0][0] in {"self", "cls"}:
        return parameters[1:]
    return parameters


def make_page() -> str:
    """Return the text of the page."""
    inventory = json.loads(INVENTORY.read_text(encoding="utf-8"))
    parts = [_HEAD]
    missing_modules = []
    for module, facts in sorted(inventory.items()):
        if "error" in facts:
            continue
        try:
            ours = importlib.import_module(module)
        except ImportError:
            missing_modules.append(module)
            continue
        names = sorted(facts["names"].items())
        rows = [row for name, theirs in names for row in answers_of(name, theirs, ours)]
        rows += [
            (name, "missing at this place")
            for name in sorted(facts["imported"])
            if not hasattr(ours, name)
        ]
        if rows:
            lines = "".join(f"| `{name}` | {answer} |\n" for name, answer in rows)
            parts.append(f"## {module}\n\n| name | answer |\n|---|---|\n{lines}\n")
    parts.append("## Missing modules\n\n| module | what to do |\n|---|---|\n")
    for module in missing_modules:
        parent = max((name for name in ABSENT if module.startswith(name)), key=len, default="")
        parts.append(f"| `{module}` | {ABSENT.get(parent, '')} |\n")
    not_compared = [f"`{name}`" for name, facts in sorted(inventory.items()) if "error" in facts]
    parts.append("\n## Modules that were not compared\n\n")
    parts.append(f"0.13 needs further packages to import them: {', '.join(not_compared)}.\n")
    parts.append("\n## Calls that end differently\n\n| call | with mds |\n|---|---|\n")
    parts += [f"| `{call}` | {end} |\n" for call, end in DIFFERENT_CALLS.items()]
    return "".join(parts)


def main(arguments: list[str]) -> int:
    """Write the page; with ``--check`` return 1 if the file differs from it, else 0."""
    page = make_page()
    if "--check" not in arguments:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    return int(PAGE.read_text(encoding="utf-8") != page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
