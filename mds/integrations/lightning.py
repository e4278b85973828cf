"""Counts of batches in Lightning that are those of a StreamingDataLoader."""

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
    """Callback for a StreamingDataLoader with gradient accumulation, or with packs.

    Lightning saves the number of batches of an epoch, and takes the number of the first epoch for
    all. This callback corrects both: a run may resume with another ``accumulate_grad_batches``,
    and epochs of packs, which differ in length, are read to their end. After a checkpoint of the
    last batch of an epoch, the next epoch is whole.

    Raises ConfigError if ``microbatches`` of the loader is not ``accumulate_grad_batches``.

    >>> trainer = lightning.Trainer(
    ...     accumulate_grad_batches=2, callbacks=[StreamingCallback()]
    ... )  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._epoch = -1  # whose number of batches Lightning has

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's
        """Count the batches of the epoch before a resume as those of this run."""
        loader: Any = trainer.train_dataloader
        count = trainer.accumulate_grad_batches
        if not isinstance(loader, StreamingDataLoader):
            return
        if loader.microbatches != count:
            raise ConfigError(
                f"the loader has microbatches={loader.microbatches}, but Lightning has "
                f"accumulate_grad_batches={count}. Give both the same number."
            )
        state = loader.state_dict()
        fit_loop = trainer.fit_loop
        batch_progress = fit_loop.epoch_loop.batch_progress
        progress, is_last = batch_progress.current, batch_progress.is_last_batch
        # Saved within the last batch: Lightning goes on with the next epoch, but would first read
        # the rest of this one.
        if fit_loop.restarting and is_last and progress.completed < progress.processed:
            begin = {"epoch": state["epoch"] + 1, "sample_in_epoch": 0, "finished": False}
            loader.load_state_dict({**state, **begin, "cursor": "null", "order_hash": ""})
            iter(fit_loop._data_fetcher)  # noqa: SLF001
            return
        if not progress.ready:
            return
        dataset: Any = loader.dataset
        places = dataset.num_ranks * (loader.batch_size or 1) * count  # of a step
        batches = -(-state["sample_in_epoch"] // places) * count
        difference = batches - progress.ready
        for name in ("ready", "started", "processed", "completed"):
            setattr(progress, name, getattr(progress, name) + difference)

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Tell Lightning the number of batches of an epoch of packs when it begins."""
        loader = trainer.train_dataloader
        if self._epoch == trainer.current_epoch or not isinstance(loader, StreamingDataLoader):
            return
        self._epoch = trainer.current_epoch
        if getattr(loader.dataset, "packing", None) and trainer.limit_train_batches == 1.0:
            fit_loop = trainer.fit_loop
            fit_loop.max_batches = fit_loop._data_fetcher.length = len(loader)  # noqa: SLF001
