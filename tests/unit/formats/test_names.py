"""Names that look like patterns, and names that are no text."""

import os

import pytest

from devtools.httpserver import http_server
from mds import Stream, StreamingDataset
from mds.errors import ConfigError, FormatError, NotFoundError
from mds.formats import Files
from mds.formats._source import parse_place
from mds.storage import open_store
from mds.storage._memory import MemoryStore

NAMES = ["a[1].jsonl", "a{b,c}.jsonl", "{a}.jsonl", "a*.jsonl", "a?.jsonl", "a{.jsonl", "[].jsonl"]


def write(folder):
    """A file for each name, and others that the names would mean as patterns."""
    for number, name in enumerate([*NAMES, "a1.jsonl", "ab.jsonl", "ac.jsonl"]):
        (folder / name).write_text(f'{{"x": {number}}}\n')


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_file_of_that_very_name_is_meant(tmp_path, scheme, name):
    """A pattern that is the name of a file is its name."""
    write(tmp_path)
    dataset = StreamingDataset(remote=f"{scheme}{tmp_path}/{name}", batch_size=1)
    assert [sample["x"] for sample in dataset] == [NAMES.index(name)]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "a{.jsonl"])
def test_in_a_store_too(name):
    """Found in the listing that is asked for anyway."""
    store = MemoryStore(f"memory://names-{NAMES.index(name)}")
    for each in [*NAMES, "a1.jsonl", "ab.jsonl", "ac.jsonl"]:
        store.put(each, b'{"x": 1}\n')
    files = Files(open_store(store.url))
    assert [file.key for file in files.find(parse_place(f"{store.url}/{name}"))] == [name]


def test_without_it_patterns_are_patterns(tmp_path):
    """As ever."""
    for name in ("a1.jsonl", "ab.jsonl", "ac.jsonl"):
        (tmp_path / name).write_text(f'{{"x": "{name[1]}"}}\n')

    def found(pattern):
        dataset = StreamingDataset(remote=str(tmp_path / pattern), batch_size=1)
        return "".join(sample["x"] for sample in dataset)

    wanted = {"a[1].jsonl": "1", "a{b,c}.jsonl": "bc", "a*.jsonl": "1bc", "a[!1].jsonl": "bc"}
    assert {pattern: found(pattern) for pattern in wanted} == wanted


def test_a_web_server_is_asked_for_that_name(tmp_path):
    """It has no listing in which a pattern could be looked up."""
    write(tmp_path)
    with http_server(str(tmp_path)) as url:
        dataset = StreamingDataset(
            remote=f"{url}/a[1].jsonl", local=str(tmp_path / "cache"), batch_size=1
        )
        assert dataset[0]["x"] == 0
        files = Files(open_store(url))
        with pytest.raises(Exception, match="does not list its files"):
            files.find(parse_place(f"{url}/b[1].jsonl"))
        with pytest.raises(NotFoundError):
            files.find(parse_place(f"{url}/b.jsonl", (".jsonl",)))


def test_a_name_that_is_not_utf_8_is_an_error_that_names_it(tmp_path):
    """An index could not say it; of files that are not meant nobody speaks."""
    try:
        with open(os.fsencode(tmp_path) + b"/b\xff.jsonl", "wb") as file:
            file.write(b'{"x": 2}\n')
    except OSError:
        pytest.skip("this file system takes no such names")
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    for place in (str(tmp_path), f"{tmp_path}/*.jsonl"):
        with pytest.raises(FormatError, match=r"not UTF-8.*Rename"):
            StreamingDataset(remote=place, batch_size=1)
    assert StreamingDataset(remote=f"{tmp_path}/a*.jsonl", batch_size=1)[0]["x"] == 1


def test_a_name_that_is_not_utf_8_of_a_file_that_is_not_read_is_no_error(tmp_path):
    """It is left out and counted, like any file of another kind."""
    try:
        with open(os.fsencode(tmp_path) + b"/b\xff.md", "wb") as file:
            file.write(b"notes")
    except OSError:
        pytest.skip("this file system takes no such names")
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    dataset = StreamingDataset(str(tmp_path), format="jsonl", batch_size=1)
    assert dataset[0]["x"] == 1
    assert r"files of another kind, such as b\udcff.md" in str(dataset.explain())


@pytest.mark.parametrize("name", ["remote", "local"])
def test_a_place_that_is_not_utf_8_is_refused_at_once(tmp_path, name):
    """Before anything is opened; a link to it has another name."""
    place = str(tmp_path / "d\udcff")
    for make in (StreamingDataset, Stream):
        with pytest.raises(ConfigError, match=f"{name} is not UTF-8.*a link to it"):
            make(**{name: place})
