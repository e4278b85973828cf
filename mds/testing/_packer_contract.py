"""Contract test suite of packers: the laws that every packer keeps, as tests to inherit.

    class TestMine(PackerContract):
        packer = "mine"

The packer is registered by `register_packer` before.

A packer joins documents (samples that are arrays of tokens) to packs: rows of a batch that hold up
to a fixed number of tokens. It gets the lengths of one window at a time: consecutive documents of
the order, which are packed together. A long document may be cut into several pieces; a piece is the
range of a document's tokens that one pack holds.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mds.plan import EpochPlan, OrderHash
from mds.plan._pack_filling import DocumentLengths, packs_of
from mds.plan._pack_windows import pack_window
from mds.plan._packing import Packing
from mds.plan._state import emit_state, parse_state
from mds.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mds.plan._pack_windows import Packs
    from mds.plan._state import ResumePoint

    Ids = NDArray[np.int64]

_ROOM = 100  # tokens of a pack
_BATCH = 8  # packs of a global batch
_DOCUMENTS = 600
_ALONE = World(1, 1, 1, 0)
_WORLDS = (_ALONE, World(1, 4, 1, 0), World(2, 2, 1, 0), World(2, 4, 2, 0))


class _ArrayLengths(DocumentLengths):
    """Lengths of documents in memory, in place of those of a dataset.

    A plan usually gets the lengths from a dataset; this class lets the tests choose them.
    ``lengths`` are tokens by document id, int64 of shape (documents,).
    """

    #: Identifies the lengths in a state; a resume compares it.
    digest = "under contract"

    def __init__(self, lengths: Ids) -> None:
        self._lengths = lengths
        self.total, self.count = int(lengths.sum()), len(lengths)

    def take(self, ids: Ids) -> Ids:
        """Return the lengths of the documents ``ids``, both int64 of shape (n,)."""
        lengths: Ids = self._lengths[ids]
        return lengths

    def packed(self, counts: Sequence[int], packing: Packing) -> Any:
        """Raise an error: only a schedule needs this, and the tests have none."""
        raise NotImplementedError


class PackerContract:
    """Tests that every packer must pass.

    Inherit it, name the class ``Test...`` and set ``packer`` to the registered name.

    For example::

        from mds.testing import PackerContract

        register_packer("pairs", pairs)

        class TestPairs(PackerContract):
            packer = "pairs"
    """

    packer: ClassVar[str]
    #: Further arguments of Packing for the tests.
    settings: ClassVar[dict[str, Any]] = {}

    def test_every_token_comes_exactly_once(self) -> None:
        """Packs have 1 to _ROOM tokens, and the pieces of a document are the whole document."""
        for lengths in self._windows():
            packs = self._pack(lengths)
            assert not len(packs) or packs.tokens.min() > 0
            assert not len(packs) or packs.tokens.max() <= _ROOM
            # In the order of documents and starts, each piece begins where the last one ended. A
            # row of ids, starts and sizes is a piece: its document, first token and tokens.
            ends = np.zeros(len(lengths), np.int64)
            for row in np.lexsort((packs.starts, packs.ids)).tolist():
                document, start = int(packs.ids[row]), int(packs.starts[row])
                assert start == ends[document]
                ends[document] += int(packs.sizes[row])
            assert np.array_equal(ends, self._packing.packed_lengths(lengths))

    def test_packs_follow_from_lengths_and_room(self) -> None:
        """The same lengths give the same packs."""
        for lengths in self._windows():
            first, second = self._pack(lengths), self._pack(lengths.copy())
            for name in ("ids", "starts", "sizes", "bounds", "places"):
                assert np.array_equal(getattr(first, name), getattr(second, name))

    def test_every_world_has_the_same_steps(self) -> None:
        """Any number of nodes, ranks and workers gets the same global batches of packs.

        The plan announces a hash of the order of all pieces. The pieces that the workers get, taken
        together, have the same hash.
        """
        expected = None
        for world in _WORLDS:
            plan = self._plan(world)
            steps = [self._step(plan, step) for step in range(plan.steps)]
            expected = expected or steps
            assert steps == expected
            order_hash = OrderHash()
            shape = plan.shape
            for node, rank, worker in itertools.product(
                range(shape.nodes), range(shape.ranks), range(shape.workers)
            ):
                for packs in packs_of(plan.filling).rank_packs(node, rank, worker):
                    order_hash.take(*packs.order)
            assert str(order_hash) == str(plan.order_hash(plan.steps))

    def test_a_run_resumes_at_any_step_in_any_world(self) -> None:
        """A run that resumes from a state has the same remaining steps as one without a break.

        The run has one rank, and resumes in every world after its first, middle and last but one
        step.
        """
        full_plan = self._plan(_ALONE)
        steps = [self._step(full_plan, step) for step in range(full_plan.steps)]
        # The position in the order after each step.
        ends = [packs.end for packs in packs_of(full_plan.filling).rank_packs(0, 0, 0)]
        for step in (0, len(ends) // 2, len(ends) - 2):
            state = emit_state(full_plan.state(0).at(ends[step]))
            for world in _WORLDS:
                plan = self._plan(world, resume=parse_state(state))
                remaining = [self._step(plan, later) for later in range(plan.steps)]
                assert remaining == steps[step + 1 :]

    def test_epochs_and_seeds_differ(self) -> None:
        """Each epoch makes other packs, and so does another seed."""
        orders = {
            str(self._step(self._plan(_ALONE, epoch=epoch, seed=seed), 0))
            for epoch, seed in ((0, 1), (1, 1), (2, 1), (0, 2))
        }
        assert len(orders) == 4

    # ------------------------------------------------------------------ inside

    @property
    def _packing(self) -> Packing:
        return Packing(_ROOM, packer=self.packer, **{"overflow": "split", **self.settings})

    def _pack(self, lengths: Ids) -> Packs:
        """Return the packs of one window, whose document i has ``lengths[i]`` tokens."""
        return pack_window(np.arange(len(lengths)), lengths, self._packing, 7)

    @staticmethod
    def _windows() -> list[Ids]:
        """Return the lengths of the documents of several windows, also empty and very long ones."""
        rng = np.random.default_rng(3)
        random_windows = [
            rng.integers(1, longest + 1, count)
            for longest in (1, 7, 60, 99, 100, 350)
            for count in (1, 2, 40, 700)
        ]
        return [np.zeros(0, np.int64), np.array([0, 5, 0]), *random_windows]

    def _plan(
        self,
        world: World,
        *,
        epoch: int = 0,
        seed: int = 1,
        resume: ResumePoint | None = None,
    ) -> EpochPlan:
        """Return the plan of an epoch of 600 documents in 6 shards, with random lengths.

        Every world has the same global batch of 8 packs. ``resume`` is the parsed state to resume
        from, None for the whole epoch.
        """
        lengths = np.random.default_rng(5).integers(0, 150, _DOCUMENTS)
        return EpochPlan(
            [{"shards": [100] * (_DOCUMENTS // 100)}],
            world,
            epoch=epoch,
            resume=resume,
            batch_size=_BATCH // world.num_ranks,
            shuffle=True,
            shuffle_seed=seed,
            shuffle_block_size=100,
            num_canonical_nodes=2,
            shuffle_algo="seekable",
            packing=self._packing,
            lengths=_ArrayLengths(lengths),
        )

    @staticmethod
    def _step(plan: EpochPlan, step: int) -> list[tuple[int, int, int]]:
        """Return the pieces of a global batch as sorted (document, first token, end) tuples.

        Ranks are left out, because they differ between worlds.
        """
        return sorted(
            (sample, *bounds) for _, sample, bounds in plan.step_rows(step) if bounds is not None
        )
