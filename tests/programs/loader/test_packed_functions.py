"""Packs with code of the caller: what functions, filters and classes see, in every world."""

import numpy as np
import pytest
import torch

from mds import StreamingDataLoader
from mds.transforms import RowGenerator
from tests.unit.loader import packed_functions_helpers
from tests.unit.loader.packed_functions_helpers import COUNT, documents, make, noise, run, tokens_of

# Fixtures of both halves of these tests.
corpus = packed_functions_helpers.corpus

# torch warns of more workers than this machine has cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


WORLDS = [(1, 0), (2, 2), (3, 1), (8, 3)]


def test_a_map_that_keeps_lengths_is_the_same_in_every_world(corpus):
    """With its random numbers, at any resume; they are another epoch's in another epoch."""
    names = ("tokens", "labels", "weight")

    def noisy(world):
        return make(corpus, world).map(noise)

    expected, states = run(noisy, names, 1, 0)
    assert len({document for row in expected for document in row}) > COUNT
    for ranks, workers in WORLDS[1:]:
        assert run(noisy, names, ranks, workers)[0] == expected
    for step in (0, 3, len(states) - 2):
        ranks, workers = WORLDS[step % len(WORLDS)]
        assert run(noisy, names, ranks, workers, states[step])[0] == expected[step + 1 :]
    loader = StreamingDataLoader(noisy((1, 0)))
    first, second = ([d for b in loader for d in documents(b, names)] for _ in range(2))
    assert sorted(d[0] for d in first) == sorted(d[0] for d in second)
    assert not {d[2] for d in first} & {d[2] for d in second}


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_keys_of_rows_do_not_depend_on_the_world(corpus, workers):
    """Of a document each in varlen, of a pack each in dense."""

    def draw(columns, keys):
        drawn = RowGenerator(keys).random(2)
        if "cu_seqlens" not in columns:
            return {"rows": columns["tokens"], "drawn": drawn}
        rows = np.split(columns["tokens"], columns["cu_seqlens"][1:-1])
        return {"rows": rows, "drawn": drawn}

    for layout in ("varlen", "dense"):
        found = []
        for ranks, count in ((1, 0), (3, 2)):
            seen = {}
            for rank in range(ranks):
                dataset = make(corpus, (ranks, rank), layout=layout).map_batches(draw)
                loader = StreamingDataLoader(dataset, num_workers=count,
                                             worker_type=workers if count else "auto")  # fmt: skip
                for batch in loader:
                    for row, drawn in zip(batch["rows"], batch["drawn"].tolist(), strict=True):
                        if row.any():
                            seen[tuple(row.tolist())] = drawn
            found.append(seen)
        assert found[0] == found[1]
        assert len({tuple(drawn) for drawn in found[0].values()}) == len(found[0]) > 100


@pytest.mark.parametrize("ranks", [1, 8])
def test_what_a_filter_refuses_is_padding(corpus, ranks):
    """Counted, and all other documents come; ranks stay in step."""

    def is_odd(sample):
        return sample["number"] % 2 == 1

    steps, numbers, refused, rows = set(), [], 0, 0
    for rank in range(ranks):
        dataset = make(corpus, (ranks, rank)).filter(is_odd)
        batches = list(StreamingDataLoader(dataset, num_workers=2, worker_type="threads"))
        steps.add(len(batches))
        for batch in batches:
            numbers += [number for number in batch["number"] if number is not None]
            assert len(batch["mask"]) == len(batch["cu_seqlens"]) - 1
            assert batch["mask"].all() == (len(batch["number"]) > 0)
            rows += int(batch["mask"].sum())
        refused += int(dataset.stats()["dropped_samples"])
        assert {s.sample % 2 for s in dataset.skipped} <= {0}
    assert len(steps) == 1
    assert {int(number) for number in numbers} == set(range(1, COUNT, 2))
    assert rows + refused == len(documents_of_all(corpus))


def documents_of_all(folder):
    return [d for b in StreamingDataLoader(make(folder)) for d in documents(b, ("tokens",))]


def test_processes_bring_what_functions_make(corpus):
    """As without workers."""
    expected = [*StreamingDataLoader(make(corpus).map(noise).map_batches(count_tokens))]
    loader = StreamingDataLoader(make(corpus).map(noise).map_batches(count_tokens), num_workers=2)
    for batch, other in zip(expected, loader, strict=True):
        assert batch["tokens"].tolist() == other["tokens"].tolist()
        assert batch["weight"].tolist() == other["weight"].tolist()
        assert batch["text"] == other["text"]
        assert batch["count"] == other["count"] == batch["tokens"].numel()


def count_tokens(columns):
    """The batch with a number more."""
    return {**columns, "count": columns["tokens"].size}


@pytest.mark.parametrize("layout", ["varlen", "dense"])
def test_exact_mask_tells_which_rows_are_real(corpus, layout):
    """The packs are those of any other run; each rank has as many batches."""
    counts, real, tokens = set(), 0, 0
    for rank in range(8):
        loader = StreamingDataLoader(make(corpus, (8, rank), layout=layout, remainder="mask"))
        batches = list(loader)
        counts.add(len(batches))
        for batch in batches:
            if layout == "dense":
                assert torch.equal(batch["mask"], (batch["document_ids"] >= 0).any(1))
                tokens += int((batch["document_ids"] >= 0).sum())
            else:
                assert len(batch["mask"]) == len(batch["cu_seqlens"]) - 1
                tokens += int(batch["tokens"].numel()) - int((~batch["mask"]).sum())
            real += int(batch["mask"].sum())
    assert len(counts) == 1
    assert tokens == sum(len(tokens_of(i)) for i in range(COUNT))
    plain = list(StreamingDataLoader(make(corpus, layout=layout)))
    packs = sum(int((b["document_ids"] >= 0).any(1).sum()) for b in plain) if layout == "dense" \
        else sum(len(b["cu_seqlens"]) - 1 for b in plain)  # fmt: skip
    assert real == packs
