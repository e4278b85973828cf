"""StreamingDatasets in the Trainer of transformers and the SFTTrainer of TRL, with exact resume."""

from __future__ import annotations

import os
from typing import Any

import torch

from mds._dataset.streaming import StreamingDataset
from mds.errors import need
from mds.integrations._model_inputs import ModelInputs, SampleCollator
from mds.integrations._model_loader import ModelLoader, TrainingLoader, check_evaluation
from mds.integrations._position_file import load_position, save_position
from mds.integrations._trainer_epochs import TrainerEpochs
from mds.integrations._trainer_options import check_options, name_arguments

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

    Datasets of other kinds work as before. All epochs have as many steps as the first one. `train`
    begins at the position of the checkpoint that it is given, on any number of ranks and
    workers, or else at the beginning. Packs go to the model as they are, other samples through the
    trainer's ``data_collator``, with a column ``tokens`` named ``input_ids``. The SFTTrainer does
    not tokenize, truncate or pack them.

    Raises ConfigError for settings that do not fit the dataset, and at the first batch if it lacks
    the input of the model; StateError for a checkpoint without a position.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._checkpoint: Any = None  # that train() was given
        self._loader: TrainingLoader | None = None
        self._beginning: tuple[Any, Any] = (None, None)  # dataset, and its state before training
        self._stand_in: Any = None  # what TRL, which checks types, gets for a StreamingDataset
        args, kwargs = name_arguments(super().__init__, args, kwargs)
        dataset = kwargs.get("train_dataset")
        if isinstance(dataset, StreamingDataset):
            bases = [base for base in type(self).__mro__ if base.__module__[:4] == "trl."]
            check_options(bases, kwargs.get("args"))
            if bases:
                from datasets import Dataset

                self._stand_in = Dataset.from_dict({"input_ids": [[0]], "labels": [[0]]})
                kwargs["train_dataset"] = self._stand_in
        super().__init__(*args, **kwargs)
        if self._stand_in is not None:
            self.train_dataset: Any = dataset
        self.add_callback(TrainerEpochs())

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Let TRL prepare datasets of other kinds only."""
        if dataset is self._stand_in or isinstance(dataset, StreamingDataset):
            return dataset
        return super()._prepare_dataset(dataset, *args, **kwargs)

    def _reject_skip_prepare_without_labels(self, datasets: Any, *args: Any) -> None:
        """Let TRL check the columns of datasets of other kinds only."""
        others = {k: v for k, v in datasets.items() if not isinstance(v, StreamingDataset)}
        super()._reject_skip_prepare_without_labels(others, *args)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Train from a checkpoint (its folder, or True for the last one), or from the beginning."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True
        self._checkpoint = resume_from_checkpoint
        skips_data = self.args.ignore_data_skip  # get_train_dataloader() may set it
        try:
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self.args.ignore_data_skip = skips_data
            if self._loader is not None:
                self._loader.close()

    def get_train_dataloader(self) -> Any:
        """Return the training loader at the position of the checkpoint."""
        if self._loader is not None:  # auto_find_batch_size tries several batch sizes
            self._loader.close()
        if not isinstance(self.train_dataset, StreamingDataset):
            self._loader = None
            return super().get_train_dataloader()
        self.args.ignore_data_skip = True  # the loader goes to the position itself
        self._loader = self._make_loader(
            self.train_dataset,
            self._train_batch_size,
            TrainingLoader,
            microbatches=self.args.gradient_accumulation_steps,
            drop_last=self.args.dataloader_drop_last,
            may_estimate=self.args.max_steps > 0,  # then only epochs that logs show depend on it
        )
        if self._beginning[0] is not self.train_dataset:
            self._beginning = self.train_dataset, self._loader.state_dict()
        state = load_position(self._checkpoint) if self._checkpoint else self._beginning[1]
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

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Divide the loss by the labels of all ranks in evaluations too: padding has none."""
        loader = self.callback_handler.eval_dataloader
        if num_items_in_batch is None and not self.model.training and type(loader) is ModelLoader:
            num_items_in_batch = self._get_num_items_in_batch([inputs], self.args.device)
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def _make_loader(
        self, dataset: Any, batch_size: int, cls: Any = ModelLoader, **own: Any
    ) -> Any:
        """Return a loader of a StreamingDataset with the Trainer's settings, and its own ones."""
        args = self.args
        if args.dataloader_num_workers:
            for name in ("persistent_workers", "multiprocessing_context", "prefetch_factor"):
                own[name] = getattr(args, f"dataloader_{name}")
        collate = self._get_collator_with_removed_columns(self.data_collator)
        # That of the SFTTrainer makes tensors of arrays, 50 times as fast as of lists.
        modules = {kind.__module__ for kind in type(self.data_collator).__mro__}
        modules.discard("trl.trainer.sft_trainer")
        as_lists = any(module.startswith("trl.") for module in modules)
        return cls(
            dataset,
            SampleCollator(collate, as_lists=as_lists),
            ModelInputs(self.model, self.label_names),
            args.world_size // (self.get_tp_size() * self.get_cp_size() * self.get_sp_size()),
            batch_size,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory and torch.accelerator.is_available(),
            **own,
        )
