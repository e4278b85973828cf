"""The orders of an epoch, one for all streams or one for each, and the rows made of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from mds.errors import PlanError
from mds.plan.batching import DevicePerStreamRows, PerStreamRows, StratifiedRows
from mds.plan.keyed_sampling import KeyedSampled
from mds.plan.orders import DrawnOrder, Order, SeekableOrder, StraightOrder, Turn
from mds.plan.rows import RandomRows
from mds.plan.sampling import Draws, Part, Sampled
from mds.shuffle.keyed import derive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mds.plan.rows import Dealing, Rows
    from mds.plan.spec import OrderSpec
    from mds.plan.weights import Weights


@dataclasses.dataclass(frozen=True, eq=False)
class Moment:
    """One epoch: its data, its parameters as they are in force, and where it stands."""

    sizes: Sequence[NDArray[np.int64]]
    weights: Weights
    spec: OrderSpec
    turn: Turn

    def streams(self) -> list[int]:
        """The streams that take part. Raises PlanError when there is nothing to give."""
        giving = [i for i, count in enumerate(self.weights.choose) if count]
        if not giving:
            raise PlanError("no samples are chosen: raise repeat, choose or epoch_size.")
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
        first = np.cumsum([0] + [int(sizes.sum()) for sizes in self.sizes]).tolist()
        parts = [
            Part(sizes, first[i], self.weights.choose[i]) for i, sizes in enumerate(self.sizes)
        ]
        if self.spec.batching_method == "random":
            return [self._order(parts, self.turn)]
        return [self._order([parts[i]], self.turn._replace(block=self._block(i))) for i in giving]

    def rows(self, samples: Sequence[int], dealing: Dealing) -> Rows:
        """The global batches, made of orders of so many samples."""
        method = self.spec.batching_method
        if method == "random":
            return RandomRows(samples[0], dealing)
        if method == "stratified":
            shares = [self.weights.proportion[i] for i in self.streams()]
            return StratifiedRows(samples, shares, dealing)
        rng = np.random.default_rng(self._choice_seed())
        if method == "per_stream":
            return PerStreamRows(samples, dealing, rng)
        return DevicePerStreamRows(samples, dealing, rng)

    def _order(self, parts: Sequence[Part], turn: Turn) -> Order:
        if self.spec.is_seekable:
            return SeekableOrder(KeyedSampled(parts, self._keyed_draws()), turn)
        chosen = Sampled(parts, self._draws())
        if self.spec.shuffle:
            return DrawnOrder(chosen, turn, self.spec.shuffle_algo)
        return StraightOrder(chosen, turn)

    def _block(self, stream: int) -> int:
        block = int(self.turn.block * self.weights.proportion[stream])
        if self.spec.shuffle and not block and self.spec.batching_method == "device_per_stream":
            raise PlanError(
                f"shuffle_block_size {self.turn.block} leaves no block to stream {stream}: "
                "enlarge it."
            )
        return block

    def _choice_seed(self) -> int:
        moves = self.spec.shuffle and self.spec.sampling_method == "balanced"
        return self.turn.seed + (self.turn.epoch if moves else 0)

    def _draws(self) -> Draws:
        moves = self.spec.sampling_method == "balanced"
        seed = self.turn.seed + (self.turn.epoch if moves else 0)
        return Draws(self.spec.sampling_granularity, self._choice_seed(), seed)

    def _keyed_draws(self) -> Draws:
        moves = self.spec.sampling_method == "balanced"
        seed = derive(self.turn.seed, self.turn.epoch + 1 if moves else 0)
        return Draws(self.spec.sampling_granularity, seed, seed)
