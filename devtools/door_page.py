"""Makes docs/door.md: every name of mosaicml-streaming 0.13, and what answers it through the door.

    python -m devtools.door_page            # writes the page
    python -m devtools.door_page --check    # says whether it is what it would be

The names of 0.13 come from tests/unit/compat/inventory.json, the answers from the door itself: a
name is looked up, and its parameters are compared with those that the inventory has.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pathlib
import sys
from typing import Any

import mds.compat.streaming  # noqa: F401 - opens the door
from mds.compat.names import ABSENT
from mds.compat.overrides import uncalled_of

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "door.md"
INVENTORY = ROOT / "tests" / "unit" / "compat" / "inventory.json"

#: Calls of tests/programs/compat/bad_calls.py that end otherwise than under 0.13, and why.
DIFFERENT_CALLS = {
    "StreamingDataset(local=d, batch_size=2).load_state_dict({})": (
        "a ValueError at once; 0.13 raises a KeyError at the next iteration"
    ),
}
_HEAD = """\
# Every name of mosaicml-streaming, and what answers it

This page is made by `python -m devtools.door_page` from the
[door](migrating.md#code-that-you-cannot-change-the-door) itself, and compared with an installed
0.13. A name is

* **the same**: there, with the same parameters, of the same kinds and with the same defaults;
* **more**: the same, and it takes further parameters, all with defaults, which are named;
* **other**: there, with other parameters, which are named;
* **refused**: a method that 0.13 calls by itself and that is not called here; a class that
  overrides it raises SealedNameError when it is made;
* **a warning**: the same, for a method that cannot change a sample; the class is made;
* **nothing**: not there.

Of a class its own methods are compared as well; those that are the same are not listed.

"""


def parameters_of(value: Any) -> list[list[str]] | None:
    """Each parameter as [name, kind, default], as the inventory has them."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return None
    return [
        [p.name, p.kind.name, "" if p.default is p.empty else _shown(p.default)]
        for p in signature.parameters.values()
    ]


def _shown(default: Any) -> str:
    if isinstance(default, float) and default.is_integer():
        return repr(int(default))
    return f"class {default.__name__}" if inspect.isclass(default) else repr(default)


def compare(theirs: list[list[str]] | None, ours: list[list[str]] | None) -> str:
    """Return the answer for a function: ``the same``, or the differences."""
    if theirs is None or ours is None or theirs == ours:
        return "the same"
    # By name, the order means nothing.
    theirs, ours = sorted(theirs, key=_place), sorted(ours, key=_place)
    their_names = {name for name, _, _ in theirs}
    added = [p for p in ours if p[0] not in their_names]
    if [p for p in ours if p[0] in their_names] == theirs and all(
        d or k[0] == "V" for _, k, d in added
    ):
        return f"more: {', '.join(f'`{name}`' for name, _, _ in added)}" if added else "the same"
    return f"other: `({', '.join(_written(p) for p in ours)})`"


def _place(parameter: list[str]) -> str:
    return parameter[0] if parameter[1] == "KEYWORD_ONLY" else ""


def _written(parameter: list[str]) -> str:
    name, kind, default = parameter
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(kind, "")
    return f"{stars}{name}={default}" if default else f"{stars}{name}"


def answer(name: str, theirs: dict[str, Any], module: Any) -> list[tuple[str, str]]:
    """Return the rows of a name: its own, and those of its members that differ."""
    ours = getattr(module, name, None)
    if ours is None:
        return [(name, "nothing")]
    if theirs["kind"] == "value":
        return [(name, "the same")]
    rows = [(name, compare(theirs["parameters"], parameters_of(ours)))]
    if theirs["kind"] == "class" and not inspect.isclass(ours):
        return [(name, "other: a function")]
    uncalled = uncalled_of(ours) if inspect.isclass(ours) else {}
    refused = {name for kind in getattr(ours, "__mro__", ()) for name in _refused(kind)}
    for member, facts in sorted(theirs.get("members", {}).items()):
        if member == "__init__":
            continue
        difference = _member(ours, member, facts)
        if member in uncalled:
            absence = "" if hasattr(ours, member) else ", and it is not there itself"
            kind = "refused" if member in refused else "a warning"
            difference = f"{kind}{absence}; in its place there is {uncalled[member]}"
        if difference != "the same":
            rows.append((f"{name}.{member}", difference))
    return rows


def _refused(kind: type) -> dict[str, str]:
    refused: dict[str, str] = vars(kind).get("_refused", {})
    return refused


def _member(kind: type, member: str, facts: dict[str, Any]) -> str:
    ours = inspect.getattr_static(kind, member, None)
    if ours is None:
        # Attributes that each object gets when it is made are not seen on the class.
        return "nothing" if facts["kind"] == "method" else "the same"
    if facts["kind"] != "method":
        return "the same"
    function = ours.__func__ if isinstance(ours, (classmethod, staticmethod)) else ours
    if not callable(function):
        return "the same"
    return compare(_unbound(facts["parameters"]), _unbound(parameters_of(function)))


def _unbound(parameters: list[list[str]] | None) -> list[list[str]] | None:
    """Return the parameters that a caller gives."""
    if parameters and parameters[0][0] in {"self", "cls"}:
        return parameters[1:]
    return parameters


def make_page() -> str:
    """Return the page as text."""
    inventory = json.loads(INVENTORY.read_text(encoding="utf-8"))
    parts = [_HEAD]
    absent = []
    for module, facts in sorted(inventory.items()):
        if "error" in facts:
            continue
        try:
            door = importlib.import_module(module)
        except ImportError:
            absent.append(module)
            continue
        rows = [row for name, f in sorted(facts["names"].items()) for row in answer(name, f, door)]
        missing_names = [name for name in sorted(facts["imported"]) if not hasattr(door, name)]
        rows += [(name, "nothing, at this place") for name in missing_names]
        if rows:
            lines = "".join(f"| `{name}` | {difference} |\n" for name, difference in rows)
            parts.append(f"## {module}\n\n| name | answer |\n|---|---|\n{lines}\n")
    parts.append("## Modules that are not there\n\n| module | in its place |\n|---|---|\n")
    for module in absent:
        near = max((name for name in ABSENT if module.startswith(name)), key=len, default="")
        parts.append(f"| `{module}` | {ABSENT.get(near, 'nothing')} |\n")
    unseen = [f"`{module}`" for module, facts in sorted(inventory.items()) if "error" in facts]
    parts.append("\n## Modules that were not compared\n\n")
    parts.append(f"0.13 needs further packages to import them: {', '.join(unseen)}.\n")
    parts.append("\n## Calls that end otherwise\n\n| call | here |\n|---|---|\n")
    parts += [f"| `{call}` | {difference} |\n" for call, difference in DIFFERENT_CALLS.items()]
    return "".join(parts)


def main(arguments: list[str]) -> int:
    """Write the page, or compare it with the existing one."""
    page = make_page()
    if "--check" not in arguments:
        PAGE.write_text(page, encoding="utf-8")
        return 0
    return int(PAGE.read_text(encoding="utf-8") != page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
