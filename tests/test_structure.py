"""Which package may import which, and what importing costs."""

import ast
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "mds"

#: Packages that every package but themselves may import.
BASE = "_arguments errors events _foreign_words _lazy_imports _process _redaction _words"

#: What else a package may import.
ALLOWED = {
    "_version": "",
    "_units": "",
    "world": "",
    "_preview": "",
    "encodings": "",
    "_shardfile": "",
    "storage": "",
    "shuffle": "",
    "_index": "encodings _shardfile storage _units",
    "plan": "_shardfile shuffle _units world",
    "_readers": "encodings _index _shardfile storage",
    "formats": "encodings _index _readers _shardfile storage _units",
    "writers": "encodings formats _index _shardfile storage _units",
    "_cache": "formats _index plan _readers _shardfile storage _units world",
    "testing": "encodings formats plan _readers _shardfile shuffle storage world writers",
    "transforms": "encodings shuffle",
    "metrics": "_cache",
    "_prefetch": "_cache _readers _units",
    "report": "_units",
    "_iteration": "_cache encodings _index plan _prefetch _readers _shardfile transforms world",
    "_dataset": "_cache encodings formats _index _iteration plan _preview _readers "
    "_shardfile shuffle storage transforms _units world",
    "_loader": "_dataset _iteration plan report transforms world",
    "_cli": "_version _cache _dataset encodings formats _index _preview _readers _shardfile "
    "storage _units writers",
    "integrations": "_dataset formats _iteration _loader plan storage transforms world writers",
    "compat": "_cache _dataset encodings _index _iteration _loader plan _readers _shardfile "
    "shuffle storage _units world writers",
    "__main__": "_cli",
}

#: Files that import modules by name: registries, and what gives out the names of a package.
BY_NAME = (
    "_lazy_imports.py",
    "encodings/_registry.py",
    "formats/_registry.py",
    "shuffle/_registry.py",
    "storage/_registry.py",
    "compat/_overrides.py",
    "compat/streaming.py",
)

#: Private attributes that other files than their own may use, because a public name would collide
#: with names in classes of users, which inherit from the class.
HOOKS = {
    "_is_strict": "a dataset",
    "_trainers_batch_size": "a dataset",
    "_has_own_resampling": "a dataset of mds.compat",
    "_file_costs": "a stream",
    "_name": "a stream",
    "_share": "a stream",
    "_take_weights": "a stream",
    "_absolute_local": "a stream of mds.compat",
    "_batches_of_epoch": "a loader",
    "_batches_of_epochs": "a loader",
    "_go_to_epoch": "a loader",
    "_classes": "the registry of streams, which mds.compat shares",
    "_spec": "the destination of a writer, which mds.compat shows",
}

MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imports_of(module: str) -> set[str]:
    """Modules that a module names, under TYPE_CHECKING, inside functions and as a text too."""
    found = set()
    is_by_name = str(MODULES[module].relative_to(PACKAGE)) in BY_NAME
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            names = [
                each.value
                for each in ast.walk(node)
                if isinstance(each, ast.Constant) and str(each.value).startswith("mds")
            ]
            assert is_by_name or names, f"{module}: {ast.unparse(node)} imports what nobody can see"
            found |= {str(name) for name in names if not is_by_name}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in MODULES else str(node.module))
    return {name for name in found if name in MODULES and name != module}


def package_of(module: str) -> str:
    """Return the name of the folder or file of ``mds/`` that a module belongs to."""
    return [*module.split("."), ""][1]


GRAPH = {module: imports_of(module) for module in MODULES}
PACKAGES = {package_of(module) for module in MODULES} - {""}


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_imports_what_it_may(package):
    """A package imports those of its line in `ALLOWED`, and needs each of them."""
    imported = {
        package_of(other)
        for module in MODULES
        if package_of(module) == package
        for other in GRAPH[module]
    } - {"", package}
    base, allowed = {*BASE.split()}, {*ALLOWED.get(package, "").split()}
    assert imported - base == allowed


def test_every_package_has_a_line():
    """`BASE` and `ALLOWED` name the packages that there are, each once."""
    assert sorted([*BASE.split(), *ALLOWED]) == sorted(PACKAGES)


def levels() -> dict[str, int]:
    """Return the level of every module: one above the highest that it imports, 0 without any.

    Fails where modules import each other in a cycle, also under TYPE_CHECKING or in a function.
    """
    levels: dict[str, int] = {}

    def visit(module: str, importers: tuple[str, ...]) -> int:
        assert module not in importers, " -> ".join((*importers, module))
        if module not in levels:
            below = [visit(other, (*importers, module)) for other in GRAPH[module]]
            levels[module] = max(below, default=-1) + 1
        return levels[module]

    for module in MODULES:
        visit(module, ())
    return levels


def test_no_modules_import_each_other():
    """Every module has a level, so there is no cycle."""
    assert levels().keys() == MODULES.keys()


def defined_names(tree: ast.Module) -> set[str]:
    """Names that a file defines: functions, classes, variables, and attributes of ``self``."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            is_name = isinstance(node, ast.Name)
            if is_name or ast.unparse(node.value) in {"self", "cls"}:
                names.add(node.id if is_name else node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # __slots__, and calls of setattr()
    return names


def test_private_attributes_stay_in_their_file():
    """A file uses no private attribute of ours that another file defines, but those of `HOOKS`."""
    names = {module: defined_names(tree) for module, tree in TREES.items()}
    ours = {name for defined in names.values() for name in defined if name.startswith("_")}
    found: dict[str, set[str]] = {}
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or node.attr not in ours - names[module]:
                continue
            is_own = ast.unparse(node.value) in {"self", "cls", "super()", "type(self)"}
            if not is_own and not node.attr.startswith("__"):
                found.setdefault(node.attr, set()).add(module)
    of_others = {"_exit", "_fingerprint", "_replace", "_asdict", "_make"}  # os, datasets, tuples
    unlisted = {name: found[name] for name in found.keys() - HOOKS.keys() - of_others}
    assert not unlisted
    assert not HOOKS.keys() - found.keys()  # no longer used, so not to be listed


def test_the_picture_shows_what_packages_import():
    """docs/pictures/packages.svg is up to date; ``python docs/pictures/packages.py`` draws it."""
    script = PACKAGE.parent / "docs" / "pictures" / "packages.py"
    packages = runpy.run_path(str(script))
    picture = script.with_suffix(".svg").read_text(encoding="utf-8")
    assert picture == packages["draw"](*packages["read_allowed_imports"]())


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


def test_training_loads_few_modules(tmp_path):
    """The import loads what every run needs, and a local first batch hardly more (decision 31)."""
    from mds import MDSWriter

    code = "from mds import StreamingDataset, StreamingDataLoader"
    assert len([name for name in _loaded_after(code) if name.startswith("mds")]) <= 100
    with MDSWriter(out=str(tmp_path), columns={"id": "int"}) as writer:
        for number in range(8):
            writer.write({"id": number})
    code += f"; dataset = StreamingDataset(local={str(tmp_path)!r}, batch_size=4, shuffle=True)"
    code += "; next(iter(StreamingDataLoader(dataset)))"
    assert len([name for name in _loaded_after(code) if name.startswith("mds")]) <= 105


def test_public_names_are_all_there():
    """Every public name resolves and is shown by dir()."""
    import mds

    for name in mds.__all__:
        assert getattr(mds, name) is not None
        assert name in dir(mds)


def test_only_one_file_renames_into_place():
    """``os.replace`` has one home, so that nothing else can publish half a file."""
    found = [
        str(p.relative_to(PACKAGE))
        for p in MODULES.values()
        if "os.replace(" in p.read_text(encoding="utf-8")
    ]
    assert found == ["storage/_files.py"]


def test_files_that_comments_name_exist():
    """A name is that of a file beside it, or a path from the package."""
    missing = [
        f"{file.relative_to(PACKAGE)}: {name}"
        for file in PACKAGE.rglob("*.py")
        for name in re.findall(r"[\w/]+\.py\b", file.read_text())
        if name != "train.py"  # the user's
        and not (file.parent / name).exists()
        and not (PACKAGE / name).exists()
    ]
    assert missing == []


def test_no_named_shared_memory():
    """Nothing is shared by a name that could outlive its owner."""
    for path in MODULES.values():
        if "compat" not in path.parts:
            assert "SharedMemory" not in path.read_text(encoding="utf-8"), path


def test_only_safe_lines_are_logged():
    """Every logger is made by ``get_logger``, which masks secrets and escapes what acts."""
    found = [
        str(p.relative_to(PACKAGE))
        for p in MODULES.values()
        if "logging.getLogger(" in p.read_text("utf-8")
    ]
    assert found == ["_redaction.py"]


#: A line that asks whether a run has packs, or a schedule.
QUESTION = re.compile(
    r"\b_?(packing|packs|schedule|scheduled) is (not )?None"
    r"|\b_?(is_packed|has_packing|is_scheduled|has_schedule)\b"
    r"|\b(if|and|or|not) ([\w.]+\.)?_?(packing|packs|schedule|scheduled)( (and|or|else)\b|:|\)|$)"
    r"|\bunit (==|!=) \"(packs|samples)\""
    r"|(?<!assert )isinstance\(.*\b((Packed|Scheduled)Run|ScheduledInputs|(Pack|Sample)Filling)\b"
)
#: The most such lines. What differs with packs or a schedule is a method of `Filling`, of
#: `EpochInputs` or of `ScheduledRun`.
MOST_QUESTIONS = 33


def test_few_lines_ask_for_packs_or_a_schedule():
    """Conditions on packs and schedules do not spread through the packages of an order."""
    lines = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for package in ("plan", "_dataset", "_loader", "_iteration")
        for path in sorted((PACKAGE / package).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if QUESTION.search(line) and not line.lstrip().startswith("#")
    ]
    assert len(lines) <= MOST_QUESTIONS, "\n".join(lines)
