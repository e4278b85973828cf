"""EpochPlan: the whole order of one epoch, as something to ask rather than as an array."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.errors import PlanError
from mds.plan.partition import ALGORITHMS, unknown_algorithm
from mds.plan.rows import DevicePerStreamRows, PerStreamRows, RandomRows, StratifiedRows
from mds.plan.sampling import get_sampling, select
from mds.plan.shape import Shape, batches, whole
from mds.plan.spec import OrderSpec
from mds.plan.weights import Weights, resolve_weights
from mds.shuffle import ShuffleSpec, get_shuffle
from mds.state import VERSION, State, parse_state
from mds.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from mds.plan.sampling import Selected
    from mds.plan.shape import Rows
    from mds.world import World

_BLOCK = 1 << 14


class EpochPlan:
    """The order of one epoch.

    ``streams``: a mapping per stream with ``shards`` (samples of each shard) and at most one of
    ``proportion``, ``repeat``, ``choose``. ``world``: before replication. ``epoch``: the one that
    comes next. ``resume``: a state; if it is of this epoch or a later one, the plan begins at its
    position, with its canonical nodes, seed and initial nodes. ``weights``: as resolved when the
    run began, if the seed changed since.
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
        initial_physical_nodes: int | None = None,
        weights: Weights | None = None,
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
        )
        self.world = world if replication is None else world.replicate(replication)
        self._sizes = [np.asarray(s["shards"], np.int64).reshape(-1) for s in streams]
        per_stream = [int(sizes.sum()) for sizes in self._sizes]
        size = None if epoch_size is None else parse_count(epoch_size)
        self.weights = weights or resolve_weights(per_stream, streams, size, shuffle_seed)
        self.choose, self.proportions = self.weights.choose, self.weights.proportion
        self.epoch_size = self.weights.epoch_size
        self.num_samples = sum(per_stream)
        self._begin(epoch, resume, initial_physical_nodes)
        self.shape = Shape(
            self.world.num_nodes,
            self.world.ranks_per_node,
            self.world.workers_per_rank,
            self.spec.batch(),
        )

    @functools.cached_property
    def rows(self) -> Rows:
        """The global batches: made when they are first needed."""
        return self._make_rows()

    @property
    def length(self) -> int:
        """Ids of one worker, with padding."""
        return batches(self.shape, self.rows) * self.shape.batch

    @property
    def steps(self) -> int:
        """Global batches, the last of which may be short."""
        return self.rows.count

    def state(self, num_samples: int) -> State:
        """The state after ``num_samples`` samples of all ranks, counted from where this began."""
        nodes = self.initial_physical_nodes
        return State(
            self.epoch,
            self.sample_in_epoch + num_samples,
            self.num_canonical_nodes,
            self.shuffle_seed,
            self.world.num_nodes if nodes is None else nodes,
            version=VERSION,
        )

    def _begin(
        self, epoch: int, resume: Mapping[str, Any] | State | None, initial: int | None
    ) -> None:
        state = None if resume is None else parse_state(resume)
        self.epoch, self.sample_in_epoch = epoch, 0
        self.shuffle_seed = self.spec.shuffle_seed
        self.initial_physical_nodes = initial
        canonical = self.spec.canonical_nodes(self.world.num_nodes)
        if state is not None and (state.epoch >= epoch or state.is_ours):
            self.epoch, self.sample_in_epoch = state.epoch, state.sample_in_epoch
            self.shuffle_seed = state.shuffle_seed
            self.initial_physical_nodes = state.initial_physical_nodes
            canonical = state.num_canonical_nodes
        elif state is not None:
            warnings.warn(
                f"the state is of epoch {state.epoch} and epoch {epoch} was asked for: nothing of "
                "it is used. Ask for its epoch to go on from it.",
                stacklevel=3,
            )
        self.num_canonical_nodes = canonical
        self.shuffle_block_size = self.spec.block_size(canonical)

    def _make_rows(self) -> Rows:
        spec, shape = self.spec, self.shape
        if spec.partition_algo not in ALGORITHMS:
            raise unknown_algorithm(spec.partition_algo)
        canonical, drop = self.num_canonical_nodes, self.sample_in_epoch
        if spec.batching_method == "random":
            return self._random(*self._together(), drop)
        sources = self._apart()
        rng = np.random.default_rng(self._choice_seed())
        if spec.batching_method == "per_stream":
            return PerStreamRows(
                sources, canonical, shape, drop, rng, lambda n, look: self._random(n, look, 0)
            )
        if spec.batching_method == "device_per_stream":
            return DevicePerStreamRows(sources, canonical, shape, drop, rng)
        return StratifiedRows(sources, self.proportions, canonical, shape, drop)

    def _random(self, samples: int, look_up: Any, drop: int) -> RandomRows:
        return RandomRows.make(
            self.spec.partition_algo,
            samples,
            self.num_canonical_nodes,
            self.shape,
            drop,
            self.initial_physical_nodes,
            look_up,
        )

    def _choice_seed(self) -> int:
        moves = self.spec.shuffle and self.spec.sampling_method == "balanced"
        return self.shuffle_seed + self.epoch if moves else self.shuffle_seed

    def _selected(self, i: int, rng: np.random.Generator) -> Selected:
        sizes = self._sizes[i]
        taken = get_sampling(
            sizes, self.choose[i], self.spec.sampling_granularity, self._choice_seed(), 0
        )
        first = sum(int(s.sum()) for s in self._sizes[:i])
        return select(sizes, first + np.cumsum(sizes) - sizes, taken, rng)

    def _draws(self) -> np.random.Generator:
        moves = self.spec.sampling_method == "balanced"
        return np.random.default_rng(self.shuffle_seed + (self.epoch if moves else 0))

    def _together(self) -> tuple[int, Callable[[NDArray[np.int64]], NDArray[np.int64]]]:
        rng = self._draws()
        parts = [self._selected(i, rng) for i in range(len(self._sizes))]
        units = np.concatenate([part.units for part in parts])
        tables = [part.table.look_up(np.arange(part.samples)) for part in parts]
        return self._ordered(units, np.concatenate(tables), self.shuffle_block_size)

    def _apart(self) -> list[tuple[int, Callable[[NDArray[np.int64]], NDArray[np.int64]]]]:
        out = []
        for i, share in enumerate(self.proportions):
            if not self.choose[i]:
                raise PlanError(
                    f"stream {i} gives no samples, and batching_method "
                    f"{self.spec.batching_method!r} needs some of every stream."
                )
            part = self._selected(i, self._draws())
            block = int(self.shuffle_block_size * share)
            if self.spec.shuffle and not block and self.spec.batching_method == "device_per_stream":
                raise PlanError(
                    f"shuffle_block_size {self.shuffle_block_size} leaves no block to stream {i}: "
                    "enlarge it."
                )
            out.append(
                self._ordered(part.units, part.table.look_up(np.arange(part.samples)), block)
            )
        return out

    def _ordered(
        self, units: NDArray[np.int64], table: NDArray[np.int64], block: int
    ) -> tuple[int, Callable[[NDArray[np.int64]], NDArray[np.int64]]]:
        if not len(table):
            raise PlanError("no samples are chosen: raise repeat, choose or epoch_size.")
        if self.spec.shuffle:
            spec = ShuffleSpec(
                units, self.num_canonical_nodes, self.shuffle_seed, self.epoch, block
            )
            table = table[
                get_shuffle(
                    self.spec.shuffle_algo,
                    spec.sizes,
                    spec.num_canonical_nodes,
                    spec.seed,
                    spec.epoch,
                    block,
                )
            ]
        return len(table), table.__getitem__

    def blocks(
        self, node: int, rank: int, worker: int, start: int = 0
    ) -> Iterator[NDArray[np.int64]]:
        """The ids of one worker from its ``start``-th on, in 1-D int64 arrays, -1 for padding.

        ``rank`` counts within the node, ``worker`` within the rank.
        """
        shape = self.shape
        places = (node * shape.ranks + rank) * shape.batch + np.arange(shape.batch)
        last = self.length // shape.batch
        first, skip = divmod(start, shape.batch)
        step = max(1, _BLOCK // shape.batch)
        while first < last:
            rows = np.arange(first, min(first + step, last)) * shape.workers + worker
            out = np.full((len(rows), shape.batch), -1, np.int64)
            real = rows < self.rows.count
            out[real] = self.rows.block(rows[real], places)
            yield out.reshape(-1)[skip:]
            first, skip = first + step, 0


def epoch_order(
    streams: Sequence[Mapping[str, Any]], world: World, **order: Any
) -> NDArray[np.int64]:
    """All ids of an epoch as int64 (nodes, ranks, workers, batches, batch), -1 for padding.

    Takes the arguments of EpochPlan.
    """
    plan = EpochPlan(streams, world, **order)
    return whole(plan.shape, plan.rows)
