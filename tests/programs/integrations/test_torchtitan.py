"""The loader for torchtitan: its batches, its states, and what it refuses."""

import dataclasses
import threading

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from mds import MDSWriter, Packing, Schedule
from mds.errors import ConfigError, StateError
from tests.skip_reasons import not_installed
from tests.token_rows import IGNORED, LENGTH, SAMPLES, write_token_rows

pytest.importorskip("torchtitan", reason=not_installed("torchtitan"))
tyro = pytest.importorskip("tyro", reason=not_installed("torchtitan"))

from mds.integrations.torchtitan import DataLoader  # noqa: E402 - torchtitan may be missing


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Datasets of blocks of one token more than a sequence, of blocks as long, and of documents."""
    return write_token_rows(tmp_path_factory.mktemp("torchtitan"))


def build(place, rank=0, ranks=1, size=2, length=LENGTH, every=None, **config):
    """Return the loader as torchtitan's Trainer makes it."""
    arguments = {"shuffle": True, **config.pop("arguments", {})}
    return DataLoader.Config(dataset_path=place, arguments=arguments, **config).build(
        dp_world_size=ranks,
        dp_rank=rank,
        tokenizer=None,
        seq_len=length,
        local_batch_size=size,
        snapshot_every_n_steps=every,
    )


def take(loaders, batches):
    """Yield the sorted rows of each step of loaders, with ``batches`` of each in a step.

    Rows of padding are left out: which sample fills them depends on the ranks.
    """
    iterators = [iter(loader) for loader in loaders]
    while True:
        rows = []
        for iterator in iterators:
            for _ in range(batches):
                inputs, labels = next(iterator)
                rows += zip(
                    inputs["input"].tolist(), inputs["positions"].tolist(), labels.tolist(),
                    strict=True,
                )  # fmt: skip
        yield sorted(row for row in rows if set(row[2]) != {IGNORED})


@pytest.mark.parametrize("name", ["more", "equal"])
def test_blocks_are_shifted_by_one_token(places, name):
    inputs, labels = next(iter(build(places[name])))
    assert inputs.keys() == {"input", "positions"}
    for tensor in (*inputs.values(), labels):
        assert tensor.dtype == torch.int64
        assert tensor.shape == (2, LENGTH)
    assert inputs["positions"].tolist() == [list(range(LENGTH))] * 2
    assert (labels[:, :-1] == inputs["input"][:, 1:]).all()
    if name == "more":
        assert (labels[:, -1] == inputs["input"][:, 0]).all()
    else:
        assert (labels[:, -1] == IGNORED).all()


def test_labels_of_packs_end_with_their_document(places):
    inputs, labels = next(iter(build(places["documents"], arguments={"packing": LENGTH})))
    assert inputs["input"].shape == inputs["positions"].shape == labels.shape == (2, LENGTH)
    starts = torch.nn.functional.pad(inputs["positions"][:, 1:] == 0, (0, 1), value=True)
    assert (labels[starts] == IGNORED).all()
    assert (labels[~starts] == inputs["input"][~starts]).all()


def test_the_column_that_an_error_recommends_is_read(tmp_path):
    """`Packing` takes precedence, since errors about the column of packs name its column=."""
    columns = {"a": "ndarray:int64", "b": "ndarray:int64"}
    with MDSWriter(str(tmp_path), columns, lengths="a") as out:
        for n in range(4):
            out.write({"a": np.full(LENGTH, n), "b": np.full(LENGTH, n + 100)})
    wrong = build(str(tmp_path), column="tokens", arguments={"packing": LENGTH})
    with pytest.raises(ConfigError, match=r"Write Packing\(..., column='a'\)"):
        next(iter(wrong))
    packing = Packing(LENGTH, column="a")
    inputs, _ = next(iter(build(str(tmp_path), column="tokens", arguments={"packing": packing})))
    assert inputs["input"].max() < 4


@pytest.mark.parametrize("size", [4, 16])
def test_a_schedule_counts_steps_of_the_optimizer(places, size):
    """Not batches of the loader, so it needs the size of a step."""
    streams = {"a": places["more"], "b": places["equal"]}  # those of b have no last label
    schedule = {0: {"a": 1}, 3: {"b": 1}}

    def build_scheduled(schedule, **options):
        arguments = {"streams": streams, "schedule": schedule}
        return build(None, ranks=2, arguments=arguments, **options)

    with pytest.raises(ConfigError, match=r"Give the value of training.global_batch_size, or 4"):
        build_scheduled(schedule)
    build_scheduled(Schedule(schedule, unit="samples"))
    batches = iter(build_scheduled(schedule, global_batch_size=size))
    per_step = size // 4
    last_labels = [next(batches)[1][:, -1] for _ in range(5 * per_step)]
    assert (torch.cat(last_labels[: 3 * per_step]) != IGNORED).all()
    assert (torch.cat(last_labels[3 * per_step :]) == IGNORED).all()


def test_a_schedule_ends_the_training(places):
    """Without an error, so that torchtitan saves its last checkpoint."""
    schedule = Schedule({0: {"a": 1}}, unit="samples", exhausted="stop")
    run = build(None, arguments={"streams": {"a": places["more"]}, "schedule": schedule})
    assert len(list(run)) == SAMPLES // 2
    assert list(run) == []


def test_a_column_of_labels_replaces_the_tokens(tmp_path):
    with MDSWriter(str(tmp_path), {"ids": "ndarray:int64", "labels": "ndarray:int64"}) as out:
        for n in range(4):
            out.write({"ids": np.full(LENGTH, n), "labels": np.arange(LENGTH) - 100})
    inputs, labels = next(iter(build(str(tmp_path), column="ids")))
    assert labels[0].tolist() == [*range(-99, LENGTH - 100), IGNORED]
    assert inputs["input"].unique().numel() == 2


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("packing", [None, LENGTH])
@pytest.mark.parametrize("saved_after", [3, 4, 5, 11])
def test_a_state_of_four_ranks_goes_on_with_two(places, tmp_path, workers, packing, saved_after):
    """Through torch.distributed.checkpoint, and beyond the end of an epoch."""
    place = places["documents" if packing else "more"]
    options = {"arguments": {"packing": packing}, "global_batch_size": 8}
    before = [build(place, rank, 4, **options) for rank in range(4)]
    steps = take(before, 1)
    for _ in range(saved_after):
        next(steps)
    positions = [{**loader.state_dict(), "order_hash": ""} for loader in before]
    assert positions.count(positions[0]) == 4
    dcp.save({"dataloader": before[0]}, checkpoint_id=tmp_path, no_dist=True)
    expected = [next(steps) for _ in range(8)]
    after = [build(place, rank, 2, num_workers=workers, **options) for rank in range(2)]
    for loader in after:
        dcp.load({"dataloader": loader}, checkpoint_id=tmp_path, no_dist=True)
    resumed = take(after, 2)
    assert [next(resumed) for _ in range(8)] == expected


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("taken", [1, 30])
@pytest.mark.parametrize("kind", ["blocks", "packs", "streams"])
def test_every_rank_repeats_its_batches(places, kind, taken, ranks):
    """The contract of torchtitan's tests/unit_tests/test_dataset_checkpointing.py.

    After a few batches or some epochs, a new loader with the state gives the same tensors.
    """
    place, arguments = {
        "blocks": (places["more"], {}),
        "packs": (places["documents"], {"packing": LENGTH}),
        "streams": (None, {"streams": {"a": places["more"], "b": places["other"]}}),
    }[kind]
    for rank in range(ranks):
        run, resumed = (build(place, rank, ranks, 1, arguments=arguments) for _ in range(2))
        batches = iter(run)
        for _ in range(taken):
            next(batches)
        resumed.load_state_dict(run.state_dict())
        for (inputs, labels), _ in zip(resumed, range(40), strict=False):
            expected, expected_labels = next(batches)
            assert all(torch.equal(inputs[name], expected[name]) for name in expected)
            assert torch.equal(labels, expected_labels)


@pytest.mark.parametrize("packing", [None, LENGTH])
def test_a_run_of_one_epoch_ends_with_it_after_a_resume(places, packing):
    """Also if its state was saved after the last batch, or after the iteration."""
    place, options = places["documents" if packing else "more"], {"infinite": False}
    run = build(place, arguments={"packing": packing}, **options)
    states, batches = [run.state_dict()], [[]]
    for inputs, _ in run:
        batches.append(inputs["input"].tolist())
        states.append(run.state_dict())
    states.append(run.state_dict())
    for taken, state in enumerate(states):
        resumed = build(place, arguments={"packing": packing}, num_workers=1, **options)
        resumed.load_state_dict(state)
        assert [inputs["input"].tolist() for inputs, _ in resumed] == batches[taken + 1 :]
    longer = build(place, arguments={"packing": packing})  # with the next epoch
    longer.load_state_dict(states[-1])
    endless = take([build(place, arguments={"packing": packing})], 1)
    expected = [next(endless) for _ in batches][-1]
    assert next(take([longer], 1)) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_another_iteration_goes_on_after_the_last_step(places, workers):
    undisturbed = take([build(places["more"])], 1)
    loader = build(places["more"], num_workers=workers)
    for count in (2, 3, 15, 1):  # 15 steps end an epoch before the next one ends early
        batches = take([loader], 1)
        for _ in range(count):
            assert next(batches) == next(undisturbed)


def test_closing_ends_the_workers_and_keeps_the_state(places):
    before = set(threading.enumerate())
    run = build(places["more"], num_workers=2)
    batches = iter(run)
    next(batches)
    workers = set(threading.enumerate()) - before
    assert workers
    state = run.state_dict()
    run.close()
    run.close()
    assert not any(worker.is_alive() for worker in workers)
    assert next(batches, None) is None
    assert run.state_dict() == state


def test_validation_sees_each_sample_once(places):
    config = DataLoader.Config(dataset_path=places["more"])
    config = dataclasses.replace(config, infinite=False)  # as torchtitan's Validator does
    batches = [
        list(
            config.build(
                dp_world_size=4, dp_rank=rank, tokenizer=None, seq_len=LENGTH, local_batch_size=2
            )
        )
        for rank in range(4)
    ]
    assert len({len(batches_of_rank) for batches_of_rank in batches}) == 1
    labels = [row for each in batches for _, rows in each for row in rows.tolist()]
    kept = [row[0] for row in labels if row[0] != IGNORED]
    assert sorted(kept) == list(range(2, SAMPLES + 2))


def test_options_of_the_command_line_keep_the_arguments(places):
    config = DataLoader.Config(dataset_path="elsewhere", arguments={"packing": Packing(LENGTH)})
    args = ["--dataset-path", places["documents"], "--num-workers", "1"]
    changed = tyro.cli(DataLoader.Config, args=args, default=config)
    assert changed.arguments == {"packing": Packing(LENGTH)}
    assert (changed.dataset_path, changed.num_workers) == (places["documents"], 1)


def test_edits_reach_the_order(places):
    loader = build(places["more"])
    steps = take([loader], 1)
    next(steps)
    gone = [n for n in range(SAMPLES) if n % 2]
    loader.dataset.edits.replace_samples(gone, reason="a test")
    assert {row[0][0] % 2 for _ in range(8) for row in next(steps)} == {0}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "c4"}, "dataset='c4' has no effect: give dataset_path"),
        ({"arguments": {"batch_size": 2}}, "leave it out, it is training.local_batch_size"),
        ({"arguments": {"remainder": "short"}}, "remainder= of arguments: leave it out"),
        ({"arguments": {"topology": (0, 1)}}, "it follows from the parallelism"),
        ({"arguments": {"packing": 16}}, "packs of 16 tokens do not fit training.seq_len=8"),
        ({"arguments": {"packing": Packing(budget=8)}}, "do not fit training.seq_len=8"),
        ({"arguments": {"num_workers": 2}}, "set num_workers= of DataLoader.Config"),
        ({"arguments": {"column": "ids"}}, "set column= of DataLoader.Config"),
        ({"arguments": {"pin_memory": True}}, "leave it out, DataLoader.Config chooses it"),
        ({"global_batch_size": 3}, "a multiple of 2"),
        ({"global_batch_size": 0}, "a multiple of 2"),
        ({"global_batch_size": 6, "every": 4}, "the value of training.global_batch_size"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(places, options, message):
    with pytest.raises(ConfigError, match=message):
        build(places["documents"], **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("documents", {}, "not blocks of 9 or 8 tokens.*--block 9, or pack documents"),
        ("more", {"length": 6}, "not blocks of 7 or 6 tokens"),
        ("more", {"column": "ids"}, "no column 'ids', only 'tokens'"),
    ],
)
def test_samples_that_do_not_fit_are_refused_at_the_first_batch(places, name, options, message):
    loader = build(places[name], **options)
    with pytest.raises(ConfigError, match=message):
        next(iter(loader))


def test_the_state_of_another_loader_is_refused(places):
    loader = build(places["more"])
    with pytest.raises(StateError, match="exclude_from_loading"):
        loader.load_state_dict({"dp_rank_0": b"", "world_size": 1})
    loader.load_state_dict({})
    assert next(take([loader], 1)) == next(take([build(places["more"])], 1))
