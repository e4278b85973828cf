"""EpochPlan: the whole order of one epoch, as something to ask rather than as an array.

A run makes one for each epoch, in every process, for free: nothing is computed before ids are
asked for. At the start of an iteration a dataset says

    plan = EpochPlan(streams, world, epoch=next_epoch, resume=state, weights=weights, ...)
    for ids in plan.blocks(node, rank, worker, start): ...
    checkpoint = plan.state(samples_seen)
    plan = plan.following()

``state`` is what was loaded, or None. A plan begins where a state of its epoch or a later one says,
with the canonical nodes, seed and initial nodes of the state; ``following`` keeps these for the
next epochs. To go back to a state of an earlier epoch, ask for that epoch: a state that is older
than ``epoch`` is an error, or, if it is the incumbent's, used up as there, with a warning.
``weights``, resolved once with the seed that the run was made with, keep the shares of the streams
when a state brings another seed.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.plan.audit import OrderHash, Place
from mds.plan.begin import Beginning
from mds.plan.build import Moment
from mds.plan.digests import digest
from mds.plan.orders import Turn
from mds.plan.rows import Dealing, Shape
from mds.plan.spec import OrderSpec
from mds.plan.weights import Weights, resolve_weights
from mds.state import VERSION, State, parse_state
from mds.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mds.plan.orders import Order
    from mds.plan.rows import Rows
    from mds.world import World

    Ids = NDArray[np.int64]

_FIRST, _BLOCK = 1 << 10, 1 << 14  # ids of the first block of a worker, and of later ones


class EpochPlan:
    """The order of one epoch.

    ``streams``: a mapping per stream with ``shards`` (samples of each shard) and at most one of
    ``proportion``, ``repeat``, ``choose``. ``world``: before replication. ``epoch``: the one to be
    planned. ``initial_physical_nodes``: those the run began with, if a state said so before.
    The other arguments are those of StreamingDataset and of OrderSpec.

    Raises ConfigError, PlanError or UnknownNameError for what makes no order, now or when ids are
    asked for, and StateError for a state that is none.
    """

    def __init__(
        self,
        streams: Sequence[Mapping[str, Any]],
        world: World,
        *,
        epoch: int = 0,
        resume: Mapping[str, Any] | State | None = None,
        epoch_size: int | str | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "py1e",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        num_canonical_nodes: int | None = None,
        partition_algo: str = "relaxed",
        sampling_method: str = "balanced",
        sampling_granularity: int = 1,
        batching_method: str = "random",
        replication: int | None = None,
        exact: bool = False,
        skip_empty_streams: bool = False,
        initial_physical_nodes: int | None = None,
        weights: Weights | None = None,
        dataset: str | None = None,
    ) -> None:
        self.spec = OrderSpec(
            batch_size,
            shuffle,
            shuffle_algo,
            shuffle_seed,
            shuffle_block_size,
            num_canonical_nodes,
            partition_algo,
            sampling_method,
            sampling_granularity,
            batching_method,
            exact,
            skip_empty_streams,
        )
        self.world = world if replication is None else world.replicate(replication)
        self._sizes = [np.asarray(s["shards"], np.int64).reshape(-1) for s in streams]
        per_stream = [int(sizes.sum()) for sizes in self._sizes]
        size = None if epoch_size is None else parse_count(epoch_size)
        self.weights = weights or resolve_weights(per_stream, streams, size, shuffle_seed)
        self.num_samples = sum(per_stream)
        self._dataset = dataset
        self._set_out(Beginning.find(self.spec, self.world, epoch, resume, initial_physical_nodes))

    def _set_out(self, start: Beginning) -> None:
        self.start = start
        self.epoch, self.sample_in_epoch = start.epoch, start.sample_in_epoch
        self.num_canonical_nodes, self.shuffle_seed = start.canonical, start.seed
        self.initial_physical_nodes = start.initial
        self.shuffle_block_size = self.spec.block_size(start.canonical)

    @property
    def choose(self) -> tuple[int, ...]:
        """Samples that each stream gives."""
        return self.weights.choose

    @property
    def proportions(self) -> tuple[float, ...]:
        """The share of each stream in the epoch."""
        return self.weights.proportion

    @property
    def epoch_size(self) -> int:
        """Samples of the epoch."""
        return self.weights.epoch_size

    @functools.cached_property
    def shape(self) -> Shape:
        """Nodes, ranks, workers and batch size, after replication."""
        world = self.world
        return Shape(
            world.num_nodes, world.ranks_per_node, world.workers_per_rank, self.spec.batch()
        )

    @functools.cached_property
    def moment(self) -> Moment:
        """The epoch's data and parameters."""
        turn = Turn(
            self.num_canonical_nodes, self.shuffle_seed, self.epoch, self.shuffle_block_size
        )
        return Moment(self._sizes, self.weights, self.spec, turn)

    @functools.cached_property
    def orders(self) -> list[Order]:
        """The orders that rows are made of; see mds.cache.orders for sharing them."""
        return self.moment.orders()

    @functools.cached_property
    def rows(self) -> Rows:
        """The global batches."""
        dealing = Dealing(
            self.shape,
            self.num_canonical_nodes,
            self.spec.partition_algo,
            self.initial_physical_nodes,
            self.sample_in_epoch,
            self.start.is_precise,
            self.spec.exact,
        )
        return self.moment.rows([order.samples for order in self.orders], dealing)

    @property
    def steps(self) -> int:
        """Global batches left, the last of which may be short."""
        return self.rows.count

    @property
    def length(self) -> int:
        """Ids of one worker, with padding."""
        return -(-self.rows.count // self.shape.workers) * self.shape.batch

    def blocks(self, node: int, rank: int, worker: int, start: int = 0) -> Iterator[Ids]:
        """The ids of one worker from its ``start``-th on, in 1-D int64 arrays, -1 for padding.

        ``rank`` counts within the node, ``worker`` within the rank, both after replication.
        """
        shape, rows = self.shape, self.rows
        takes = [order.reader() for order in self.orders]
        places = self._places(node, rank)
        first, skip = divmod(start, shape.batch)
        last = self.length // shape.batch
        size = _FIRST
        while first < last:
            until = min(first + max(1, size // shape.batch), last)
            mine = np.arange(first, until) * shape.workers + worker
            real = mine[mine < rows.count]
            ids = rows.block(real, places, takes).reshape(-1)
            if len(real) < len(mine):
                padding = np.full((len(mine) - len(real)) * shape.batch, -1, np.int64)
                ids = np.concatenate([ids, padding])
            yield ids[skip:]
            first, skip, size = until, 0, _BLOCK

    def marks(self, node: int, rank: int, worker: int, start: int, stop: int) -> Ids:
        """When the ids ``start`` to ``stop`` - 1 of a worker are due, for an OrderHash."""
        batch = self.shape.batch
        mine = np.arange(start // batch, -(-stop // batch)) * self.shape.workers + worker
        marks = self.rows.marks(mine, self._places(node, rank)).reshape(-1)
        skip = start % batch
        return marks[skip : skip + stop - start]

    def batch(self, step: int) -> Ids:
        """The ids of a global batch, int64 (ranks, batch size), -1 for padding.

        Steps are counted from where this plan begins. Raises IndexError beyond the last.
        """
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of an epoch of {self.steps} steps.")
        takes = [order.reader() for order in self.orders]
        ids = self.rows.whole(step, step + 1, takes)
        return ids.reshape(self.shape.world, self.shape.batch)

    def locate(self, sample: int) -> list[Place]:
        """Every place where a sample is in what is left of the epoch, by step; often just one."""
        found = set()
        for number, order in enumerate(self.orders):
            rows, places = self.rows.find(number, order.find(sample))
            for step, place in zip(rows.tolist(), places.tolist(), strict=True):
                rank, at = divmod(place, self.shape.batch)
                found.add(Place(step, rank, step % self.shape.workers, at))
        return sorted(found)

    def order_hash(self, steps: int) -> OrderHash:
        """The hash of the first ``steps`` global batches, computed without running anything."""
        made = OrderHash()
        takes = [order.reader() for order in self.orders]
        places = np.arange(self.shape.row)
        step = max(1, _BLOCK // self.shape.row)
        for first in range(0, min(steps, self.steps), step):
            last = min(first + step, steps, self.steps)
            ids = self.rows.whole(first, last, takes)
            marks = self.rows.marks(np.arange(first, last), places)
            made.add(marks.reshape(-1), ids.reshape(-1))
        return made

    def dataset_facts(self) -> dict[str, Any]:
        """What a state remembers of the data; plain JSON."""
        return {
            "samples": self.num_samples,
            "shards": sum(len(sizes) for sizes in self._sizes),
            "streams": len(self._sizes),
            "choose": digest(*self.choose),
            "fingerprint": self._dataset or digest(*self._sizes),
        }

    def order_facts(self) -> dict[str, Any]:
        """What a state remembers of the order parameters; plain JSON."""
        shape = self.shape
        return self.spec.facts(self.shuffle_block_size, shape.ranks, shape.nodes)

    def fingerprint(self) -> str:
        """A name for the data and the order parameters."""
        return digest(repr(self.dataset_facts()), repr(self.order_facts()))

    def check(self, state: Mapping[str, Any] | State) -> None:
        """Refuse a state of other data or another order, listing the differences (StateError).

        Not done when a plan is made: a state is checked once, when it is loaded.
        """
        parse_state(state).check(self.dataset_facts(), self.order_facts())

    def state(self, num_samples: int, order_hash: OrderHash | str | None = None) -> State:
        """The state after ``num_samples`` samples of all ranks, counted from where this began."""
        nodes = self.initial_physical_nodes
        return State(
            self.epoch,
            self.sample_in_epoch + num_samples,
            self.num_canonical_nodes,
            self.shuffle_seed,
            self.world.num_nodes if nodes is None else nodes,
            version=VERSION,
            dataset=self.dataset_facts(),
            order=self.order_facts(),
            order_hash=None if order_hash is None else str(order_hash),
        )

    def following(self) -> EpochPlan:
        """The plan of the next epoch, with what a state set still in force."""
        plan = object.__new__(EpochPlan)
        plan.spec, plan.world, plan.weights = self.spec, self.world, self.weights
        plan.num_samples, plan._dataset = self.num_samples, self._dataset
        plan._sizes = self._sizes
        plan._set_out(self.start.following())
        return plan

    def _places(self, node: int, rank: int) -> Ids:
        batch = self.shape.batch
        return (node * self.shape.ranks + rank) * batch + np.arange(batch)

    def __repr__(self) -> str:
        return (
            f"<EpochPlan of epoch {self.epoch} from sample {self.sample_in_epoch}: "
            f"{self.epoch_size} samples, {self.world!r}>"
        )
