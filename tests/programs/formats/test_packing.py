"""Documents of files in a format are packed as those of their copy are."""

import dataclasses
import itertools
import json
import os
from typing import ClassVar

import numpy as np
import pytest
import torch

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402

from mds import Packing, StreamingDataLoader, StreamingDataset  # noqa: E402
from mds._cli.datasets import record_lengths  # noqa: E402
from mds.errors import ConfigError  # noqa: E402
from mds.formats import FilePlan, Format, Parquet, encode_records  # noqa: E402
from mds.world import World  # noqa: E402
from mds.writers.convert import convert  # noqa: E402


@pytest.fixture
def pair(tmp_path):
    """Documents of 1 to 300 tokens in Parquet beside a text each, and their copy."""
    folder = tmp_path / "files"
    folder.mkdir()
    rng = np.random.default_rng(3)
    docs = [np.arange(n, dtype=np.int32) for n in rng.integers(1, 300, 200)]
    rows = pa.table({"tokens": docs, "text": [f"document {n}" for n in range(200)]})
    pq.write_table(rows, folder / "a.parquet", row_group_size=32)
    convert(str(folder), str(tmp_path / "copy"), columns=["tokens"], keep_shards=True)
    return folder, tmp_path / "copy"


def packs(packing=None, **place):
    packing = packing or Packing(512)
    dataset = StreamingDataset(
        **place, batch_size=2, packing=packing, shuffle=True, num_canonical_nodes=1
    )
    loader = StreamingDataLoader(dataset, batch_size=2)
    return [{k: np.asarray(v).tolist() for k, v in b.items()} for b in loader], loader.state_dict()


def test_packs_are_those_of_the_copy(pair, tmp_path):
    """The lengths come from the files, with one column or several, and give the same packs."""
    files, copy = pair
    of_copy, _ = packs(local=str(copy))
    of_files, _ = packs(
        remote=str(files), local=str(tmp_path / "c"), format=Parquet(columns=["tokens"])
    )
    assert len(of_files) > 10
    assert of_files == of_copy


@pytest.mark.parametrize("kind", ["empty", "null", "json"])
def test_lists_that_are_empty_or_null_are_left_out(tmp_path, kind):
    """All others are packed, from Parquet and from lines of JSON, with the columns beside them."""
    folder, rng = tmp_path / "files", np.random.default_rng(4)
    folder.mkdir()
    docs = [list(range(1, n + 1)) for n in rng.integers(0, 60, 200)]
    gone = None if kind == "null" else []
    docs[0] = docs[100] = gone
    rows = [{"tokens": doc, "mask": doc, "text": f"document {n}"} for n, doc in enumerate(docs)]
    if kind == "json":
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "a.jsonl").write_text(lines)
    else:
        pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet", row_group_size=32)
    found, texts = [], []
    for rank in range(3):
        dataset = StreamingDataset(
            remote=str(folder), local=str(tmp_path / "cache"), batch_size=8, shuffle=True,
            packing=Packing(64), topology=World(1, 3, 1, rank), num_canonical_nodes=1,
        )  # fmt: skip
        batches = list(StreamingDataLoader(dataset))
        assert len({tuple(batch) for batch in batches}) == 1
        for batch in batches:
            ends = batch["cu_seqlens"].tolist()
            assert torch.equal(batch["tokens"], batch["mask"])
            assert batch["tokens"].dtype == batch["mask"].dtype == torch.int64
            cuts = [batch["tokens"][a:b].tolist() for a, b in itertools.pairwise(ends)]
            found += [cut for cut in cuts if cut != [0]]
            texts += batch["text"]
    assert sorted(found) == sorted(doc for doc in docs if doc)
    assert sorted(texts) == sorted(row["text"] for row in rows if row["tokens"])


def test_a_json_value_that_is_no_list_of_numbers_is_told(tmp_path):
    """With the value, where lengths are counted."""
    (tmp_path / "a.jsonl").write_text('{"tokens": [1, 2]}\n{"tokens": ["a", "b"]}\n')
    with pytest.raises(ConfigError, match=r"a value of the column is \['a', 'b'\]"):
        packs(remote=str(tmp_path / "a.jsonl"), local=str(tmp_path / "c"))


def test_lengths_of_files_are_not_recorded_and_it_is_said(pair):
    """A run counts them by itself."""
    with pytest.raises(ConfigError, match="do not need them"):
        record_lengths(str(pair[0]), "tokens")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counted(Format):
    """Files of int32 tokens, a document for each number of tokens in the file ``.counts``."""

    name: ClassVar[str] = "counted"
    endings: ClassVar[tuple[str, ...]] = (".tokens",)
    knows_lengths: bool = True

    def counts(self, file, files):
        beside = files.beside(file.key.replace(".tokens", ".json"))
        return beside, np.array(json.loads(files.get(beside)), np.int64)

    def plan_file(self, file, files):
        _, counts = self.counts(file, files)
        halves = np.array_split(counts, 2)
        sizes = [int(half.sum()) * 4 for half in halves]
        ends = np.cumsum(sizes).tolist()
        spans = [(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        return FilePlan({"tokens": "ndarray:int32"}, list(map(len, halves)), sizes, spans)

    def find(self, place, source):
        found = super().find(place, source)
        beside = [self.counts(file, source)[0] for file in found.files]
        return found._replace(schema=repr(beside))

    def shard_counts(self, shard, files):
        return np.array_split(self.counts(shard.file, files)[1], 2)[shard.span[0] > 0]

    def value_lengths(self, shard, column, files):
        assert column == "tokens"
        return self.shard_counts(shard, files) if self.knows_lengths else None

    def blocks(self, shard, files):
        assert not self.knows_lengths or "ALLOW_READS" in os.environ, "a value is read to plan"
        tokens = np.frombuffer(files.range(shard.file, *shard.span), "<i4")
        cuts = np.cumsum(self.shard_counts(shard, files))[:-1]
        records = [{"tokens": document} for document in np.split(tokens, cuts)]
        yield from encode_records(shard.columns, records, files.url(shard.file))


@pytest.fixture
def counted(tmp_path):
    """120 documents of 1 to 299 tokens."""
    folder = tmp_path / "counted"
    folder.mkdir()
    counts = np.random.default_rng(5).integers(1, 300, 120)
    (folder / "a.tokens").write_bytes(np.arange(counts.sum(), dtype="<i4").tobytes())
    (folder / "a.json").write_text(json.dumps(counts.tolist()))
    return folder


def test_a_format_gives_lengths_without_its_values(counted, tmp_path, monkeypatch):
    """Packs are planned by them while no shard can be read, and are those of counted values."""
    place = {"remote": str(counted), "local": str(tmp_path / "given"), "format": Counted()}
    dataset = StreamingDataset(**place, batch_size=2, packing=Packing(512), shuffle=True)
    assert len(StreamingDataLoader(dataset, batch_size=2)) > 10
    monkeypatch.setenv("ALLOW_READS", "1")
    given, given_state = packs(**place)
    slow = {**place, "local": str(tmp_path / "slow"), "format": Counted(knows_lengths=False)}
    decoded, decoded_state = packs(**slow)
    assert given == decoded
    assert [given_state[name] for name in ("epoch", "packed") if name in given_state] == [
        decoded_state[name] for name in ("epoch", "packed") if name in given_state
    ]


def test_another_index_beside_a_file_makes_another_plan(counted, tmp_path):
    """Files that did not change are planned again when their format finds another index."""
    place = {"remote": str(counted), "local": str(tmp_path / "c"), "format": Counted()}
    assert StreamingDataset(**place).num_samples == 120
    counts = json.loads((counted / "a.json").read_text())
    (counted / "a.json").write_text(json.dumps([counts[0] + counts[1], *counts[2:]]))
    assert StreamingDataset(**place).num_samples == 119


def test_columns_without_a_length_are_told(pair, tmp_path):
    """A column of text is no document of tokens."""
    with pytest.raises(ConfigError, match="is stored as 'str', but packing needs"):
        packs(
            remote=str(pair[0]),
            local=str(tmp_path / "c"),
            format=Parquet(columns=["text"]),
            packing=Packing(512, column="text"),
        )
