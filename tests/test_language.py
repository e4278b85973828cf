"""The words of the code and the docs: one name for one thing, and plain technical English.

Three measures count signs of names, docstrings, messages and comments that a reader does not
understand without their callers. A few such places are allowed, since a rule about words cannot
judge every sentence.
"""

import ast
import pathlib
import re
import tokenize
from collections import defaultdict

import pytest

from mds.compat._names import MODULES as DOOR

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parent.parent
MODULES = sorted((ROOT / "mds").rglob("*.py"))
PAGES = [
    *(ROOT / name for name in ("README.md", "FORMAT.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

#: Names that say what happened to a value, or refer to another one, and not what the value is.
EMPTY_NAMES = """
found told made kept held given taken wanted known asked left gone come came done seen said sent
begun meant shown brought lost had been got put chosen drawn dealt cut owed due few some others rest
more one ones all none there here whole what where how who whose then at so by of least most
"""
#: Names that add a noun to such a word: `found_items` says no more than `items`.
HISTORY = re.compile(r"_*(found|told|kept|left|made|given|taken|wanted|asked)_\w+")
#: Names that others chose: the name, a part of the path of the files that may use it, the reason.
FOREIGN_NAMES = {
    ("__all__", "mds/"): "Python",
    ("where", "mds/_dataset/"): "the public argument of select()",
    ("by", "mds/_dataset/"): "the public argument of split()",
}
NOUN_CLAUSE = re.compile(
    r"(What|How|Where|Which|Let|Have|That|Those|Be|Whose|As|So|Of|No|Nothing|None|Not)\b"
)
#: Phrases that only readers of other sentences of this project understand.
IDIOMS = re.compile(
    r"\b(as (they|it) lies?|lies? (in|beside|behind|below)|(is|are|was|were) told\b"
    r"|tells? (of|that|which|what)|is asked (for|of)\b|goes? on\b|comes? (whole|back|twice|after)"
    r"|stands? (in|for|beside|behind)|what (is|are|was|it|goes|stands|comes|remains|lies)"
    r"|nothing (is|has|else)|as if no|let go of|held against|is meant\b|of (that|those|its) own"
    r"|is that of|are those of|so many|as many as|at hand)\b",
    re.IGNORECASE,
)
#: Functions whose arguments users read.
SPEAKERS = {"warn", "warning", "info", "error", "echo", "log"}


def parse(path):
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def assigned_names(path):
    """Return (name, line) of each variable, attribute and parameter that a file assigns."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def is_empty_name(name, path):
    """Whether a name says nothing about its value, and is not one that others chose."""
    if any(name == foreign and part in path for foreign, part in FOREIGN_NAMES):
        return False
    return name.strip("_") in EMPTY_NAMES.split() or bool(HISTORY.fullmatch(name))


def first_lines(path):
    """Return (first line, line) of each docstring of a class or function."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring.splitlines()[0], node.lineno


def sentences(text):
    """Return the sentences of more than three words, without markup."""
    plain = re.sub(r"\s+", " ", re.sub(r"[`*_>]|\[([^]]*)\]\([^)]*\)", r"\1", text))
    parts = re.split(r"(?<=[.!?])\s+", plain)
    return [part.strip() for part in parts if len(part.split()) > 3]


def messages(path):
    """Return (sentence, line) of each error, warning, log line and help text; ``x`` for a value."""
    for node in ast.walk(parse(path)):
        texts = []
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            texts = node.exc.args
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            texts = list(node.args) if name in SPEAKERS else []
            texts += [keyword.value for keyword in node.keywords if keyword.arg == "help"]
        for text in texts:
            constants = [part.value for part in ast.walk(text) if isinstance(part, ast.Constant)]
            words = " x ".join(value for value in constants if isinstance(value, str))
            yield from ((sentence, node.lineno) for sentence in sentences(words))


def comments(path):
    """Return (sentence, line) of each comment that is not an instruction to a tool."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            instructs = token.string.startswith(("# noqa", "# type", "#!"))
            if token.type == tokenize.COMMENT and not instructs:
                text = token.string.lstrip("#: ")
                yield from ((sentence, token.start[0]) for sentence in sentences(text))


def name_findings(path, file):
    """Return a flag for each name: whether it is empty."""
    return [(is_empty_name(name, file), name, line) for name, line in assigned_names(path)]


def docstring_findings(path, file):
    """Return a flag for each docstring: whether it begins with a noun clause."""
    return [(bool(NOUN_CLAUSE.match(text)), text, line) for text, line in first_lines(path)]


def sentence_findings(path, file):
    """Return a flag for each message and comment: whether it has an idiom of this project."""
    texts = [*messages(path), *comments(path)]
    return [(bool(IDIOMS.search(text)), text[:120], line) for text, line in texts]


@pytest.mark.parametrize(
    ("find", "bar"),
    [(name_findings, 0.003), (docstring_findings, 0.005), (sentence_findings, 0.01)],
)
def test_the_code_is_plain_english(find, bar):
    """Names say what values are, docstrings and sentences need no other text to be understood."""
    total, places = 0, []
    for path in MODULES:
        file = path.relative_to(ROOT).as_posix()
        findings = find(path, file)
        total += len(findings)
        places += [f"{file}:{line}: {text}" for is_bad, text, line in findings if is_bad]
    assert total > 1000
    assert len(places) <= bar * total, f"{len(places)} of {total}:\n" + "\n".join(places)


def test_every_foreign_name_is_used():
    """An exception that no file needs is removed."""
    names = {
        (name, path.relative_to(ROOT).as_posix())
        for path in MODULES
        for name, _ in assigned_names(path)
    }
    for foreign, part in FOREIGN_NAMES:
        assert any(name == foreign and part in file for name, file in names), (foreign, part)


def test_no_class_name_twice():
    """A class name means one thing in the whole package."""
    homes = defaultdict(set)
    for path in MODULES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(str(path.relative_to(ROOT)))
    twice = {name: sorted(files) for name, files in homes.items() if len(files) > 1}
    # Classes of compat/ have the names by which the incumbent's users import them.
    imported = {name for names in DOOR.values() for name in names}
    assert {name: files for name, files in twice.items() if name not in imported} == {}
    native = {name: [f for f in files if "compat" not in f] for name, files in twice.items()}
    assert {name: files for name, files in native.items() if len(files) > 1} == {}


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


def is_protocol(node: ast.ClassDef) -> bool:
    """Whether a class lists what an argument must have."""
    return any("Protocol" in ast.unparse(base) for base in node.bases)


def test_every_public_definition_has_a_docstring():
    """Functions, classes and methods without an underscore, in private modules, too.

    Linters look at modules without an underscore only.
    """
    without_docstring = []
    for path in MODULES:
        if "testing" in path.parts:  # tests, whose names say what they test
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = [
            node
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.name[0] != "_" and not is_protocol(node)
        ]
        for node in [*tree.body, *(each for kind in classes for each in kind.body)]:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name[0] != "_":
                decorators = {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}
                if not ast.get_docstring(node) and not decorators & {"overload", "setter"}:
                    without_docstring.append(f"{path.name}:{node.lineno}: {node.name}")
    assert without_docstring == []
