"""mds run step, sample and diff: a checkpoint leads back to what the run saw."""

import json
import os
import pathlib
import re

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from mds import (
    MDSWriter,
    Packing,
    RunHistory,
    Schedule,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    World,
)
from mds._cli import main
from tests.states import changed, values_of

NAMES = ("web", "code", "math")
SIZES = (300, 90, 40)
PAGE = pathlib.Path(__file__).parents[3] / "docs" / "rewind.md"


def run(*arguments):
    return CliRunner().invoke(main, ["run", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made, first = tmp_path_factory.mktemp("data"), 0
    for name, size in zip(NAMES, SIZES, strict=True):
        columns = {"id": "int", "text": "str"}
        with MDSWriter(out=str(made / name), columns=columns, size_limit=1000) as writer:
            for number in range(first, first + size):
                writer.write({"id": number, "text": f"{name} number {number}"})
        first += size
    return made


def train(folder, steps, *, weights=None, share=(), **settings):
    """Ids of each rank in each step of two ranks, and the state of rank 0."""
    loaders = []
    for rank in range(2):
        streams = {name: Stream(local=str(folder / name), **dict(share)) for name in NAMES}
        if "schedule" not in settings:
            streams = list(streams.values())
        settings = {"batch_size": 4, "shuffle": True, **settings}
        dataset = StreamingDataset(streams=streams, topology=World(1, 2, 1, rank), **settings)
        loaders.append(StreamingDataLoader(dataset))
    found = []
    while len(found) < steps:
        for batches in zip(*loaders, strict=True):
            found.append([batch["id"].tolist() for batch in batches])
            if len(found) == weights:
                for loader in loaders:
                    loader.dataset.edits.set_weights({"web": 1})
            if len(found) == steps:
                break
    return found, loaders[0].state_dict()


def saved(state, path):
    path.write_text(json.dumps(state))
    return path


KINDS = {
    "plain": {},
    "stratified": {"batching_method": "stratified", "epoch_size": 400},
    "seekable": {"shuffle_algo": "seekable", "remainder": "short", "share": {"repeat": 1.5}},
    "scheduled": {"schedule": Schedule({0: {"web": 2, "math": 1}, 9: {"code": 1, "web": 1}})},
}


@pytest.mark.parametrize("kind", KINDS)
def test_step_and_find_tell_what_the_ranks_saw(folder, tmp_path, kind):
    """Every step, in both epochs, rank by rank; and every place of a sample."""
    seen, state = train(folder, 90, **KINDS[kind])
    path = saved(state, tmp_path / "state.json")
    history = RunHistory(path)
    assert history.steps_per_epoch < 90
    for step, ranks in enumerate(seen):
        rows = history.step(step)
        assert [[row.sample for row in rows if row.rank == rank] for rank in (0, 1)] == ranks
    for row in history.step(89):
        assert row.stream == NAMES[(row.sample >= 300) + (row.sample >= 390)]
        assert os.path.exists(folder / row.stream / row.file)
        assert history.dataset[row.sample]["id"] == row.sample
    sample = seen[3][1][2]
    places = {
        (step, rank) for step, pair in enumerate(seen) for rank in (0, 1) if sample in pair[rank]
    }
    told = history.sample(sample)
    assert {(place.step, place.rank) for place in told if place.is_over} == places
    assert all(place.step >= 90 for place in told if not place.is_over)


def test_the_commands_print_it(folder, tmp_path):
    """Tables for people and JSON lines, of a file of torch.save too."""
    seen, state = train(folder, 12, **KINDS["scheduled"])
    path = tmp_path / "run.pt"
    torch.save({"model": {"w": torch.zeros(2)}, "loader": state}, path)
    result = run("step", path, 5, "--show", 1)
    assert result.exit_code == 0
    assert "Step 5 of the training is step 5 of epoch 0: 8 samples." in result.stdout
    for rank in (0, 1):
        sample = seen[5][rank][0]
        assert re.search(rf"{rank} +{sample} .*(web|code|math) number {sample}", result.stdout)
    lines = run("step", path, 5, "--json", "--rank", 1).stdout.splitlines()
    rows = list(map(json.loads, lines))
    assert [row["sample"] for row in rows] == seen[5][1]
    assert {(row["epoch"], row["step"]) for row in rows} == {(0, 5)}
    sample = seen[5][1][0]
    facts = json.loads(run("sample", path, sample, "--json").stdout)
    assert (facts["sample"], facts["position"]) == (sample, {"epoch": 0, "step": 12})
    assert {"epoch": 0, "step": 5, "rank": 1, "is_over": True} in facts["visits"]
    assert f"Sample {sample} is read" in run("sample", path, sample).stdout


def test_the_newest_state_of_a_folder_is_taken(folder, tmp_path):
    """Below it too, and its name is printed; a folder without any is an error."""
    seen, state = train(folder, 6)
    (tmp_path / "run" / "checkpoint-6").mkdir(parents=True)
    assert "ends with .json" in run("step", tmp_path / "run", 5).stderr
    old = saved({}, tmp_path / "run" / "config.json")
    os.utime(old, (0, 0))
    path = saved(state, tmp_path / "run" / "checkpoint-6" / "state.json")
    result = run("step", tmp_path / "run", 5, "--json")
    assert result.stderr == f"Note: the state is {path}.\n"
    rows = list(map(json.loads, result.stdout.splitlines()))
    assert [row["sample"] for row in rows] == [*seen[5][0], *seen[5][1]]


def test_find_tells_that_a_sample_was_dropped(folder, tmp_path):
    """With the reason that was given."""
    dataset = StreamingDataset(local=str(folder / "web"), batch_size=4)
    dataset.edits.replace_samples([7, 9], reason="gibberish")
    path = saved(StreamingDataLoader(dataset).state_dict(), tmp_path / "state.json")
    assert "2 samples replaced" in (told := run("sample", path, 7).stdout)
    assert "Sample 7 is read 0 times" in told
    assert "7, 9 (gibberish)" in told
    assert "dropped" not in run("sample", path, 8).stdout


def test_compare_names_the_first_step_that_differs_and_why(folder, tmp_path):
    """Weights that were set, another seed; and nothing for the same run at two steps."""
    _, early = train(folder, 20, **KINDS["scheduled"])
    _, late = train(folder, 30, **KINDS["scheduled"])
    _, changed = train(folder, 30, weights=13, **KINDS["scheduled"])
    paths = [saved(s, tmp_path / f"{i}.json") for i, s in enumerate((early, late, changed))]
    result = run("diff", *paths[:2])
    assert (result.exit_code, result.stdout) == (0, "The same samples in all 30 steps.\n")
    result = run("diff", *paths[1:])
    assert result.exit_code == 1
    assert "Step 13 of the training is the first" in result.stdout
    assert "only the second has new weights from step 13" in result.stdout
    assert json.loads(run("diff", *paths[1:], "--json").stdout)["step"] == 13
    _, other = train(folder, 20, shuffle_seed=1)
    _, plain = train(folder, 20)
    found = RunHistory(plain).diff(other)
    assert found.step == 0
    assert found.reasons == ["shuffle_seed was 9176 and is 1"]


@pytest.mark.parametrize("kind", KINDS)
def test_edits_are_known(folder, tmp_path, kind):
    """The past as it was, skipped steps as skipped, and what comes for a dropped sample."""
    settings = {"batch_size": 8, "shuffle": True, **KINDS[kind]}
    share = dict(settings.pop("share", ()))
    streams = {name: Stream(local=str(folder / name), **share) for name in NAMES}
    if "schedule" not in settings:
        streams = list(streams.values())
    loader = StreamingDataLoader(StreamingDataset(streams=streams, **settings))
    before = json.loads(json.dumps(loader.dataset.state_dict()))
    seen, dropped, steps = {}, [], RunHistory(before).steps_per_epoch
    for _ in range(2):
        for batch in loader:
            count = loader._loader_state.count
            positions = loader.dataset._dataset_run.order.positions
            place = positions.after(count.begin, count.samples - 1).place
            seen[count.begin.epoch * steps + place // 8] = batch["id"].tolist()
            if len(seen) == 6:
                loader.dataset.edits.skip_steps(range(9, 12))
                dropped = [seen[5][0], seen[2][1]]
                loader.dataset.edits.replace_samples(dropped, "noise")
    history = RunHistory(json.loads(json.dumps(loader.state_dict())))
    assert history.steps_per_epoch == steps
    for step, ids in seen.items():
        assert [row.sample for row in history.step(step)] == ids
    assert dropped[0] in seen[5]
    assert not {*dropped} & {n for step, ids in seen.items() for n in ids if step > 5}
    for sample in (dropped[0], seen[40][2]):
        told = [(place.step, place.is_over) for place in history.sample(sample)]
        assert told == [(step, True) for step, ids in seen.items() for n in ids if n == sample]
    path = saved(loader.state_dict(), tmp_path / "state.json")
    assert "step 10 was skipped in this run" in run("step", path, 10).stderr
    result = run("diff", path, saved(before, tmp_path / "before.json"))
    assert result.exit_code == 1
    assert "only the first has 2 samples replaced from place 48 of epoch 0" in result.stdout
    assert "only the first has 24 places skipped from place 72 of epoch 0" in result.stdout


@pytest.mark.parametrize("settings", [{"overflow": "split", "balance": "tokens"}, {"budget": 90}])
def test_a_run_of_packs_is_told_by_its_documents(tmp_path, settings):
    """Rank by rank, with the tokens that came of each; over epochs, and with a document dropped."""
    columns = {"tokens": "ndarray:uint16", "id": "int"}
    with MDSWriter(out=str(tmp_path / "data"), columns=columns, lengths="tokens") as writer:
        for number in range(300):
            tokens = np.arange(1 + number * 7919 % 90, dtype=np.uint16)
            writer.write({"tokens": tokens, "id": number})
    packing = Packing(**({"capacity": 60} if "budget" not in settings else {}), **settings)
    loaders = [
        StreamingDataLoader(
            StreamingDataset(
                local=str(tmp_path / "data"),
                batch_size=4 if "budget" not in settings else 1,
                shuffle=True,
                packing=packing,
                topology=World(1, 2, 1, rank),
            )
        )
        for rank in range(2)
    ]
    seen = []
    for _ in range(2):
        for batches in zip(*loaders, strict=True):
            seen.append([[*map(int, batch["id"])] for batch in batches])
            if len(seen) == 9:
                for loader in loaders:
                    loader.dataset.edits.replace_samples([7, 8])
    state = loaders[0].state_dict()
    path = saved(state, tmp_path / "state.json")
    history = RunHistory(path)
    assert history.position == (1, len(seen))
    for step, ranks in enumerate(seen):
        rows = history.step(step)
        for rank, ids in enumerate(ranks):
            mine = [row for row in rows if row.rank == rank]
            assert [row.sample for row in mine] == ids
            for row in mine:
                first, last = row.tokens
                assert 0 <= first < last <= 1 + row.sample * 7919 % 90
    for sample in (7, 50, 299):
        steps = {place.step for place in history.sample(sample)}
        assert steps == {i for i, ranks in enumerate(seen) if sample in ranks[0] + ranks[1]}
    result = run("step", path, 3)
    assert "step 3 of epoch 0" in result.stdout
    assert "documents." in result.stdout
    first = json.loads(run("step", path, 3, "--json").stdout.splitlines()[0])
    assert first["sample"] == seen[3][0][0]
    assert run("diff", path, path).exit_code == 0
    data = values_of(state)["data"]
    del data["packing"]
    bare = changed(state, {"data": data})
    assert "does not name their column" in run("step", saved(bare, path), 1).stderr


def test_data_may_have_moved(folder, tmp_path):
    """--data says where the streams are now; other data are refused."""
    seen, state = train(folder, 5)
    data = {**values_of(state)["data"], "root": "/nowhere/"}
    path = saved(changed(state, {"data": data}), tmp_path / "state.json")
    assert run("step", path, 3).exit_code == 2
    places = [argument for name in NAMES for argument in ("--data", folder / name)]
    lines = run("step", path, 3, "--json", *places).stdout.splitlines()
    assert [json.loads(line)["sample"] for line in lines] == [*seen[3][0], *seen[3][1]]
    result = run("step", path, 3, *places[:2], *places[:2], *places[:2])
    assert result.exit_code == 2
    assert "does not fit" in result.stderr
    assert "3 streams, but data= (--data) has 1 place" in run("step", path, 3, *places[:2]).stderr


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"data": None}, "does not name its data"),
        ({"data": 3}, "expected a dict"),
        ({"data": {"streams": []}}, "does not name its data"),
        ({"data": {"streams": 1, "batch_size": 4, "ranks": 2, "nodes": 1}}, "have no place"),
        ({"data": {"streams": [], "batch_size": 0, "ranks": 2, "nodes": 1}}, "with batch_size '0'"),
        (
            {"data": {"streams": [], "batch_size": 4, "ranks": 1, "nodes": 2}},
            "cannot be computed from the state",
        ),
        (
            {"data": {"streams": [], "batch_size": 1 << 20, "ranks": 1 << 20, "nodes": 1}},
            "no training can reach",
        ),
        ({"epoch": 1 << 39}, "no training can reach"),
        (
            {"data": {"streams": [], "batch_size": 4, "ranks": 2, "nodes": 1, "selected": 7}},
            "belongs to 7 samples that select",
        ),
        (
            {
                "data": {
                    "streams": [{"at": "https://***@h/x"}],
                    "batch_size": 4,
                    "ranks": 2,
                    "nodes": 1,
                }
            },
            "without its secrets",
        ),
        ({"num_canonical_nodes": -1}, "num_canonical_nodes"),
    ],
)
def test_states_that_do_not_lead_back_are_refused(folder, tmp_path, change, told):
    """With the reason, and without a traceback."""
    _, state = train(folder, 2)
    result = run("step", saved(changed(state, change), tmp_path / "state.json"), 1)
    assert result.exit_code == 2
    assert told in result.stderr


def test_what_is_no_checkpoint_is_refused(folder, tmp_path):
    """Other JSON, other bytes, two states, a step and a sample that there are not."""
    _, state = train(folder, 2)
    (tmp_path / "bytes").write_bytes(b"\x80\x04\x95garbage")
    for name, content in (("none", {}), ("two", {"a": state, "b": state}), ("list", [1])):
        result = run("step", saved(content, tmp_path / name), 1)
        assert result.exit_code == 2
        assert "of a loader; expected one" in result.stderr
    assert "neither JSON nor" in run("step", tmp_path / "bytes", 1).stderr
    path = saved(state, tmp_path / "state.json")
    assert "the 430 samples" in run("sample", path, 430).stderr
    stop = Schedule({0: {"math": 1}}, exhausted="stop")
    _, state = train(folder, 2, schedule=stop)
    assert "no epoch of this run has it" in run("step", saved(state, path), 5).stderr


def test_a_state_names_its_data_in_few_bytes(folder):
    """With twenty streams below 3,500, and without what a URL keeps secret."""
    streams = [Stream(local=str(folder / NAMES[i % 3]), repeat=2) for i in range(20)]
    state = StreamingDataset(streams=streams, batch_size=8, shuffle=True).state_dict()
    assert len(json.dumps(state)) < 3500
    assert len(values_of(state)["data"]["streams"]) == 20


def test_a_selection_is_told(folder, tmp_path):
    """A state has its size; which samples they are is said with --select."""
    chosen = np.arange(3, 90, 2)
    dataset = StreamingDataset(local=str(folder / "web"), batch_size=4, shuffle=True)
    loader = StreamingDataLoader(dataset.select(chosen))
    seen = [batch["id"].tolist() for batch in loader]
    state = loader.state_dict()
    path = saved(state, tmp_path / "state.json")
    assert values_of(state)["data"]["selected"] == len(chosen)
    assert f"belongs to {len(chosen)} samples that select" in run("step", path, 3).stderr
    np.save(tmp_path / "chosen.npy", chosen)
    result = run("step", path, 3, "--json", "--show", 4, "--select", tmp_path / "chosen.npy")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["text"] for row in rows] == [f"web number {n}" for n in seen[3]]
    np.save(tmp_path / "other.npy", chosen + 1)
    result = run("step", path, 3, "--select", tmp_path / "other.npy")
    assert "does not fit" in result.stderr
    whole = saved(dataset.state_dict(), tmp_path / "whole.json")
    result = run("step", whole, 3, "--select", tmp_path / "chosen.npy")
    assert "belongs to a whole dataset" in result.stderr


def test_the_examples_of_the_page_run(folder, tmp_path, monkeypatch):
    """As a reader would type them."""
    monkeypatch.chdir(tmp_path)
    _, state = train(folder, 20)
    saved(state, tmp_path / "checkpoint.json")
    (tmp_path / "data").symlink_to(folder)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)
    assert names["history"].position == (0, 20)
