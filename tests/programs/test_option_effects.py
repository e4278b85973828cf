"""Every option of every command has an effect: other files, another output, or an error.

For each option there is a command line without it and one with it. An option without an entry
fails the test, so a new one needs an entry.
"""

import io
import json
import tarfile

import click
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from mds import MDSWriter, Schedule, Stream, StreamingDataLoader, StreamingDataset
from mds._cli import convert, main

pytestmark = pytest.mark.slow

TARS = ["--format", "tar"]
# Options of mds-convert: what comes before the option, and the option. {} is a folder of sources.
CONVERSIONS = {
    "--format": (["{}/images"], ["--format", "files"]),
    "--include": (["{}/images"], ["--include", "cats/*"]),
    "--exclude": (["{}/images"], ["--exclude", "cats/*"]),
    "--labels": (["{}/images"], ["--labels", "labels.csv"]),
    "--config": (["{}/lines.jsonl"], ["--config", "en"]),
    "--portable": (["{}/table.csv", "--null", "NA"], ["--portable"]),
    "--source-split": (["{}/lines.jsonl"], ["--source-split", "test"]),
    "--encoding": (["{}/latin.csv"], ["--encoding", "cp1252"]),
    "--no-header": (["{}/table.csv"], ["--no-header"]),
    "--encodings": (["{}/lines.jsonl"], ["--encodings", "id:int32"]),
    "--null": (["{}/table.csv"], ["--null", "NA"]),
    "--fill": (["{}/gaps.jsonl"], ["--fill", "id=7"]),
    "--describe": (["{}/lines.jsonl"], ["--describe", "id=a number"]),
    "--lengths": (
        ["{}/lines.jsonl", "--encodings", "tokens:ndarray:int32"],
        ["--lengths", "tokens"],
    ),
    "--columns": (["{}/lines.jsonl"], ["--columns", "id"]),
    "--drop": (["{}/lines.jsonl"], ["--drop", "id"]),
    "--split": (["{}/lines.jsonl"], ["--split", "train=0.5,val=0.5"]),
    "--merge-splits": (["{}/splits"], ["--merge-splits"]),
    "--split-key": (["{}/lines.jsonl", "--split", "train=0.5,val=0.5"], ["--split-key", "text"]),
    "--limit": (["{}/lines.jsonl"], ["--limit", "2"]),
    "--tokenizer": (["{}/lines.jsonl"], ["--tokenizer", "bytes", "--block", "4"]),
    "--block": (["{}/lines.jsonl", "--tokenizer", "bytes"], ["--block", "4"]),
    "--end-token": (
        ["{}/lines.jsonl", "--tokenizer", "bytes", "--block", "4"],
        ["--end-token", ""],
    ),
    "--text-column": (["{}/two.jsonl", "--tokenizer", "bytes"], ["--text-column", "b"]),
    "--drop-last": (["{}/lines.jsonl", "--tokenizer", "bytes", "--block", "5"], ["--drop-last"]),
    "--compression": (["{}/lines.jsonl"], ["--compression", "zstd"]),
    "--storage-option": (["{}/lines.jsonl"], ["--storage-option", "endpoint_url"]),  # no value
    "--hash": (["{}/lines.jsonl"], ["--hash", "sha1"]),
    "--size-limit": (["{}/lines.jsonl"], ["--size-limit", "200"]),
    "--num-workers": (["{}/lines.jsonl"], ["--num-workers", "-1"]),
    "--engine": (["{}/lines.jsonl"], ["--engine", "dask"]),
    "--on-error": (["{}/bad.jsonl"], ["--on-error", "skip"]),
    "--resume": (["{}/lines.jsonl"], ["--resume"]),
    "--overwrite": (["{}/lines.jsonl", "OUT"], ["--overwrite"]),
    "--work": (["{}/lines.jsonl"], ["--work", "{}/images"]),
    "--no-durable": (["{}/lines.jsonl"], ["--no-durable"]),
    "--keep-shards": (["{}/tables"], ["--keep-shards"]),
    "--dry-run": (["{}/lines.jsonl"], ["--dry-run"]),
    "--quiet": (["{}/lines.jsonl"], ["--quiet"]),
    "--json": (["{}/lines.jsonl"], ["--json"]),
}
# Options of the commands of mds, in the same way.
COMMANDS = {
    **{  # refused beside a path
        (command, "--storage-option"): (["{}/data"], ["--storage-option", "anonymous=true"])
        for command in ("info", "head", "verify", "lengths", "clean", "index", "merge")
    },
    **{  # refused without --data
        ("run " + command, "--storage-option"): (places, ["--storage-option", "anonymous=true"])
        for command, places in {
            "step": ["{}/state.json", "1"],
            "sample": ["{}/state.json", "1"],
            "diff": ["{}/state.json", "{}/later.json"],
            "mixture": ["{}/state.json"],
        }.items()
    },
    ("info", "--json"): (["{}/data"], ["--json"]),
    ("head", "--limit"): (["{}/data"], ["--limit", "1"]),
    ("head", "--columns"): (["{}/data"], ["--columns", "id"]),
    ("head", "--json"): (["{}/data"], ["--json"]),
    ("head", "--html"): (["{}/data"], ["--html", "{}/page.html"]),
    **{
        (command, "--format"): (["{}/lines.jsonl"], ["--format", "lines"])
        for command in ("info", "head", "verify")
    },
    ("verify", "--no-decode"): (["{}/broken"], ["--no-decode"]),
    ("verify", "--num-workers"): (["{}/data"], ["--num-workers", "-1"]),
    ("verify", "--quiet"): (["{}/data"], ["--quiet"]),
    ("verify", "--json"): (["{}/data"], ["--json"]),
    ("index", "--format"): (["{}/lines.jsonl"], ["--format", "lines"]),
    ("index", "--set"): (["{}/tars", "--format", "tar"], ["--set", "missing=error"]),
    ("index", "--split"): (["{}/lines.jsonl"], ["--split", "val"]),
    ("index", "--overwrite"): ([*TARS, "{}/indexed"], ["--overwrite"]),
    ("index", "--json"): ([*TARS, "{}/tars", "{}/elsewhere"], ["--json", "--overwrite"]),
    ("merge", "--json"): (["{}/parts", "--overwrite"], ["--json"]),
    ("merge", "--overwrite"): (["{}/parts"], ["--overwrite"]),
    ("clean", "--remove"): (["{}/left"], ["--remove"]),
    ("clean", "--json"): (["{}/left"], ["--json"]),
    ("lengths", "--json"): (["{}/data"], ["--json"]),
    ("lengths", "--column"): (["{}/data"], ["--column", "vector"]),
    ("run step", "--rank"): (["{}/state.json", "1"], ["--rank", "5"]),
    ("run step", "--show"): (["{}/state.json", "1"], ["--show", "1"]),
    ("run step", "--data"): (["{}/moved.json", "1"], ["--data", "{}/data", "--data", "{}/more"]),
    ("run step", "--select"): (["{}/state.json", "1"], ["--select", "{}/chosen.npy"]),
    ("run step", "--json"): (["{}/state.json", "1"], ["--json"]),
    ("run sample", "--data"): (
        ["{}/moved.json", "1"],
        ["--data", "{}/data", "--data", "{}/more"],
    ),
    ("run sample", "--select"): (
        ["{}/state.json", "1"],
        ["--select", "{}/chosen.npy"],
    ),
    ("run sample", "--json"): (["{}/state.json", "1"], ["--json"]),
    ("run diff", "--data"): (
        ["{}/moved.json", "{}/moved.json"],
        ["--data", "{}/data", "--data", "{}/more"],
    ),
    ("run diff", "--select"): (
        ["{}/state.json", "{}/state.json"],
        ["--select", "{}/chosen.npy"],
    ),
    ("run diff", "--json"): (["{}/state.json", "{}/later.json"], ["--json"]),
    ("run mixture", "--plot"): (["{}/state.json"], ["--plot"]),
    ("run mixture", "--until"): (["{}/state.json"], ["--until", "3"]),
    ("run mixture", "--data"): (["{}/moved.json"], ["--data", "{}/data", "--data", "{}/more"]),
    ("run mixture", "--json"): (["{}/state.json"], ["--json"]),
}


def write_lines(path, records):
    """Write records as JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_picture(path):
    """Write a small picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path)


def write_dataset(path, first=0):
    """Write a dataset of twelve samples."""
    columns = {"id": "int", "tokens": "ndarray:int32", "vector": "ndarray:float32"}
    with MDSWriter(out=str(path), columns=columns, samples_per_shard=4) as writer:
        for number in range(first, first + 12):
            tokens = np.arange(number % 3 + 1, dtype=np.int32)
            vector = tokens.astype(np.float32)
            writer.write({"id": number, "tokens": tokens, "vector": vector})


@pytest.fixture
def sources(tmp_path):
    """One source of each kind that an option is about."""
    root = tmp_path / "sources"
    root.mkdir()
    for name in ("cats/1.png", "cats/2.png", "dogs/1.png", "dogs/2.png"):
        write_picture(root / "images" / name)
    (root / "images" / "labels.csv").write_text(
        "file,label\ncats/1.png,9\ncats/2.png,8\ndogs/1.png,7\ndogs/2.png,6\n"
    )
    records = [{"id": n, "text": f"text {n}", "tokens": list(range(n))} for n in range(1, 9)]
    write_lines(root / "lines.jsonl", records)
    write_lines(root / "gaps.jsonl", [{"id": 1, "text": "a"}, {"id": None, "text": "b"}])
    write_lines(root / "two.jsonl", [{"a": "first", "b": "second"}] * 3)
    (root / "bad.jsonl").write_text('{"id": 1}\n{"id": \n{"id": 3}\n')
    (root / "latin.csv").write_bytes("name\ncaf\xe9\n".encode("latin-1"))
    (root / "table.csv").write_text("id,name\n1,a\nNA,b\n")
    for name in ("train", "test"):
        (root / "splits" / name).mkdir(parents=True)
        write_lines(root / "splits" / name / "a.jsonl", records[:4])
    (root / "tables").mkdir()
    for number in range(3):
        write_lines(root / "tables" / f"{number}.jsonl", records[number : number + 2])
    return root


@pytest.fixture
def datasets(sources):
    """Datasets, and the states of a run, for the commands of mds."""
    root = sources
    write_dataset(root / "data")
    write_dataset(root / "more", first=100)
    # Without digests, so that only decoding finds the damage.
    with MDSWriter(out=str(root / "broken"), columns={"text": "str"}, hashes=[]) as writer:
        writer.write({"text": "broken"})
    shard = root / "broken" / "shard.00000.mds"
    content = bytearray(shard.read_bytes())
    content[-4:] = b"\xff" * 4
    shard.write_bytes(content)
    for name in ("a", "b"):
        write_dataset(root / "parts" / name)
    CliRunner().invoke(main, ["merge", str(root / "parts")], catch_exceptions=False)
    write_dataset(root / "left")
    (root / "left" / "shard.00009.mds").write_bytes(shard.read_bytes())
    for folder in ("tars", "indexed"):
        (root / folder).mkdir()
        with tarfile.open(root / folder / "a.tar", "w") as tar:
            for name, content in (("1.txt", b"one"), ("1.cls", b"1"), ("2.txt", b"two")):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    CliRunner().invoke(main, ["index", *TARS, str(root / "indexed")], catch_exceptions=False)
    np.save(root / "chosen.npy", np.arange(5))
    streams = {name: Stream(local=str(root / name)) for name in ("data", "more")}
    schedule = Schedule({0: {"data": 0.75, "more": 0.25}, 4: {"data": 0.25, "more": 0.75}})
    dataset = StreamingDataset(streams=streams, schedule=schedule, batch_size=4)
    loader = StreamingDataLoader(dataset)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    state = loader.state_dict()
    (root / "state.json").write_text(json.dumps(state))
    next(iterator)
    (root / "later.json").write_text(json.dumps(loader.state_dict()))
    state["data"] = json.dumps({**json.loads(state["data"]), "root": "/nowhere/"})
    (root / "moved.json").write_text(json.dumps(state))
    return root


def observe(command, arguments, folder):
    """Return what a command printed, its exit code, and the files of a folder afterwards."""
    result = CliRunner().invoke(command, arguments)
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return result.exit_code, result.stdout, files, result.stderr


def options_of(command):
    """Return the long names of the options of a command."""
    options = (each for each in command.params if isinstance(each, click.Option))
    return {max(each.opts, key=len) for each in options} - {"--help"}


def test_every_option_has_an_entry():
    """The tables hold the options of the commands, and no others."""
    assert options_of(convert) == {*CONVERSIONS}
    commands = {name: command for name, command in main.commands.items() if name != "run"}
    commands |= {f"run {name}": each for name, each in main.commands["run"].commands.items()}
    names = {(name, option) for name in commands for option in options_of(commands[name])}
    convert_names = {("convert", option) for option in CONVERSIONS}
    assert names - convert_names == {*COMMANDS}


@pytest.mark.parametrize("option", CONVERSIONS)
def test_every_option_of_a_conversion_has_an_effect(option, sources, tmp_path, monkeypatch):
    """The files, the exit code or the output differ from those without the option."""
    flushed = []
    monkeypatch.setattr("os.fsync", flushed.append)
    before, more = CONVERSIONS[option]
    observed = []
    for number, extra in enumerate(([], more)):
        out = tmp_path / f"out-{number}"
        arguments = [each.format(sources) for each in before if each != "OUT"]
        arguments.insert(1, str(out))
        if "OUT" in before:
            assert CliRunner().invoke(convert, arguments).exit_code == 0
        flushed.clear()
        result = observe(convert, arguments + [each.format(sources) for each in extra], tmp_path)
        code, stdout, _, stderr = result
        files = {name: content for name, content in result[2].items() if name.startswith(out.name)}
        shown = "" if option == "--quiet" else stderr
        observed.append(
            (
                code,
                stdout.replace(out.name, ""),
                {name.partition("/")[2]: content for name, content in files.items()},
                bool(stderr) if option == "--quiet" else None,
                bool(flushed) if option == "--no-durable" else None,
                code and shown.replace(out.name, ""),
            )
        )
    assert observed[0] != observed[1]


@pytest.mark.parametrize(("command", "option"), COMMANDS)
def test_every_option_of_a_command_has_an_effect(command, option, datasets, tmp_path):
    """The files, the exit code or the output differ from those without the option."""
    before, more = COMMANDS[command, option]
    observed = []
    for extra in ([], more):
        arguments = [each.format(datasets) for each in (*before, *extra)]
        observed.append(observe(main, [*command.split(), *arguments], datasets))
    assert observed[0] != observed[1]
