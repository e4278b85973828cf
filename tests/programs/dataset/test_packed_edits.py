"""Documents that are dropped and steps that are skipped in a run of packs."""

import pytest

from mds._dataset import steps
from mds.errors import ConfigError
from mds.plan._pack_filling import PackFilling
from tests.unit.dataset import packed_edits_helpers
from tests.unit.dataset.packed_edits_helpers import COUNT, loader_of, train
from tests.unit.dataset.runs import steps_of

# Fixtures of both halves of these tests.
corpus = packed_edits_helpers.corpus
unedited = packed_edits_helpers.unedited
gone = packed_edits_helpers.gone
edits = packed_edits_helpers.edits
edited = packed_edits_helpers.edited

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


FAR = [
    lambda loader: loader.dataset.edits.skip_steps(range(10**9, 10**9 + 1)),
    lambda loader: loader.dataset.edits.skip_steps(range(5, 10**9)),
    lambda loader: loader.dataset.edits.replace_samples([5], at_step=10**9),
]


@pytest.mark.parametrize("edit", FAR)
def test_a_step_that_is_too_far_ahead_to_be_found_is_refused(corpus, edit, monkeypatch):
    """As many epochs are packed as are said, and nothing changes."""
    monkeypatch.setattr(steps, "_MOST_DOCUMENTS", 3 * COUNT)
    counted = []
    count = PackFilling.count
    monkeypatch.setattr(
        PackFilling, "count", lambda packs: counted.append(packs.inputs.epoch) or count(packs)
    )
    loader = loader_of(corpus, shuffle_seed=4000 + FAR.index(edit))
    batches = iter(loader)
    next(batches)
    with pytest.raises(ConfigError, match="more than 3 epochs of packs ahead") as caught:
        edit(loader)
    assert counted == [0, 1, 2, 3]
    assert loader.state_dict()["edits"] == "[]"
    most = int(str(caught.value).split("a step before ")[1].split(",")[0])
    loader.dataset.edits.replace_samples([5], at_step=most - 1)
    assert len(loader.dataset.edits) == 1


@pytest.mark.parametrize(
    ("ranks", "workers", "kind"),
    [(1, 2, "threads"), (1, 2, "processes"), (2, 3, "threads"), (4, 0, "threads")],
)
def test_every_world_has_the_same_global_batches(corpus, edits, edited, ranks, workers, kind):
    """And the same hash, which is the plan's."""
    loaders = [
        loader_of(corpus, ranks=ranks, rank=rank, workers=workers, kind=kind)
        for rank in range(ranks)
    ]
    rows, hashes, state = train(loaders, 2, edits)
    assert (rows, hashes) == edited[:2]
    assert state["edits"] == edited[2]["edits"]
    plan = steps_of(loaders[0]).plan(1)
    assert str(plan.order_hash(plan.steps)) == hashes[1]


def test_a_run_goes_on_elsewhere_from_every_step(corpus, edits, edited):
    """From before each edit to behind it, on other ranks and workers."""
    for stop in range(1, len(edited[0][0]) - 1):
        some, _, state = train([loader_of(corpus)], 1, edits, stop=stop)
        ranks = (1, 2, 3)[stop % 3]
        loaders = [
            loader_of(corpus, ranks=ranks, rank=rank, workers=stop % 2, state=state)
            for rank in range(ranks)
        ]
        left = [(at - stop, change) for at, change in edits if at > stop]
        assert some[0] + train(loaders, 1, left)[0][0] == edited[0][0], stop


def test_plans_of_packs_know_the_edits(corpus, edits, edited):
    """Each batch alone, the number of steps, and every place of a document."""
    loader = loader_of(corpus)
    train([loader], 1, edits)
    plan = steps_of(loader).plan(0)
    rows = edited[0][0]
    assert plan.steps == len(rows)
    # The past was packed with what was dropped later: its windows had begun by then.
    places = {}
    for step in range(plan.steps):
        contents, slots = plan.filling.dealt(step)
        assert sorted(contents.ids.tolist()) == rows[step]
        for document_, place in zip(contents.ids.tolist(), slots.tolist(), strict=True):
            places[document_] = (step, place)
    for number in range(0, COUNT, 23):
        found = [(p.step, p.place) for p in plan.locate(number)]
        assert found == ([places[number]] if number in places else [])
