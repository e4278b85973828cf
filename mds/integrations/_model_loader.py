"""Loader whose batches are the inputs of a model of transformers, and its state in checkpoints."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from mds._dataset.streaming import StreamingDataset
from mds._loader.dataloader import StreamingDataLoader
from mds.errors import ConfigError, StateError

#: File of a checkpoint with the state of the training loader.
POSITION_FILE = "mds_state.json"


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
            settings["collate_fn"] = _SampleCollator(collate)
        elif (packing.layout, packing.labels) != ("varlen", "masked"):
            raise ConfigError(
                f"Packing(layout={packing.layout!r}, labels={packing.labels!r}): models of "
                "transformers shift labels themselves, and keep documents apart in one row only. "
                "Leave layout and labels out."
            )
        inputs.tokens = None if packing is None else packing.column
        self._inputs, self._length, self._is_resumed = inputs, 0, False
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

    def load_state_dict(self, obj: Mapping[str, Any] | None) -> None:
        """Continue from a state with the next iteration."""
        super().load_state_dict(obj)
        self._is_resumed = True

    def __iter__(self) -> Any:
        return map(self._inputs, self._batches_of_epoch())

    def _batches_of_epoch(self) -> Iterator[Any]:
        may_be_over, self._is_resumed = self._is_resumed, False
        for batch in super().__iter__():
            may_be_over = False
            yield batch
        if may_be_over:
            yield from super().__iter__()


class _SampleCollator:
    """Function that passes samples to a collate function, with ``tokens`` as ``input_ids``."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> Any:
        samples = [
            {_rename(name, sample): _widen(value) for name, value in sample.items()}
            for sample in samples
        ]
        batch = self._collate(samples)
        return dict(batch) if isinstance(batch, Mapping) else batch  # a BatchEncoding, maybe


def _rename(name: str, sample: Mapping[str, Any]) -> str:
    return "input_ids" if name == "tokens" and "input_ids" not in sample else name


def _widen(value: Any) -> Any:
    """Return tokens as int64, because embeddings refuse unsigned numbers."""
    is_tokens = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"
    return value.astype(np.int64) if is_tokens else value


class ModelInputs:
    """Function that makes the inputs of a model of a batch.

    Raises ConfigError if the batch lacks the main input of the model.

    Args:
        model: Model of transformers, or another module with a ``forward``.
        labels: Names of its inputs that are labels, of which padding gets -100.

    Attributes:
        tokens: Column of the tokens in batches of packs; None for other batches.
    """

    def __init__(self, model: Any, labels: list[str]) -> None:
        self._model, self._labels = model, labels
        self._names = inspect.signature(model.forward).parameters
        self._takes_any = any(p.kind is p.VAR_KEYWORD for p in self._names.values())
        self.tokens: str | None = None

    def __call__(self, batch: Any) -> Any:
        mask = batch.pop("mask", None)
        inputs = batch if self.tokens is None else _unpack(batch, self.tokens)
        if not self._takes_any:
            inputs = {name: value for name, value in inputs.items() if name in self._names}
        name = getattr(self._model, "main_input_name", None)
        if name in self._names and name not in inputs and "inputs_embeds" not in inputs:
            raise ConfigError(
                f"{type(self._model).__name__} takes {name!r}, but a batch has "
                f"{', '.join(map(repr, batch)) or 'no column that it takes'}. Name a column of "
                f"the dataset {name!r}, for example with dataset.map()."
            )
        if mask is not None and self.tokens is None:  # packs mask their labels themselves
            for label in self._labels:
                inputs[label][~mask] = -100
        return inputs


def _unpack(batch: Mapping[str, Any], tokens: str) -> dict[str, Any]:
    """Return packs as one row, with the bounds of documents for each kind of attention."""
    bounds, longest = batch["cu_seqlens"], batch["max_seqlen"]
    # With NumPy, because threads of torch cost more than these small operations.
    sizes = np.diff(bounds.numpy())
    numbers = torch.from_numpy(np.repeat(np.arange(len(sizes), dtype=np.int32), sizes))
    return {
        "input_ids": batch[tokens][None],
        "labels": batch["labels"][None],
        "position_ids": batch["position_ids"][None],
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
        "seq_idx": numbers[None],
    }


def save_position(folder: str, state: Mapping[str, Any]) -> None:
    """Save the state of a loader in the folder of a checkpoint."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, POSITION_FILE), "w", encoding="utf-8") as file:
        json.dump(state, file)


def load_position(checkpoint: str | os.PathLike[str]) -> Any:
    """Return the position of a checkpoint. Raises StateError if it has none."""
    path = os.path.join(checkpoint, POSITION_FILE)
    if not os.path.exists(path):
        raise StateError(
            f"the checkpoint {os.fspath(checkpoint)!r} has no position of a StreamingDataset "
            f"(the file {POSITION_FILE}). Resume from a checkpoint of StreamingTrainer, or load "
            "the model alone and begin a new run."
        )
    with open(path, encoding="utf-8") as file:
        return json.load(file)
