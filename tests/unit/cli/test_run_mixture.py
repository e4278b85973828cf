"""mds run mixture: the mixture that a run with a schedule had and will have."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from mds import MDSWriter, Schedule, Stream, StreamingDataLoader, StreamingDataset
from mds._cli import main
from mds._cli.plots import plot_mixture, stream_letters

NAMES = ("web", "code", "math")
KNOTS = {0: {"web": 8, "code": 2}, 40: {"web": 1, "code": 1, "math": 2}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("streams")
    for name in NAMES:
        with MDSWriter(out=str(made / name), columns={"id": "int"}) as writer:
            for number in range(100):
                writer.write({"id": number})
    return made


def checkpoint(folder, path, steps, weights=None, schedule=None):
    """The state of a loader behind so many steps, in a file."""
    dataset = StreamingDataset(
        streams={name: Stream(local=str(folder / name)) for name in NAMES},
        schedule=schedule, batch_size=10, shuffle=True,
    )  # fmt: skip
    loader = StreamingDataLoader(dataset)
    for number, _ in enumerate(loader, 1):
        if weights and number == steps:
            dataset.edits.set_weights(weights)
        if number == steps + bool(weights):
            break
    path.write_text(json.dumps(loader.state_dict()))
    return str(path)


def run(*arguments):
    return CliRunner().invoke(main, ["run", "mixture", *map(str, arguments)])


def test_the_picture_has_the_shares_that_come(folder, tmp_path):
    """From step 0 to beyond the last knot, with a mark where the state is."""
    schedule = Schedule(KNOTS)
    path = checkpoint(folder, tmp_path / "c.json", 9, schedule=schedule)
    told = run(path, "--plot")
    assert told.exit_code == 0, told.output
    lines = told.output.splitlines()
    columns = list(zip(*(line[7:] for line in lines[:12]), strict=True))
    assert [column.count("a") for column in columns[:4]] == [10] * 4  # eight tenths of twelve
    assert {column.count("c") for column in columns[-4:]} == {6}
    assert lines[12].index("^") - 7 == 9 * len(columns) // 50
    assert lines[13] == "steps 0 to 50"
    assert "80.00 %" in told.output


def test_the_numbers_are_those_of_the_run(folder, tmp_path):
    """As JSON: shares at both ends, samples, passes."""
    path = checkpoint(folder, tmp_path / "c.json", 9, schedule=Schedule(KNOTS))
    document = json.loads(run(path, "--json", "--until", 40).output)
    rows = document["streams"]
    assert (document["unit"], document["until"], document["now"]) == ("steps", 40, 9)
    assert [row["stream"] for row in rows] == list(NAMES)
    assert [row["samples"] for row in rows] == [320, 80, 0]
    assert [row["passes"] for row in rows] == [3.2, 0.8, 0.0]
    assert rows[0]["first"] == pytest.approx(0.8, abs=0.11)


def test_weights_that_were_set_are_in_the_picture(folder, tmp_path):
    """From their step on; what was before stays as it was."""
    path = checkpoint(folder, tmp_path / "c.json", 9, {"math": 1}, Schedule(KNOTS))
    rows = json.loads(run(path, "--json", "--until", 60).output)["streams"]
    samples = {row["stream"]: row["samples"] for row in rows}
    assert samples["math"] >= 490
    assert samples["web"] <= 80


def test_a_run_without_a_schedule_has_nothing_to_plot_mixture(folder, tmp_path):
    """Said with what its shares are."""
    dataset = StreamingDataset(local=str(folder / "web"), batch_size=10)
    loader = StreamingDataLoader(dataset)
    next(iter(loader))
    (tmp_path / "c.json").write_text(json.dumps(loader.state_dict()))
    told = run(tmp_path / "c.json")
    assert told.exit_code == 2
    assert "without a schedule" in told.output


def test_columns_are_full_whatever_the_rounding():
    """Of many streams too, of which those beyond the letters share a dot."""
    rng = np.random.default_rng(0)
    counts = np.cumsum(rng.integers(0, 9, (21, 70)), axis=0)
    lines = list(plot_mixture(counts, list(range(21))))
    assert all(len(line) == 27 and " " not in line[7:] for line in lines[:12])
    assert len(set(stream_letters(52))) == 52
    assert stream_letters(60)[-1] == "."
