"""Documents that are dropped and steps that are skipped in a run of packs."""

import itertools

import numpy as np
import pytest

from mds import MDSWriter, Packing, RunHistory, StreamingDataLoader, StreamingDataset, World
from mds.errors import StateError
from tests.states import changed, values_of
from tests.unit.dataset import packed_edits_helpers
from tests.unit.dataset.packed_edits_helpers import BATCH, CAPACITY, COUNT, loader_of, train
from tests.unit.dataset.runs import loader_over, steps_of

# Fixtures of both halves of these tests.
corpus = packed_edits_helpers.corpus
unedited = packed_edits_helpers.unedited
gone = packed_edits_helpers.gone
edits = packed_edits_helpers.edits
edited = packed_edits_helpers.edited

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def test_dropped_documents_never_come(unedited, edited, gone):
    """What came before stays; in windows that had begun only their places are empty."""
    rows = edited[0]
    assert rows[0][:3] == unedited[0][:3]
    assert {*gone}.isdisjoint(itertools.chain(*rows[0][3:], *rows[1]))
    assert rows[0][3] == [n for n in unedited[0][3] if n not in gone]
    every = set(range(COUNT)) - {*gone} - {gone[0] ^ 1}
    assert {*itertools.chain(*rows[1])} == every
    assert len(rows[0]) == len(unedited[0]) - 2


def test_what_is_padding_for_a_dropped_document_is_counted(corpus, gone):
    """And a window that had not begun has no place for one."""
    loader = loader_of(corpus)
    assert "dropped_samples" not in loader.dataset.stats()
    train([loader], 1, [(3, lambda loader: loader.dataset.edits.replace_samples(gone))])
    assert 2 <= loader.dataset.stats()["dropped_samples"] < len(gone)


@pytest.mark.parametrize("layout", ["varlen", "dense"])
def test_a_pack_of_dropped_documents_alone_is_padding(corpus, layout):
    """Its row has no label, and ranks stay in step."""
    loader = loader_of(corpus, packing=Packing(CAPACITY, layout=layout))
    batches = iter(loader)
    next(batches)
    left = [row.sample for row in steps_of(loader).plan(0).step_rows(1)]
    loader.dataset.edits.replace_samples(left)
    batch = next(batches)
    if layout == "varlen":
        assert batch["labels"].tolist() == [-100]
    else:
        assert batch["document_ids"].max() == -1
        assert batch["labels"].max() == -100
    assert loader.state_dict()["sample_in_epoch"] == 2 * BATCH


def test_steps_of_packs_count_over_epochs(corpus, unedited):
    """A drop and a skip in the second epoch, by the steps since the training began."""
    loader = loader_of(corpus)
    first = len(unedited[0])
    loader.dataset.edits.skip_steps(range(first + 1, first + 3))
    loader.dataset.edits.replace_samples([unedited[1][5][0]], at_step=first + 4)
    assert loader.dataset.edits[0].endswith("of epoch 1 on")
    rows, _, _ = train([loader], 2)
    assert rows[0] == unedited[0]
    assert rows[1][0] == unedited[1][0]
    assert rows[1][1:2] == unedited[1][3:4]
    assert unedited[1][5][0] not in itertools.chain(*rows[1][2:])


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """Short documents and a long one, whose canonical node has the last packs alone."""
    folder = str(tmp_path_factory.mktemp("uneven"))
    with MDSWriter(out=folder, columns={"tokens": "ndarray:uint32"}, lengths="tokens") as writer:
        for number in range(60):
            writer.write({"tokens": np.full(2000 if number == 20 else 50, number, np.uint32)})
    return folder


def of_uneven(folder, rows=3, batch_size=1, state=None):
    dataset = StreamingDataset(
        local=folder,
        shuffle=True,
        num_canonical_nodes=rows,
        packing=Packing(100, overflow="split"),
        batch_size=batch_size,
        topology=World(1, 1, 1, 0),
    )
    return loader_over(dataset, "threads", 0, state)


@pytest.mark.parametrize("kind", ["skip", "drop"])
def test_edits_hold_at_their_step_where_empty_steps_were_left_out(uneven, kind):
    """A step has fewer packs than there are canonical nodes, and most of these have ended."""
    plain = [batch["tokens"].unique().tolist() for batch in of_uneven(uneven)]
    loader, seen, steps = of_uneven(uneven), [], len(plain)
    assert steps < 60, "steps are left out"
    for batch in loader:
        seen.append(batch["tokens"].unique().tolist())
        if len(seen) == steps - 10:
            edits = loader.dataset.edits
            if kind == "skip":
                edits.skip_steps(range(steps - 8, steps - 4))
                assert edits[0] == f"steps {steps - 8} to {steps - 5} skipped"
            else:
                edits.replace_samples([20])
    if kind == "skip":
        assert seen == plain[: steps - 8] + plain[steps - 4 :]
    else:
        assert 20 in itertools.chain(*seen[: steps - 10])
        assert 20 not in itertools.chain(*seen[steps - 10 :])


@pytest.mark.parametrize("seed", range(8))
def test_skipped_steps_among_empty_ones(tmp_path, seed):
    """Of few documents in many canonical nodes. A state tells what was trained."""
    rng = np.random.default_rng(seed)
    columns = {"tokens": "ndarray:uint32"}
    with MDSWriter(out=str(tmp_path), columns=columns, lengths="tokens") as writer:
        for number in range(int(rng.integers(4, 40))):
            writer.write({"tokens": np.full(int(rng.integers(5, 60)), number + 1, np.uint32)})
    settings = {"rows": int(rng.choice([16, 64])), "batch_size": int(rng.choice([1, 2, 4]))}
    loader = of_uneven(str(tmp_path), **settings)
    plain = [[set(batch["tokens"].tolist()) - {0} for batch in loader] for _ in range(2)]
    loader, seen = of_uneven(str(tmp_path), **settings), []
    after = int(rng.integers(1, max(len(plain[0]) - 1, 2)))
    first = after + int(rng.integers(0, 3))
    last = first + int(rng.integers(1, 4))
    for _ in range(2):
        for batch in loader:
            seen.append(set(batch["tokens"].tolist()) - {0})
            state = loader.state_dict()
            if len(seen) == after:
                loader.dataset.edits.skip_steps(range(first, last))
    steps = [*plain[0], *plain[1]]
    assert seen == steps[:first] + steps[last:]
    history = RunHistory(state)
    told = [
        {row.sample + 1 for row in history.step(step)}
        for step in range(history.position[1])
        if not first <= step < last
    ]
    assert told == seen


def test_a_step_that_ends_in_skipped_places_has_a_state(corpus):
    """The rest of the epoch is skipped, and a resumed run has another global batch."""
    loader = loader_of(corpus)
    steps = len(loader)
    for number, _ in enumerate(loader, 1):
        if number == steps - 8:
            loader.dataset.edits.skip_steps(range(steps - 6, steps))
            state = loader.state_dict()
            break
    settings = {"shuffle_block_size": 100, "packing": Packing(CAPACITY), "batch_size": 35}
    dataset = StreamingDataset(
        local=corpus,
        shuffle=True,
        shuffle_algo="seekable",
        num_canonical_nodes=4,
        topology=World(1, 1, 1, 0),
        **settings,
    )
    other = StreamingDataLoader(dataset)
    other.load_state_dict(state)
    states = [other.state_dict() for _ in other]
    assert len(states) == 2  # 48 packs, of which the second step has 13
    for state, rest in zip(states, (1, 0), strict=True):
        other.load_state_dict(state)
        assert len([*other]) == rest


def test_an_edit_with_windows_of_other_canonical_nodes_is_refused(corpus):
    """A dropped document has a window of each, from which on packs are made without it."""
    loader = loader_of(corpus)
    batches = iter(loader)
    next(batches)
    loader.dataset.edits.replace_samples([3])
    state = loader.state_dict()
    (edit,) = values_of(state)["edits"]
    assert len(edit["windows"]) == 4
    wrong = changed(state, {"edits": [{**edit, "windows": edit["windows"][:3]}]})
    with pytest.raises(StateError, match="3 windows and num_canonical_nodes 4"):
        loader_of(corpus).load_state_dict(wrong)


def test_explain_counts_steps_that_canonical_nodes_add(uneven):
    """If they have different numbers of packs."""
    told = of_uneven(uneven).dataset.explain()
    assert "canonical nodes have different numbers of packs" not in told
    told = of_uneven(uneven, batch_size=3).dataset.explain()
    assert "steps more than full steps, because canonical nodes have different" in told
