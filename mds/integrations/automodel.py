"""Samples of a StreamingDataset for NeMo Automodel, with exact resume on other ranks."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from torch.utils.data import IterableDataset, get_worker_info

from mds._arguments import check_arguments, text, whole
from mds._dataset.streaming import StreamingDataset
from mds._loader.dataloader import StreamingDataLoader
from mds.errors import ConfigError, StateError
from mds.integrations._automodel_rows import AutomodelRows, checked_samples, samples_of
from mds.integrations._token_rows import packing_of_rows
from mds.plan._packing import Packing, packing_of

__all__ = ["Dataset"]

# Arguments of the dataset that this module sets.
_FIXED = {
    "batch_size": "give global_batch_size",
    "topology": "it follows from the parallelism of Automodel",
    "remainder": "it is 'mask', so that each sample comes once in steps of one size",
}
_RULES = {
    "global_batch_size": whole(1, unit="samples"),
    "seq_len": whole(1, unit="tokens").or_none("samples of any length"),
    "column": text("the name of a column").or_none("tokens"),
}


class Dataset(IterableDataset[dict[str, Any]]):
    """Dataset of a recipe of Automodel that reads a StreamingDataset.

    It is the ``_target_`` of a ``dataset`` or ``validation_dataset``. Automodel gives it the
    data-parallel rank, and saves its state. The attribute ``dataset`` is the StreamingDataset; it
    is None until Automodel has built its loader.

    - ``place`` (path, URL or streams, default None): Place of the data, as in StreamingDataset.
    - ``global_batch_size`` (int, samples): ``step_scheduler.global_batch_size``.
    - ``seq_len`` (int | None, default None, tokens): Length of blocks, which have so many tokens or
      one more. None is for samples of any length, which the ``collate_fn`` pads, and for packs.
    - ``num_workers`` (int, default 0): Number of threads that read samples.
    - ``column`` (str | None, default None): Column of the tokens. None is ``tokens``; for packs, it
      is the one that `Packing` finds. The column of a `Packing` takes precedence.
    - Other arguments are those of StreamingDataset, such as ``shuffle``, ``streams`` or
      ``schedule``. ``packing`` is a number of tokens, or the arguments of `Packing`.

    A column ``labels`` has a label for each token, not shifted; without it, the tokens are the
    labels. Samples get shifted ``labels``, which Automodel expects. Packs need the
    ``neat_packed_collater`` of Automodel, which keeps documents apart.

    Raises ConfigError for settings that contradict each other, and at the first batch for samples
    that do not fit; StateError for a state of another dataset.

    >>> dataset = Dataset(
    ...     "s3://bucket/tokens", global_batch_size=256, seq_len=4096
    ... ).shard(num_shards=4, index=0)  # doctest: +SKIP
    """

    def __init__(
        self,
        place: Any = None,
        *,
        global_batch_size: int,
        seq_len: int | None = None,
        num_workers: int = 0,
        column: str | None = None,
        **arguments: Any,
    ) -> None:
        settings = {"global_batch_size": global_batch_size, "seq_len": seq_len, "column": column}
        check_arguments("Dataset", settings, _RULES)
        for name in _FIXED.keys() & arguments:
            raise ConfigError(f"{name}= of the dataset: leave it out, {_FIXED[name]}.")
        if (packing := arguments.get("packing")) is not None:
            if isinstance(packing, Mapping):
                packing = Packing(**packing)
            packing = packing_of(packing)
            if packing.capacity is None or seq_len is not None:
                raise ConfigError(
                    f"packing={packing.capacity} with seq_len={seq_len}: give packing a capacity, "
                    "and leave seq_len out."
                )
            arguments["packing"] = packing_of_rows(packing, column)
        self._place, self._arguments, self._workers = place, arguments, num_workers
        self._size, self._length, self._column = global_batch_size, seq_len, column
        self._rows: Iterator[Any] = iter(())  # of the step that is being taken
        self.dataset: Any = None

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Open the data for a data-parallel rank; Automodel calls this once."""
        size, rest = divmod(self._size, num_shards)
        if size < 1 or rest or self.dataset is not None:
            raise ConfigError(
                f"shard({num_shards}, {index}): call it once, and give global_batch_size the value "
                f"of step_scheduler.global_batch_size, a multiple of the ranks. It is {self._size}."
            )
        # A batch of the loader is what this rank gets in a whole step.
        self.dataset = StreamingDataset(
            self._place,
            batch_size=size,
            topology=(index, num_shards),
            remainder="mask",
            **self._arguments,
        )
        rows = AutomodelRows(
            packing=self.dataset.packing,
            column=self._column,
            length=self._length or 0,
            setting="seq_len",
        )
        self._loader = StreamingDataLoader(self.dataset, num_workers=self._workers, collate_fn=rows)
        return self

    def shuffle(self, *_: Any, **settings: Any) -> NoReturn:  # noqa: ARG002 - Automodel's
        """Refuse what Automodel calls for ``dataloader.shuffle``, and before it packs samples."""
        raise ConfigError(
            "the dataset shuffles and packs by itself. Set its shuffle= and packing=, and leave "
            "out dataloader.shuffle and packed_sequence."
        )

    def __len__(self) -> int:
        """Return the number of samples of an epoch on this rank, with padding."""
        if self.dataset.packing is not None:
            raise TypeError("epochs of packs differ in length. Set step_scheduler.max_steps.")
        return len(self._loader) * int(self.dataset.batch_size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the samples of this rank in the rest of the epoch."""
        if self.dataset is None or get_worker_info() is not None:
            raise ConfigError(
                "Automodel has to call shard(), and its loader to have no workers. Set "
                "num_workers= of the dataset, not of the dataloader."
            )
        self._rows = iter(())
        cut = checked_samples  # a collate function that does not fit fails in the first step
        for batch in self._loader:
            self._rows = iter(cut(batch))
            yield from self._rows
            cut = samples_of

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all ranks after the last step."""
        if operator.length_hint(self._rows):
            raise StateError(
                f"this checkpoint is within a step of global_batch_size={self._size}. Give the "
                "dataset the value of step_scheduler.global_batch_size."
            )
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state with the next iteration."""
        self._loader.load_state_dict(state_dict)
