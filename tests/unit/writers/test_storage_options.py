"""`storage_options` of writers, merges and conversions reach each store, and nothing else."""

import json
import pickle

import pytest
from click.testing import CliRunner

from mds import CSVWriter, JSONWriter, MDSWriter, TSVWriter, XSVWriter, merge_index
from mds._cli import main
from mds._cli.storage_options import without_secrets
from mds.errors import ArgumentError, ConfigError
from mds.storage import _registry as registry
from mds.storage import open_store
from mds.storage._memory import MemoryStore
from mds.storage._s3 import S3Store
from mds.storage._url import Url, join, options_of
from mds.writers.convert import convert

OPTIONS = {"place": "here", "password": "the-password"}


@pytest.fixture
def opened(monkeypatch):
    """The (URL, options) of every store that is opened for vault:// URLs, which need a password."""
    calls = []

    def factory(url, options, timeout):
        calls.append((url, options))
        if options != OPTIONS:
            raise ConfigError("vault:// needs its options")
        return MemoryStore(url.replace("vault://", "memory://vault-"), {}, timeout)

    monkeypatch.setitem(registry._stores.entries, "vault", factory)
    return calls


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (MDSWriter, {}),
        (JSONWriter, {}),
        (CSVWriter, {}),
        (TSVWriter, {}),
        (XSVWriter, {"separator": "|"}),
    ],
)
@pytest.mark.parametrize("is_pair", [False, True])
def test_writers_open_their_store_with_the_options(opened, tmp_path, kind, more, is_pair):
    """Every format takes `storage_options`, for a URL and for the remote of a pair."""
    url = f"vault://{tmp_path.name}"
    out = (str(tmp_path / "x"), url) if is_pair else url
    with kind(out=out, columns={"n": "int"}, storage_options=OPTIONS, **more) as writer:
        writer.write({"n": 1})
        assert "the-password" not in repr(vars(writer))
    assert open_store(url, options=OPTIONS).head("index.json").size


def test_options_of_a_writer_without_a_url_are_refused(tmp_path):
    """They would have no effect."""
    for out in (tmp_path / "x", (tmp_path / "x", tmp_path / "y")):
        with pytest.raises(ConfigError, match=r"is a path\. Leave them out"):
            MDSWriter(out=out, columns={"n": "int"}, storage_options=OPTIONS)
    with pytest.raises(
        ArgumentError, match="storage_options must be a dict of settings of the store"
    ):
        MDSWriter(out=str(tmp_path / "y"), columns={"n": "int"}, storage_options="key=x")


@pytest.mark.parametrize("is_listed", [False, True])
def test_merge_index_opens_all_stores_with_the_options(opened, tmp_path, is_listed):
    """Indexes that are found or listed are read, and the merged one is written."""
    url = f"vault://{tmp_path.name}"
    for part in ("0", "1"):
        with MDSWriter(out=join(url, part), columns={"n": "int"}, storage_options=OPTIONS) as w:
            w.write({"n": 1})
    indexes = [[join(url, f"{part}/index.json") for part in ("0", "1")]] if is_listed else []
    merge_index(*indexes, url, storage_options=OPTIONS)
    index = json.loads(open_store(url, options=OPTIONS).get("index.json"))
    assert len(index["shards"]) == 2


def test_convert_opens_both_stores_with_the_options(opened, tmp_path):
    """A source with the scheme of the output has the same options, else they are the output's."""
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    url = f"vault://{tmp_path.name}"
    work = tmp_path / "work"
    convert(str(tmp_path / "a.jsonl"), url, storage_options=OPTIONS, work=str(work))
    convert(url, url + "-2", storage_options=OPTIONS)
    convert(url, str(tmp_path / "back"), storage_options=OPTIONS)
    assert json.loads((tmp_path / "back" / "index.json").read_bytes())["shards"][0]["samples"] == 1
    with pytest.raises(ConfigError, match="vault:// needs its options"):
        convert(url, f"memory://{tmp_path.name}", storage_options={"part_size": 1 << 20})


def test_options_beside_paths_only_are_refused(tmp_path):
    """They would have no effect."""
    out, path = str(tmp_path / "out"), str(tmp_path / "a.jsonl")
    for call in (
        lambda: convert(path, out, storage_options=OPTIONS),
        lambda: convert([{"n": 1}], out, storage_options=OPTIONS),
        lambda: merge_index(out, storage_options=OPTIONS),
        lambda: merge_index([f"{out}/0/index.json"], out, storage_options=OPTIONS),
    ):
        with pytest.raises(ConfigError, match="are settings of the store of a URL, and"):
            call()
    for command in ("info", "head", "verify", "lengths", "clean", "index", "merge"):
        result = CliRunner().invoke(main, [command, out, "--storage-option", "place=here"])
        assert result.exit_code == 2
        assert "--storage-option is a setting of the store of a URL" in result.output


def test_all_commands_open_stores_with_the_options(opened, tmp_path):
    """Those of a dataset, of its parts, and of files that are read in place."""
    url = f"vault://{tmp_path.name}"
    for part in ("0", "1"):
        columns = {"n": "int", "tokens": "ndarray:int32"}
        with MDSWriter(join(url, part), columns, storage_options=OPTIONS) as writer:
            writer.write({"n": 1, "tokens": [1, 2]})
    files = f"vault://{tmp_path.name}-files"
    with open_store(files, options=OPTIONS) as store:
        store.put("a.jsonl", b'{"n": 1}\n')
    pairs = [word for item in OPTIONS.items() for word in ("--storage-option", "=".join(item))]
    for command in (
        ["merge", join(url, "0"), join(url, "1"), url],
        ["merge", url, "--overwrite"],
        ["info", url],
        ["head", url],
        ["verify", url],
        ["lengths", url],
        ["clean", url],
        ["head", join(files, "*.jsonl")],
        ["index", join(files, "*.jsonl"), join(files, "index")],
        ["verify", join(files, "index")],
    ):
        result = CliRunner().invoke(main, [*command, *pairs])
        assert result.exit_code == 0, (command, result.output)


def test_the_command_takes_options_and_shows_no_secret(opened, tmp_path):
    """A pair without a name is refused without its text, and `--resume` is shown without values."""
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    url = f"vault://{tmp_path.name}"
    command = ["convert", str(tmp_path / "a.jsonl"), url, "--storage-option"]
    flags = [*command, "place=here", "--storage-option=password=the-password"]
    result = CliRunner().invoke(main, flags)
    assert result.exit_code == 0, result.output
    again = CliRunner().invoke(main, flags)
    assert again.exit_code != 0
    assert "the-password" not in result.output + again.output
    wrong = CliRunner().invoke(main, [*command, "a-secret-alone"])
    assert wrong.exit_code == 2
    assert "write NAME=VALUE, as in endpoint_url=https://host." in wrong.output
    assert "a-secret-alone" not in wrong.output
    twice = CliRunner().invoke(main, [*command, "place=here", "--storage-option", "place=there"])
    assert "place is given twice" in twice.output
    assert without_secrets(flags)[-2:] == ["place=here", "--storage-option=password=***"]


def test_a_url_carries_options_to_urls_made_of_it():
    """Options are in no text, are equal to nothing, and cross to other processes."""
    url = Url("s3://bucket/train", OPTIONS)
    for each in (join(url, "0"), url + "/x", url.rstrip("/"), pickle.loads(pickle.dumps(url))):
        assert options_of(each) == OPTIONS
        assert "the-password" not in f"{each!r}{each}"
    assert url == "s3://bucket/train"
    assert hash(url) == hash(Url("s3://bucket/train"))
    assert options_of(Url("s3://bucket/train")) is None
    assert options_of("s3://bucket/train") is None


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"anonymous": "true"}, "anonymous", True),
        ({"anonymous": "False"}, "anonymous", False),
        ({"verify": "no"}, "verify", False),
        ({"verify": __file__}, "verify", __file__),
    ],
)
def test_options_may_be_texts(given, name, value):
    """Texts of a command line are the bools that an option has."""
    store = S3Store("s3://bucket/x", given, 60.0)
    assert getattr(store._options, name) == value


def test_options_that_make_no_sense():
    """A text that is no number or bool is refused."""
    with pytest.raises(ConfigError, match=r"option anonymous='maybe' must be true or false"):
        S3Store("s3://bucket/x", {"anonymous": "maybe"}, 60.0)
    with pytest.raises(ConfigError, match="storage option part_size='big' must be a number"):
        open_store("memory://x", options={"part_size": "big"})
    assert open_store("memory://x", options={"part_size": "1024"}).part_size == 1024
