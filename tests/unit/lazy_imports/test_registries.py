"""Every function ``register_KIND`` has the same arguments, checks and errors."""

import importlib
import inspect
import sys
from typing import ClassVar, NamedTuple

import numpy as np
import pytest

from mds import _lazy_imports as lazy_imports
from mds.encodings import Encoding, parse_encoding, register_encoding
from mds.encodings._registry import _encodings
from mds.errors import ArgumentError, ConfigError
from mds.formats import Format, register_format
from mds.formats._registry import _registry as _formats
from mds.formats._registry import find_format
from mds.plan import register_packer
from mds.plan._packers import _packers, find_packer
from mds.shuffle import SequentialShuffle, register_shuffle
from mds.shuffle._registry import _shuffles, find_shuffle
from mds.storage import Store, register_store
from mds.storage._memory import MemoryStore
from mds.storage._registry import _factory, _stores
from mds.writers.convert import Input, register_input
from mds.writers.convert._inputs.registry import _inputs, find_input


class OwnEncoding(Encoding):
    encode = decode = bytes


class OwnShuffle(SequentialShuffle):
    def prepare(self): ...

    def generate(self, node, rng): ...


class OwnStore(MemoryStore): ...


class OwnFormat(Format):
    name: ClassVar[str] = "own"
    endings: ClassVar[tuple[str, ...]] = (".own",)

    def plan_file(self, file, files): ...

    def blocks(self, shard, files): ...


class OwnInput(Input):
    @classmethod
    def open(cls, path, options): ...

    def infer_columns(self): ...

    def cut_parts(self, size): ...

    def read(self, part): ...

    def locate(self, part, position): ...

    def describe(self): ...

    def fingerprint(self): ...


def own_packer(sizes, room):
    return np.arange(len(sizes)), len(sizes)


class Kind(NamedTuple):
    """A kind of things that users add.

    ``find`` returns what a name means, ``built_in`` is a name of the library, ``own`` a thing of a
    user, and ``others`` are objects of another kind.
    """

    register: object
    registry: object
    find: object
    built_in: str
    own: object
    others: tuple


KINDS = {
    "encoding": Kind(
        register_encoding,
        _encodings,
        lambda name: type(parse_encoding(name)),
        "str",
        OwnEncoding,
        (5, dict, Encoding),
    ),
    "format": Kind(
        register_format, _formats, find_format, "parquet", OwnFormat, (5, dict, Format, print)
    ),
    "input": Kind(register_input, _inputs, find_input, "csv", OwnInput, (5, dict, Input, print)),
    "packer": Kind(
        register_packer,
        _packers,
        lambda name: find_packer(name).function,
        "best_fit",
        own_packer,
        (5, "best_fit", None),
    ),
    "shuffle": Kind(
        register_shuffle, _shuffles, find_shuffle, "py1e", OwnShuffle, (5, dict, print, None)
    ),
    "store": Kind(
        register_store,
        _stores,
        lambda name: _factory(f"{name}://box"),
        "memory",
        OwnStore,
        (5, dict, Store),
    ),
}


@pytest.fixture(params=KINDS, autouse=True)
def kind(request, monkeypatch):
    """A kind, with a copy of its registry that ends with the test."""
    registry = KINDS[request.param].registry
    monkeypatch.setattr(registry, "entries", dict(registry.entries))
    parse_encoding.cache_clear()
    yield KINDS[request.param]
    parse_encoding.cache_clear()


def word(kind):
    return kind.registry.kind


def copy_of(kind, name="again"):
    """Another thing of the kind, which is defined at another place."""
    if isinstance(kind.own, type):
        return type(name, (kind.own,), {"__module__": __name__})

    def packer(sizes, room):
        return own_packer(sizes, room)

    return packer


def test_the_functions_here_are_all_that_there_are():
    """A new one has to be written down here."""
    told = {f"register_{name}" for name in KINDS}
    modules = ("encodings", "formats", "plan", "shuffle", "storage", "writers.convert")
    names = {name for each in modules for name in dir(importlib.import_module(f"mds.{each}"))}
    assert {name for name in names if name.startswith("register")} - {"registers"} == told


def test_arguments_are_the_same(kind):
    """A name, the thing, and ``replace=`` by name; all can be given by name."""
    parameters = inspect.signature(kind.register).parameters
    assert [*parameters] == ["name", word(kind), "replace"]
    assert parameters["replace"].kind is inspect.Parameter.KEYWORD_ONLY
    assert parameters["replace"].default is False
    assert kind.register(**{"name": "own", word(kind): kind.own}) is kind.own
    assert kind.find("own") is kind.own
    with pytest.raises(ArgumentError, match=rf"no argument 'thing'\. It takes .*{word(kind)}"):
        kind.register("own", thing=kind.own)


def test_it_is_a_decorator(kind):
    """With the name, and it returns what it decorates."""
    assert kind.register("own")(kind.own) is kind.own
    assert kind.find("own") is kind.own
    label = kind.own.__name__
    with pytest.raises(
        ConfigError, match=rf"{label}\): the first argument is the name. Write .*@register_"
    ):
        kind.register(kind.own)


def test_names_are_taken_once(kind):
    """A built-in name, and one that is registered, unless the same thing is registered again."""
    kind.register("own", kind.own)
    kind.register("own", kind.own)
    other = copy_of(kind)
    if word(kind) == "format":
        assert other.name == "own"
    with pytest.raises(ConfigError, match=r"'own' is already registered\. .* replace=True"):
        kind.register("own", other)
    assert kind.find("own") is kind.own
    kind.register("own", other, replace=True)
    assert kind.registry.find("own") is other


def test_built_in_names_need_replace(kind):
    """They are not taken by mistake."""
    thing = copy_of(kind)
    if word(kind) == "format":
        thing.name = kind.built_in
    with pytest.raises(ConfigError, match=rf"{kind.built_in}' is built in\. .* replace=True"):
        kind.register(kind.built_in, thing)
    kind.register(kind.built_in, replace=True)(thing)
    parse_encoding.cache_clear()
    assert kind.find(kind.built_in) is thing


def test_a_definition_that_is_executed_again_replaces_itself(kind):
    """As a cell of a notebook is."""
    first, second = copy_of(kind, "Cell"), copy_of(kind, "Cell")
    kind.register("own", first)
    if isinstance(kind.own, type):
        kind.register("own", second)
    else:  # functions inside others may have one name and differ
        with pytest.raises(ConfigError, match="already registered"):
            kind.register("own", second)


@pytest.mark.parametrize("name", ["", "a b", "a,b", "list[x]", "a:b", "ä/ö"])
def test_names_have_few_characters(kind, name):
    """Those that can stand in a URL, an option and an encoding."""
    thing = copy_of(kind)
    if word(kind) == "format":
        thing.name = name
    with pytest.raises(ConfigError, match=r"cannot be the name of .*Use letters"):
        kind.register(name, thing)


def test_things_of_another_kind_are_refused(kind):
    """With what to give, and the contract that tests it, which the docstring names, too."""
    contract = f"mds.testing.{kind.registry._contract}"
    module, _, name = contract.rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), name), type)
    assert f"`{contract}`" in inspect.getdoc(kind.register)
    for other in kind.others:
        with pytest.raises(ConfigError, match=rf"the {word(kind)} 'own' cannot be .*{name}"):
            kind.register("own", other)
    assert "own" not in kind.registry.entries


def test_a_package_offers_it(kind, monkeypatch, tmp_path):
    """By an entry point, which is loaded when the name is first used, and checked as well."""
    group = f"mds.{word(kind)}s"
    module = tmp_path / "own_things.py"
    module.write_text(f"from {__name__} import KINDS\nown, wrong = KINDS[{word(kind)!r}].own, 5\n")
    info = tmp_path / "own-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    points = "own = own_things:own\nwrong = own_things:wrong\n"
    (info / "entry_points.txt").write_text(f"[{group}]\n{points}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    assert lazy_imports.plugin_names(group) == ["own", "wrong"]
    assert kind.registry.names()[-2:] == ["own", "wrong"]
    assert kind.find("own") is kind.own
    with pytest.raises(ConfigError, match=rf"the {word(kind)} 'wrong' cannot be 5: "):
        kind.find("wrong")
    sys.modules.pop("own_things")
