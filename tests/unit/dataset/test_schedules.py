"""Scheduled mixtures through datasets and loaders: any workers, any resume, weights set live."""

import pickle

import numpy as np
import pytest

from mds import Schedule, Stream, StreamingDataset
from mds.errors import ConfigError, StateError
from mds.plan import OrderHash
from tests.states import values_of
from tests.unit.dataset import schedules_helpers
from tests.unit.dataset.schedules_helpers import (
    BASE,
    SIZES,
    STEPS,
    dataset_of,
    loader_of,
    train,
)

# Fixtures of both halves of these tests.
folder = schedules_helpers.folder

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def test_the_mixture_is_that_of_the_schedule(folder):
    """Counts of each stream in all batches follow the integral of its share."""
    ids, _ = train([loader_of(folder)], 2 * STEPS, edits=[])
    of_web = np.cumsum([sum(number < 700 for number in step) for step in ids])
    share = 0.8 - 0.55 * np.minimum(np.arange(1, 121) - 0.5, 50) / 50
    assert np.abs(of_web - 16 * np.cumsum(share)).max() < 1.6


def test_an_order_hash_shows_who_disagrees(folder):
    """Ranks with the same weights have the hash of the plan, and another weight shows."""
    hashes = []
    for weights in ({"web": 1}, {"web": 1}, {"web": 1, "math": 0.01}):
        loader = loader_of(folder)
        train([loader], 40, [(7, weights, None)])
        hashes.append(loader.order_hash)
    assert hashes[0] == hashes[1] != hashes[2]
    assert isinstance(hashes[0], OrderHash)


def test_weights_before_the_first_batch_and_between_epochs(folder):
    """They hold from where the next iteration begins, also after a state was loaded."""
    loader = loader_of(folder)
    loader.dataset.edits.set_weights({"math": 1})
    assert [*loader.dataset.edits] == ["from step 0: weights {'math': 1}"]
    first = next(iter(loader))["id"]
    assert int(first.min()) >= 900
    loader = loader_of(folder)
    _, state = train([loader], STEPS, [])
    loader.dataset.edits.set_weights({"code": 1})
    fresh = loader_of(folder, state=state)
    fresh.dataset.edits.set_weights({"code": 1})
    assert [*fresh.dataset.edits] == [f"from step {STEPS}: weights {{'code': 1}}"]
    batches = [train([each], STEPS + 5, [])[0] for each in (loader, fresh)]
    assert batches[0] == batches[1]
    assert all(700 <= number < 900 for step in batches[0] for number in step)


def test_without_a_loader_weights_hold_from_the_next_epoch(folder):
    """What iterates the dataset itself went ahead; the step is told, and another refused."""
    dataset = dataset_of(folder)
    iterator = iter(dataset)
    next(iterator)
    dataset.edits.set_weights({"math": 1})
    assert dataset.edits[0].startswith(f"from step {STEPS}:")
    with pytest.raises(ConfigError, match=f"at_step must be at least {STEPS}, got 3"):
        dataset.edits.set_weights({"math": 1}, at_step=3)
    assert sum(sample["id"] >= 900 for sample in iterator) < 300
    assert all(sample["id"] >= 900 for sample in dataset)


def test_what_was_planned_for_later_is_set_aside(folder):
    """Of the schedule, and of weights that were set for a later step."""
    edits = [(5, {"web": 1}, 20), (6, {"code": 1}, 10)]
    ids, state = train([loader_of(folder)], STEPS, edits)
    assert len(ids) == STEPS
    assert all(700 <= number < 900 for step in ids[10:] for number in step)
    assert [edit["step"] for edit in values_of(state)["edits"]] == [20, 10]


def test_a_state_is_for_the_same_schedule(folder):
    """Another schedule, another epoch and no schedule at all are refused, with the reason."""
    _, state = train([loader_of(folder)], 5, [])
    assert state["num_canonical_nodes"] < 0
    assert values_of(state)["schedule"]["streams"] == list(SIZES)
    with pytest.raises(StateError, match="order schedule was"):
        loader_of(folder, schedule=Schedule({0: {"web": 1}}), state=state)
    with pytest.raises(StateError, match="order epoch_steps was 60 and is 30"):
        loader_of(folder, epoch_size=480, state=state)
    plain = StreamingDataset(
        streams=[Stream(local=str(folder / name)) for name in SIZES], batch_size=16, shuffle=True
    )
    with pytest.raises(StateError, match="a run with a schedule, and this dataset has no"):
        plain.load_state_dict(state)
    with pytest.raises(StateError, match=r"without a schedule, and .*: leave schedule="):
        dataset_of(folder).load_state_dict(plain.state_dict())


@pytest.mark.parametrize(
    ("weights", "more", "told"),
    [
        ({"sea": 1}, {}, "names sea"),
        ({"web": 0}, {}, "are zero"),
        ({}, {}, "expected a dict"),
        ({"web": 1}, {"at_step": 4}, "must be at least 5"),
        ({"web": 1}, {"at_step": 7.5}, "at_step must be a whole number, got 7.5"),
    ],
)
def test_weights_that_make_no_sense_are_refused(folder, weights, more, told):
    """Before anything changes."""
    loader = loader_of(folder)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    with pytest.raises(ConfigError, match=told):
        loader.dataset.edits.set_weights(weights, **more)
    assert loader.state_dict()["edits"] == "[]"


def test_settings_that_a_schedule_does_not_go_with(folder):
    """Each is refused with what to do instead."""
    listed = [Stream(local=str(folder / name)) for name in SIZES]
    schedule = Schedule(BASE)
    with pytest.raises(ConfigError, match=r"by name.*or the weights of each milestone as a list"):
        StreamingDataset(streams=listed, schedule=schedule, batch_size=4)
    with pytest.raises(ConfigError, match="Leave batching_method out"):
        dataset_of(folder, batching_method="stratified")
    with pytest.raises(
        ConfigError, match=r"schedule must be a Schedule or its milestones, as in \{0"
    ):
        dataset_of(folder, schedule=[*BASE.items()])
    named = {"web": listed[0], "code": listed[1]}
    with pytest.raises(ConfigError, match="names math"):
        StreamingDataset(streams=named, schedule=schedule, batch_size=4)
    named = {name: Stream(local=str(folder / name), proportion=1) for name in SIZES}
    with pytest.raises(ConfigError, match="has a proportion"):
        StreamingDataset(streams=named, schedule=schedule, batch_size=4)
    with pytest.raises(ConfigError, match="has the name '3'"):
        StreamingDataset(streams={3: listed[0]}, batch_size=4)
    with pytest.raises(ConfigError, match=r"this dataset has no schedule"):
        StreamingDataset(streams=listed, batch_size=4).edits.set_weights({"web": 1})


def test_names_alone_change_nothing(folder):
    """Streams by name without a schedule are mixed as streams in a list."""
    streams = {name: Stream(local=str(folder / name)) for name in SIZES}
    ids = [
        [sample["id"] for sample in StreamingDataset(streams=each, batch_size=4, shuffle=True)]
        for each in (streams, list(streams.values()))
    ]
    assert ids[0] == ids[1]


def test_a_part_of_a_dataset_is_scheduled_too(folder):
    """A selection has passes of its own samples; a copy in another process has the same order."""
    part = dataset_of(folder).select(np.arange(0, 960, 2))
    ids = [sample["id"] for sample in part]
    assert len(ids) == 480
    assert all(number % 2 == 0 for number in ids)
    copy = pickle.loads(pickle.dumps(dataset_of(folder).select(np.arange(0, 960, 2))))
    assert [sample["id"] for sample in copy] == ids


def test_explain_tells_passes_and_when_streams_are_used_up(folder):
    """For the epoch that comes, counted since the training began."""
    told = dataset_of(folder).explain()
    assert "step 0 to 59" in told
    lines = {line.split()[0]: line for line in told.splitlines()}
    assert "80.000% to" in lines["web"].replace("79.450", "80.000")
    assert "all seen once after about step" in lines["math"]
    one = dataset_of(folder, schedule=Schedule({0: {"web": 1}})).explain()
    assert "0.000%  0.00 passes by the end of the epoch; never all seen" in " ".join(
        one.split()
    ).replace("% 0", "%  0")


def test_spent_streams_end_the_loop(folder):
    """With exhausted="stop" epochs end before the batch that asks for more."""
    loader = loader_of(folder, schedule=Schedule({0: {"math": 1, "web": 1}}, exhausted="stop"))
    assert [len(list(loader)) for _ in range(2)] == [60 // 8, 0]


def test_only_a_schedule_takes_every_sample_before_one_comes_again(folder):
    """Epochs of half a stream are drawn independently, and under a schedule one after the other."""

    def epochs(dataset):
        return [[sample["id"] for sample in dataset] for _ in range(2)]

    web = Stream(local=str(folder / "web"))
    drawn = epochs(StreamingDataset(streams=[web], batch_size=10, epoch_size=350, shuffle=True))
    assert len({*drawn[0]} & {*drawn[1]}) > 100
    scheduled = StreamingDataset(
        streams={"web": web},
        schedule=Schedule({0: {"web": 1}}),
        batch_size=10,
        epoch_size=350,
        shuffle=True,
    )
    first, second = epochs(scheduled)
    assert len({*first, *second}) == 700


def test_a_dict_of_milestones_is_a_schedule(folder):
    """Its order is that of the Schedule without other arguments."""
    by_dict = dataset_of(folder, schedule=BASE)
    by_class = dataset_of(folder, schedule=Schedule(BASE))
    assert [sample["id"] for sample in by_dict] == [sample["id"] for sample in by_class]
    assert by_dict.state_dict() == by_class.state_dict()
    with pytest.raises(ConfigError, match="expected a dict of stream names and weights"):
        dataset_of(folder, schedule={0: 0.5})


def test_weights_in_a_list_are_of_streams_in_a_list(folder):
    """The order is that of named streams, and a state goes on with it."""
    named = {str(number): Stream(local=str(folder / name)) for number, name in enumerate(SIZES)}
    knots = {0: [1] + [0] * (len(SIZES) - 1), 5: [1] * len(SIZES)}
    by_name = {
        step: {str(number): weight for number, weight in enumerate(weights)}
        for step, weights in knots.items()
    }
    orders = []
    for streams, schedule in (
        (named, by_name),
        ([*named.values()], knots),
        ([*named.values()], Schedule([*knots.items()])),
    ):
        dataset = StreamingDataset(streams=streams, schedule=schedule, batch_size=4, shuffle=True)
        orders.append([sample["id"] for sample in dataset])
        resumed = StreamingDataset(streams=streams, schedule=schedule, batch_size=4, shuffle=True)
        resumed.load_state_dict(dataset.state_dict(40, from_beginning=True))
        assert [sample["id"] for sample in resumed] == orders[-1][40:]
    assert orders[1:] == orders[:1] * 2
