"""Epochs and counts of batches in Lightning that are those of a StreamingDataLoader."""

# ruff: noqa: SLF001 - the loops of Lightning have no public interface
from __future__ import annotations

from typing import Any

from mds._loader.dataloader import StreamingDataLoader
from mds.errors import ConfigError, need

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise need("lightning", None, "mds.integrations.lightning and its callback") from error

__all__ = ["StreamingCallback"]


class StreamingCallback(Callback):  # type: ignore[misc] # no types are checked
    """Callback for several epochs, gradient accumulation or packs of a StreamingDataLoader.

    It corrects what Lightning does to the data of an epoch:

    - After a checkpoint of the last batch of an epoch, or of a training that is over, Lightning
      loads no position, or reads a rest of that epoch. With the callback, the next epoch follows.
    - Lightning saves the number of batches of an epoch. With the callback, a run may resume with
      another ``accumulate_grad_batches``.
    - Lightning takes the number of batches of the first epoch for all. With the callback, epochs
      of packs, which differ in length, are read to their end.
    - With ``overfit_batches``, all epochs have the same batches.

    Raises ConfigError if ``microbatches`` of the loader is not ``accumulate_grad_batches``.

    >>> trainer = lightning.Trainer(
    ...     accumulate_grad_batches=2, callbacks=[StreamingCallback()]
    ... )  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._epoch = -1  # whose number of batches Lightning has

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's
        """Begin where the checkpoint ended, and count its batches as those of this run."""
        fit_loop, count = trainer.fit_loop, trainer.accumulate_grad_batches
        loaders = _streaming_loaders(fit_loop)
        for loader in loaders:
            if loader.microbatches != count:
                raise ConfigError(
                    f"the loader has microbatches={loader.microbatches}, but Lightning has "
                    f"accumulate_grad_batches={count}. Give both the same number."
                )
        if not fit_loop.is_resuming:
            if trainer.current_epoch:
                # The second call of fit() begins two iterations, of which the first would be lost.
                for loader in loaders:
                    loader._go_to_epoch(loader.state_dict()["epoch"])
            return
        if not loaders:
            return
        # Lightning loads no position if the epochs of the checkpoint are over.
        states = fit_loop._combined_loader_states_to_load
        if states:
            fit_loop._combined_loader._load_state_dicts(states)
            fit_loop._combined_loader_states_to_load = []
        progress = fit_loop.epoch_loop.batch_progress
        epochs = fit_loop.epoch_progress
        if progress.is_last_batch and epochs.current.processed == epochs.current.ready:
            _begin_next_epoch(fit_loop, loaders)
        elif states:
            iter(fit_loop._data_fetcher)
        elif trainer.train_dataloader is loaders[0]:
            _count_batches_again(progress.current, loaders[0])

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Give the batches of ``overfit_batches`` in every epoch."""
        if trainer.overfit_batches and trainer.current_epoch:
            for loader in _streaming_loaders(trainer.fit_loop):
                loader._go_to_epoch(0)

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Tell Lightning the number of batches of an epoch of packs when it begins."""
        loader = trainer.train_dataloader
        if self._epoch == trainer.current_epoch or not isinstance(loader, StreamingDataLoader):
            return
        self._epoch = trainer.current_epoch
        if getattr(loader.dataset, "packing", None) and trainer.limit_train_batches == 1.0:
            fit_loop = trainer.fit_loop
            fit_loop.max_batches = fit_loop._data_fetcher.length = len(loader)


def _streaming_loaders(fit_loop: Any) -> list[StreamingDataLoader]:
    """Return the streaming loaders of a training, which may combine several."""
    loaders = fit_loop._combined_loader.flattened
    return [loader for loader in loaders if isinstance(loader, StreamingDataLoader)]


def _begin_next_epoch(fit_loop: Any, loaders: list[StreamingDataLoader]) -> None:
    """Begin an epoch with its first batch, after a checkpoint of an epoch that is over.

    The position in the checkpoint is that of the last batch. After it, loaders would give the rest
    of their epoch, which is empty or which ``limit_train_batches`` leaves out.
    """
    for loader in loaders:
        loader._go_to_epoch(loader.state_dict()["epoch"] + 1)
    iter(fit_loop._data_fetcher)
    epoch_loop = fit_loop.epoch_loop
    # With max_steps, Lightning would train a batch more in the epoch that is over, unless the
    # checkpoint was saved within its last batch.
    if fit_loop.restarting and not epoch_loop.restarted_on_train_batch_end:
        fit_loop._restarting = epoch_loop.restarting = False
        fit_loop.reset_restart_stage()
        fit_loop.epoch_progress.current.completed = fit_loop.epoch_progress.current.processed


def _count_batches_again(progress: Any, loader: StreamingDataLoader) -> None:
    """Count the batches of an epoch before a resume as if this run had trained them."""
    dataset: Any = loader.dataset
    sample = loader.state_dict()["sample_in_epoch"]
    if progress.ready:
        places = dataset.num_ranks * (loader.batch_size or 1) * loader.microbatches  # of a step
        difference = -(-sample // places) * loader.microbatches - progress.ready
        for name in ("ready", "started", "processed", "completed"):
            setattr(progress, name, getattr(progress, name) + difference)
