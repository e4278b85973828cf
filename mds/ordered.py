"""The part of a dataset that decides the order: settings, epochs, positions.

It joins what a user set, what the launcher says and what a checkpoint brought into an EpochPlan,
and gives the state that leads back to the same place. It has never met a shard's bytes, nor torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mds.epochs import EpochBook, Turn
from mds.errors import ConfigError
from mds.plan import EpochPlan, OrderSpec, Weights, resolve_weights
from mds.state import VERSION, State, emit_state, parse_state
from mds.topology import Ranks, find_ranks, in_worker

if TYPE_CHECKING:
    from mds.contents import Contents
    from mds.stream import Stream
    from mds.world import World


class Ordered:
    """Settings of an order and the place in it. Attributes may be changed between epochs."""

    batch_size: int | None
    batching_method: str
    exact: bool | str
    initial_physical_nodes: int | None
    num_canonical_nodes: int | None
    partition_algo: str
    replication: int | None
    sampling_granularity: int
    sampling_method: str
    shuffle: bool
    shuffle_algo: str
    shuffle_block_size: int | None
    shuffle_seed: int
    streams: list[Stream]
    topology: Any
    _book: EpochBook
    _contents: Contents
    _epoch_size_wanted: int | None
    _ranks: Ranks | None
    _shares: Sequence[Mapping[str, float]]
    _weights: Weights
    epoch_size: int

    def _weigh(self) -> None:
        """Say how much of each stream an epoch takes, and tell the streams."""
        if not self._contents.num_samples:
            raise ConfigError(f"there are no samples in {', '.join(map(repr, self.streams))}.")
        self._weights = resolve_weights(
            self._contents.samples_per_stream.tolist(),
            self._shares,
            self._epoch_size_wanted,
            self.shuffle_seed,
        )
        self.epoch_size = self._weights.epoch_size
        for i, stream in enumerate(self.streams):
            stream.proportion = self._weights.proportion[i]
            stream.repeat = self._weights.repeat[i]
            stream.choose = self._weights.choose[i]

    @property
    def issued(self) -> int:
        """Places of the order filled in this iteration."""
        raise NotImplementedError

    def plan(self, turn: Turn, world: World) -> EpochPlan:
        """The order of one turn in a world, as every process computes it."""
        state = turn.resume or self._book.loaded
        if state is not None:
            # What a state brought stays in force after its epoch; its position does not.
            position = state["sample_in_epoch"] if turn.resume is not None else 0
            state = {**state, "epoch": turn.epoch, "sample_in_epoch": position}
        return EpochPlan(
            [
                {"shards": sizes, **share}
                for sizes, share in zip(self._contents.per_stream(), self._shares, strict=True)
            ],
            world,
            epoch=turn.epoch,
            resume=state,
            weights=self._weights,
            dataset=self._contents.fingerprint(),
            **dataclasses.asdict(self._order_spec()),
        )

    def _order_spec(self) -> OrderSpec:
        return OrderSpec(
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            shuffle_algo=self.shuffle_algo,
            shuffle_seed=self.shuffle_seed,
            shuffle_block_size=self.shuffle_block_size,
            num_canonical_nodes=self.num_canonical_nodes,
            partition_algo=self.partition_algo,
            sampling_method=self.sampling_method,
            sampling_granularity=self.sampling_granularity,
            batching_method=self.batching_method,
            exact=bool(self.exact),
            skip_empty_streams=True,
        )

    def _world(self, workers: int = 1, worker: int = 0) -> World:
        """The world after replication; the ranks are looked up once, when first needed."""
        if self._ranks is None:
            self._ranks = find_ranks(self.topology)
        world = self._ranks.world(workers, worker)
        return world.replicate(self.replication) if self.replication is not None else world

    @property
    def num_ranks(self) -> int:
        """Ranks that see different samples."""
        return self._world().num_ranks

    # ------------------------------------------------------------------ state

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iteration begins, unless a state is loaded."""
        return self._book.next_epoch

    @next_epoch.setter
    def next_epoch(self, epoch: int) -> None:
        self._book.next_epoch = epoch

    def state_dict(
        self, num_samples: int | None = None, from_beginning: bool = False
    ) -> dict[str, Any]:
        """Everything that the order depends on, after ``num_samples`` samples of all ranks.

        They count from the beginning of the epoch, or else from where this epoch was resumed.
        Without a number it is what this object itself yielded, times the ranks, for loops without
        a loader. Before the first epoch the epoch is -1. Plain numbers and texts: fit for JSON.
        """
        if num_samples is None:
            num_samples = self.issued * self.num_ranks
        pending, last = self._book.pending, self._book.last
        epoch, offset = self._book.next_epoch - 1, 0
        if pending is not None:
            epoch, offset = int(pending["epoch"]), int(pending["sample_in_epoch"])
        elif last is not None and last.epoch == epoch and last.resume is not None:
            offset = int(last.resume["sample_in_epoch"])
        world, in_force = self._world(), self._book.loaded
        self.num_canonical_nodes = self._order_spec().canonical_nodes(world.num_nodes)
        initial = in_force.get("initial_physical_nodes") if in_force is not None else None
        self.initial_physical_nodes = initial or world.num_nodes
        plan = self.plan(Turn(max(epoch, 0), in_force), world) if self.batch_size else None
        return emit_state(
            State(
                epoch=epoch,
                sample_in_epoch=int(num_samples) + (0 if from_beginning else offset),
                num_canonical_nodes=self.num_canonical_nodes,
                shuffle_seed=self.shuffle_seed,
                initial_physical_nodes=self.initial_physical_nodes,
                version=VERSION,
                dataset=plan.dataset_facts() if plan is not None else None,
                order=plan.order_facts() if plan is not None else None,
            )
        )

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Let the next iteration go on from a state, of this library or of the incumbent.

        To be called on every rank. Raises StateError (a ValueError), listing the differences, when
        the state is of another dataset or another order.
        """
        if in_worker():
            # Only torchdata's loader does this, and it brings the position to the iterator too.
            return
        state = parse_state(obj)
        if self.batch_size:
            # With the state's own canonical nodes, on which the default block size depends.
            self.plan(Turn(max(state.epoch, 0), emit_state(state)), self._world()).check(state)
        self.num_canonical_nodes = state.num_canonical_nodes
        self.shuffle_seed = state.shuffle_seed
        self.initial_physical_nodes = state.initial_physical_nodes
        self._book.load(emit_state(state))
