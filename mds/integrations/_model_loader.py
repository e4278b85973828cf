"""Loader of a trainer of transformers, whose batches are the inputs of its model."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from mds._dataset.run import run_of
from mds._dataset.steps import count_first_steps
from mds._dataset.streaming import StreamingDataset
from mds._loader.dataloader import StreamingDataLoader
from mds._process.fork_safe import cached_property
from mds._words import plural
from mds.errors import ConfigError
from mds.integrations._model_inputs import ModelInputs, SampleCollator

if TYPE_CHECKING:
    from mds.plan._spec import OrderSpec


class ModelLoader(StreamingDataLoader):
    """StreamingDataLoader of a trainer, with the names and types that its model takes.

    An epoch has at least one batch: if a state was saved after the last batch of an epoch, the next
    epoch begins at once.

    Raises ConfigError if the dataset does not fit the settings of the trainer.

    Args:
        dataset: Dataset with packing, whose batches are used as they are, or without.
        collate: Function that makes a batch of samples without packing.
        inputs: Function that makes the inputs of a batch.
        ranks: Number of data-parallel ranks.
        batch_size: Samples or packs of a batch.
        settings: Other arguments of the loader.
    """

    def __init__(
        self,
        dataset: StreamingDataset,
        collate: SampleCollator,
        inputs: ModelInputs,
        ranks: int,
        batch_size: int,
        **settings: Any,
    ) -> None:
        packing = dataset.packing
        if dataset.num_ranks != ranks:
            raise ConfigError(
                f"the dataset has {plural(dataset.num_ranks, 'rank')}, but the trainer has {ranks} "
                f"data-parallel ranks. Give the dataset topology=(rank, {ranks})."
            )
        if dataset.batch_size in (None, dataset._trainers_batch_size):  # noqa: SLF001 - our own
            dataset.batch_size = dataset._trainers_batch_size = batch_size  # noqa: SLF001
        elif dataset.batch_size != batch_size:
            raise ConfigError(
                f"the dataset has batch_size={dataset.batch_size}, but the trainer has "
                f"{batch_size}. Leave it out of the dataset."
            )
        if packing is None:
            settings["collate_fn"] = collate
        elif (packing.layout, packing.labels) != ("varlen", "masked"):
            raise ConfigError(
                f"Packing(layout={packing.layout!r}, labels={packing.labels!r}): models of "
                "transformers shift labels themselves, and keep documents apart in one row only. "
                "Leave layout and labels out."
            )
        inputs.tokens = None if packing is None else packing.column
        self._inputs = inputs
        # A generator of its own leaves the random numbers of the model as they are.
        super().__init__(dataset, batch_size=batch_size, generator=torch.Generator(), **settings)

    def __len__(self) -> int:
        return super().__len__() if self.microbatches > 1 else self.steps_per_epoch

    def __iter__(self) -> Any:
        return map(self._inputs, self._batches_of_epoch())


class TrainingLoader(ModelLoader):
    """Loader whose epochs all have as many steps as the first epoch of the dataset.

    The Trainer counts the steps of an epoch once. But the number of packs differs from epoch to
    epoch, and a resume may begin anywhere. So the batches of the dataset's epochs follow each
    other, and each iteration continues after the last one.

    It ends with a schedule that ends the training (``exhausted="stop"``).

    Raises ConfigError if the last step of an epoch has fewer batches than the others, or some ranks
    have fewer batches than others.

    Args:
        may_estimate: Whether the number of packs of a large dataset may be an estimate.
    """

    def __init__(self, *args: Any, may_estimate: bool = False, **settings: Any) -> None:
        super().__init__(*args, **settings)
        assert self._streaming is not None
        self._may_estimate = may_estimate
        self._remaining = 0  # batches until the next iteration ends; 0: a whole epoch
        self._all_batches = self._batches_of_epochs()
        is_short = self._spec.is_uneven and self._spec.remainder == "short"
        if is_short and self._streaming.num_ranks > 1 and not self.drop_last:
            raise ConfigError(
                "remainder='short' of a training dataset gives ranks different numbers of batches, "
                "so some would wait for others without end. Set dataloader_drop_last=True, or use "
                "another remainder."
            )
        # Steps of packs have all of their batches; they are not counted before a state is loaded.
        is_counted = self.microbatches > 1 and self._spec.packing is None
        if is_counted and len(self) % self.microbatches:
            raise ConfigError(
                f"an epoch has {plural(len(self), 'batch')} of this rank, so its last step has "
                f"fewer than the others, which have {self.microbatches} "
                "(gradient_accumulation_steps). Set dataloader_drop_last=True."
            )

    def __len__(self) -> int:
        is_packed = self._spec.packing is not None
        length = self._packed_batches if is_packed else super().__len__()
        if not length:
            assert self._loader_state is not None
            raise self._loader_state.empty_epoch_error()
        return length

    @property
    def _spec(self) -> OrderSpec:
        """Settings of the order of the dataset."""
        assert self._streaming is not None
        return run_of(self._streaming).order.spec

    @cached_property
    def _packed_batches(self) -> int:
        """Number of batches of packs in the first epoch of the dataset.

        It is counted after a state was loaded, which may have other settings.
        """
        dataset = self._streaming
        assert dataset is not None
        order, world = run_of(dataset).order, run_of(dataset).world()
        settings = {"drop_last": self.drop_last, "may_estimate": self._may_estimate}
        return count_first_steps(order, world, **settings) * self.microbatches

    def begin_epoch(self, batches: int) -> None:
        """Set where the next iteration ends, from the batches that the trainer has trained on."""
        self._remaining = len(self) - batches % len(self)

    def __iter__(self) -> Any:
        batches = islice(self._all_batches, self._remaining or len(self))
        self._remaining = 0
        return map(self._inputs, batches)

    def close(self) -> None:
        """Stop the workers, persistent ones too."""
        self._all_batches.close()
        assert self._loader_state is not None
        self._loader_state.inner = None


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
