"""docs/door.md lists every name of 0.13 with what answers it, and every difference there is."""

import importlib
import json

import pytest

from devtools import door_page


def test_the_page_is_what_the_script_makes():
    """Where the door has changed, it is made anew: python -m devtools.door_page."""
    assert door_page.PAGE.read_text(encoding="utf-8") == door_page.make_page()


def test_commands_and_pages_that_messages_name_exist():
    """No module that is absent sends its users to what there is not."""
    from mds.compat._names import ABSENT

    for module, said in ABSENT.items():
        with pytest.raises(ModuleNotFoundError, match="has no module"):
            importlib.import_module(module)
        assert "mds-convert" in said or "explain()" in said
    assert "EpochPlan" in ABSENT["streaming.simulation"]


def test_modules_that_training_code_imports_are_all_there():
    """Those of 0.13 that are missing convert datasets; docs/door.md lists them."""
    missing_modules = []
    for module, facts in json.loads(door_page.INVENTORY.read_text(encoding="utf-8")).items():
        if "error" in facts:
            continue
        try:
            importlib.import_module(module)
        except ImportError:
            missing_modules.append(module)
    assert all(".convert" in module for module in missing_modules)
    page = (door_page.ROOT / "docs" / "door.md").read_text(encoding="utf-8")
    section = page.partition("## Missing modules")[2]
    assert [module for module in missing_modules if f"`{module}`" not in section] == []
