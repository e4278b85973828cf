"""Loader for trainers that number the epochs themselves, and may change the batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mds._dataset.steps import TrainingSteps
from mds._dataset.streaming import StreamingDataset
from mds._loader.dataloader import StreamingDataLoader
from mds.errors import ConfigError


class EpochLoader:
    """Batches of the epochs that a trainer names, without padded steps.

    A trainer calls `begin` before each iteration, with the number of the epoch from 0. If an
    iteration ends early, the next one goes on after its last batch.

    Args:
        dataset: Dataset with ``remainder="mask"``.
        batch_size: Samples or packs of a batch.
        num_workers: Number of workers that make batches.
    """

    def __init__(self, dataset: StreamingDataset, batch_size: int, num_workers: int) -> None:
        self.dataset, self._num_workers = dataset, num_workers
        self._loader = self._make_loader(batch_size)

    def _make_loader(self, batch_size: int) -> StreamingDataLoader:
        self.dataset.batch_size = batch_size
        return StreamingDataLoader(self.dataset, num_workers=self._num_workers, drop_last=True)

    def set_batch_size(self, batch_size: int) -> None:
        """Change the batch size from the next batch on.

        Raises StateError if the order depends on it, as that of a schedule in steps does.
        """
        state = self._loader.state_dict()
        self._loader = self._make_loader(batch_size)
        self._loader.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all ranks after the last batch."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self._loader.load_state_dict(state)

    def count_steps(self, epoch: int) -> int:
        """Return the number of steps of an epoch, packing it if it has packs."""
        order = self.dataset._order  # noqa: SLF001 - of this library
        world = self.dataset._world()  # noqa: SLF001 - of this library
        return TrainingSteps(order, world).full_steps(epoch)

    def begin(self, epoch: int, *, is_inside: bool) -> None:
        """Prepare the iteration of an epoch.

        Raises ConfigError to go on in another epoch than that of the position.

        Args:
            epoch: Number of the epoch, from 0.
            is_inside: Whether to go on at the position, and not at the beginning of the epoch.
        """
        current, place = self._find_position()
        is_over = not place and epoch == current - 1
        if is_inside and epoch != current and not is_over:
            raise ConfigError(
                f"the data is in epoch {current + 1}, but epoch {epoch + 1} was asked for. Give "
                "the trainer the epoch of its checkpoint, or call reset() to begin an epoch."
            )
        if not is_inside and (epoch, 0) != (current, place):
            begin = {"epoch": epoch, "sample_in_epoch": 0, "finished": False, "cursor": "null"}
            self._loader.load_state_dict({**self._loader.state_dict(), **begin, "order_hash": ""})

    def _find_position(self) -> tuple[int, int]:
        """Return the epoch of the next batch, and its place there in samples or packs."""
        state = self._loader.state_dict()
        if state["finished"]:
            return state["epoch"] + 1, 0
        return max(state["epoch"], 0), state["sample_in_epoch"]

    def batches(self, *, is_inside: bool) -> Iterator[dict[str, Any]]:
        """Yield the batches of this rank until the epoch ends.

        Raises ConfigError for a whole epoch without batches.

        ``is_inside``: as for `begin`; there are no batches if the last one came already.
        """
        loader, is_new = None, not is_inside
        while loader is not self._loader:  # another batch size makes another loader
            if not is_new and not self._find_position()[1]:
                return
            loader = self._loader
            loader.load_state_dict(loader.state_dict())
            for batch in loader:
                is_new = False
                yield batch
                if loader is not self._loader:
                    break
        if is_new:
            raise ConfigError(
                f"an epoch has no step of {self.dataset.batch_size} samples or packs on each of "
                f"{self.dataset.num_ranks} ranks. Give more data, or a smaller batch size."
            )
