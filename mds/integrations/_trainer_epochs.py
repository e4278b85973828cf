"""Epochs of the Trainer of transformers, with a StreamingDataset."""

from __future__ import annotations

from typing import Any

from mds.errors import need
from mds.integrations._model_loader import TrainingLoader

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise need("transformers", None, "mds.integrations.transformers and its trainer") from error


class TrainerEpochs(TrainerCallback):  # type: ignore[misc] # no types are checked
    """Epochs of the Trainer, whose steps it counts from the last resume."""

    def on_epoch_begin(self, args: Any, state: Any, *_: Any, **objects: Any) -> None:
        """End the epoch where it would end without a resume."""
        loader = objects["train_dataloader"]
        if isinstance(loader, TrainingLoader):
            loader.begin_epoch(state.global_step * args.gradient_accumulation_steps)

    def on_step_end(self, args: Any, state: Any, *_: Any, **objects: Any) -> None:
        """Compute the number of epochs for logs from the number of steps."""
        loader = objects["train_dataloader"]
        if isinstance(loader, TrainingLoader):
            state.epoch = state.global_step * args.gradient_accumulation_steps / len(loader)
