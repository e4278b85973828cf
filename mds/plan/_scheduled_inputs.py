"""Inputs of an epoch with a schedule: passes through streams, mixed by shares that change."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

from mds._process.fork_safe import cached_property
from mds._shardfile.hashing import digest
from mds.plan._pack_schedule import DocumentRows, TokenMixture
from mds.plan._passes import PassOrders, StreamPasses
from mds.plan._schedule import scheduled_epoch
from mds.plan._spec import EpochInputs
from mds.plan._stream_batches import ScheduledBatches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mds.plan._global_batches import PartitionSpec
    from mds.plan._pack_windows import ScheduledWindows
    from mds.plan._passes import StreamRows
    from mds.plan._sampling import StreamShare
    from mds.plan._schedule import ScheduledEpoch, ScheduledRun
    from mds.plan._stream_orders import SampleCosts, ShuffleParams, StreamOrder


@dataclasses.dataclass(frozen=True, eq=False)
class ScheduledInputs(EpochInputs):
    """Data and settings of one epoch of a run with a schedule, and what is made of them.

    `orders` has one order of all streams, over all their passes, and ``choose`` are the samples of
    a pass through each stream.
    """

    schedule: ScheduledRun

    @cached_property
    def scheduled(self) -> ScheduledEpoch:
        """Part of the schedule that the epoch has."""
        return scheduled_epoch(
            self.schedule,
            self.choose,
            self.shape.global_batch,
            self.epoch,
            self.weights.epoch_size,
            self.params.nodes,
        )

    def order_facts(self) -> dict[str, Any]:
        """Return the settings that a state records and compares, as plain JSON."""
        size = self.weights.epoch_size
        facts = self.schedule.facts(self.choose, self.shape.global_batch, size)
        return super().order_facts() | facts

    def make_orders(self, shares: Sequence[StreamShare]) -> list[StreamPasses]:
        """Return the order of all streams, over all their passes."""
        epoch = self.scheduled
        params = [self._params_of_passes(i, share) for i, share in enumerate(shares)]
        passes = [
            PassOrders(partial(self._order_of_pass, share, each), share.choose, sample_range)
            for share, each, sample_range in zip(shares, params, epoch.sample_ranges(), strict=True)
        ]
        rows: StreamRows | None = epoch.rows
        if rows is None:
            assert isinstance(epoch.mixture, TokenMixture)
            starts = [p.starts(s.choose) for p, s in zip(params, shares, strict=True)]
            rows = DocumentRows(epoch.mixture, starts)
        return [StreamPasses(passes, rows, epoch.first, epoch.last)]

    def make_batches(self, samples: Sequence[int], partition: PartitionSpec) -> ScheduledBatches:
        """Return the global batches of the epoch, by the shares of the schedule."""
        del samples  # the schedule counts them
        epoch = self.scheduled
        assert epoch.rows is not None  # packs have no global batches of samples
        return ScheduledBatches(epoch.rows, epoch.first, epoch.last, partition)

    def packed(
        self, costs: SampleCosts, count_windows: Callable[[ScheduledRun], ScheduledRun]
    ) -> ScheduledInputs:
        """Return the inputs of the same epoch with packs, whose schedule counts windows."""
        return dataclasses.replace(self, costs=costs, schedule=count_windows(self.schedule))

    def windows(self, size: int) -> ScheduledWindows:
        """Return the windows of documents of the epoch, by a schedule that counts windows."""
        from mds.plan._pack_windows import ScheduledWindows

        del size  # the schedule decides it
        order = self.orders[0] if self.orders else None
        assert order is None or isinstance(order, StreamPasses)
        name = digest(repr(self.dataset_facts()), repr(self.params))
        return ScheduledWindows(self.scheduled, order, self.params.nodes, name)

    def _order_of_pass(self, share: StreamShare, params: ShuffleParams, number: int) -> StreamOrder:
        """Return the order of a pass through a stream.

        Args:
            share: Samples that a pass takes of the stream.
            params: Parameters of the shuffle, as `_params_of_passes` returns them.
            number: Number of the pass. Passes take the role of epochs: each one is shuffled anew.
        """
        return self.order([share], params._replace(epoch=number))

    def _params_of_passes(self, stream: int, share: StreamShare) -> ShuffleParams:
        """Return the parameters of the shuffle that all passes through a stream have in common.

        ``stream`` is the number of the stream, ``share`` the samples that a pass takes of it.
        """
        # The shuffle block of all streams is shared out, as in `EpochInputs`. A share changes in a
        # schedule, but a pass has one block size: take the largest share, or an equal one if that
        # is more.
        part = max(self.scheduled.largest_shares[stream], 1 / len(self.sizes))
        params = self.params._replace(block=max(int(self.params.block * part), 1))
        if self.costs is None:
            return params
        # All passes are cut as the first one, so that rows have equally long parts in each.
        first_pass = self._order_of_pass(share, params, 0)
        first_pass.cut_by(self.costs)
        return first_pass.params
