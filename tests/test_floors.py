"""The house stands: code imports downward only, and importing is free."""

import ast
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "mds"

# From the ground up. Parts on one floor never import each other.
FLOORS = [
    {"errors", "lazy", "_version"},
    {"units", "heap"},
    {"encodings", "compression", "hashing", "storage", "shuffle", "world", "events"},
    {"topology"},
    {"layout", "index", "indexing", "epochs"},
    {"writers", "readers", "state", "selection", "sieve"},
    {"stream", "plan", "contents"},
    {"cache"},
    {"prefetch", "explain", "lanes", "ordered", "part", "parts", "bundles", "rooms"},
    {"samples"},
    {"dataset", "local"},
    {"batches"},
    {"dataloader"},
    {"simulate", "metrics", "testing", "compat"},
    {"cli"},
    {"__main__"},
]
FLOOR_OF = {name: number for number, floor in enumerate(FLOORS) for name in floor}

# Upward imports that are part of the design, each with its reason.
ALLOWED = {
    ("stream", "cache"): "a stream asks for its index when it is read, inside one function",
}


def _part(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(path: pathlib.Path) -> set[str]:
    """Parts of the package that a file names, in TYPE_CHECKING blocks too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names = [node.module]
            if node.module == "mds":
                names = [f"mds.{alias.name}" for alias in node.names]
        found |= {n.split(".")[1] for n in names if n.startswith("mds.")}
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_code_imports_downward_only(path):
    """A module names no part of its own floor or above, except where a reason is given."""
    part = _part(path)
    if part == "__init__":
        return
    assert part in FLOOR_OF, f"{part} has no floor; give it one in {__file__}"
    for other in _imports(path) - {part}:
        if (part, other) in ALLOWED or other == "_version":
            continue
        assert other in FLOOR_OF, f"{other}, imported by {path}, has no floor"
        assert FLOOR_OF[other] < FLOOR_OF[part], f"{path} imports {other}, which is not below it"


def test_no_import_cycles():
    """The parts form a graph without cycles, whatever the exceptions above allow at run time."""
    graph: dict[str, set[str]] = {}
    for path in FILES:
        part = _part(path)
        if part != "__init__":
            graph.setdefault(part, set()).update(
                o for o in _imports(path) - {part} if (part, o) not in ALLOWED
            )
    done: set[str] = set()

    def visit(part: str, above: tuple[str, ...]) -> None:
        assert part not in above, " -> ".join((*above, part))
        if part not in done:
            for other in graph.get(part, ()):
                visit(other, (*above, part))
            done.add(part)

    for part in graph:
        visit(part, ())


HEAVY = ("torch", "PIL", "boto3", "google.cloud", "azure", "paramiko", "rich", "click", "zstandard")


def _loaded_after(code: str) -> set[str]:
    out = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(out.stdout.split())


def test_importing_costs_numpy_at_most():
    """``import mds`` brings in no torch, no image library, no cloud, no terminal library."""
    assert not set(HEAVY) & _loaded_after("import mds")


def test_writing_needs_no_torch():
    """A converter that writes shards never pays for torch."""
    assert "torch" not in _loaded_after("from mds import MDSWriter")


def test_public_names_are_all_there():
    """Every public name resolves and is shown by dir()."""
    import mds

    for name in mds.__all__:
        assert getattr(mds, name) is not None
        assert name in dir(mds)


def test_only_one_file_renames_into_place():
    """``os.replace`` has one home, so that nothing else can publish half a file."""
    found = [
        str(p.relative_to(PACKAGE)) for p in FILES if "os.replace(" in p.read_text(encoding="utf-8")
    ]
    assert found == ["storage/files.py"]


def test_no_named_shared_memory():
    """Nothing is shared by a name that could outlive its owner."""
    for path in FILES:
        if _part(path) != "compat":
            assert "SharedMemory" not in path.read_text(encoding="utf-8"), path
