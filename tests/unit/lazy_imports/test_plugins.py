"""What an installed package offers is loaded by its name; one that is broken is named."""

import sys

import pytest

from mds._dataset.stream import StreamRegistry
from mds._lazy_imports import load_plugin, plugin_names
from mds.compat._registries import create_registry
from mds.encodings import parse_encoding
from mds.errors import ConfigError
from mds.shuffle._registry import find_shuffle
from mds.storage import open_store
from mds.writers.convert._inputs.registry import find_input

ASKED = {
    "mds.encodings": parse_encoding,
    "mds.inputs": find_input,
    "mds.shuffles": find_shuffle,
    "mds.stores": lambda name: open_store(f"{name}://box"),
    "mds.streams": lambda name: StreamRegistry().get(name),
    "streams": lambda name: create_registry("streams", generic_type=object, entry_points=True).get(
        name
    ),
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that fails while it is imported, and announces an object in every group."""
    (tmp_path / "brokenpackage.py").write_text("raise OSError('its library is missing')\n")
    info = tmp_path / "brokenpackage-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brokenpackage\nVersion: 1\n")
    groups = [f"[{group}]\nbroken = brokenpackage:thing\n" for group in ASKED]
    (info / "entry_points.txt").write_text("\n".join(groups))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("brokenpackage", None)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("group", ASKED)
def test_a_broken_package_is_named_with_the_way_out(group):
    """The name, where it comes from, what it failed of, and what to do."""
    said = r"'broken' \(brokenpackage:thing\) cannot be loaded: its library is missing\. Repair"
    with pytest.raises(ConfigError, match=said):
        ASKED[group]("broken")


@pytest.mark.usefixtures("package")
def test_names_are_read_without_loading():
    """A list of names imports nothing; what nobody offers is None."""
    assert plugin_names("mds.shuffles") == ["broken"]
    assert "brokenpackage" not in sys.modules
    assert load_plugin("mds.shuffles", "other", "shuffle_algo") is None
