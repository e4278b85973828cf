"""Names that the README, the docs and the incumbent's imports promise stay where they are."""

import ast
import importlib
import importlib.util
import inspect
import pathlib
import pkgutil
import re

import numpy as np
import pytest

import mds
from mds.errors import MissingDependencyError

ROOT = pathlib.Path(__file__).parent.parent


def find_public_modules() -> dict[str, list[str]]:
    """Return the names in the ``__all__`` of each module whose path has no underscore.

    `mds.compat` is left out: importing `mds.compat.streaming` has an effect, and no names. The
    names of a module whose library is not installed come from its source.
    """
    modules = [module.name for module in pkgutil.walk_packages(mds.__path__, "mds.")]
    public = [name for name in modules if "._" not in name and not name.startswith("mds.compat")]
    names = {}
    for module in ["mds", *public]:
        try:
            names[module] = importlib.import_module(module).__all__
        except MissingDependencyError:
            MISSING.add(module)
            source = importlib.util.find_spec(module).loader.get_source(module)
            names[module] = ast.literal_eval(
                re.search(r"^__all__ = (.*)$", source, re.MULTILINE)[1]
            )
    return names


#: Modules that cannot be imported here, since their library is not installed.
MISSING: set[str] = set()
PUBLIC = find_public_modules()


def test_every_public_name_has_an_example():
    """The docstring of each public class and function shows a call."""
    without_example = [
        f"{module}.{name}"
        for module, names in PUBLIC.items()
        for name in names
        if name != "__version__"
        and module not in MISSING
        and not re.search(
            r">>> |::\n", inspect.getdoc(getattr(importlib.import_module(module), name))
        )
    ]
    assert without_example == []


def test_the_docs_import_public_names_only():
    """Every import of a page takes a name from the ``__all__`` of its module."""
    for page in [ROOT / "README.md", ROOT / "FORMAT.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for module, names in re.findall(
            r"^ *from (mds[\w.]*) import ([\w, ]+)", text, re.MULTILINE
        ):
            for name in names.split(","):
                assert name.strip() in PUBLIC[module], f"{page.name}: {module}.{name.strip()}"


def test_renamed_attributes_keep_answering(tmp_path):
    """The former name of a public attribute gives what the new one gives."""
    from mds import MDSWriter, StreamingDataset

    with MDSWriter(out=str(tmp_path), columns={"id": "int"}) as writer:
        writer.write({"id": 1})
    dataset = StreamingDataset(local=str(tmp_path), batch_size=1).filter(lambda _: False)
    assert not list(dataset)
    assert dataset.left_out == dataset.skipped
    assert dataset.skipped[0].sample == 0


def undocumented(made, beside=()):
    """Return the public names of an object that `help` does not explain.

    A name is explained by a docstring of its own, or in the docstring of its class.
    """
    text = " ".join(inspect.getdoc(kind) or "" for kind in type(made).__mro__)
    return {
        name
        for name in {*dir(made)} - {*beside}
        if not name.startswith("_")
        and not inspect.getdoc(inspect.getattr_static(type(made), name, None))
        and not re.search(rf"`{name}\b", text)
    }


@pytest.fixture
def folder(tmp_path):
    from mds import MDSWriter

    with MDSWriter(out=str(tmp_path / "data"), columns={"id": "int"}) as writer:
        for i in range(10):
            writer.write({"id": i})
    return str(tmp_path / "data")


def test_help_explains_what_tab_shows(folder, tmp_path):
    """Each public name of the objects of a user has a docstring."""
    from torch.utils.data import DataLoader, IterableDataset

    import mds

    dataset = mds.StreamingDataset(local=folder, batch_size=2)
    assert not undocumented(dataset, dir(IterableDataset))
    assert not undocumented(mds.LocalDataset(folder))
    plain = DataLoader(mds.LocalDataset(folder))
    assert not undocumented(mds.StreamingDataLoader(dataset), dir(plain))
    assert not undocumented(mds.Stream(local=folder))
    assert not undocumented(mds.RunHistory(dataset.state_dict()))
    assert not undocumented(mds.transforms.RowGenerator(np.zeros(1, np.uint64)))
    for kind in (mds.MDSWriter, mds.JSONWriter, mds.CSVWriter):
        with kind(out=str(tmp_path / kind.__name__), columns={"id": "int"}) as writer:
            writer.write({"id": 1})
            assert not undocumented(writer, inspect.signature(kind.__init__).parameters)


def listed_arguments(kind):
    """(name, default) of the list in the docstring of a class, in order."""
    doc = inspect.getdoc(kind)
    rows = re.findall(r"^- ``(\w+)`` \(([^)]+)\): (\S.*?[.])$", doc, re.MULTILINE | re.DOTALL)
    found = []
    for name, facts, sentence in rows:
        default = re.search(r", default (.*?)(?:, [a-z]+)?$", facts)
        assert sentence[0].isupper(), name
        found.append((name, default[1] if default else None))
    return found


@pytest.mark.parametrize("name", ["StreamingDataset", "LocalDataset", "Stream"])
def test_help_lists_every_argument_once(name):
    """With its default, in the order of the signature; the type is told too."""
    import mds

    kind = getattr(mds, name)
    taken = [
        (p.name, None if p.default is p.empty else repr(p.default))
        for p in list(inspect.signature(kind.__init__).parameters.values())[1:]
    ]
    assert listed_arguments(kind) == taken


def test_help_of_the_loader_lists_every_argument_once():
    """Its own, and all that a DataLoader of torch takes but those that are refused."""
    from torch.utils.data import DataLoader

    from mds import StreamingDataLoader

    refused = {"self", "shuffle", "sampler", "batch_sampler"}
    torchs = {
        p.name: None if p.default is p.empty else repr(p.default)
        for p in inspect.signature(DataLoader.__init__).parameters.values()
        if p.name not in refused
    }
    listed = listed_arguments(StreamingDataLoader)
    assert len(dict(listed)) == len(listed)
    assert torchs.items() <= dict(listed).items()
    own = {"microbatches", "worker_type"}
    assert {name for name, _ in listed} - torchs.keys() <= {*own, "in_order"}


def test_reprs_say_what_a_user_wants_to_know(folder):
    """One line each, with the place and the position, and no secret."""
    from mds import LocalDataset, Stream, StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(local=folder, batch_size=2, shuffle=True)
    told = "10 samples in 1 shard, 301 B, column id, py1e shuffled, batches of 2, rank 0 of 1"
    assert repr(dataset) == f"<StreamingDataset of {folder}: {told}, epoch 0 next>"
    iterator = iter(dataset)
    next(iterator)
    assert repr(dataset).endswith("epoch 0 at sample 1>")
    loader = StreamingDataLoader(dataset, num_workers=2)
    assert repr(loader) == (
        f"<StreamingDataLoader: batches of 2 by 2 threads, 0 samples yielded, from {dataset!r}>"
    )
    assert repr(LocalDataset(folder)) == f"<LocalDataset of {folder}: 10 samples in 1 shard, 301 B>"
    stream = Stream(remote="https://me:secret@host/train?sig=hidden", split="en", repeat=2)
    assert repr(stream) == "Stream(remote='https://***@host/train?...', split='en', repeat=2)"


def test_what_is_to_be_installed_is_this_project():
    """Errors, docs and reasons of skips name the distribution of pyproject.toml with its extras.

    The name of the package, `mds`, is another project's on PyPI.
    """
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    name = re.search(r'^name = "(.*)"', text, re.MULTILINE)[1]
    extras = set(
        re.findall(r"^(\w+) = \[", text.partition("optional-dependencies]")[2], re.MULTILINE)
    )
    folders = ("mds", "docs", "tests", "benchmarks", "examples")
    pages = [page for folder in folders for page in (ROOT / folder).rglob("*.*")]
    found = set()
    for page in [ROOT / "README.md", ROOT / "pyproject.toml", *pages]:
        if page.suffix in {".py", ".md", ".toml"}:
            of_ours = re.findall(
                r"([\w-]*\bmds[\w-]*)\[([a-z][a-z,]*)\]", page.read_text(encoding="utf-8")
            )
            for distribution, names in of_ours:
                assert distribution == name, f"{page}: {distribution}[{names}]"
                assert {*names.split(",")} <= extras, f"{page}: {names}"
                found.add(distribution)
    assert found == {name}
