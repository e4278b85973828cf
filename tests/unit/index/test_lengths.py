"""Lengths beside an index: small, exact, found by every way there is, refused when damaged."""

import json
import pathlib
import re

import numpy as np
import pytest
from click.testing import CliRunner

import mds._dataset.lengths
from mds import MDSWriter, Packing, StreamingDataset, merge_index
from mds._cli import main
from mds._cli.plots import plot_lengths
from mds._dataset.lengths import open_lengths
from mds._dataset.stream import Stream, find_sources
from mds._index.lengths import JoinedLengths, Lengths, emit_lengths, lengths_name, parse_lengths
from mds._index.sidecar import pack_sidecar
from mds.errors import ConfigError, EncodingError, IndexFileError

KINDS = {
    "short": [1, 2, 3, 254],
    "longer": [1, 255, 300, 65_534],
    "long": [1, 65_535, 5, 70_000, 4_000_000_000, 0],
    "none": [],
    "one": [255],
}


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_come_back(kind):
    """By number, all together and as a sum."""
    values = np.array(KINDS[kind], np.int64)
    found = Lengths.of("tokens", values)
    assert np.array_equal(found.all(), values)
    numbers = np.arange(len(values))[::-1]
    assert np.array_equal(found.take(numbers), values[::-1])
    assert found.total == values.sum()


def test_a_length_takes_a_byte_or_two():
    """A few that are very long cost sixteen bytes each and the others nothing."""
    values = np.full(100_000, 3000)
    values[::1000] = 1 << 20
    assert len(emit_lengths("tokens", values)) < 2.1 * len(values)
    assert len(emit_lengths("tokens", np.full(100_000, 200))) < 1.01 * len(values)


def test_lengths_of_streams_are_numbered_through():
    """Each sample finds its own, in whatever order samples are asked for."""
    parts = [np.array(values, np.int64) for values in KINDS.values()]
    joined = JoinedLengths([Lengths.of("tokens", part) for part in parts])
    whole = np.concatenate(parts)
    numbers = np.random.default_rng(0).permutation(np.tile(np.arange(len(whole)), 3))
    assert np.array_equal(joined.take(numbers), whole[numbers])
    other = JoinedLengths([Lengths.of("tokens", part) for part in parts[::-1]])
    assert joined.digest != other.digest


GOOD = emit_lengths("tokens", np.array(KINDS["long"]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        GOOD[:-1],
        GOOD + b"\0",
        GOOD.replace(b'"samples": 6', b'"samples": 7'),
        GOOD.replace(b'"width": 2', b'"width": 1'),
        GOOD.replace(b'"width": 2', b'"width": 8'),
        GOOD.replace(b'"width": 2', b'"width": 2.0'),
        GOOD.replace(b'"long": 3', b'"long": 2'),
        GOOD.replace(b'"long": 3', b'"long": -1'),
        GOOD.replace(b'"long": 3', b'"long": 3.0'),
        GOOD.replace(b'"tokens"', b'"labels"'),
        GOOD.replace(b'"tokens"', b'["tok"]'),
        GOOD[:-8] + (5).to_bytes(8, "little"),
        GOOD[:-8] + (1 << 62).to_bytes(8, "little"),
        GOOD[:-8] + b"\xff" * 8,
        GOOD[:-48] + (3).to_bytes(8, "little") + GOOD[-40:],
        b"[" * 60_000 + b"\n",
    ],
    ids=range(18),
)
def test_what_is_no_file_of_lengths_is_refused(data):
    """Another column, another number of samples, long ones where there are none."""
    with pytest.raises(IndexFileError, match=r"file.bin .*mds lengths"):
        parse_lengths(data, 6, "tokens", "file.bin")


LENGTHS = [5, 300, 1, 255, 256, 70_000, 90, 17] * 6


def write(folder, *, lengths=None, columns=None, hashes=None, compression=None, size=300_000):
    """A dataset with arrays of those lengths."""
    columns = columns or {"tokens": "ndarray:int32"}
    with MDSWriter(out=str(folder), columns=columns, lengths=lengths, size_limit=size,
                   hashes=hashes, compression=compression) as writer:  # fmt: skip
        for i, length in enumerate(LENGTHS):
            sample = {"tokens": np.full(length, i, np.int32), "text": "x" * (i % 5), "id": i}
            writer.write({name: sample[name] for name in columns})
    return folder


def lengths_at(**place):
    """What a dataset finds, as a list."""
    found = open_lengths(find_sources([Stream(**place)]), "tokens")
    return found.take(np.arange(len(LENGTHS))).tolist()


def test_a_writer_records_them(tmp_path):
    """Beside the index, which is byte for byte that of a writer that does not."""
    write(tmp_path / "a", lengths="tokens")
    write(tmp_path / "b")
    name = lengths_name("tokens")
    assert (tmp_path / "a" / name).exists()
    assert {p.name for p in (tmp_path / "a").iterdir()} - {name} == {
        p.name for p in (tmp_path / "b").iterdir()
    }
    for path in (tmp_path / "b").iterdir():
        assert (tmp_path / "a" / path.name).read_bytes() == path.read_bytes()
    assert lengths_at(local=str(tmp_path / "a")) == LENGTHS


def test_a_sample_that_is_refused_has_no_length(tmp_path):
    """The writer goes on, and numbers and lengths stay together."""
    columns = {"tokens": "ndarray:int32", "x": "uint8"}
    out = str(tmp_path / "d")
    with MDSWriter(out=out, columns=columns, lengths="tokens") as writer:
        for i in range(20):
            writer.write({"tokens": np.zeros(i + 1, np.int32), "x": 1})
            with pytest.raises(EncodingError):
                writer.write({"tokens": np.zeros(999, np.int32), "x": "no number"})
    found = open_lengths(find_sources([Stream(local=out)]), "tokens")
    assert found.take(np.arange(20)).tolist() == list(range(1, 21))


@pytest.mark.parametrize("column", ["absent", "text", "id", ["tokens"], 3])
def test_columns_without_lengths_are_refused_by_the_writer(tmp_path, column):
    """When it is made, with the columns that there are or what it is stored as."""
    columns = {"tokens": "ndarray:int32", "text": "str", "id": "int"}
    with pytest.raises(ConfigError, match=re.escape(str(column))):
        MDSWriter(out=str(tmp_path / "d"), columns=columns, lengths=column)


@pytest.mark.parametrize("columns", [
    {"tokens": "ndarray:int32"},
    {"tokens": "ndarray:int32", "id": "int"},
    {"tokens": "tensor:int32", "id": "int"},
], ids=str)  # fmt: skip
def test_headers_of_shards_tell_the_lengths_of_a_column_alone(tmp_path, columns):
    """Without a file; from the remote only the headers are fetched, and once."""
    write(tmp_path / "far", columns=columns)
    local = tmp_path / "near"
    assert lengths_at(local=str(tmp_path / "far")) == LENGTHS
    assert lengths_at(remote=str(tmp_path / "far"), local=str(local)) == LENGTHS
    assert not list(local.glob("shard*"))
    assert (local / ".mds" / lengths_name("tokens")).exists()
    for path in (tmp_path / "far").glob("shard*"):
        path.unlink()
    assert lengths_at(remote=str(tmp_path / "far"), local=str(local)) == LENGTHS


@pytest.mark.parametrize(("options", "says"), [
    ({"columns": {"tokens": "ndarray:int32", "text": "str"}}, "text has no fixed size either"),
    ({"compression": "zstd"}, "compressed"),
    ({"columns": {"tokens": "ndarray"}}, "stored as 'ndarray'"),
], ids=["two", "compressed", "untyped"])  # fmt: skip
def test_where_headers_do_not_tell_the_command_is_told(tmp_path, options, says):
    """And after the command it works."""
    write(tmp_path / "far", **options)
    place = {"remote": str(tmp_path / "far"), "local": str(tmp_path / "near")}
    with pytest.raises(ConfigError, match=f"{says}.*mds lengths .*--column tokens"):
        lengths_at(**place)
    told = CliRunner().invoke(main, ["lengths", place["remote"], "--column", "tokens"])
    assert told.exit_code == 0, told.output
    assert "longest 70,000" in told.output
    assert lengths_at(**place) == LENGTHS


def test_fixed_columns_have_one_length(tmp_path):
    """Which their encoding says."""
    out = str(tmp_path / "d")
    with MDSWriter(out=out, columns={"tokens": "ndarray:int32:64"}, lengths="tokens") as writer:
        for _ in range(5):
            writer.write({"tokens": np.zeros(64, np.int32)})
    assert open_lengths(find_sources([Stream(local=out)]), "tokens").total == 320
    (tmp_path / "d" / lengths_name("tokens")).unlink()
    assert open_lengths(find_sources([Stream(local=out)]), "tokens").total == 320


def test_a_file_of_another_index_is_refused_where_it_lies_and_replaced_in_a_cache(tmp_path):
    """A copy in a cache folder is only a copy."""
    write(tmp_path / "far", lengths="tokens")
    place = {"remote": str(tmp_path / "far"), "local": str(tmp_path / "near")}
    assert lengths_at(**place) == LENGTHS
    copy = tmp_path / "near" / ".mds" / lengths_name("tokens")
    copy.write_bytes(pack_sidecar("lengths", 1, "0" * 32, GOOD))
    assert lengths_at(**place) == LENGTHS
    (tmp_path / "far" / lengths_name("tokens")).write_bytes(copy.read_bytes()[:-3])
    copy.unlink()
    with pytest.raises(IndexFileError, match=r"index.lengths-tokens.bin"):
        lengths_at(**place)
    with pytest.raises(IndexFileError, match=r"index.lengths-tokens.bin"):
        lengths_at(local=place["remote"])


def test_the_file_is_mapped_and_asked_for_once(tmp_path, monkeypatch):
    """A second start reads nothing of the remote; without packing none asks for it at all."""
    write(tmp_path / "far", lengths="tokens")
    place = {"remote": str(tmp_path / "far"), "local": str(tmp_path / "near")}
    asked = []
    read = mds._dataset.lengths.read_sidecar
    monkeypatch.setattr(
        mds._dataset.lengths, "read_sidecar", lambda *a, **k: asked.append(a[1]) or read(*a, **k)
    )
    dataset = StreamingDataset(**place, batch_size=4)
    next(iter(dataset))
    assert asked == []
    for _ in range(3):
        assert lengths_at(**place) == LENGTHS
    assert asked == [lengths_name("tokens")]


def test_a_packing_of_a_column_that_is_not_there_is_refused(tmp_path):
    """With those that are."""
    write(tmp_path / "d")
    dataset = StreamingDataset(local=str(tmp_path / "d"), batch_size=1, packing=Packing(9, "ids"))
    with pytest.raises(ConfigError, match=r"column 'ids'.* has only tokens"):
        dataset.explain()


def test_info_shows_the_distribution(tmp_path):
    """As a plot in the terminal; of a file of another index it says nothing."""
    write(tmp_path / "d", lengths="tokens")
    told = CliRunner().invoke(main, ["info", str(tmp_path / "d")]).output
    assert "lengths of 'tokens'" in told
    assert "longest 70,000" in told
    (tmp_path / "e").mkdir()
    for path in (tmp_path / "d").iterdir():
        (tmp_path / "e" / path.name).write_bytes(path.read_bytes())
    index = tmp_path / "e" / "index.json"
    index.write_bytes(index.read_bytes() + b" ")
    assert "lengths of" not in CliRunner().invoke(main, ["info", str(tmp_path / "e")]).output
    assert json.loads(CliRunner().invoke(main, ["info", "--json", str(tmp_path / "d")]).output)


def test_the_plot_of_no_samples():
    """Says so."""
    assert list(plot_lengths(np.zeros(0, np.int64))) == ["no samples"]
    assert next(plot_lengths(np.zeros(3, np.int64))).startswith("0 ")


def test_lengths_go_to_a_store(tmp_path):
    """A writer to a URL puts them there, before the index."""
    out = (str(tmp_path / "near"), f"file://{tmp_path}/far")
    with MDSWriter(out=out, columns={"tokens": "ndarray:int32"}, lengths="tokens") as writer:
        writer.write({"tokens": np.zeros(3, np.int32)})
    assert (pathlib.Path(tmp_path) / "far" / lengths_name("tokens")).exists()


def test_a_merged_index_has_the_lengths_of_its_parts(tmp_path):
    """End to end, of every column that all of them have whole; else none."""
    for name in ("a", "b"):
        write(tmp_path / name, lengths="tokens")
    merge_index(str(tmp_path))
    twice = open_lengths(find_sources([Stream(local=str(tmp_path))]), "tokens")
    assert twice.take(np.arange(2 * len(LENGTHS))).tolist() == LENGTHS * 2
    assert (tmp_path / lengths_name("tokens")).exists()
    (tmp_path / lengths_name("tokens")).unlink()
    (tmp_path / "b" / lengths_name("tokens")).write_bytes(b"broken")
    merge_index(str(tmp_path))
    assert not (tmp_path / lengths_name("tokens")).exists()


def test_verify_tells_of_lengths_that_are_none(tmp_path):
    """A file whose digest is right and whose numbers are not."""
    write(tmp_path / "d", lengths="tokens")
    command = ["verify", str(tmp_path / "d")]
    assert CliRunner().invoke(main, command).exit_code == 0
    index = find_sources([Stream(local=str(tmp_path / "d"))])[0].index
    bad = pack_sidecar("lengths", 1, index.fingerprint(), GOOD)
    (tmp_path / "d" / lengths_name("tokens")).write_bytes(bad)
    told = CliRunner().invoke(main, command)
    assert told.exit_code != 0
    assert "has lengths of column" in told.output
