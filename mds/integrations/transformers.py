"""StreamingDatasets in the Trainer of transformers and the SFTTrainer of TRL, with exact resume."""

from __future__ import annotations

import os
from typing import Any

import torch

from mds._dataset.streaming import StreamingDataset
from mds.errors import ConfigError, need
from mds.integrations._model_inputs import ModelInputs
from mds.integrations._model_loader import ModelLoader, check_evaluation
from mds.integrations._position_file import load_position, save_position

try:
    import transformers
    from transformers.trainer_utils import get_last_checkpoint
except ImportError as error:
    raise need("transformers", None, "mds.integrations.transformers and its trainer") from error

__all__ = ["StreamingTrainer"]


class StreamingTrainer(transformers.Trainer):  # type: ignore[misc] # no types are checked
    """Trainer of transformers that takes a StreamingDataset and resumes at its exact position.

    Put it before a trainer that derives from that of transformers::

        class Trainer(StreamingTrainer, SFTTrainer):
            pass

    Pass ``train_dataset`` and ``eval_dataset`` by name; datasets of other kinds work as before.
    `train` begins at the position of the checkpoint that it is given, on any number of ranks and
    workers, or else at the beginning. Packs go to the model as they are, other samples through the
    trainer's ``data_collator``, with a column ``tokens`` named ``input_ids``. The SFTTrainer does
    not tokenize, truncate or pack them.

    Raises ConfigError for settings that do not fit the dataset, and at the first batch if it lacks
    the input of the model; StateError for a checkpoint without a position.
    """

    def __init__(self, *args: Any, train_dataset: Any = None, **kwargs: Any) -> None:
        self._checkpoint: Any = None  # that train() was given
        self._loader: ModelLoader | None = None
        self._beginning: dict[str, Any] | None = None
        self._stand_in: Any = None  # what TRL, which checks types, gets for a StreamingDataset
        streaming = train_dataset if isinstance(train_dataset, StreamingDataset) else None
        self._sets_batch_size = streaming is not None and streaming.batch_size is None
        if streaming is not None and any(c.__module__[:4] == "trl." for c in type(self).__mro__):
            from datasets import Dataset

            self._stand_in = Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]})
            train_dataset = self._stand_in
        super().__init__(*args, train_dataset=train_dataset, **kwargs)
        if streaming is not None:
            self.train_dataset: Any = streaming
            self.add_callback(_EpochNumber())
            if getattr(self.args, "packing", False):
                raise ConfigError(
                    "packing=True of SFTConfig has no effect on a StreamingDataset. Leave it out, "
                    "and write StreamingDataset(..., packing=4096)."
                )

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Let TRL prepare datasets of other kinds only."""
        if dataset is self._stand_in or isinstance(dataset, StreamingDataset):
            return dataset
        return super()._prepare_dataset(dataset, *args, **kwargs)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train from a checkpoint (its folder, or True for the last one), or from the beginning."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True
        self._checkpoint = resume_from_checkpoint
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def get_train_dataloader(self) -> Any:
        """Return the training loader at the position of the checkpoint."""
        if not isinstance(self.train_dataset, StreamingDataset):
            return super().get_train_dataloader()
        self.args.ignore_data_skip = True  # the loader goes to the position itself
        if self._sets_batch_size:  # auto_find_batch_size may try several
            self.train_dataset.batch_size = self._train_batch_size
        steps = self.args.gradient_accumulation_steps
        self._loader = self._make_loader(self.train_dataset, self._train_batch_size, steps)
        self._beginning = self._beginning or self._loader.state_dict()
        state = load_position(self._checkpoint) if self._checkpoint else self._beginning
        self._loader.load_state_dict(state)
        self._position = (-1, state)  # before the batches of a step were fetched, and its number
        return self._loader

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Fetch the batches of a step; before, take the position if one may be saved within it."""
        if self._loader is not None and getattr(self.args, "enable_jit_checkpoint", False):
            self._position = self.state.global_step, self._loader.state_dict()
        return super().get_batch_samples(*args, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save the position after the last complete step, before what makes a checkpoint valid."""
        if self._loader is not None and self.args.should_save:
            step, (fetched_step, before) = self.state.global_step, self._position
            state = before if fetched_step == step else self._loader.state_dict()
            folder = os.path.join(self._get_output_dir(trial), f"checkpoint-{step}")
            save_position(folder, state)
        super()._save_checkpoint(model, trial)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the loader of an evaluation dataset, or of the one with this name."""
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        dataset = self.eval_dataset[dataset] if isinstance(dataset, str) else dataset
        if not isinstance(dataset, StreamingDataset):
            return super().get_eval_dataloader(eval_dataset)
        check_evaluation(dataset, self.train_dataset, self.args.world_size)
        return self._make_loader(dataset, self.args.eval_batch_size)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the loader of `predict`, whose results have a row for each padded sample too."""
        if isinstance(test_dataset, StreamingDataset):
            return self.get_eval_dataloader(test_dataset)
        return super().get_test_dataloader(test_dataset)

    def _make_loader(self, dataset: Any, batch_size: int, microbatches: int = 1) -> ModelLoader:
        """Return the loader of a StreamingDataset with the Trainer's settings."""
        args, options = self.args, {}
        if args.dataloader_num_workers:
            for name in ("persistent_workers", "multiprocessing_context", "prefetch_factor"):
                options[name] = getattr(args, f"dataloader_{name}")
        return ModelLoader(
            dataset,
            self._get_collator_with_removed_columns(self.data_collator),
            ModelInputs(self.model, self.label_names),
            args.world_size // (self.get_tp_size() * self.get_cp_size() * self.get_sp_size()),
            batch_size,
            microbatches=microbatches,
            num_workers=args.dataloader_num_workers,
            drop_last=args.dataloader_drop_last and dataset is self.train_dataset,
            pin_memory=args.dataloader_pin_memory and torch.accelerator.is_available(),
            **options,
        )


class _EpochNumber(transformers.TrainerCallback):  # type: ignore[misc] # no types are checked
    """Number of epochs for logs, which the Trainer counts from the last resume."""

    def on_step_end(self, args: Any, state: Any, *_: Any, **objects: Any) -> None:
        """Compute it from the number of steps."""
        batches = state.global_step * args.gradient_accumulation_steps
        state.epoch = batches / len(objects["train_dataloader"])
