"""The words of the code and the docs: one name for one thing, textbook terms for processes."""

import ast
import pathlib
import re
from collections import defaultdict

from mds.compat.names import MODULES as DOOR

ROOT = pathlib.Path(__file__).parent.parent
MODULES = sorted((ROOT / "mds").rglob("*.py"))
DEVTOOLS = sorted((ROOT / "devtools").rglob("*.py"))
PAGES = [
    *(ROOT / name for name in ("README.md", "FORMAT.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PERSONS = re.compile(r"\b(who|nobody|somebody|whoever|anybody|everybody)\b", re.IGNORECASE)


def test_no_class_name_twice():
    """A class name means one thing in the whole package."""
    homes = defaultdict(set)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(str(path.relative_to(ROOT)))
    twice = {name: sorted(where) for name, where in homes.items() if len(where) > 1}
    # Classes of compat/ have the names by which the incumbent's users import them.
    imported = {name for names in DOOR.values() for name in names}
    assert {name: where for name, where in twice.items() if name not in imported} == {}
    native = {name: [w for w in where if "compat" not in w] for name, where in twice.items()}
    assert {name: where for name, where in native.items() if len(where) > 1} == {}


def test_processes_threads_and_callers_are_called_that():
    """No process, thread or caller is spoken of as a person."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in [*MODULES, *DEVTOOLS, *PAGES]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if PERSONS.search(line)
    ]
    assert not found, "\n".join(found)


def test_the_glossary_is_in_order():
    """One line for each term, in the order of the alphabet, and no term twice."""
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    terms = [row[1].strip() for row in rows]
    assert all(len(row) == 4 and row[2].strip() for row in rows)
    assert terms == sorted(set(terms), key=str.lower)


def test_files_that_the_docs_name_are_there():
    """A path of a Python file in the docs leads to a file, from the root or from ``mds/``."""
    for page in PAGES:
        for name in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text(encoding="utf-8")):
            assert any((ROOT / base / name).exists() for base in ("", "mds")), (
                f"{page.name}: {name}"
            )


def test_the_map_names_every_package():
    """The contributor's page has a line for each folder and module of the package."""
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    names = {path.relative_to(ROOT / "mds").parts[0].removesuffix(".py") for path in MODULES}
    assert sorted(shown) == sorted(names - {"__init__"})
