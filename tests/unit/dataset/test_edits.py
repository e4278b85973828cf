"""Samples that are dropped and steps that are skipped while a training runs."""

import numpy as np
import pytest
from runs import as_json, loader_over, write_streams

from mds import Stream, StreamingDataLoader, StreamingDataset, World
from mds.dataset.order_state import SharedEpochCounter
from mds.errors import ConfigError, StateError
from mds.plan import EpochPlan, OrderHash
from mds.plan.state import Position, ResumePoint

SIZES = (720, 240)
SAMPLES = sum(SIZES)
BATCH = 16
STEPS = SAMPLES // BATCH

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_streams(tmp_path_factory.mktemp("streams"), dict(zip("ab", SIZES, strict=True)))


def loader_of(folder, kind="threads", workers=0, state=None, ranks=1, rank=0, batch=BATCH, **more):
    more = {"shuffle": True, "num_canonical_nodes": 2, **more}
    dataset = StreamingDataset(
        streams=[Stream(local=str(folder / name)) for name in "ab"],
        batch_size=batch // ranks,
        topology=World(1, ranks, 1, rank) if ranks > 1 else None,
        **more,
    )
    return loader_over(dataset, kind, workers, state)


def place_of(state):
    """The step of the training at which a state is."""
    at = state.get("position", {"epoch": state["epoch"], "in_epoch": state.get("sample_in_epoch")})
    return max(at["epoch"], 0) * STEPS + at["in_epoch"] // BATCH


def train(loaders, stop, edits=()):
    """Sorted ids of each global batch by its step, up to step ``stop``, and the state there.

    All ranks run here, in step. Edits are (step, function of a loader, what it returns), each made
    when the training comes to its step.
    """
    found, state = {}, as_json(loaders[0].state_dict())
    made = set()

    def edit(step):
        for number, (at, change, says) in enumerate(edits):
            if at == step and number not in made:
                made.add(number)
                assert {change(loader) for loader in loaders} == {says}

    while (step := place_of(state)) < stop:
        edit(step)
        for batches in zip(*loaders, strict=True):
            # An edit in front of this batch may have made it another.
            found[place_before(loaders[0], len(batches[0]["id"]))] = np.sort(
                np.concatenate([b["id"] for b in batches])
            ).tolist()
            state = as_json(loaders[0].state_dict())
            if place_of(state) >= stop:
                break
            edit(place_of(state))
    return found, state


def place_before(loader, size):
    """The step of the batch that was given last."""
    count, ranks = loader._count, loader.dataset.num_ranks
    epoch, first, *_ = count.begin
    order = loader.dataset._order
    return epoch * STEPS + order.place_after(epoch, first, (count.samples - size) * ranks) // BATCH


def drop(ids, why="", at_step=None):
    return lambda loader: loader.dataset.drop(ids, why, at_step=at_step)


def skip(first, last):
    return lambda loader: loader.skip(range(first, last))


EDITS = [
    (5, drop([7, 800, 33], "noise"), 5),
    (9, skip(20, 24), 24),
    (11, drop([41], at_step=30), 30),
    (33, skip(33, 34), 34),
    (40, skip(55, 63), 63),
    (70, drop([8, 9]), 70),
]


@pytest.fixture(scope="module")
def unedited(folder):
    return train([loader_of(folder)], 2 * STEPS)[0]


@pytest.fixture(scope="module")
def edited(folder):
    return train([loader_of(folder)], 2 * STEPS, EDITS)[0]


def test_dropped_samples_never_come_and_all_else_is_equal(unedited, edited):
    """From its step on each is gone, another of its stream is there, and nothing else moves."""
    gone = {7: 5, 800: 5, 33: 5, 41: 30, 8: 70, 9: 70}
    changed = 0
    for step, ids in edited.items():
        before, now = unedited[step], [*ids]
        assert len(ids) == BATCH
        for sample in before:
            if step >= gone.get(sample, 1 << 62):
                changed += 1
                assert sample not in ids
            else:
                now.remove(sample)
        lost = [sample for sample in before if step >= gone.get(sample, 1 << 62)]
        assert sorted(n >= SIZES[0] for n in now) == sorted(n >= SIZES[0] for n in lost)
    assert changed >= 8


def test_skipped_steps_never_come(unedited, edited):
    """Every other step does, under its own number."""
    skipped = {*range(20, 24), 33, *range(55, 63)}
    assert list(edited) == [step for step in range(2 * STEPS) if step not in skipped]
    assert len(unedited) == 2 * STEPS


@pytest.mark.parametrize(("kind", "workers"), [("threads", 2), ("threads", 3), ("processes", 2)])
def test_workers_change_nothing(folder, edited, kind, workers):
    """Batches made ahead in threads and in processes are made anew where an edit holds."""
    assert train([loader_of(folder, kind, workers)], 2 * STEPS, EDITS)[0] == edited


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"shuffle_algo": "seekable", "exact": True},
        {"batching_method": "stratified"},
        {"batching_method": "per_stream"},
        {"shuffle": False},
    ],
    ids=["py1e", "exact", "stratified", "per_stream", "straight"],
)
def test_stops_and_other_worlds_change_nothing(folder, settings):
    """A run that goes on elsewhere after each few steps sees what an undisturbed one sees."""
    undisturbed, _ = train([loader_of(folder, **settings)], 2 * STEPS, EDITS)
    rng = np.random.default_rng(5)
    found, state, at, edits = {}, None, 0, list(EDITS)
    while at < 2 * STEPS:
        ranks = int(rng.choice([1, 2, 4]))
        workers = int(rng.integers(0, 3))
        loaders = [
            loader_of(folder, workers=workers, state=state, ranks=ranks, rank=rank, **settings)
            for rank in range(ranks)
        ]
        some, state = train(loaders, min(at + int(rng.integers(1, 15)), 2 * STEPS), edits)
        edits = [edit for edit in edits if edit[0] >= place_of(state)]
        found |= some
        at = place_of(state)
    assert found == undisturbed


def test_an_order_hash_proves_that_all_else_is_equal(folder):
    """That of a loader is the plan's; batches without a dropped sample have the hash as before."""
    plain, changed = loader_of(folder), loader_of(folder)
    changed.dataset.drop([7, 800])
    changed.skip(range(3, 8))
    for loader in (plain, changed):
        for _ in loader:
            pass
    start, order = ResumePoint(Position(0)), changed.dataset._order
    plan = order.plan(start, changed.dataset._world())
    assert plan.order_hash(plan.steps) == changed.order_hash
    before = plain.dataset._order.plan(start, plain.dataset._world())
    hashes = []
    for each, steps in ((before, range(STEPS)), (plan, range(STEPS - 5))):
        marks = each.global_batches.marks(np.arange(len(steps)), np.arange(BATCH))
        for step in steps:
            one = OrderHash()
            one.add(marks[step], each.batch(step)[0])
            hashes.append(str(one))
    differ = set(hashes[STEPS:]) - set(hashes[:STEPS])
    assert len(differ) == len({place.step for n in (7, 800) for place in before.locate(n)})


def test_locate_and_batch_know_the_edits(folder):
    """Every sample is found where the batches have it, on both sides of an edit."""
    loader = loader_of(folder)
    loader.dataset.drop([7, 800])
    loader.dataset.drop(range(100, 300), at_step=20)
    loader.skip(range(40, 44))
    plan = loader.dataset._order.plan(ResumePoint(Position(0)), loader.dataset._world())
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
    dropped, world = [], loader.dataset._world()
    order = loader.dataset._order
    for turn in range(1, 12):
        table = order.plan(ResumePoint(Position(0)), world).drops
        following = table.at(np.array([5]), np.array([turn * BATCH]))[0]
        assert loader.dataset.drop([following], at_step=turn) == turn
        dropped.append(int(following))
    table = order.plan(ResumePoint(Position(0)), world).drops
    assert len({*dropped}) == 11
    for turn in range(1, 12):
        at = table.at(np.array([5]), np.array([turn * BATCH]))[0]
        assert at not in dropped[:turn]
        assert table.at(np.array([5]), np.array([(turn - 1) * BATCH]))[0] == dropped[turn - 1]


def test_the_reserve_of_a_stream_gives_each_sample_once(folder):
    """Half of a stream dropped: all others stand in, once each, in every epoch."""
    loader = loader_of(folder)
    loader.dataset.drop(range(360))
    with pytest.raises(ConfigError, match="half of a stream is the most"):
        loader.dataset.drop([370])
    for epoch in range(3):
        table = loader.dataset._order.plan(
            ResumePoint(Position(epoch)), loader.dataset._world()
        ).drops
        come = table.at(np.arange(360), np.zeros(360, np.int64))
        assert len({*come.tolist()}) == 360
        assert come.min() >= 360
        assert come.max() < 720
    assert sorted({int(n) for batch in loader for n in batch["id"]}) == [*range(360, SAMPLES)]


def test_another_global_batch_goes_on_with_the_same_samples(folder):
    """Places of edits count samples, so they hold in any world."""
    plain = loader_of(folder, exact=True)
    state = train([plain], 10, [(2, drop([7, 800, 41, 300]), 2), (3, skip(15, 25), 25)])[1]
    wide = loader_of(folder, exact=True, batch=48, state=state)
    same = loader_of(folder, exact=True, state=state)
    ids = [[int(n) for batch in loader for n in batch["id"]] for loader in (wide, same)]
    assert ids[0] == ids[1]
    assert len(ids[0]) == SAMPLES - 20 * BATCH
    assert wide.order_hash == same.order_hash


def test_edits_between_epochs_and_without_a_loader(folder):
    """They hold from where the next iteration begins, in what iterates the dataset as well."""
    loader = loader_of(folder)
    assert loader.dataset.drop([3]) == 0
    assert loader.skip(range(2)) == 2
    ids = [sample["id"] for sample in loader.dataset]
    assert len(ids) == SAMPLES - 2 * BATCH
    assert 3 not in ids
    iterator = iter(loader.dataset)
    next(iterator)
    assert loader.dataset.drop([4]) == 2 * STEPS
    assert loader.skip(range(2 * STEPS, 3 * STEPS + 1)) == 3 * STEPS + 1
    for epoch, count in ((1, SAMPLES - 1), (2, 0), (3, SAMPLES - BATCH)):
        assert len([*iterator]) == count, epoch
        iterator = iter(loader.dataset)


def test_a_part_of_a_dataset_numbers_its_own(folder):
    """drop() takes the numbers of a selection, and another of it takes the place."""
    loader = loader_of(folder)
    part = loader.dataset.select(np.arange(0, SAMPLES, 2))
    part.drop([1])
    ids = [sample["id"] for sample in part]
    assert 2 not in ids
    assert all(number % 2 == 0 for number in ids)
    assert len(ids) == SAMPLES // 2
    assert not loader.dataset._order.epochs.edits


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda loader: loader.dataset.drop([SAMPLES]), "there is no sample 960"),
        (lambda loader: loader.dataset.drop([-1]), "there is no sample -1"),
        (lambda loader: loader.dataset.drop([1.5]), "takes the numbers of samples"),
        (lambda loader: loader.dataset.drop("seven"), "takes the numbers of samples"),
        (lambda loader: loader.dataset.drop(5), "takes the numbers of samples, got 5"),
        (lambda loader: loader.dataset.drop(b"12"), "takes the numbers of samples, got b'12'"),
        (lambda loader: loader.dataset.drop(bytearray(b"12")), "takes the numbers of samples"),
        (lambda loader: loader.dataset.drop([[1], [2, 3]]), "takes the numbers of samples"),
        (lambda loader: loader.dataset.drop([[1, 2]]), "takes the numbers of samples"),
        (lambda loader: loader.dataset.drop([1], why=3), "must be a text"),
        (lambda loader: loader.dataset.drop([1], at_step=4), "the earliest step .* is 5"),
        (lambda loader: loader.dataset.drop([1], at_step=np.int64(4)), "the earliest .* is 5"),
        (lambda loader: loader.dataset.drop([1], at_step=6.0), "6.0 is not a whole number"),
        (lambda loader: loader.dataset.drop([1], at_step=True), "True is not a whole number"),
        (lambda loader: loader.dataset.drop(range(720, 841)), "121 of the 240 samples of stream 1"),
        (lambda loader: loader.skip(range(4, 9)), "step 4 was the last that came"),
        (lambda loader: loader.skip(range(9, 9)), "give the global batches"),
        (lambda loader: loader.skip(range(9, 20, 2)), "give the global batches"),
        (lambda loader: loader.skip(7), "give the global batches"),
        (lambda loader: loader.skip(range(7, 10**9)), "of more than 10,000 epochs"),
        (lambda loader: loader.skip(range(7, 10**12)), "a training has at most 2,147,483,648"),
        (lambda loader: loader.skip(range(10**18, 10**18 + 1)), "has at most 2,147,483,648 steps"),
        (lambda loader: loader.skip(range(10**30)), "a training has at most 2,147,483,648 steps"),
        (lambda loader: loader.skip(range(10**5000, 10**5000 + 1)), "a training has at most"),
    ],
)
def test_edits_that_make_no_sense_are_refused(folder, edit, told):
    """Before anything changes."""
    loader = loader_of(folder)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    with pytest.raises(ConfigError, match=told):
        edit(loader)
    assert "edits" not in loader.state_dict()


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
    assert loader.skip(range(STEPS, 4000 * STEPS)) == 4000 * STEPS
    assert noted == [3999]
    assert len(loader.state_dict()["edits"]) == 3999


def test_a_step_is_a_number_of_numpy_too(folder):
    """As counters are."""
    loader = loader_of(folder)
    assert loader.dataset.drop([1], at_step=np.int64(40)) == 40
    assert as_json(loader.state_dict())["edits"][0]["from"] == 40 * BATCH


def test_the_last_step_that_a_training_can_have_is_skipped(folder):
    """And the state, which has it, goes on where the training was."""
    loader = loader_of(folder)
    batches = iter(loader)
    next(batches)
    assert loader.skip(range((1 << 31) - 1, 1 << 31)) == 1 << 31
    state = as_json(loader.state_dict())
    rest = [batch["id"].tolist() for batch in batches]
    assert [batch["id"].tolist() for batch in loader_of(folder, state=state)] == rest


def test_a_loader_of_another_dataset_skips_nothing():
    """With the reason."""
    with pytest.raises(ConfigError, match="leaves out steps of streaming datasets"):
        StreamingDataLoader([1, 2, 3]).skip(range(2))


BROKEN = [
    {"epoch": 0, "from": 8},
    {"epoch": -1, "from": 8, "skip": 8},
    {"epoch": 0, "from": 1 << 63, "skip": 8},
    {"epoch": 0, "from": 8, "skip": 0},
    {"epoch": 0, "from": 8, "skip": 1 << 62},
    {"epoch": True, "from": 8, "skip": 8},
    {"epoch": 0, "from": 8, "drop": [SAMPLES], "why": ""},
    {"epoch": 0, "from": 8, "drop": [-1], "why": ""},
    {"epoch": 0, "from": 8, "drop": 3, "why": ""},
    {"epoch": 0, "from": 8, "drop": [1], "why": "x" * 300},
    {"epoch": 0, "from": 8, "drop": [1], "why": "", "windows": [1.5]},
    {"epoch": 0, "from": 8, "drop": [*range(600)], "why": ""},
    {"epoch": 0, "from": 8, "hop": 1},
]


@pytest.mark.parametrize("edit", BROKEN, ids=[str(i) for i in range(len(BROKEN))])
def test_broken_edits_of_a_state_are_refused(folder, edit):
    """A state comes from outside: each is checked, and nothing of it stays."""
    loader = loader_of(folder)
    _, state = train([loader], 5, [(3, drop([1]), 3)])
    with pytest.raises(StateError, match="the state has an edit"):
        loader.load_state_dict({**state, "edits": [edit]})
    assert loader.state_dict()["edits"] == state["edits"]


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
        with pytest.raises(ConfigError, match=r"More than 100,000 samples would be dropped"):
            dataset.drop(samples)
    assert taken == 100_001


def test_explain_tells_what_was_dropped_and_skipped(folder):
    """As many samples as there are, each once, and what does not come of this epoch."""
    loader = loader_of(folder)
    assert "dropped" not in loader.dataset.explain()
    loader.dataset.drop([3, 5])
    loader.dataset.drop([5, 9])
    loader.skip(range(2, 4))
    told = loader.dataset.explain()
    assert "dropped samples      3" in told
    assert f"skipped              {2 * BATCH}" in told


def test_a_skip_of_more_epochs_than_a_state_has_room_for_is_refused(folder):
    """In words of steps and epochs, and nothing is skipped."""
    loader = loader_of(folder)
    with pytest.raises(ConfigError, match=r"steps of more than 10,000 epochs"):
        loader.skip(range(2, 10_002 * STEPS))
    assert "edits" not in loader.state_dict()


def test_too_many_dropped_samples_name_their_stream(folder):
    """By the key that the user gave it."""
    streams = {name: Stream(local=str(folder / name)) for name in "ab"}
    dataset = StreamingDataset(streams=streams, batch_size=BATCH)
    with pytest.raises(ConfigError, match="121 of the 240 samples of stream 'b'"):
        dataset.drop(range(720, 841))
