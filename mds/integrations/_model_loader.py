"""Loader of a trainer of transformers, whose batches are the inputs of its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mds._dataset.streaming import StreamingDataset
from mds._loader.dataloader import StreamingDataLoader
from mds.errors import ConfigError
from mds.integrations._model_inputs import ModelInputs, SampleCollator


class ModelLoader(StreamingDataLoader):
    """StreamingDataLoader of a trainer, with the names and types that its model takes.

    All steps of an epoch have as many batches. An epoch has at least one batch: if a state was
    saved after the last batch of an epoch, the next epoch begins at once.

    Raises ConfigError if the dataset does not fit the settings of the trainer.

    Args:
        dataset: Dataset with packing, whose batches are used as they are, or without.
        collate: Function that makes a batch of samples without packing. It gets a column
            ``tokens`` as ``input_ids``.
        inputs: Function that makes the inputs of a batch.
        ranks: Number of data-parallel ranks.
        batch_size: Samples or packs of a batch.
        settings: Other arguments of the loader.
    """

    def __init__(
        self,
        dataset: StreamingDataset,
        collate: Callable[[list[Any]], Any],
        inputs: ModelInputs,
        ranks: int,
        batch_size: int,
        **settings: Any,
    ) -> None:
        packing = dataset.packing
        if dataset.num_ranks != ranks:
            raise ConfigError(
                f"the dataset has {dataset.num_ranks} ranks, but the trainer has {ranks} "
                f"data-parallel ranks. Give the dataset topology=(rank, {ranks})."
            )
        if dataset.batch_size not in (None, batch_size):
            raise ConfigError(
                f"the dataset has batch_size={dataset.batch_size}, but the trainer has "
                f"{batch_size}. Leave it out of the dataset."
            )
        if packing is None:
            settings["collate_fn"] = SampleCollator(collate)
        elif (packing.layout, packing.labels) != ("varlen", "masked"):
            raise ConfigError(
                f"Packing(layout={packing.layout!r}, labels={packing.labels!r}): models of "
                "transformers shift labels themselves, and keep documents apart in one row only. "
                "Leave layout and labels out."
            )
        inputs.tokens = None if packing is None else packing.column
        self._inputs, self._length = inputs, 0
        # A generator of its own leaves the random numbers of the model as they are.
        super().__init__(dataset, batch_size=batch_size, generator=torch.Generator(), **settings)
        if self.microbatches > 1 and len(self) % self.microbatches:
            raise ConfigError(
                f"an epoch has {len(self):,} batches of this rank, so its last step has fewer "
                f"than the others, which have {self.microbatches} (gradient_accumulation_steps). "
                "Set dataloader_drop_last=True."
            )

    def __len__(self) -> int:
        if not self._length:  # counting an epoch of packs takes long
            is_exact = self.microbatches > 1
            self._length = super().__len__() if is_exact else self.steps_per_epoch
        return self._length

    def __iter__(self) -> Any:
        return map(self._inputs, self._batches_of_epoch())


def check_evaluation(dataset: StreamingDataset, training: Any, ranks: int) -> None:
    """Raise ConfigError if evaluating a dataset would change the training, or count samples twice.

    ``training``: the training dataset. ``ranks``: number of ranks.
    """
    if dataset is training:
        raise ConfigError(
            "the evaluation dataset is the training dataset, whose position and next epoch an "
            "evaluation would change. Create another StreamingDataset of the same data."
        )
    if ranks > 1 and dataset.remainder != "mask":
        raise ConfigError(
            f"remainder={dataset.remainder!r} of an evaluation dataset repeats samples or "
            "gives ranks more batches than others. Use remainder='mask'."
        )
