"""Usage of all commands: exit codes, JSON, versions, and words of other programs."""

import json
import pathlib
import shlex

import click
import numpy as np
import pytest
from click.testing import CliRunner

import mds
from mds import MDSWriter, Schedule, Stream, StreamingDataLoader, StreamingDataset
from mds._cli import convert, main, other_words

PAGE = (pathlib.Path(__file__).parents[3] / "docs" / "commands.md").read_text(encoding="utf-8")


def run(line):
    """Run a command line such as "mds info data"."""
    program, *arguments = shlex.split(line)
    command = convert if program == "mds-convert" else main
    return CliRunner().invoke(command, arguments, prog_name=program)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with datasets whole and damaged, sources, and states of two runs."""
    root = tmp_path_factory.mktemp("usage")
    columns = {"id": "int", "text": "str", "tokens": "ndarray:int32"}
    for name in ("all/a", "all/b", "other", "damaged"):
        with MDSWriter(out=str(root / name), columns=columns, samples_per_shard=4) as writer:
            for number in range(8):
                tokens = np.arange(number + 1, dtype=np.int32)
                writer.write({"id": number, "text": f"text {number}", "tokens": tokens})
    shard = root / "damaged" / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes()[:-1])
    (root / "lines.jsonl").write_text('{"id": 1, "text": "x"}\n' * 5)
    (root / "bad.jsonl").write_text('{"id": 1}\n{"id"\n')
    for seed in (1, 2):
        streams = {name: Stream(local=str(root / "all" / name)) for name in ("a", "b")}
        schedule = Schedule({0: {"a": 1, "b": 1}})
        dataset = StreamingDataset(
            streams=streams, schedule=schedule, batch_size=2, shuffle=True, shuffle_seed=seed
        )
        loader = StreamingDataLoader(dataset)
        for number, _ in enumerate(loader):
            if number == 2:
                break
        (root / f"{seed}.json").write_text(json.dumps(loader.state_dict()))
    return root


@pytest.fixture(autouse=True)
def _folder(root, monkeypatch):
    monkeypatch.chdir(root)


#: Each command without an error, and its exit code.
ENDS = {
    "mds info all": 0,
    "mds head all -n 1": 0,
    "mds verify other": 0,
    "mds verify damaged": 1,
    "mds lengths other": 0,
    "mds index lines.jsonl pinned --overwrite": 0,
    "mds merge all --overwrite": 0,
    "mds clean other": 0,
    "mds convert lines.jsonl converted --overwrite": 0,
    "mds run step 1.json 1": 0,
    "mds run sample 1.json 1": 0,
    "mds run diff 1.json 1.json": 0,
    "mds run diff 1.json 2.json": 1,
    "mds run mixture 1.json": 0,
}


@pytest.mark.parametrize("line", ENDS)
def test_exit_codes_and_json(line):
    """With --json the code is the same and standard output is JSON."""
    plain, as_json = run(line), run(f"{line} --json")
    assert (plain.exit_code, as_json.exit_code) == (ENDS[line], ENDS[line]), as_json.output
    assert plain.stdout
    if line.startswith(("mds head", "mds run step")):
        rows = [json.loads(row) for row in as_json.stdout.splitlines()]
        assert rows
        assert all("id" in row or {"epoch", "step", "rank", "sample"} <= {*row} for row in rows)
        return
    document = json.loads(as_json.stdout)
    if "datasets" not in document:
        assert line.startswith(("mds clean", "mds run"))
        return
    for name in {"samples", "shards"} & {*document["datasets"][0]}:
        assert document[name] == sum(each[name] for each in document["datasets"])
    for each in document["datasets"]:
        assert {"url", "samples"} <= {*each}


def test_the_same_facts_have_the_same_keys():
    """A conversion, its summary, a merge and a verification agree about a dataset."""
    lines = (
        "mds-convert lines.jsonl agreed -q --overwrite",
        "mds info agreed",
        "mds verify agreed",
    )
    converted, info, verified = (
        json.loads(run(f"{line} --json").stdout)["datasets"][0] for line in lines
    )
    for name in ("url", "columns", "samples", "shards", "raw_size", "zip_size"):
        assert converted[name] == info[name]
    assert (verified["samples"], verified["faults"]) == (info["samples"], [])
    assert verified["read_size"] == info["raw_size"]
    (recorded,) = json.loads(run("mds lengths other --json").stdout)["datasets"]
    (info,) = json.loads(run("mds info other --json").stdout)["datasets"]
    assert recorded["lengths"] == info["lengths"]
    assert recorded["lengths"]["tokens"] == {
        "smallest": 1, "middle": 4, "percentile_99": 7, "largest": 8, "sum": 36
    }  # fmt: skip
    (merged,) = json.loads(run("mds merge all --overwrite --json").stdout)["datasets"]
    assert merged.items() <= json.loads(run("mds info all --json").stdout)["datasets"][0].items()


def test_a_plan_as_json_has_the_columns():
    """Nothing is written."""
    result = run("mds-convert lines.jsonl planned --dry-run --json")
    columns = {"id": "int", "text": "str"}
    assert json.loads(result.stdout) == {"datasets": [{"url": "planned", "columns": columns}]}
    assert not pathlib.Path("planned").exists()


@pytest.mark.parametrize(
    "line",
    [
        "mds info nowhere",
        "mds head nowhere --json",
        "mds verify nowhere --json",
        "mds lengths other --column id",
        "mds index nowhere",
        "mds merge other",
        "mds clean nowhere",
        "mds-convert bad.jsonl broken",
        "mds run step lines.jsonl 1",
        "mds run sample 1.json 99",
        "mds run diff 1.json nowhere",
        "mds run mixture lines.jsonl",
        "mds",
        "mds run",
        "mds info",
        "mds info other --frob",
        # Options that contradict each other.
        "mds head other --json --html page.html",
        "mds head other --columns id --html page.html",
        "mds verify other --json --quiet",
        "mds run mixture 1.json --json --plot",
    ],
)
def test_errors_end_with_2_and_print_no_result(line):
    """With a sentence on standard error."""
    result = run(line)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr
    assert "Traceback" not in result.stderr


def test_a_bug_ends_with_2_and_a_traceback(monkeypatch):
    """Python's own 1 would say that the dataset has faults."""
    monkeypatch.setattr("mds._cli.datasets.find_datasets", lambda _: 1 / 0)
    assert run("mds verify other").exit_code == 2


def test_the_page_lists_the_exit_codes():
    """Those of docs/commands.md are those of the code."""
    for code in ("0", "1", "2", "130", "141"):
        assert f"\n| {code} | " in PAGE


@pytest.mark.parametrize(
    "line",
    ["mds", "mds-convert", "mds run", "mds info", "mds convert", "mds run step", "mds verify"],
)
def test_the_version_is_shown_everywhere(line):
    """Behind every command."""
    result = run(f"{line} --version")
    assert (result.exit_code, result.stdout) == (0, f"mds, version {mds.__version__}\n")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("mds inspect other", "Write: mds info other"),
        ("mds inspect s3://k:secret@b/x --endpoint-url U", "Write: mds info s3://***@b/x"),
        ("mds ls other", "Write: mds info other"),
        ("mds stats 'a b'", "Write: mds info 'a b'"),
        ("mds validate other", "Write: mds verify other"),
        ("mds cat other -n 3", "Write: mds head other"),
        ("mds show", "Write: mds head DATASET"),
        ("mds build x", "Write: mds convert x OUT"),
        ("mds concat a b out", "Write: mds merge a b out"),
        ("mds split other out --train 0.8", "mds convert SOURCE OUT --split train=0.8,val=0.2"),
        ("mds bench other", "print(loader.report())"),
        ("mds cache ls", "delete the folder to clear it"),
        ("mds lookup other --step 3", "mds run step STATE STEP"),
        ("mds step 1.json 5 --json", "Write: mds run step 1.json 5"),
        ("mds find 1.json --sample 7", "Write: mds run sample 1.json 7"),
        ("mds compare 1.json 2.json", "Write: mds run diff 1.json 2.json"),
        ("mds plan 1.json --plot", "Write: mds run mixture 1.json"),
        ("mds rewind step 1.json 5", "Write: mds run step 1.json 5"),
        ("mds rewind", "Write: mds run step STATE STEP"),
        ("mds run compare 1.json 2.json", "Write: mds run diff 1.json 2.json"),
        ("mds other", "Write: mds info other"),
        ("mds inof other", "Did you mean 'info'?"),
        ("mds-convert a b --workers 2", "Write --num-workers."),
        ("mds-convert a b --skip-bad", "Write --on-error skip."),
        ("mds convert a b --ignore-errors", "Write --on-error skip."),
        ("mds-convert a b --filter x", "mds.convert(filter(function, samples), OUT)"),
        ("mds merge-index a b", "Write: mds merge a b"),
        ("mds-convert a b --shuffle", "StreamingDataset(..., shuffle=True"),
        ("mds-convert --input a --output b", "without an option: mds-convert SOURCE OUT"),
        ("mds-convert a b -n", "write --dry-run to only show the plan"),
        ("mds-convert -n a b", "write --dry-run to only show the plan"),
        ("mds head other --samples 3", "Write --limit."),
        ("mds head other --fields id", "Write --columns."),
        ("mds info other --endpoint-url U", "Write --storage-option endpoint_url="),
        ("mds index lines.jsonl -o pinned", "without an option: mds index SOURCE [OUT]"),
        ("mds run sample 1.json --sample 3", "without an option: mds run sample STATE NUMBER"),
        ("mds info other --jsn", "Did you mean '--json'?"),
    ],
)
def test_words_of_other_programs_are_told_with_ours(line, hint):
    """And with those of earlier versions."""
    result = run(line)
    assert result.exit_code == 2
    assert "No such" in result.stderr or "-n" in line
    assert hint in result.stderr
    assert "secret" not in result.stderr


def test_the_tables_name_what_exists():
    """Each remedy is a command or option of mds, and no word is one of them."""
    commands = {**main.commands}
    commands |= {f"run {name}": each for name, each in commands.pop("run").commands.items()}
    assert {*other_words._ARGUMENTS} == {*commands}
    options = {name for each in commands.values() for p in each.params for name in p.opts}
    for remedy, _ in other_words._OPTIONS:
        if remedy.startswith("--"):
            assert remedy.partition(" ")[0] in options | {"--version", *FUTURE_OPTIONS}
    for _, words in other_words._COMMANDS:
        assert not {*words.split()} & {*main.commands}
    for name, command in commands.items():
        operands = [each for each in command.params if isinstance(each, click.Argument)]
        assert len(operands) == len(other_words._ARGUMENTS[name].split())


#: Options that a neighbouring row of the table is for.
FUTURE_OPTIONS = {"--format", "--storage-option"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mds merge all all/b", "Write: mds merge all/b all"),
        ("mds merge all all/b all/a", "Write: mds merge all/b all/a all"),
        ("mds merge other all", "other is not below OUT, all"),
        ("mds merge all/a other all", "other is not below OUT, all"),
        ("mds merge all all", "all is not below OUT, all"),
    ],
)
def test_parts_that_are_not_below_out_are_refused(line, words):
    """And a command line with OUT first is told with OUT last."""
    before = pathlib.Path("all/index.json").exists()
    result = run(f"{line} --overwrite")
    assert result.exit_code == 2
    assert words in result.stderr
    assert pathlib.Path("all/index.json").exists() == before


def test_head_shows_the_named_columns():
    """In their order; another name is an error."""
    result = run("mds head other -n 1 --columns text,id --json")
    assert result.stdout == '{"text": "text 0", "id": 0}\n'
    assert "Did you mean 'text'?" in run("mds head other --columns txt").stderr
