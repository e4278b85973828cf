"""Loader of OLMo-core whose epochs are those of a StreamingDataset, with any batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mds._dataset.run import run_of
from mds._dataset.steps import TrainingSteps
from mds._dataset.streaming import StreamingDataset
from mds._loader.dataloader import StreamingDataLoader
from mds.errors import ConfigError, StateError, need

try:
    from olmo_core.data import TextDataLoaderBase
except ImportError as error:
    raise need("ai2-olmo-core==3.0.0", None, "mds.integrations.olmo_core and its loader") from error


class EpochLoader(TextDataLoaderBase):  # type: ignore[misc] # no types
    """Loader of OLMo-core, without padded steps.

    OLMo-core numbers the epochs itself, from 1, and may change the batch size. If an iteration ends
    early, the next one goes on after its last batch.

    Args:
        dataset: Dataset with ``remainder="mask"``.
        length: Tokens of a sequence.
        loader_settings: Arguments of StreamingDataLoader.
        settings: Arguments of TextDataLoaderBase.
    """

    _epoch: int | None

    def __init__(
        self,
        dataset: StreamingDataset,
        length: int,
        loader_settings: Mapping[str, Any],
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.dataset, self._length, self._settings = dataset, length, loader_settings
        self._loader = self._make_loader()

    def _make_loader(self) -> StreamingDataLoader:
        """Return a loader. Raises ConfigError if its batches are not whole sequences."""
        size, least = self.global_batch_size, self._length * self.dp_world_size
        if size < least or size % least:
            raise ConfigError(
                f"global_batch_size={size} counts tokens: give a multiple of {least} "
                f"({self.dp_world_size} data-parallel ranks with sequences of {self._length} "
                "tokens)."
            )
        self.dataset.batch_size = size // least
        return StreamingDataLoader(self.dataset, drop_last=True, **self._settings)

    @property
    def global_batch_size(self) -> int:
        """Tokens of a step on all ranks, which BatchSizeSchedulerCallback changes between steps.

        Assigning it raises StateError if the order depends on it, as that of a schedule in steps.
        """
        return int(self._global_batch_size)

    @global_batch_size.setter
    def global_batch_size(self, size: int) -> None:
        TextDataLoaderBase.global_batch_size.fset(self, size)
        state = self._loader.state_dict()
        self._loader = self._make_loader()
        self._loader.load_state_dict(state)

    @property
    def total_batches(self) -> int:
        """Number of steps of the current epoch."""
        return self.batches_in_epoch(self._epoch or 1)

    def batches_in_epoch(self, epoch: int) -> int:
        """Return the number of steps of an epoch, from 1, packing it if it has packs."""
        run = run_of(self.dataset)
        order, world = run.order, run.world()
        return TrainingSteps(order, world).full_steps(epoch - 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all ranks after the last batch, which a step has used."""
        return {**self._loader.state_dict(), "tokens_processed": self.tokens_processed}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state. Raises StateError for one of another loader or dataset."""
        if "dataset_fingerprint" in state_dict or "source_fingerprints" in state_dict:
            raise StateError(
                "this state is of a loader of OLMo-core, whose order is another one. To begin the "
                "data anew, choose a new save_folder, and set load_path to the checkpoint and "
                "load_trainer_state=False."
            )
        state = dict(state_dict)
        tokens = state.pop("tokens_processed", None)
        self._loader.load_state_dict(state)
        if tokens is None:  # a state of a StreamingDataLoader
            tokens = 0 if state["finished"] else state["sample_in_epoch"] * self._length
        self.tokens_processed, self.batches_processed = tokens, tokens // self.global_batch_size

    def reshuffle(self, epoch: int | None = None, **kwargs: Any) -> None:
        """Prepare an epoch, from 1, or what remains of it. Raises ConfigError inside another."""
        del kwargs
        self._epoch = (self._epoch or 0) + 1 if epoch is None else epoch
        current, place = self._find_position()
        is_over = not place and self._epoch == current - 1
        if self.tokens_processed and self._epoch != current and not is_over:
            raise ConfigError(
                f"the data is in epoch {current}, but epoch {self._epoch} was asked for. Give the "
                "trainer the epoch of its checkpoint, or call reset() to begin an epoch."
            )
        if not self.tokens_processed and (self._epoch, 0) != (current, place):
            self._loader._go_to_epoch(self._epoch - 1)  # noqa: SLF001 - of this library

    def _find_position(self) -> tuple[int, int]:
        """Return the epoch of the next batch, from 1, and its place there in samples or packs."""
        state = self._loader.state_dict()
        if state["finished"]:
            return state["epoch"] + 2, 0
        return max(state["epoch"], 0) + 1, state["sample_in_epoch"]

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        """Yield the batches of this rank until the epoch ends, none if the last one came already.

        Raises ConfigError for a whole epoch without batches.
        """
        loader, is_begun = None, self.tokens_processed > 0
        while loader is not self._loader:  # another batch size makes another loader
            if is_begun and not self._find_position()[1]:
                return
            loader = self._loader
            loader.load_state_dict(loader.state_dict())
            for batch in loader._batches_of_epoch(may_be_over=True):  # noqa: SLF001 - as above
                is_begun = True
                yield batch
                if loader is not self._loader:
                    break
