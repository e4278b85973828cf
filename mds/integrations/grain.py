"""Samples in the order of a dataset as a MapDataset of Grain, for JAX.

Item ``i`` is the ``i``-th sample of the order. A global batch of ``batch_size`` samples has
consecutive items, so it is the same on any number of processes::

    items          0 1 2 3 | 4 5 6 7 | 8 9 ...    batch_size=4
    process 0 of 2 0   2   | 4   6   | 8          samples.repeat()[0::2]
    process 1 of 2   1   3 |   5   7 |   9        samples.repeat()[1::2]
"""

from __future__ import annotations

import copy
import operator
import threading
from typing import Any

from mds._dataset.run import run_of, source_of
from mds._dataset.samples import Samples
from mds.errors import ConfigError, need
from mds.world import World

try:
    import grain
except ImportError as error:
    raise need("grain", None, "mds.integrations.grain and its datasets") from error

__all__ = ["MapDataset"]


class MapDataset(grain.MapDataset):  # type: ignore[misc] # no types of grain are checked
    """All samples of a dataset, in the order that its arguments determine.

    - ``dataset`` (StreamingDataset): The dataset. Its ``batch_size`` is that of all processes
      together, its ``shuffle=`` and ``shuffle_seed=`` make the order. Ranks have no effect.

    ``len()`` counts the samples of an epoch, and ``repeat()`` goes on with the next epochs, each
    in its own order. Later changes of the dataset's settings have no effect. A negative index
    counts from the end of the first epoch.

    Divide the items among processes with ``grain.experimental.ElasticIterator``, whose position may
    be loaded on another number of processes, or by a slice. Slice after ``repeat()``: otherwise the
    processes come apart after the first epoch, unless its length is a multiple of their number.

    Samples pass the functions of ``dataset.map``, which draw the same random numbers in each epoch;
    use Grain's ``random_map`` for augmentation.

    Raises ConfigError for a dataset without ``batch_size``, for one with ``packing=`` or `filter`,
    whose samples have no number, for ``on_error="skip"``, and for the batching method
    "device_per_stream".

    >>> import grain, jax  # doctest: +SKIP
    >>> dataset = mds.StreamingDataset("data/train", batch_size=4, shuffle=True)
    >>> samples = mds.integrations.grain.MapDataset(dataset).repeat()  # doctest: +SKIP
    >>> mine = samples[jax.process_index() :: jax.process_count()]  # doctest: +SKIP
    >>> batches = mine.batch(4 // jax.process_count())  # doctest: +SKIP
    """

    def __init__(self, dataset: Samples) -> None:
        super().__init__()
        call = f"{type(self).__module__}.{type(self).__name__}"
        if not isinstance(dataset, Samples):
            raise ConfigError(
                f"{call} needs a StreamingDataset, got {type(dataset).__name__}. Write "
                "MapDataset(StreamingDataset(folder_or_url, batch_size=...)). Give a LocalDataset "
                "directly to grain.MapDataset.source."
            )
        if dataset.batch_size is None:
            raise ConfigError(
                f"{call}: the dataset has no batch_size, but its order depends on the size of a "
                "global batch. Give StreamingDataset the batch_size of all processes together."
            )
        if dataset.packing is not None:
            raise ConfigError(
                f"{call}: packing= makes packs of several samples, which have no sample number. "
                "Leave it out, and pack with grain.experimental.FirstFitPackIterDataset."
            )
        sample_filter = source_of(dataset).filter
        sample_filter.chain.refuse_samples()
        sample_filter.refuse_numbers(call, "")
        if sample_filter.skip_broken:
            raise ConfigError(
                f"{call}: on_error='skip' leaves out samples while they are read, but every item "
                "has a sample. Leave it out, and find broken samples with mds verify."
            )
        if dataset.batching_method == "device_per_stream":
            raise ConfigError(
                f"{call}: batching_method='device_per_stream' needs to know the processes, but "
                "Grain divides the samples among them. Use batching_method='per_stream'."
            )
        self._dataset = dataset
        # A copy, because the length is that of these settings.
        self._settings = copy.copy(run_of(dataset).order)
        order = self._order(0)
        # The last global batch of an epoch may be shorter than the others.
        last = order.batch(order.steps - 1) if order.steps else None
        missing = 0 if last is None else int((last < 0).sum())
        self._step_samples: int = order.shape.global_batch
        self._length: int = order.steps * self._step_samples - missing
        self._batch = _Batches()

    def _order(self, epoch: int) -> Any:
        """Return the order of an epoch, as one process sees it that takes whole global batches."""
        return self._settings.epoch_plan(epoch, World(1, 1, 1, 0))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        """Return the sample of an item, or a MapDataset for a slice."""
        if isinstance(index, slice):
            return self.slice(index)
        epoch, item = divmod(operator.index(index), self._length)
        epoch = max(epoch, 0)  # a negative index counts from the end of the first epoch
        step, place = divmod(item, self._step_samples)
        if self._batch.key != (epoch, step):
            if self._batch.epoch != epoch:
                self._batch.order, self._batch.epoch = self._order(epoch), epoch
            ids = self._batch.order.batch(step).reshape(-1)
            self._batch.ids = ids[ids >= 0].tolist()
            self._batch.key = (epoch, step)
        return self._dataset[self._batch.ids[place]]

    def __repr__(self) -> str:
        return f"MapDataset({self._dataset!r})"


class _Batches(threading.local):
    """The global batch that a thread looked up last, and the order of its epoch."""

    epoch: int = -1
    order: Any = None
    key: tuple[int, int] | None = None
    ids: list[int]

    def __reduce__(self) -> tuple[Any, ...]:
        return _Batches, ()
