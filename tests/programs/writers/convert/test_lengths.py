"""Lengths that a conversion records: those of a writer, whatever the processes and the stops."""

import numpy as np
import pytest
from click.testing import CliRunner

from mds import MDSWriter
from mds._cli import main
from mds._index.lengths import lengths_name
from mds.errors import ConfigError, RecordError
from mds.storage import open_store
from mds.writers.convert import convert, prepare
from mds.writers.convert._run import _RunningConversion

NAME = lengths_name("tokens")
COLUMNS = {"tokens": "ndarray:uint16"}


def documents(count=3000):
    """Records with arrays of many lengths; a few are long."""
    return [
        {"id": i, "tokens": [(i + k) % 999 for k in range(400 if i % 97 == 5 else 1 + i % 70)]}
        for i in range(count)
    ]


def source(kit, records):
    return kit.write("x.jsonl", kit.lines(records))


@pytest.mark.parametrize("workers", [1, 3])
def test_the_file_is_that_of_a_writer(kit, tmp_path, workers):
    """Byte for byte, with any number of processes, and so are index and shards."""
    records = documents()
    options = {
        "encodings": COLUMNS,
        "lengths": "tokens",
        "size_limit": 40_000,
        "num_workers": workers,
    }
    made = prepare(source(kit, records), kit.out, hashes="none", **options)
    made.__dict__["part_size"] = 30_000
    made.run()
    out = tmp_path / "writer"
    columns = {"tokens": "ndarray:uint16", "id": "int"}
    options = {"size_limit": 40_000, "hashes": []}
    with MDSWriter(out=str(out), columns=columns, lengths="tokens", **options) as writer:
        for record in records:
            tokens = np.array(record["tokens"], np.uint16)
            writer.write({"tokens": tokens, "id": record["id"]})
    ours, theirs = open_store(kit.out), open_store(str(out))
    for path in out.iterdir():
        assert ours.get(path.name) == theirs.get(path.name), path.name


def test_an_interrupted_conversion_records_the_same(kit, tmp_path, monkeypatch):
    """What parts have told before the stop is kept with them."""
    path = source(kit, documents())
    options = {"encodings": COLUMNS, "lengths": "tokens", "size_limit": 40_000}

    def run(out, **more):
        made = prepare(path, out, **options, **more)
        made.__dict__["part_size"] = 30_000
        made.run()

    run(str(tmp_path / "whole"))
    count, parts = _RunningConversion._count_shard, []

    def stop(self, shard):
        parts.append(shard)
        if len(parts) == 4:
            raise KeyboardInterrupt
        count(self, shard)

    with monkeypatch.context() as patched:
        patched.setattr(_RunningConversion, "_count_shard", stop)
        with pytest.raises(KeyboardInterrupt):
            run(kit.out)
    with pytest.raises(ConfigError, match="lengths"):
        convert(path, kit.out, encodings=COLUMNS, size_limit=40_000, resume=True)
    run(kit.out, resume=True)
    assert open_store(kit.out).get(NAME) == open_store(str(tmp_path / "whole")).get(NAME)


def test_every_split_has_its_own(kit):
    """Of its samples, and with a limit of those that are taken."""
    records = documents(900)
    convert(source(kit, records), kit.out, encodings=COLUMNS, lengths="tokens", limit=700,
            split="train=0.8,val=0.2")  # fmt: skip
    told = {}
    for split in ("train", "val"):
        told[split] = recorded(f"{kit.out}/{split}")
        assert told[split] == [len(s["tokens"]) for s in kit.samples(f"{kit.out}/{split}")]
    every = sorted(told["train"] + told["val"])
    assert every == sorted(len(record["tokens"]) for record in records[:700])


def recorded(folder):
    from mds._cli.datasets import read_lengths

    return next(iter(read_lengths(folder))).all().tolist()


def test_blocks_of_tokens_have_one_length(kit):
    """The last one too, which is filled up."""
    path = kit.write("x.txt", "some words\n" * 300)
    convert(path, kit.out, tokenizer="bytes", block=256, lengths="tokens")
    assert set(recorded(kit.out)) == {256}


def test_a_record_without_a_length_is_a_bad_record(kit):
    """Left out with the others; the rest keeps its numbers."""
    records = documents(50)
    records[7]["tokens"] = [[1, 2], [3, 4]]
    path = source(kit, records)
    options = {"encodings": COLUMNS, "lengths": "tokens"}
    with pytest.raises(RecordError, match=r"shape \(2, 2\)"):
        convert(path, kit.out, **options)
    convert(path, kit.out, **options, on_error="skip", overwrite=True)
    assert recorded(kit.out) == [len(r["tokens"]) for r in records[:7] + records[8:]]


@pytest.mark.parametrize(
    ("column", "says"), [("ids", "no column 'ids'"), ("id", "stored as 'int'")]
)
def test_columns_without_lengths_are_refused_at_once(kit, column, says):
    """Before anything is read or written."""
    with pytest.raises(ConfigError, match=says):
        prepare(source(kit, documents(5)), kit.out, encodings=COLUMNS, lengths=column)


def test_the_command_records_and_a_new_conversion_clears(kit):
    """An overwritten dataset keeps no lengths of the one before."""
    path = source(kit, documents(50))
    command = ["convert", path, kit.out, "--encodings", "tokens:ndarray:uint16"]
    told = CliRunner().invoke(main, [*command, "--lengths", "tokens"])
    assert told.exit_code == 0, told.output
    assert len(recorded(kit.out)) == 50
    assert CliRunner().invoke(main, [*command, "--overwrite"]).exit_code == 0
    assert NAME not in [info.key for info in open_store(kit.out).list()]
