"""All inputs of one epoch, and its orders and global batches built from them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError
from mds.plan.global_batches import NoBatches, RandomBatches
from mds.plan.keyed_sampling import KeyedResampling
from mds.plan.orders import (
    Order,
    RandomAccessOrder,
    SequentialOrder,
    ShuffleParams,
    UnshuffledOrder,
)
from mds.plan.sampling import ResamplingParams, SequentialResampling, StreamShare
from mds.plan.stream_batches import DevicePerStreamBatches, PerStreamBatches, StratifiedBatches
from mds.shuffle.permutation import derive_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mds.plan.global_batches import GlobalBatches, PartitionSpec
    from mds.plan.spec import OrderSpec
    from mds.plan.weights import Weights


@dataclasses.dataclass(frozen=True, eq=False)
class EpochInputs:
    """All inputs of one epoch: its data, and its parameters as they are in force."""

    sizes: Sequence[NDArray[np.int64]]
    weights: Weights
    spec: OrderSpec
    params: ShuffleParams
    small_order: int

    def streams(self) -> list[int]:
        """The streams that take part. Raises PlanError when one gives nothing that has to."""
        giving = [i for i, count in enumerate(self.weights.choose) if count]
        by_stream = self.spec.batching_method != "random"
        if by_stream and len(giving) < len(self.sizes) and not self.spec.skip_empty_streams:
            empty = next(i for i in range(len(self.sizes)) if i not in giving)
            raise PlanError(
                f"stream {empty} gives no samples, and batching_method "
                f"{self.spec.batching_method!r} needs some of every stream: leave it out."
            )
        return giving

    def orders(self) -> list[Order]:
        """One order of all streams for random batching, else one for each that takes part."""
        giving = self.streams()
        if not giving:
            return []
        first = np.cumsum([0] + [int(sizes.sum()) for sizes in self.sizes]).tolist()
        shares = [
            StreamShare(sizes, first[i], self.weights.choose[i])
            for i, sizes in enumerate(self.sizes)
        ]
        if self.spec.batching_method == "random":
            return [self._order(shares, self.params)]
        return [
            self._order([shares[i]], self.params._replace(block=self._block(i))) for i in giving
        ]

    def global_batches(self, samples: Sequence[int], partition: PartitionSpec) -> GlobalBatches:
        """The global batches, made of orders of so many samples."""
        method = self.spec.batching_method
        if not samples:
            return NoBatches()
        if method == "random":
            return RandomBatches(samples[0], partition)
        if method == "stratified":
            proportions = [self.weights.proportion[i] for i in self.streams()]
            return StratifiedBatches(samples, proportions, partition)
        rng = np.random.default_rng(self._choice_seed())
        if method == "per_stream":
            return PerStreamBatches(samples, partition, rng)
        return DevicePerStreamBatches(samples, partition, rng)

    def _order(self, shares: Sequence[StreamShare], params: ShuffleParams) -> Order:
        name, algorithm = self.spec.shuffle_algo, self.spec.algorithm if self.spec.shuffle else None
        if algorithm is not None and algorithm.is_random_access:
            keyed = KeyedResampling(shares, self._keyed_params())
            return RandomAccessOrder(keyed, params, name, algorithm, self.small_order)
        resampling = SequentialResampling(shares, self._resampling_params())
        if algorithm is not None:
            return SequentialOrder(resampling, params, name, algorithm, self.small_order)
        return UnshuffledOrder(resampling, params, self.small_order)

    def _block(self, stream: int) -> int:
        block = int(self.params.block * self.weights.proportion[stream])
        if self.spec.shuffle and not block and self.spec.batching_method == "device_per_stream":
            raise PlanError(
                f"shuffle_block_size {self.params.block} leaves no block to stream {stream}: "
                "enlarge it."
            )
        return block

    def _choice_seed(self) -> int:
        moves = self.spec.shuffle and self.spec.sampling_method == "balanced"
        return self.params.seed + (self.params.epoch if moves else 0)

    def _resampling_params(self) -> ResamplingParams:
        moves = self.spec.sampling_method == "balanced"
        seed = self.params.seed + (self.params.epoch if moves else 0)
        return ResamplingParams(self.spec.sampling_granularity, self._choice_seed(), seed)

    def _keyed_params(self) -> ResamplingParams:
        moves = self.spec.sampling_method == "balanced"
        seed = derive_key(self.params.seed, self.params.epoch + 1 if moves else 0)
        return ResamplingParams(self.spec.sampling_granularity, seed, seed)
