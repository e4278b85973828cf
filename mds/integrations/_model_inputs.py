"""Inputs of a model of transformers, made of the batches of a StreamingDataLoader."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from mds._process.fork_safe import cached_property
from mds._words import plural
from mds.errors import ConfigError

#: Labels of models that answer questions, whose loss takes any negative position for 0.
_POSITIONS = frozenset({"start_positions", "end_positions"})


class SampleCollator:
    """Function that passes samples to a collate function, with ``tokens`` as ``input_ids``.

    Args:
        collate: Function that makes a batch of a list of samples.
        as_lists: Whether it gets tokens as lists, like those of a dataset of Hugging Face. Most
            collators of TRL concatenate tokens with ``+``, which would add the numbers of arrays.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], *, as_lists: bool = False) -> None:
        self._collate, self._as_lists = collate, as_lists

    def __call__(self, samples: list[Any]) -> Any:
        batch = self._collate([_widen_tokens(sample, self._as_lists) for sample in samples])
        return dict(batch) if isinstance(batch, Mapping) else batch  # a BatchEncoding, maybe


def _widen_tokens(sample: Mapping[str, Any], as_lists: bool) -> dict[str, Any]:
    """Return a sample with ``input_ids``, and int64 tokens: embeddings refuse unsigned numbers."""
    widened = dict(sample)
    for name, value in sample.items():
        if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu":
            widened[name] = value.tolist() if as_lists else value.astype(np.int64)
    if "tokens" in widened and "input_ids" not in widened:
        widened["input_ids"] = widened.pop("tokens")
    return widened


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
        inputs = batch if self.tokens is None else self._unpack(batch, self.tokens)
        if not self._takes_any:
            inputs = {name: value for name, value in inputs.items() if name in self._names}
        name = getattr(self._model, "main_input_name", None)
        if name in self._names and name not in inputs and "inputs_embeds" not in inputs:
            raise ConfigError(
                f"{type(self._model).__name__} takes {name!r}, but a batch has "
                f"{', '.join(map(repr, batch)) or 'no column that it takes'}. Name a column of "
                f"the dataset {name!r}, for example with dataset.map()."
            )
        # Packs mask their labels themselves. With NumPy, because threads of torch cost more.
        if mask is not None and self.tokens is None and not mask.numpy().all():
            padding = _find_padding(mask, batch)
            for label in self._labels:
                _check_ignored(label, inputs)
                inputs[label][padding] = -100
        return inputs

    @cached_property
    def _has_numbers(self) -> bool:
        """Whether packs get the number of the document of each token, which few models use."""
        return _may_use(self._model, "seq_idx")

    def _unpack(self, batch: Mapping[str, Any], tokens: str) -> dict[str, Any]:
        """Return packs as one row, with the bounds of documents for each kind of attention."""
        bounds, longest = batch["cu_seqlens"], batch["max_seqlen"]
        inputs = {
            "input_ids": batch[tokens].unsqueeze(0),
            "labels": batch["labels"].unsqueeze(0),
            "position_ids": batch["position_ids"].unsqueeze(0),
            "cu_seq_lens_q": bounds,
            "cu_seq_lens_k": bounds,
            "max_length_q": longest,
            "max_length_k": longest,
        }
        if self._has_numbers:
            # With NumPy, because threads of torch cost more than these small operations.
            ends = bounds.numpy()
            sizes = ends[1:] - ends[:-1]
            numbers = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
            inputs["seq_idx"] = torch.from_numpy(numbers).unsqueeze(0)
        return inputs


def _check_ignored(label: str, inputs: Mapping[str, Any]) -> None:
    """Raise ConfigError if the loss of a model cannot ignore some values of a label."""
    if label not in inputs:
        problem = f"no {label!r} to set to -100"
    elif label in _POSITIONS or inputs[label].is_floating_point():
        problem = f"{label!r}, whose loss does not ignore -100"
    else:
        return
    raise ConfigError(
        f"the samples that fill the last batches would count twice, because these have {problem}. "
        "Evaluate on a number of samples that ranks times per_device_eval_batch_size divides, with "
        "dataset.select()."
    )


def _find_padding(mask: torch.Tensor, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return where the labels of a batch are those of padding, for the ``mask`` of its samples.

    The collate function may have joined all samples in one row, with positions that restart at
    each. Raises ConfigError for a row whose samples cannot be told apart.
    """
    positions = batch.get("position_ids")
    if positions is None or len(positions) == len(mask):
        return ~mask
    starts = positions == 0
    if len(positions) != 1 or int(starts.sum()) != len(mask):
        raise ConfigError(
            f"the collate function made {plural(len(positions), 'row')} with "
            f"{plural(int(starts.sum()), 'document')} "
            f"of {plural(len(mask), 'sample')}, so the labels of padding cannot be found. Write "
            "StreamingDataset(..., packing=4096) instead of joining samples there."
        )
    return ~mask[starts.cumsum(1) - 1]


def _may_use(model: Any, name: str) -> bool:
    """Return whether the source of a model has a name; if it cannot be read, it may.

    Models of transformers pass inputs for their attention on in ``**kwargs``.
    """
    modules = {sys.modules.get(type(part).__module__) for part in model.modules()}
    try:
        return any(name in inspect.getsource(module) for module in modules)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return True
