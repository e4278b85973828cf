"""Filling of a batch of packs with samples one by one: of the caller's code, or lists as stored.

Packs were made of recorded lengths before anything was read, so what a function makes of a document
must be as long as was recorded. Each piece of a document that is cut is a part of what the
functions make of the whole; they are called for each piece, with the same random numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mds.dataset.filtering import Fate, SkippedSample
from mds.dataset.reading import item_getter, time_sample
from mds.dataset.worker_epoch import ReadersAtHand
from mds.errors import ConfigError, FunctionError
from mds.loader.batch_codec import numpy_dtype
from mds.loader.filtered_batches import any_sample
from mds.loader.pack_columns import encodings_of
from mds.loader.pack_filling import Filling, batch_dtype, check_names, join_values, padding
from mds.transforms.row_keys import keys_of_places
from mds.transforms.runner import SampleRunner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds.dataset.samples import Samples
    from mds.dataset.worker_epoch import WorkerEpoch
    from mds.loader.pack_filling import Tensors
    from mds.loader.tensor_buffers import Allocator
    from mds.plan.pack_plan import RankPacks
    from mds.prefetch.prefetcher import Window
    from mds.process.stopwatch import Stopwatch

    Vector = NDArray[Any]

_FIRST_SAMPLES = 1 << 16  # among which a sample of the form of all is looked for


class SampleFilling(Filling):
    """A batch that is filled with samples behind functions, filters and a class of the caller's."""

    def __init__(
        self, dataset: Samples, epoch: WorkerEpoch, allocate: Allocator, watch: Stopwatch
    ) -> None:
        super().__init__(epoch, allocate)
        self._dataset, self._epoch, self._watch = dataset, epoch, watch
        self._filter, self._chain = dataset._filter, dataset._filter.chain
        self._at_hand = ReadersAtHand()
        self._get = self._at_hand.lend(item_getter(dataset))
        self._number = 0  # of the sample in work
        self._runner = SampleRunner(self._chain, self._where)
        self._form: dict[str, bool] = {}  # of samples: whether a column follows the tokens
        self._types: dict[str, np.dtype[Any]] = {}  # of those that follow

    def _begin(self, packs: RankPacks) -> None:
        self._whole = self._lengths.take(packs.ids).tolist()
        self._gone = np.zeros(len(packs.ids), bool)
        self._flat: dict[str, list[Vector]] = {}
        self._others: dict[str, list[Any]] = {}
        self._keys = [0] * len(packs.ids)
        if self._chain.is_keyed:
            plan = self._epoch.order
            keys = keys_of_places(plan.shuffle_seed, plan.epoch, packs.places, packs.ids)
            self._keys = keys.tolist()

    def _add(self, packs: RankPacks, first: int, last: int, window: Window, places: slice) -> None:
        at_hand, watch, dataset = self._at_hand, self._watch, self._dataset
        at_hand.begin_window(dataset._cache, window, places)
        for at in range(first, last):
            self._number = int(packs.ids[at])
            judge = functools.partial(
                self._filter.judge, self._number, self._get, self._report, self._runner,
                self._keys[at],
            )  # fmt: skip
            sample, fate = time_sample(at_hand, watch, judge) if watch.is_armed else judge()
            if fate is Fate.KEPT:
                self._keep(sample, self._whole[at], int(packs.starts[at]), int(packs.sizes[at]))
            else:
                self._gone[at] = True
        at_hand.end_windows()

    def _keep(self, sample: Any, whole: int, start: int, size: int) -> None:
        """Take a piece of a document."""
        self._check_form(sample)
        for name, follows in self._form.items():
            if follows:
                values = self._vector(name, sample[name], whole)
                self._flat.setdefault(name, []).append(values[start : start + size])
            else:
                self._others.setdefault(name, []).append(sample[name])

    def _finish(self, packs: RankPacks) -> tuple[RankPacks, Tensors, dict[str, list[Any]]]:
        if len(packs.ids) and self._gone.any():
            packs = packs.without(self._gone)
        if not len(packs.ids):
            return packs, *self._nothing()
        flat, types = {}, self._types
        for name, values in self._flat.items():
            types[name] = batch_dtype(np.result_type(*{value.dtype for value in values}))
            flat[name] = self._allocate((int(packs.sizes.sum()),), types[name])
            join_values(name, values, flat[name].numpy())
        others, self._flat, self._others = self._others, {}, {}
        return packs, flat, others

    def _nothing(self) -> tuple[Tensors, dict[str, list[Any]]]:
        """Padding for a batch without documents, of the form of any sample."""
        if not self._types:
            first = range(min(self._dataset.num_samples, _FIRST_SAMPLES))
            numbers = np.flatnonzero(self._lengths.take(np.array(first, np.int64)))
            sample = any_sample(self._dataset, numbers.tolist())
            self._check_form(sample)
            following = [name for name, follows in self._form.items() if follows]
            self._types = {n: batch_dtype(_as_vector(sample[n]).dtype) for n in following}
        return padding(self._types), {n: [] for n, follows in self._form.items() if not follows}

    # ------------------------------------------------------------------ what samples are

    def _check_form(self, sample: Any) -> None:
        """See that a sample has the columns that the first one had.

        Raises FunctionError, or ConfigError for stored ones.
        """
        if not isinstance(sample, Mapping):
            raise self._wrong(f"is a {type(sample).__name__}, and packs are made of dicts")
        if not self._form:
            if self.tokens not in sample:
                raise self._wrong(
                    f"has no column {self.tokens!r}, whose lengths were recorded, but "
                    f"{', '.join(map(repr, sample))}: keep its name, which map_batches() may change"
                )
            self._form = self._find_form(sample)
        elif sample.keys() != self._form.keys():
            raise self._wrong(
                f"has the columns {', '.join(map(repr, sample))}, and another one had "
                f"{', '.join(map(repr, self._form))}"
            )

    def _find_form(self, sample: Mapping[str, Any]) -> dict[str, bool]:
        """Which columns follow the tokens: all vectors but those that are stored in one length."""
        stored = encodings_of(self._dataset)
        tokens = stored.get(self.tokens)
        shape = None if tokens is None else tokens.shape
        fixed = {
            name
            for name, encoding in stored.items()
            if encoding.shape is not None and encoding.shape != shape
        }
        form = {
            name: name == self.tokens or (name not in fixed and _is_vector(value))
            for name, value in sample.items()
        }
        check_names(
            (name for name, follows in form.items() if follows),
            (name for name, follows in form.items() if not follows),
        )
        return form

    def _vector(self, name: str, value: Any, whole: int) -> Vector:
        """The values of a document in a column that follows the tokens.

        Raises FunctionError, or ConfigError for stored ones.
        """
        if not _is_vector(value):
            shown = f"{type(value).__name__} {str(value)[:40]!r}"
            raise self._wrong(
                f"has {shown} in column {name!r}, which is to be an array of numbers with one axis"
            )
        found = _as_vector(value)
        if len(found) == whole:
            return found
        if name == self.tokens:
            raise self._wrong(
                f"has {len(found)} values in column {name!r}, and its recorded length is {whole}: "
                "packs are made of recorded lengths. Keep them, or record those that come"
            )
        raise self._wrong(
            f"has {len(found)} values in column {name!r} and {whole} in {self.tokens!r}: arrays "
            "with one axis follow the tokens and are as long. Leave the column out, or give it two "
            "axes"
        )

    def _wrong(self, why: str) -> FunctionError | ConfigError:
        """The error for a sample that no pack can take."""
        made_by = str(self._chain) if self._chain.maps else ""
        if self._dataset._has_own_items and not made_by:
            made_by = f"__getitem__ of {type(self._dataset).__name__}"
        if not made_by:
            return ConfigError(f"sample {self._number} as stored {why}.")
        return FunctionError(f"sample {self._number} behind {made_by} {why}.")

    def _where(self) -> str:
        return f"sample {self._number} (of a pack of epoch {self._epoch.order.epoch})"

    def _report(self, skipped: SkippedSample) -> None:
        self._dataset._dropped.report(skipped)
        self.dropped.report(skipped)


def _is_vector(value: Any) -> bool:
    """Whether a value is an array, a tensor or a list of numbers, with one axis."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(v, (int, float, np.number)) for v in value)
    if isinstance(value, torch.Tensor):
        return value.ndim == 1 and numpy_dtype(value.dtype) is not None
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "biufc"


def _as_vector(value: Any) -> Vector:
    """The array of such a value."""
    return np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
