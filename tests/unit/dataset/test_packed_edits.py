"""Documents that are dropped and steps that are skipped in a run of packs."""

import functools
import itertools

import numpy as np
import pytest
import runs
from runs import loader_over, steps_of

from mds import MDSWriter, Packing, StreamingDataset, World
from mds.dataset import steps
from mds.errors import ConfigError
from mds.plan import PackPlan

COUNT, CAPACITY, BATCH = 700, 128, 24

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def document(number):
    """Tokens that tell their document."""
    return np.full(2 + (number * 7919) % 90, number, np.uint16)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("packed"))
    columns = {"tokens": "ndarray:uint16"}
    with MDSWriter(out=folder, columns=columns, lengths="tokens", size_limit=8000) as writer:
        for number in range(COUNT):
            writer.write({"tokens": document(number)})
    return folder


def loader_of(corpus, ranks=1, rank=0, workers=0, kind="threads", state=None, **settings):
    settings = {"shuffle": True, "shuffle_algo": "seekable", "num_canonical_nodes": 4,
                "shuffle_block_size": 100, "packing": Packing(CAPACITY), **settings}  # fmt: skip
    dataset = StreamingDataset(
        local=corpus, topology=World(1, ranks, 1, rank), batch_size=BATCH // ranks, **settings
    )
    return loader_over(dataset, kind, workers, state)


def documents_of(batch):
    """The documents of a varlen batch, by their tokens."""
    ends = batch["cu_seqlens"].tolist()
    found = [batch["tokens"][a:b].tolist() for a, b in itertools.pairwise(ends)]
    # A rank without documents has one token of padding, whose label is left out as all firsts are.
    return [tokens[0] for tokens in found if len(tokens) == len(document(tokens[0]))]


train = functools.partial(runs.train, documents_of)


@pytest.fixture(scope="module")
def unedited(corpus):
    return train([loader_of(corpus)], 2)[0]


@pytest.fixture(scope="module")
def gone(unedited):
    """Documents of a window that has begun after three steps, and of later ones."""
    return [*unedited[0][3][:2], unedited[0][6][5], unedited[0][-1][0], unedited[0][0][0]]


@pytest.fixture(scope="module")
def edits(gone):
    return [
        (3, lambda loader: loader.dataset.drop(gone, "noise")),
        (5, lambda loader: loader.skip(range(6, 8))),
        (6, lambda loader: loader.dataset.drop([gone[0] ^ 1])),
    ]


@pytest.fixture(scope="module")
def edited(corpus, edits):
    return train([loader_of(corpus)], 2, edits)


def test_dropped_documents_never_come(unedited, edited, gone):
    """What came before stays; in windows that had begun only their places are empty."""
    rows = edited[0]
    assert rows[0][:3] == unedited[0][:3]
    assert {*gone}.isdisjoint(itertools.chain(*rows[0][3:], *rows[1]))
    assert rows[0][3] == [n for n in unedited[0][3] if n not in gone]
    every = set(range(COUNT)) - {*gone} - {gone[0] ^ 1}
    assert {*itertools.chain(*rows[1])} == every
    assert len(rows[0]) == len(unedited[0]) - 2


FAR = [
    lambda loader: loader.skip(range(10**9, 10**9 + 1)),
    lambda loader: loader.skip(range(5, 10**9)),
    lambda loader: loader.dataset.drop([5], at_step=10**9),
]


@pytest.mark.parametrize("edit", FAR)
def test_a_step_that_is_too_far_ahead_to_be_found_is_refused(corpus, edit, monkeypatch):
    """As many epochs are packed as are said, and nothing changes."""
    monkeypatch.setattr(steps, "_MOST_DOCUMENTS", 3 * COUNT)
    counted = []
    count = PackPlan.count
    monkeypatch.setattr(PackPlan, "count", lambda plan: counted.append(plan.epoch) or count(plan))
    loader = loader_of(corpus, shuffle_seed=4000 + FAR.index(edit))
    batches = iter(loader)
    next(batches)
    with pytest.raises(ConfigError, match="more than 3 epochs of packs ahead") as caught:
        edit(loader)
    assert counted == [0, 1, 2, 3]
    assert "edits" not in loader.state_dict()
    most = int(str(caught.value).split("before step ")[1].split(",")[0])
    assert loader.dataset.drop([5], at_step=most - 1) == most - 1


def test_what_is_padding_for_a_dropped_document_is_counted(corpus, gone):
    """And a window that had not begun has no place for one."""
    loader = loader_of(corpus)
    assert "dropped_samples" not in loader.dataset.stats()
    train([loader], 1, [(3, lambda loader: loader.dataset.drop(gone))])
    assert 2 <= loader.dataset.stats()["dropped_samples"] < len(gone)


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
    plan = steps_of(loaders[0]).packs(1)
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
    plan = steps_of(loader).packs(0)
    rows = edited[0][0]
    assert plan.steps == len(rows)
    # The past was packed with what was dropped later: its windows had begun by then.
    places = {}
    for step in range(plan.steps):
        (packs,) = plan.batch(step)
        assert sorted(packs.ids.tolist()) == rows[step]
        of = np.repeat(np.arange(BATCH), packs.counts).tolist()
        for document_, place in zip(packs.ids.tolist(), of, strict=True):
            places[document_] = (step, place)
    for number in range(0, COUNT, 23):
        found = [(p.step, p.place) for p in plan.locate(number)]
        assert found == ([places[number]] if number in places else [])


@pytest.mark.parametrize("pack_as", ["varlen", "dense"])
def test_a_pack_of_dropped_documents_alone_is_padding(corpus, pack_as):
    """Its row has no label, and ranks stay in step."""
    loader = loader_of(corpus)
    batches = iter(loader)
    next(batches)
    left = steps_of(loader).packs(0).batch(1)[0]
    loader.dataset.drop(left.ids)
    loader._pack_as = loader._batches._pack_as = pack_as
    batch = next(batches)
    if pack_as == "varlen":
        assert batch["labels"].tolist() == [-100]
    else:
        assert batch["document_ids"].max() == -1
        assert batch["labels"].max() == -100
    assert loader.state_dict()["position"]["in_epoch"] == 2 * BATCH


def test_steps_of_packs_count_over_epochs(corpus, unedited):
    """A drop and a skip in the second epoch, by the steps since the training began."""
    loader = loader_of(corpus)
    first = len(unedited[0])
    assert loader.skip(range(first + 1, first + 3)) == first + 3
    assert loader.dataset.drop([unedited[1][5][0]], at_step=first + 4) == first + 4
    rows, _, _ = train([loader], 2)
    assert rows[0] == unedited[0]
    assert rows[1][0] == unedited[1][0]
    assert rows[1][1:2] == unedited[1][3:4]
    assert unedited[1][5][0] not in itertools.chain(*rows[1][2:])
