"""What a state leads back to in Python; tests/unit/cli/test_run_commands.py has the orders."""

import json
import os

import pytest
import torch

import mds
from mds import MDSWriter, RunHistory, StreamingDataLoader, StreamingDataset
from mds.errors import ArgumentError, DeniedError, NotFoundError, StateError
from tests.unit.cache.users import USERS, can_become, run_as


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The path of a dataset, the ids of five steps of a run, and its state."""
    folder = tmp_path_factory.mktemp("data")
    with MDSWriter(str(folder), {"id": "int"}) as writer:
        for number in range(60):
            writer.write({"id": number})
    loader = StreamingDataLoader(StreamingDataset(folder, batch_size=4, shuffle=True))
    steps = [batch["id"].tolist() for _, batch in zip(range(5), loader, strict=False)]
    return folder, steps, loader.state_dict()


def ids(history, step):
    return [row.sample for row in history.step(step)]


def test_a_state_is_taken_wherever_it_is(trained, tmp_path):
    """A dict, a checkpoint with it inside, JSON, a file of torch.save, and the folder of a run."""
    _, steps, state = trained
    checkpoint = {"model": {"weight": torch.zeros(2)}, "trainer": {"loader": state}}
    (tmp_path / "run").mkdir()
    torch.save(checkpoint, tmp_path / "run" / "step5.pt")
    (tmp_path / "state.json").write_text(json.dumps(state))
    places = [tmp_path / "state.json", str(tmp_path / "run" / "step5.pt"), tmp_path / "run"]
    for given in (state, checkpoint, *places):
        history = RunHistory(given)
        assert ids(history, 3) == steps[3]
        assert history.position == (0, 5)
    assert history.path == places[1]
    assert RunHistory(state).path is None


def test_methods_are_the_commands(trained, tmp_path):
    """The steps of a sample, and another run as a history, a state or a file."""
    folder, steps, state = trained
    history = RunHistory(state, data=str(folder))
    assert [(seen.step, seen.is_over) for seen in history.sample(steps[2][0])] == [(2, True)]
    assert history.place_of(16) == (1, 1)
    assert history.drops_of(3) == []
    other = {**state, "shuffle_seed": 5}
    (tmp_path / "other.json").write_text(json.dumps(other))
    for given in (RunHistory(other), other, tmp_path / "other.json"):
        difference = history.diff(given)
        assert difference.step == 0
        assert difference.reasons == ["shuffle_seed was 9176 and is 5"]
    assert history.diff(state).step is None
    with pytest.raises(StateError, match="without a schedule"):
        history.mixture()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"a": {"shuffle_seed": 1, "num_canonical_nodes": 1}} | {"b": None},
            "the state has no epoch",
        ),
        (7, r"or the path of a file, got int\. Write RunHistory\(loader\.state_dict\(\)\)"),
        ("s3://bucket/state.json", "only from a local file. Download the file first"),
        ({}, "state"),
    ],
)
def test_what_is_no_state_is_refused(given, told):
    """With the way to one."""
    with pytest.raises(StateError, match=told):
        RunHistory(given)


def test_two_states_are_refused(trained):
    """A dict that holds several does not say which is meant."""
    with pytest.raises(StateError, match=r"has 2 states of a loader\. Pass one of them"):
        RunHistory({"train": trained[2], "val": trained[2]})
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
        RunHistory("nowhere.json")


@pytest.mark.skipif(not can_become(), reason="only root can be another user")
def test_what_cannot_be_opened_names_the_remedy(trained, tmp_path):
    """A file, the folder of a run and a folder in it, without permission; and a pipe."""
    run = tmp_path / "run"
    (run / "sub").mkdir(parents=True)
    (run / "state.json").write_text(json.dumps(trained[2]))
    (tmp_path / "closed.json").write_text("{}")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, *tmp_path.parents):
        if path.stat().st_uid == os.geteuid() and path != path.parent:
            path.chmod(path.stat().st_mode | 0o055)

    def read():
        for name in ("closed.json", "run"):
            with pytest.raises(DeniedError, match=rf"{name}.*chmod -R a\+rX \S*{name}"):
                RunHistory(tmp_path / name)

    (tmp_path / "closed.json").chmod(0o600)
    for closed in (run / "sub", run):  # the folder in it first: listing stops at the upper one
        closed.chmod(0o700)
        run_as(USERS[0], read)
    with pytest.raises(NotFoundError, match="pipe: this is a pipe"):
        RunHistory(tmp_path / "pipe")


def test_other_spellings_tell_the_new_ones(trained):
    """Names, methods and arguments of before."""
    history = RunHistory(trained[2])
    for name, remedy in (
        ("rows", r"history\.step\(number\)"),
        ("find", r"history\.sample\(number\)"),
        ("compare", r"history\.diff\(other\)"),
    ):
        with pytest.raises(AttributeError, match=f"Write {remedy}"):
            getattr(history, name)
    with pytest.raises(ArgumentError, match=r"Write data='elsewhere'\."):
        RunHistory(trained[2], places="elsewhere")
    with pytest.raises(AttributeError, match=r"Write mds\.RunHistory\(state\)\."):
        _ = mds.Rewind
    with pytest.raises(ImportError, match=r"mds\.RunHistory\(state\)\.diff"):
        from mds import compare  # noqa: F401
