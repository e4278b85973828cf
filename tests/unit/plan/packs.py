"""Plans of packs of random documents, and what their ranks read."""

import hashlib

import numpy as np
from ordertools import make_plan

from mds.plan._pack_filling import DocumentLengths
from mds.plan._pack_schedule import Documents
from mds.plan._packing import Packing


class Given(DocumentLengths):
    """Lengths of samples in an array."""

    def __init__(self, values):
        self.values = np.asarray(values, np.int64)
        self.digest = hashlib.blake2s(self.values.tobytes()).hexdigest()
        self.total, self.count = int(self.values.sum()), len(self.values)

    def take(self, ids):
        return self.values[ids]

    def packed(self, counts, packing):
        parts = np.split(self.values, np.cumsum(counts)[:-1])
        return [Documents(len(part), int(packing.tokens(part).sum())) for part in parts]


def lengths_of(count, seed=0, mean=60, most=10_000):
    """Lengths as texts have them: many short ones and a few that are very long."""
    drawn = np.random.default_rng(seed).lognormal(np.log(mean), 1.1, count)
    return np.clip(drawn.astype(np.int64), 1, most)


LENGTHS = lengths_of(3000)


SHARDS = [300, 200, 500, 400, 600, 1000]


def packed(world, *, batch=None, state=None, lengths=LENGTHS, packing=None, **order):
    """A plan of packs of a world of so many nodes, ranks and workers; 16 packs a step."""
    nodes, ranks, _ = world
    order = {"shuffle": True, "shuffle_algo": "seekable", "num_canonical_nodes": 4,
             "shuffle_block_size": 200, **order}  # fmt: skip
    return make_plan(
        SHARDS,
        world,
        batch_size=batch or 16 // (nodes * ranks),
        resume=state,
        epoch=0,
        packing=packing or Packing(512, overflow="split"),
        lengths=Given(lengths),
        **order,
    )


def steps_of(plan, world):
    """Of each step the pieces of its packs, as a sorted list, and where the epoch goes on."""
    nodes, ranks, workers = world
    found = {}
    for node in range(nodes):
        for rank in range(ranks):
            for worker in range(max(workers, 1)):
                for turn, mine in enumerate(plan.filling.rank_packs(node, rank, worker)):
                    step = found.setdefault(turn * max(workers, 1) + worker, ([], []))
                    ends = np.cumsum(mine.counts)
                    for first, last in zip(ends - mine.counts, ends, strict=True):
                        pack = zip(mine.ids[first:last].tolist(), mine.starts[first:last].tolist(),
                                   mine.sizes[first:last].tolist(), strict=True)  # fmt: skip
                        step[0].append(tuple(pack))
                    step[1].append(mine.end)
    assert sorted(found) == list(range(len(found)))
    for _, ends in found.values():
        assert all(end == ends[0] for end in ends)
    return [(sorted(pieces), ends[0]) for pieces, ends in (found[i] for i in sorted(found))]


WORLDS = [(1, 1, 1), (1, 2, 3), (2, 2, 2), (4, 1, 1), (2, 4, 1), (8, 1, 2)]
