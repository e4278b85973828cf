"""Documents that are dropped and steps that are skipped in a run of packs."""

import itertools

import pytest

from mds import Packing
from tests.unit.dataset import packed_edits_helpers
from tests.unit.dataset.packed_edits_helpers import BATCH, CAPACITY, COUNT, loader_of, train
from tests.unit.dataset.runs import steps_of

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
    left = steps_of(loader).packs(0).batch(1)[0]
    loader.dataset.edits.replace_samples(left.ids)
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
