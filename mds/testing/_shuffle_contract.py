"""Contract test suite of shuffles: the laws that every algorithm keeps, as tests to inherit.

    class TestMine(ShuffleContract):
        algorithm = Mine

A shuffle is made for a `ShuffleSpec`: sizes of shards, number of canonical nodes, seed, epoch and
size of a shuffle block. Its order has every sample id once, canonical node after canonical node.
The part of a node is read in windows: arrays of the next ids.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mds.plan import EpochPlan
from mds.plan._state import emit_state
from mds.shuffle import RandomAccessShuffle, Shuffle, ShuffleSpec
from mds.shuffle._registry import algos
from mds.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]

_NAME = "under contract"
_NODES = (1, 2, 5)


class ShuffleContract:
    """Tests that every shuffle must pass.

    Inherit it, name the class ``Test...`` and set ``algorithm`` to the class of the shuffle.

    For example::

        from mds.testing import ShuffleContract

        class TestWholeShards(ShuffleContract):
            algorithm = WholeShards
    """

    algorithm: ClassVar[type[Shuffle]]
    #: Size of a shuffle block in samples, small against the data of the tests.
    block_size: ClassVar[int] = 60

    def test_every_sample_comes_exactly_once(self) -> None:
        """The order has every sample once, and canonical nodes have consecutive parts of it."""
        for spec in self._specs():
            full_order = self._full_order(spec)
            assert np.array_equal(np.sort(full_order), np.arange(spec.samples))
            starts = self.algorithm(spec).starts
            for node in range(spec.num_canonical_nodes):
                share = self._node(self.algorithm(spec), node)
                assert np.array_equal(share, full_order[starts[node] : starts[node + 1]])

    def test_no_samples_are_no_windows(self) -> None:
        """The order is empty if there are no shards, or only shards without samples."""
        for sizes in ([], [0, 0]):
            spec = ShuffleSpec(np.array(sizes, np.int64), 2, 1, 0, self.block_size)
            assert len(self._full_order(spec)) == 0

    def test_the_order_follows_from_the_spec(self) -> None:
        """The same numbers give the same order; another seed or epoch gives another."""
        sizes = _sizes()
        orders = {
            (seed, epoch): self._full_order(ShuffleSpec(sizes, 2, seed, epoch, self.block_size))
            for seed in (0, 1, 1 << 40)
            for epoch in (0, 1, 7)
        }
        for (seed, epoch), ids in orders.items():
            again = self._full_order(ShuffleSpec(sizes, 2, seed, epoch, self.block_size))
            assert np.array_equal(again, ids)
        # Some orders may be equal: an algorithm may use the sum of seed and epoch only.
        assert len({ids.tobytes() for ids in orders.values()}) > len(orders) // 2

    def test_windows_equal_the_whole(self) -> None:
        """A node's windows do not depend on which nodes were read before from the same object."""
        for spec in self._specs():
            shuffle = self.algorithm(spec)
            nodes = [self._node(self.algorithm(spec), n) for n in range(spec.num_canonical_nodes)]
            for node in reversed(range(spec.num_canonical_nodes)):
                assert np.array_equal(self._node(shuffle, node), nodes[node])

    def test_positions_are_found_again(self) -> None:
        """A random-access shuffle gives the id at any position alone, and the position of an id."""
        for spec in self._specs():
            shuffle = self.algorithm(spec)
            if isinstance(shuffle, RandomAccessShuffle) and spec.samples:
                full_order = self._full_order(spec)
                positions = np.arange(spec.samples)[::-7]
                assert np.array_equal(shuffle.ids_at(positions), full_order[positions])
                assert np.array_equal(shuffle.find(full_order[positions]), positions)

    def test_orders_are_asked_together(self) -> None:
        """A group of random-access shuffles returns the ids that each shuffle returns alone.

        ``group.ids_at([2, 0], [5, 9])`` are the ids at position 5 of shuffle 2 and at position 9 of
        shuffle 0. Some shuffles may be moved to other epochs before.
        """
        if not issubclass(self.algorithm, RandomAccessShuffle):
            return
        specs = [spec for spec in self._specs() if spec.samples]
        shuffles: dict[int, RandomAccessShuffle] = {
            number: self.algorithm(spec) for number, spec in enumerate(specs)
        }
        group = self.algorithm.group(shuffles)
        rng = np.random.default_rng(0)
        numbers = rng.integers(0, len(specs), 300)
        positions = rng.integers(0, 1 << 40, 300) % np.array([s.samples for s in specs])[numbers]
        moved = {number: shuffles[number].at_epoch(5 + number) for number in (0, 2)}
        # A group, and the shuffles that it should equal.
        for tested_group, single_shuffles in (
            (group, shuffles),
            # Shuffle 0 at epoch 5 and shuffle 2 at epoch 7, as in `moved`.
            (group.at_epochs(np.array([0, 2]), np.array([5, 7])), {**shuffles, **moved}),
            (group, shuffles),  # the group of other epochs has not changed this one
        ):
            expected = [
                single_shuffles[int(number)].ids_at(np.array([position]))[0]
                for number, position in zip(numbers, positions, strict=True)
            ]
            assert tested_group.ids_at(numbers, positions).tolist() == expected

    def test_another_epoch_of_the_same_shards(self) -> None:
        """A random-access shuffle moved to an epoch equals one that was made for that epoch."""
        for spec in self._specs():
            shuffle = self.algorithm(spec)
            if isinstance(shuffle, RandomAccessShuffle):
                full_order = self._full_order(dataclasses.replace(spec, epoch=4))
                positions = np.arange(spec.samples)
                assert np.array_equal(shuffle.at_epoch(4).ids_at(positions), full_order)
                assert np.array_equal(shuffle.ids_at(positions), self._full_order(spec))

    def test_a_run_resumes_at_any_position(self) -> None:
        """The rest of an epoch is the same after a resume at any step, on other numbers of nodes.

        Steps are compared as sets, because ranks may get the samples of a batch in another order.
        """
        full_plan = self._plan(World(2, 1, 2, 0))
        steps = [full_plan.batch(step) for step in range(full_plan.steps)]
        for steps_before in range(0, full_plan.steps, 3):
            state = emit_state(full_plan.state(steps_before * full_plan.shape.global_batch))
            for world in (World(2, 1, 2, 0), World(1, 2, 1, 0)):
                remaining_plan = self._plan(world, resume=state)
                assert remaining_plan.steps == full_plan.steps - steps_before
                for step in range(remaining_plan.steps):
                    ids = np.sort(remaining_plan.batch(step).ravel())
                    expected_ids = np.sort(steps[steps_before + step].ravel())
                    assert np.array_equal(ids, expected_ids)

    def test_a_worker_begins_anywhere(self) -> None:
        """The ids of a worker from its ``start``-th on are the tail of all its ids."""
        plan = self._plan(World(2, 1, 2, 0))
        node, rank, worker = 1, 0, 1
        ids = _joined(plan.blocks(node, rank, worker))
        for start in range(0, len(ids), 13):
            tail = self._plan(plan.world).blocks(node, rank, worker, start)
            assert np.array_equal(_joined(tail), ids[start:])

    def test_it_says_what_it_is(self) -> None:
        """The class is not abstract, and its attributes have the right types and values."""
        assert not inspect.isabstract(self.algorithm)
        for name in ("is_random_access", "needs_all_samples", "uses_blocks"):
            assert type(getattr(self.algorithm, name)) is bool
        assert self.algorithm.canonical_nodes_per_node >= 1
        assert self.algorithm.is_random_access == issubclass(self.algorithm, RandomAccessShuffle)

    # ------------------------------------------------------------------ inside

    def _specs(self) -> list[ShuffleSpec]:
        """Return several lists of shard sizes, each on 1, 2 and 5 canonical nodes."""
        lists = (_sizes(), np.array([1]), np.array([0, 3, 0, 1]), np.full(9, 8))
        return [
            ShuffleSpec(sizes.astype(np.int64), nodes, 3, 1, self.block_size)
            for sizes in lists
            for nodes in _NODES
        ]

    def _full_order(self, spec: ShuffleSpec) -> Ids:
        """Return the ids of all canonical nodes, one node after the other."""
        shuffle = self.algorithm(spec)
        return _joined(
            window for node in range(spec.num_canonical_nodes) for window in _copies(shuffle, node)
        )

    def _node(self, shuffle: Shuffle, node: int) -> Ids:
        """Return the ids of one canonical node."""
        return _joined(_copies(shuffle, node))

    def _plan(self, world: World, **order: Any) -> EpochPlan:
        """Return the plan of an epoch with this algorithm and a global batch of 4 samples.

        A plan finds an algorithm by its name, so the class is registered until the plan is made.

        Args:
            world: Nodes, ranks and workers of the run.
            **order: Further arguments of `EpochPlan`, such as ``resume``.
        """
        former_algorithm = algos.get(_NAME)
        algos[_NAME] = self.algorithm
        try:
            plan = EpochPlan(
                [{"shards": _sizes()}],
                world,
                batch_size=4 // (world.num_nodes * world.ranks_per_node),
                shuffle=True,
                shuffle_algo=_NAME,
                shuffle_block_size=self.block_size,
                num_canonical_nodes=2,
                **order,
            )
            assert len(plan.orders) == 1  # made while the name is known
        finally:
            if former_algorithm is None:
                del algos[_NAME]
        return plan


def _sizes() -> Ids:
    return np.random.default_rng(5).integers(0, 30, 24)


def _copies(shuffle: Shuffle, node: int) -> Iterable[Ids]:
    # A shuffle may reuse the memory of a window for the next one.
    return (np.array(window, np.int64) for window in shuffle.windows(node))


def _joined(windows: Iterable[NDArray[np.integer]]) -> Ids:
    return np.concatenate([np.zeros(0, np.int64), *windows])
