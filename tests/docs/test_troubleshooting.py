"""docs/troubleshooting.md has an entry for every place that raises an error of the library."""

import ast
import pathlib
import re

import pytest

import mds.errors
from mds._shardfile.layout import INDEX_NAME
from mds._words import plural

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
VARIABLE = "\N{REPLACEMENT CHARACTER}"  # stands for what is only known when it happens
CONSTANTS = {"INDEX_NAME": INDEX_NAME}  # names in messages that are the same for all
LEAST_LETTERS = 5  # of a message in a pattern, or it would be about anything
CLASSES = {
    name: kind
    for name, kind in vars(mds.errors).items()
    if isinstance(kind, type) and issubclass(kind, mds.errors.MdsError)
}


def template(node):
    """The text of an expression, with its variable parts as one character."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.FormattedValue):
        return template(node.value)
    if isinstance(node, ast.Name) and node.id in CONSTANTS:
        return CONSTANTS[node.id]
    if isinstance(node, ast.JoinedStr):
        return "".join(map(template, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template(node.left) + template(node.right)
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".rstrip"):
        return template(node.func.value)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "plural":
        return f"{VARIABLE} {plural(2, template(node.args[1]))[2:]}"
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "Problem":
        return f"{template(node.args[0])}: {template(node.args[1])}"
    return VARIABLE


def calls():
    """(module, call, text of its first argument) of every call in the package.

    A name that the function gave a text before stands for that text.
    """
    for path in sorted((ROOT / "mds").rglob("*.py")):
        module = str(path.relative_to(ROOT))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = {
            node.targets[0].id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, (ast.JoinedStr, ast.BinOp))
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args:
                first = node.args[0]
                name = first.id if isinstance(first, ast.Name) else ""
                yield module, node, template(texts.get(name, first))


def sites():
    """(module, line, kind, text) of errors of ours, warnings, and lines of the log that warn."""
    for module, node, text in calls():
        called = ast.unparse(node.func)
        kind = called.rpartition(".")[2]
        if kind in CLASSES:
            yield module, node.lineno, kind, text
        elif called in {"warnings.warn", "log.warning", "warn"}:
            yield module, node.lineno, "warning", re.sub(r"%[^a-z%]*[a-z]", VARIABLE, text)


SITES = [*sites()]


def entries():
    """What is quoted in the first column: ('text', pattern), or ('kinds', classes, folder)."""
    for cell in re.findall(r"^\| (.*?) \| ", PAGE, re.MULTILINE):
        quoted = re.findall(r"`([^`]+)`", cell)
        kinds = frozenset(quoted) & CLASSES.keys()
        folders = [text for text in quoted if text.startswith("mds/")]
        if kinds:
            yield cell, ("kinds", kinds, *(folders or ["mds"]))
        for text in quoted:
            if text not in kinds and text not in folders:
                parts = map(re.escape, text.split("..."))
                yield cell, ("text", re.compile(".+".join(parts), re.DOTALL))


def fits(entry, site):
    """Whether an entry is about a place in the code."""
    module, _, name, text = site
    if entry[0] == "kinds":
        below = tuple(f"{folder.removesuffix('.py')}{end}" for folder in entry[2:] for end in "/.")
        return name in entry[1] and module.startswith(below)
    return entry[1].match(text) is not None


ENTRIES = list(entries())


def test_every_message_has_an_entry():
    """By its first words, or by its kind where many are alike."""
    passed_on = {VARIABLE}  # what another place has said already
    missing = [
        f"{module}:{line} {name}: {text}"
        for module, line, name, text in SITES
        if not any(fits(entry, (module, line, name, text)) for _, entry in ENTRIES)
        and not (name == "warning" and text in passed_on)
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(("cell", "entry"), ENTRIES, ids=[str(n) for n in range(len(ENTRIES))])
def test_no_entry_is_of_a_message_that_is_gone(cell, entry):
    """Each pattern fits the code somewhere, and each kind is raised where the entry says."""
    assert any(fits(entry, site) for site in SITES), cell


def test_patterns_say_enough():
    """No pattern is so short that messages of the future would fit it by chance."""
    for cell, entry in ENTRIES:
        if entry[0] == "text":
            fixed = entry[1].pattern.replace("\\", "").replace(".+", "")
            assert sum(map(str.isalpha, fixed)) >= LEAST_LETTERS, f"{entry[1].pattern} in {cell}"


def test_every_row_has_a_cause_and_a_cure():
    """Three cells that say something."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        assert len(cells) == 3, row
        assert all(cells), row


def test_messages_say_is_not():
    """No message says "is no column" where English says "is not a column"."""
    stilted = re.compile(r"(?<!there )(?<!There )\b(?:is|are) no (?!longer|more|reason|choice)\w+")
    assert [text for *_, text in sites() if stilted.search(text)] == []
