"""What docs/storage.md shows runs as it stands, against a real server."""

import pathlib
import re

from mds.storage._base import CommonOptions
from mds.storage._registry import _stores, schemes

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "storage.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_python_of_the_page_runs(tmp_path, monkeypatch, capsys):
    """Every block, in the order of the page."""
    import pytest

    from devtools import servers

    (tmp_path / "s3" / "my-bucket").mkdir(parents=True)
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "cache"))
    try:
        with servers.s3_server(str(tmp_path / "s3")) as url:
            monkeypatch.setenv("S3_ENDPOINT_URL", url)
            for block in re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
                exec(compile(block, PAGE.name, "exec"), {})
    except servers.ServerMissing as error:
        pytest.skip(str(error))
    assert "index.json" in capsys.readouterr().out


def test_every_scheme_is_in_the_table():
    """A provider that the page does not know is one that nobody finds."""
    for scheme in set(schemes()) - set(_stores.entries):
        assert re.search(rf"`{scheme}:/", TEXT), scheme


def test_every_common_option_is_in_the_table_with_its_default():
    """The page and the code say the same."""
    told = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", TEXT, re.MULTILINE))
    defaults = CommonOptions()
    assert told["part_size"].strip() == f"{defaults.part_size >> 20} MB"
    assert told["part_connections"].strip() == str(defaults.part_connections)
    assert told["concurrency"].strip() == str(defaults.concurrency)
    assert told["hedge"].strip().startswith("0")
