"""All inputs of one epoch, and its orders and global batches built from them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError, StreamPlanError
from mds.plan.global_batches import NoBatches, RandomBatches
from mds.plan.sampling import ResamplingParams, SequentialResampling, StreamShare
from mds.plan.stream_orders import (
    RandomAccessOrder,
    SequentialOrder,
    ShuffleParams,
    StreamOrder,
    UnshuffledOrder,
)
from mds.shuffle.permutation import derive_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from mds.plan.global_batches import GlobalBatches, PartitionSpec
    from mds.plan.scheduled_batches import ScheduledEpoch
    from mds.plan.spec import OrderSpec
    from mds.plan.stream_passes import StreamPasses
    from mds.plan.weights import Weights


@dataclasses.dataclass(frozen=True, eq=False)
class EpochInputs:
    """Inputs of one epoch: its data, and the parameters in force."""

    sizes: Sequence[NDArray[np.int64]]
    weights: Weights
    spec: OrderSpec
    params: ShuffleParams
    small_order: int
    scheduled: ScheduledEpoch | None = None

    def streams(self) -> list[int]:
        """Return the streams that take part. Raises PlanError if a required one is empty."""
        giving = [i for i, count in enumerate(self.weights.choose) if count]
        by_stream = self.spec.batching_method != "random"
        if by_stream and len(giving) < len(self.sizes) and not self.spec.skip_empty_streams:
            empty = next(i for i in range(len(self.sizes)) if i not in giving)
            raise StreamPlanError(
                f"stream {empty} gives no samples, and batching_method "
                f"{self.spec.batching_method!r} needs some of every stream: leave it out.",
                empty,
            )
        return giving

    def orders(self) -> Sequence[StreamOrder | StreamPasses]:
        """Return one order of all streams for random batching, else one for each that takes part.

        With a schedule one of all streams, over all their passes.
        """
        giving = self.streams()
        if not giving:
            return []
        first = np.cumsum([0] + [int(sizes.sum()) for sizes in self.sizes]).tolist()
        shares = [
            StreamShare(sizes, first[i], self.weights.choose[i])
            for i, sizes in enumerate(self.sizes)
        ]
        if self.scheduled is not None:
            from mds.plan.passes import PassOrders
            from mds.plan.stream_passes import StreamPasses

            passes = [
                PassOrders(self._pass_of(i, share), share.choose, self.params.nodes, turns)
                for (i, share), turns in zip(enumerate(shares), self.scheduled.turns(), strict=True)
            ]
            return [StreamPasses(passes)]
        if self.spec.batching_method == "random":
            return [self._order(shares, self.params)]
        return [
            self._order([shares[i]], self.params._replace(block=self._block(i))) for i in giving
        ]

    def global_batches(self, samples: Sequence[int], partition: PartitionSpec) -> GlobalBatches:
        """Return the global batches, made of orders of so many samples."""
        method = self.spec.batching_method
        if not samples:
            return NoBatches()
        if self.scheduled is not None:
            stretch = self.scheduled
            from mds.plan.scheduled_batches import ScheduledBatches

            return ScheduledBatches(stretch.mixture, stretch.first, stretch.last, partition)
        if method == "random":
            return RandomBatches(samples[0], partition)
        if method == "stratified":
            proportions = [self.weights.proportion[i] for i in self.streams()]
            from mds.plan.stream_batches import StratifiedBatches

            return StratifiedBatches(samples, proportions, partition)
        rng = np.random.default_rng(self._choice_seed())
        if method == "per_stream":
            from mds.plan.stream_batches import PerStreamBatches

            return PerStreamBatches(samples, partition, rng)
        from mds.plan.stream_batches import DevicePerStreamBatches

        return DevicePerStreamBatches(samples, partition, rng)

    def _order(self, shares: Sequence[StreamShare], params: ShuffleParams) -> StreamOrder:
        name, algorithm = self.spec.shuffle_algo, self.spec.algorithm if self.spec.shuffle else None
        if algorithm is not None and algorithm.is_random_access:
            from mds.plan.keyed_sampling import KeyedResampling

            keyed = KeyedResampling(shares, self._keyed_params(params))
            return RandomAccessOrder(keyed, params, name, algorithm, self.small_order)
        resampling = SequentialResampling(shares, self._resampling_params(params))
        if algorithm is not None:
            return SequentialOrder(resampling, params, name, algorithm, self.small_order)
        return UnshuffledOrder(resampling, params, self.small_order)

    def _pass_of(self, stream: int, share: StreamShare) -> Callable[[int], StreamOrder]:
        """Return a function that makes the order of a pass through a stream."""

        def make(number: int) -> StreamOrder:
            return self._order([share], self.params._replace(epoch=number, block=block))

        assert self.scheduled is not None
        # As long as the others' in time where it has most of the mixture.
        part = max(self.scheduled.largest_shares[stream], 1 / len(self.sizes))
        block = max(int(self.params.block * part), 1)
        return make

    def _block(self, stream: int) -> int:
        block = int(self.params.block * self.weights.proportion[stream])
        if self.spec.shuffle and not block and self.spec.batching_method == "device_per_stream":
            raise PlanError(
                f"shuffle_block_size {self.params.block} leaves no block to stream {stream}: "
                "enlarge it."
            )
        return block

    def _choice_seed(self) -> int:
        return self._seed_of(self.params, moves=self.spec.shuffle and self._is_balanced)

    @property
    def _is_balanced(self) -> bool:
        return self.spec.sampling_method == "balanced"

    @staticmethod
    def _seed_of(params: ShuffleParams, *, moves: bool) -> int:
        return params.seed + (params.epoch if moves else 0)

    def _resampling_params(self, params: ShuffleParams) -> ResamplingParams:
        return ResamplingParams(
            self.spec.sampling_granularity,
            self._seed_of(params, moves=self.spec.shuffle and self._is_balanced),
            self._seed_of(params, moves=self._is_balanced),
        )

    def _keyed_params(self, params: ShuffleParams) -> ResamplingParams:
        seed = derive_key(params.seed, params.epoch + 1 if self._is_balanced else 0)
        return ResamplingParams(self.spec.sampling_granularity, seed, seed)
