"""Samples that are dropped and steps that are skipped while a training runs."""

import numpy as np
import pytest

from mds import Stream, StreamingDataset, World
from mds._dataset.order_state import SharedEpochCounter
from mds.errors import ConfigError
from mds.plan import EpochPlan, OrderHash
from mds.plan._state import Position, ResumePoint
from tests.states import values_of
from tests.unit.dataset import edits_helpers
from tests.unit.dataset.edits_helpers import (
    BATCH,
    SAMPLES,
    STEPS,
    drop,
    loader_of,
    skip,
    train,
)
from tests.unit.dataset.runs import as_json

# Fixtures of both halves of these tests.
folder = edits_helpers.folder
unedited = edits_helpers.unedited
edited = edits_helpers.edited

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def test_skipped_steps_never_come(unedited, edited):
    """Every other step does, under its own number."""
    skipped = {*range(20, 24), 33, *range(55, 63)}
    assert list(edited) == [step for step in range(2 * STEPS) if step not in skipped]
    assert len(unedited) == 2 * STEPS


def test_an_order_hash_proves_that_all_else_is_equal(folder):
    """That of a loader is the plan's; batches without a dropped sample have the hash as before."""
    plain, changed = loader_of(folder), loader_of(folder)
    changed.dataset.edits.replace_samples([7, 800])
    changed.dataset.edits.skip_steps(range(3, 8))
    for loader in (plain, changed):
        for _ in loader:
            pass
    start, order = ResumePoint(Position(0)), changed.dataset._dataset_run.order
    plan = order.plan(start, changed.dataset._dataset_run.world())
    assert plan.order_hash(plan.steps) == changed.order_hash
    before = plain.dataset._dataset_run.order.plan(start, plain.dataset._dataset_run.world())
    hashes = []
    for each, steps in ((before, range(STEPS)), (plan, range(STEPS - 5))):
        marks = each.filling.global_batches.marks(np.arange(len(steps)), np.arange(BATCH))
        for step in steps:
            one = OrderHash()
            one.add(marks[step], each.batch(step)[0])
            hashes.append(str(one))
    differ = set(hashes[STEPS:]) - set(hashes[:STEPS])
    assert len(differ) == len({place.step for n in (7, 800) for place in before.locate(n)})


def test_locate_and_batch_know_the_edits(folder):
    """Every sample is found where the batches have it, on both sides of an edit."""
    loader = loader_of(folder)
    loader.dataset.edits.replace_samples([7, 800])
    loader.dataset.edits.replace_samples(range(100, 300), at_step=20)
    loader.dataset.edits.skip_steps(range(40, 44))
    plan = loader.dataset._dataset_run.order.plan(
        ResumePoint(Position(0)), loader.dataset._dataset_run.world()
    )
    assert plan.steps == STEPS - 4
    assert plan.epoch_steps == STEPS
    places = {}
    for step in range(plan.steps):
        for rank, ids in enumerate(plan.batch(step).tolist()):
            for place, sample in enumerate(ids):
                places.setdefault(sample, []).append((step, rank, place))
    for sample in (*range(0, SAMPLES, 7), 7, 800, *range(100, 120)):
        found = [(p.step, p.rank, p.place) for p in plan.locate(sample)]
        assert found == places.get(sample, [])


def test_what_came_for_a_dropped_sample_may_be_dropped_itself(folder):
    """Then another comes for both; what came before stays, and no chain leads back."""
    loader = loader_of(folder, shuffle_algo="seekable")
    dropped, world = [], loader.dataset._dataset_run.world()
    order = loader.dataset._dataset_run.order
    for turn in range(1, 12):
        table = order.plan(ResumePoint(Position(0)), world).filling.drops
        following = table.at(np.array([5]), np.array([turn * BATCH]))[0]
        loader.dataset.edits.replace_samples([following], at_step=turn)
        dropped.append(int(following))
    table = order.plan(ResumePoint(Position(0)), world).filling.drops
    assert len({*dropped}) == 11
    for turn in range(1, 12):
        at = table.at(np.array([5]), np.array([turn * BATCH]))[0]
        assert at not in dropped[:turn]
        assert table.at(np.array([5]), np.array([(turn - 1) * BATCH]))[0] == dropped[turn - 1]


def test_the_spare_samples_of_a_stream_come_once_each(folder):
    """Half of a stream dropped: all others stand in, once each, in every epoch."""
    loader = loader_of(folder)
    loader.dataset.edits.replace_samples(range(360))
    with pytest.raises(ConfigError, match="At most half of a stream"):
        loader.dataset.edits.replace_samples([370])
    for epoch in range(3):
        table = loader.dataset._dataset_run.order.plan(
            ResumePoint(Position(epoch)), loader.dataset._dataset_run.world()
        ).filling.drops
        come = table.at(np.arange(360), np.zeros(360, np.int64))
        assert len({*come.tolist()}) == 360
        assert come.min() >= 360
        assert come.max() < 720
    assert sorted({int(n) for batch in loader for n in batch["id"]}) == [*range(360, SAMPLES)]


def test_another_global_batch_goes_on_with_the_same_samples(folder):
    """Places of edits count samples, so they hold in any world."""
    plain = loader_of(folder, remainder="short")
    state = train([plain], 10, [(2, drop([7, 800, 41, 300]), 2), (3, skip(15, 25), 25)])[1]
    wide = loader_of(folder, remainder="short", batch=48, state=state)
    same = loader_of(folder, remainder="short", state=state)
    ids = [[int(n) for batch in loader for n in batch["id"]] for loader in (wide, same)]
    assert ids[0] == ids[1]
    assert len(ids[0]) == SAMPLES - 20 * BATCH
    assert wide.order_hash == same.order_hash


def test_edits_between_epochs_and_without_a_loader(folder):
    """They hold from where the next iteration begins, in what iterates the dataset as well."""
    loader = loader_of(folder)
    edits = loader.dataset.edits
    edits.replace_samples([3])
    edits.skip_steps(range(2))
    assert edits[:] == ["from step 0: 1 sample replaced: 3", "steps 0 to 1 skipped"]
    ids = [sample["id"] for sample in loader.dataset]
    assert len(ids) == SAMPLES - 2 * BATCH
    assert 3 not in ids
    iterator = iter(loader.dataset)
    next(iterator)
    edits.replace_samples([4, 5], "noise")
    edits.skip_steps(range(2 * STEPS, 3 * STEPS + 1))
    assert repr(edits).splitlines() == [
        "<5 edits of the order>",
        "from step 0: 1 sample replaced: 3",
        "steps 0 to 1 skipped",
        f"from step {2 * STEPS}: 2 samples replaced: 4, 5 (noise)",
        f"steps {2 * STEPS} to {3 * STEPS - 1} skipped",
        f"step {3 * STEPS} skipped",
    ]
    for epoch, count in ((1, SAMPLES - 1), (2, 0), (3, SAMPLES - BATCH)):
        assert len([*iterator]) == count, epoch
        iterator = iter(loader.dataset)


def test_a_part_of_a_dataset_numbers_its_own(folder):
    """replace_samples() takes the numbers of a selection, and another of it takes the place."""
    loader = loader_of(folder)
    part = loader.dataset.select(np.arange(0, SAMPLES, 2))
    part.edits.replace_samples([1])
    ids = [sample["id"] for sample in part]
    assert 2 not in ids
    assert all(number % 2 == 0 for number in ids)
    assert len(ids) == SAMPLES // 2
    assert not loader.dataset._dataset_run.order.epochs.edits


def test_many_epochs_are_skipped_at_once(folder, monkeypatch):
    """Their edits are noted together, however many: noting one reads all that there are."""
    noted = []
    edit = SharedEpochCounter.edit
    monkeypatch.setattr(
        SharedEpochCounter,
        "edit",
        lambda self, edits: noted.append(len(edits)) or edit(self, edits),
    )
    loader = loader_of(folder)
    next(iter(loader))
    loader.dataset.edits.skip_steps(range(STEPS, 4000 * STEPS))
    assert noted == [3999]
    assert len(values_of(loader.state_dict())["edits"]) == 3999


def test_a_step_is_a_number_of_numpy_too(folder):
    """As counters are."""
    loader = loader_of(folder)
    loader.dataset.edits.replace_samples([1], at_step=np.int64(40))
    assert values_of(as_json(loader.state_dict()))["edits"][0]["from"] == 40 * BATCH


def test_the_last_step_that_a_training_can_have_is_skipped(folder):
    """And the state, which has it, goes on where the training was."""
    loader = loader_of(folder)
    batches = iter(loader)
    next(batches)
    loader.dataset.edits.skip_steps(range((1 << 31) - 1, 1 << 31))
    state = as_json(loader.state_dict())
    rest = [batch["id"].tolist() for batch in batches]
    assert [batch["id"].tolist() for batch in loader_of(folder, state=state)] == rest


def test_the_former_methods_are_told_what_to_write(folder):
    """`drop` and `skip` mean new datasets elsewhere, so both meanings are named."""
    loader = loader_of(folder)
    dataset = loader.dataset
    for owner, name, remedies in (
        (dataset, "drop", ["filter(", "columns=", "dataset.edits.replace_samples(ids)"]),
        (dataset, "skip", ["select(range(", "dataset.edits.skip_steps(range(a, b))"]),
        (dataset, "set_weights", ["dataset.edits.set_weights([0.9, 0.1])", "schedule={0: "]),
        (loader, "skip", ["dataset.edits.skip_steps(range(a, b))"]),
        (dataset.edits, "drop", ["replace_samples(ids, reason=...)"]),
        (dataset.edits, "undo", ["load a state from before"]),
    ):
        with pytest.raises(AttributeError) as caught:
            getattr(owner, name)
        assert all(remedy in str(caught.value) for remedy in remedies), name
    with pytest.raises(ConfigError, match="Write reason='noise'"):
        dataset.edits.replace_samples([1], why="noise")
    with pytest.raises(AttributeError):
        dataset.edits = []
    assert not dataset.edits
    assert repr(dataset.edits) == "<0 edits of the order>"


def test_edits_are_shown_without_a_batch_size(folder):
    """Then steps are unknown, and places are shown."""
    dataset = StreamingDataset(local=str(folder / "a"))
    dataset._dataset_run.order.epochs.edit([{"epoch": 0, "from": 8, "drop": [1], "why": ""}])
    assert dataset.edits[0] == "1 sample replaced from place 8 of epoch 0 on: 1"


def test_a_plan_carries_its_edits():
    """A plan of numbers alone knows them, in its state and in the plan that follows."""
    edits = [
        {"epoch": 0, "from": 8, "drop": [1, 2], "why": ""},
        {"epoch": 0, "from": 40, "skip": 16},
    ]
    plan = EpochPlan([{"shards": [100]}], World(1, 1, 1, 0), batch_size=4, edits=edits)
    state = plan.state(44)
    assert state.position.place == 60
    assert state.edits == tuple(edits)
    again = EpochPlan([{"shards": [100]}], plan.world, batch_size=4, edits=edits, resume=state)
    assert np.array_equal(again.batch(0), plan.batch(11))
    assert {1, 2}.isdisjoint(np.concatenate([*plan.following().blocks(0, 0, 0)]).tolist())


def test_too_many_samples_are_refused_before_they_are_listed(folder):
    """However many they are: no more are taken than tell that they are too many."""
    dataset, taken = loader_of(folder).dataset, 0

    def numbers():
        nonlocal taken
        while True:
            taken += 1
            yield 0

    for samples in (range(10**12), numbers()):
        with pytest.raises(ConfigError, match=r"would drop more than 100,000 samples"):
            dataset.edits.replace_samples(samples)
    assert taken == 100_001


def test_explain_tells_what_was_dropped_and_skipped(folder):
    """As many samples as there are, each once, and what does not come of this epoch."""
    loader = loader_of(folder)
    assert "dropped" not in loader.dataset.explain()
    loader.dataset.edits.replace_samples([3, 5])
    loader.dataset.edits.replace_samples([5, 9])
    loader.dataset.edits.skip_steps(range(2, 4))
    told = loader.dataset.explain()
    assert "dropped samples      3" in told
    assert f"skipped              {2 * BATCH}" in told


def test_a_skip_of_more_epochs_than_a_state_has_room_for_is_refused(folder):
    """In words of steps and epochs, and nothing is skipped."""
    loader = loader_of(folder)
    with pytest.raises(ConfigError, match=r"belong to more than 10,000 epochs"):
        loader.dataset.edits.skip_steps(range(2, 10_002 * STEPS))
    assert loader.state_dict()["edits"] == "[]"


def test_too_many_dropped_samples_name_their_stream(folder):
    """By the key that the user gave it."""
    streams = {name: Stream(local=str(folder / name)) for name in "ab"}
    dataset = StreamingDataset(streams=streams, batch_size=BATCH)
    with pytest.raises(ConfigError, match="121 of the 240 samples of stream 'b'"):
        dataset.edits.replace_samples(range(720, 841))
