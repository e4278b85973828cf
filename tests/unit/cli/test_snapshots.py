"""What all commands print: in terminals of three widths, in pipes, without colours, in ASCII.

The texts lie in `snapshots`, one file a command. After a change that is meant, write them anew and
look at the difference:

    MDS_SNAPSHOTS=write python -m pytest tests/unit/cli/test_snapshots.py
"""

import contextlib
import io
import json
import os
import pathlib
import re

import click
import numpy as np
import pytest
from PIL import Image

from mds import MDSWriter, Schedule, Stream, StreamingDataLoader, StreamingDataset
from mds._cli import convert_command, main, verify_command
from mds.writers.convert import convert

SNAPSHOTS = pathlib.Path(__file__).parent / "snapshots"

#: Of each: whether it is a terminal, its encoding, and the environment.
PLACES = {
    "60 columns": (True, "utf-8", {"COLUMNS": "60"}),
    "80 columns": (True, "utf-8", {"COLUMNS": "80"}),
    "140 columns": (True, "utf-8", {"COLUMNS": "140"}),
    "a pipe": (False, "utf-8", {"COLUMNS": "80"}),
    "NO_COLOR": (True, "utf-8", {"COLUMNS": "80", "NO_COLOR": "1"}),
    "ASCII": (False, "ascii", {"COLUMNS": "80"}),
}

COMMANDS = {
    "convert": ["convert", "photographs", "out", "--describe", "label=the animal on it"],
    "convert-table": ["convert", "table.csv", "out"],
    "convert-nothing": ["convert", "nowhere", "out"],
    "convert-encoding": ["convert", "cp1252.csv", "out"],
    "info": ["info", "data"],
    "info-json": ["info", "data", "--json"],
    "info-classes": ["info", "classes"],
    "info-nothing": ["info", "empty"],
    "head": ["head", "data", "-n", "1"],
    "head-json": ["head", "data", "-n", "1", "--json"],
    "verify": ["verify", "data"],
    "verify-faults": ["verify", "damaged"],
    "merge": ["merge", "parts"],
    "merge-again": ["merge", "merged"],
    "clean": ["clean", "unfinished"],
    "clean-nothing": ["clean", "data"],
    "index": ["index", "empty"],
    "lengths": ["lengths", "data", "--column", "n"],
    "run-step": ["run", "step", "nowhere.json", "0"],
    "run-sample": ["run", "sample", "nowhere.json", "3"],
    "run-diff": ["run", "diff", "nowhere.json", "nowhere.json"],
    "run-mixture": ["run", "mixture", "scheduled.json", "--plot"],
    "wrong-option": ["info", "data", "--jsn"],
    "wrong-command": ["inof", "data"],
    "other-command": ["inspect", "data"],
    "other-option": ["convert", "table.csv", "out", "--workers", "2"],
}


class Output(io.TextIOWrapper):
    """A stream that says whether it is a terminal."""

    def __init__(self, is_terminal, encoding):
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal

    def text(self):
        return self.buffer.getvalue().decode(self.encoding)


def write_data(folder, samples, **options):
    columns = {"text": "str", "n": "int", "array": "ndarray:float32", "picture": "png"}
    picture = Image.new("RGB", (4, 4), (200, 10, 10))
    picture.paste((0, 0, 250), (0, 2, 4, 4))
    with MDSWriter(out=str(folder), columns=columns, **options) as writer:
        for number in range(samples):
            writer.write(
                {
                    "text": f"Straße {number} \x1b[31m🙂 " + "and so on, " * 20,
                    "n": number,
                    "array": np.arange(12, dtype=np.float32).reshape(3, 4),
                    "picture": picture,
                }
            )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with one of everything."""
    write_data(tmp_path / "data", 20, hashes=["xxh3_64"], samples_per_shard=8)
    write_data(tmp_path / "damaged", 4, hashes=[])
    shard = tmp_path / "damaged" / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes()[:-5])
    for name in ("parts", "merged"):
        for part in ("a", "b"):
            with MDSWriter(out=str(tmp_path / name / part), columns={"n": "int"}) as writer:
                writer.write({"n": 1})
    (tmp_path / "merged" / "index.json").write_text('{"version": 2, "shards": []}')
    (tmp_path / "empty").mkdir()
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "shard.00000.mds").write_bytes(b"x")
    for name in ("cat", "horse"):
        (tmp_path / "photographs" / name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "photographs" / name / "1.png")
    (tmp_path / "table.csv").write_text("name;age\nJosé;3\nZoë;4\n")
    (tmp_path / "cp1252.csv").write_bytes("name;age\nJosé;3\n".encode("cp1252"))
    convert(
        str(tmp_path / "photographs"),
        str(tmp_path / "classes"),
        describe={"label": "the animal on it, as its owner calls it"},
    )
    parts = {name: Stream(local=str(tmp_path / "parts" / name)) for name in ("a", "b")}
    schedule = Schedule({0: {"a": 3, "b": 1}, 100: {"b": 1}}, between="linear")
    dataset = StreamingDataset(streams=parts, schedule=schedule, batch_size=4)
    (tmp_path / "scheduled.json").write_text(json.dumps(StreamingDataLoader(dataset).state_dict()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(arguments, place, monkeypatch):
    """What a command prints to both outputs, and how it ends."""
    is_terminal, encoding, environment = PLACES[place]
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", "LINES": "40", **environment}.items():
        monkeypatch.setenv(name, value)
    # Spinners and bars are drawn by the clock.
    for module in (convert_command, verify_command):
        monkeypatch.setattr(module, "is_lively", lambda _: False)
    out, side = Output(is_terminal, encoding), Output(is_terminal, encoding)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(side):
        try:
            code = main(arguments, prog_name="mds", standalone_mode=True)
        except SystemExit as end:
            code = end.code
    return (
        f"exit code {code or 0}\n--- output\n{tidy(out.text(), is_terminal)}--- beside it\n"
        f"{tidy(side.text(), is_terminal)}"
    )


def tidy(text, is_terminal):
    """The text without what differs from run to run, and with escapes that can be read.

    A table fills a terminal with spaces, which say nothing.
    """
    text = re.sub(r"[\d.,]+ (s|min)\b", "N s", text)
    text = re.sub(r"[\d.,]+ samples/s, [\d.,]+ [KMGT]?B/s", "N samples/s, N B/s", text)
    text = re.sub(r"[\d.,]+ [MGT]B free", "N free", text)
    text = re.sub(r"known format \([\w,\s]+\)", "known format (...)", text)
    lines = text.replace("\x1b", "^[").split("\n")
    return "\n".join(line.rstrip() if is_terminal else line for line in lines)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_it_did(name, folder, monkeypatch):
    """In every place where it may be read."""
    found = ""
    for place in PLACES:
        for written in ("out", "parts"):
            if (folder / written / "index.json").exists():
                for path in (folder / written).iterdir():
                    if path.is_file():
                        path.unlink()
        if (folder / "out").exists():
            (folder / "out").rmdir()
        found += f"=== {place}\n{run(COMMANDS[name], place, monkeypatch)}"
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("MDS_SNAPSHOTS") == "write":
        SNAPSHOTS.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8"), "see above: MDS_SNAPSHOTS=write"


#: All commands by name, such as "info" and "run step".
ALL_COMMANDS = {
    **main.commands,
    **{f"run {name}": command for name, command in main.commands["run"].commands.items()},
}


def test_every_command_is_in_a_snapshot():
    """A new one is added here."""
    lines = [" ".join(arguments) for arguments in COMMANDS.values()]
    for name in ALL_COMMANDS:
        assert any(f"{line} ".startswith(f"{name} ") for line in lines), name


@pytest.mark.parametrize("command", ["", *ALL_COMMANDS])
def test_help_fits(command, monkeypatch):
    """Into each width, up to that which is read easily; every option says what it does."""
    for columns in (60, 80, 140):
        shown = run([*command.split(), "--help"], f"{columns} columns", monkeypatch).split("\n")
        assert max(map(len, shown)) <= min(columns, 100)
    for option in ALL_COMMANDS[command].params if command else ():
        if isinstance(option, click.Option):
            assert option.get_help_record(click.Context(ALL_COMMANDS[command]))[1], option


def test_nothing_acts_in_a_pipe():
    """No snapshot of a pipe or of ASCII has an escape, and none of NO_COLOR has a colour."""
    for path in SNAPSHOTS.glob("*.txt"):
        pieces = re.split(r"^=== (.*)\n", path.read_text("utf-8"), flags=re.MULTILINE)[1:]
        parts = dict(zip(pieces[::2], pieces[1::2], strict=True))
        assert list(parts) == list(PLACES), path
        assert "^[" not in parts["a pipe"], path
        assert "^[" not in parts["ASCII"], path
        assert parts["ASCII"].isascii(), path
        assert " \n" not in parts["a pipe"] + parts["ASCII"], path
        assert not re.search(r"\^\[\[[\d;]*(3[0-7]|9[0-7]|38|48)[\d;]*m", parts["NO_COLOR"]), path
        for columns in (60, 80, 140):
            lines = re.sub(r"\^\[\[[\d;]*m", "", parts[f"{columns} columns"]).split("\n")
            is_table = [line for line in lines if line.startswith((" ", " ─"))]
            assert max(map(len, is_table), default=0) <= columns, path
