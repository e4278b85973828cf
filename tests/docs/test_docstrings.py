"""Every public name of the reference has an example in its docstring, and the examples are true.

The reference is docs/api. Examples find `mds`, NumPy (`np`), what their module has, and a dataset
of eight samples in `data/train`. Lines with `# doctest: +SKIP` need a network or another machine.
"""

import contextlib
import doctest
import importlib
import inspect
import os
import pathlib
import re

import numpy as np
import pytest

import mds

API = pathlib.Path(__file__).parents[2] / "docs" / "api"
_ENTRY = re.compile(r"^\.\. auto(class|function|module):: ([\w.]+)\n((?: +:.*\n)*)", re.MULTILINE)
_EXCLUDED = re.compile(r":exclude-members: (.*)")


def public_names():
    """Return the dotted name of each class and function of the reference."""
    names = []
    for page in sorted(API.glob("*.md")):
        for kind, name, options in _ENTRY.findall(page.read_text(encoding="utf-8")):
            excluded = ", ".join(_EXCLUDED.findall(options)).split(", ")
            names += members_of(name, excluded) if kind == "module" else [name]
    # Modules of integrations need their libraries; tests/programs/integrations runs their calls.
    return [name for name in names if not name.startswith("mds.integrations.")]


def members_of(module_name, excluded):
    """Return the dotted names of the classes and functions that a module defines, as autodoc."""
    return [
        f"{module_name}.{name}"
        for name, value in vars(importlib.import_module(module_name)).items()
        if getattr(value, "__module__", None) == module_name
        and inspect.getdoc(value)
        and not name.startswith("_")
        and name not in excluded
    ]


def test_the_reference_has_names():
    """The names are found."""
    assert len(public_names()) > 100


def docstrings_of(value):
    """Return the docstrings of a class or function, and of the methods that a class defines."""
    members = vars(value).items() if inspect.isclass(value) else ()
    methods = [each for name, each in members if name[0] != "_" and inspect.isroutine(each)]
    return [inspect.getdoc(each) or "" for each in (value, *methods)]


@pytest.mark.parametrize("name", public_names())
def test_examples_are_true(name, tmp_path, monkeypatch):
    """The docstring has an example, and its examples and those of methods are true."""
    module_name, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(module_name), attribute)
    text, *method_texts = docstrings_of(value)
    is_shown = ">>> " in text or "::\n" in text
    assert is_shown or module_name == "mds._dataset.rewind", f"{name} has no example"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "cache"))
    with mds.MDSWriter("data/train", {"id": "int", "text": "str"}, samples_per_shard=4) as writer:
        for i in range(8):
            writer.write({"id": i, "text": f"sample {i}"})
    modules = {"contextlib": contextlib, "mds": mds, "np": np, "os": os, "pathlib": pathlib}
    report = []
    for each in (text, *method_texts):
        names = {**vars(inspect.getmodule(value)), **modules}
        test = doctest.DocTestParser().get_doctest(each, names, name, None, 0)
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert not report, "".join(report)
