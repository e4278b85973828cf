"""StreamingDataLoader: batches from a StreamingDataset, counted where they are made.

To frameworks it is the torch DataLoader that they know. Inside, batches are assembled next to the
samples (in the worker process, the thread, or here) and travel with a tag: how many samples of the
epoch they used up. So nobody guesses a batch's size from its tensors, and packing, filtering or any
collate function resumes exactly. Where samples are nothing but the readers' columns, a batch is
gathered column by column into the memory that becomes the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from mds.batches import Batches, find_streaming
from mds.errors import ConfigError

# What the DataLoader inside is told; the rest is the business of Batches.
_PASSED_ON = (
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


class StreamingDataLoader(DataLoader[Any]):
    """A torch DataLoader whose position can be saved and loaded exactly.

    Takes what DataLoader takes. ``batch_size`` may be left to the dataset, or the dataset's be left
    to the loader. For another kind of dataset it is a plain DataLoader, without a state.

    >>> loader = StreamingDataLoader(dataset, num_workers=8)  # doctest: +SKIP
    >>> for batch in loader:
    ...     torch.save(loader.state_dict(), "position.pt")
    """

    def __init__(self, dataset: Any, *args: Any, **kwargs: Any) -> None:
        self._streaming = find_streaming(dataset)
        if self._streaming is not None:
            self._agree_on_batch_size(args, kwargs)
        super().__init__(dataset, *args, **kwargs)
        self._inner: DataLoader[Any] | None = None
        self.num_samples_yielded = 0

    def _agree_on_batch_size(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Let the dataset and the loader have the batch size that one of them was given."""
        dataset = self._streaming
        assert dataset is not None
        if not args and "batch_size" not in kwargs and "batch_sampler" not in kwargs:
            if dataset.batch_size is None:
                raise ConfigError("batch_size is needed, for the dataset or for the loader.")
            kwargs["batch_size"] = dataset.batch_size
        elif dataset.batch_size is None:
            dataset.batch_size = args[0] if args else kwargs.get("batch_size")

    def __iter__(self) -> Any:
        self.num_samples_yielded = 0
        if self._streaming is None:
            return super().__iter__()
        if self._inner is None or not self.persistent_workers:
            self._inner = self._make_inner()
        return _Counted(self, iter(self._inner))

    def _make_inner(self) -> DataLoader[Any]:
        settings = {name: getattr(self, name) for name in _PASSED_ON if hasattr(self, name)}
        if not self.num_workers:
            settings = {k: settings[k] for k in ("pin_memory", "generator") if k in settings}
        batches = Batches(self.dataset, self.batch_size, self.drop_last, self.collate_fn)
        return DataLoader(batches, batch_size=None, collate_fn=_as_it_is, **settings)

    def state_dict(self) -> dict[str, Any] | None:
        """Where this rank is, for ``load_state_dict`` on this or another number of ranks.

        None when the dataset is not a streaming one.
        """
        if self._streaming is None:
            return None
        samples = self.num_samples_yielded * self._streaming.num_ranks
        return self._streaming.state_dict(samples, from_beginning=False)

    def load_state_dict(self, obj: Mapping[str, Any]) -> None:
        """Let the next iteration go on from ``obj``; to be called on every rank.

        Raises StateError (a ValueError) when it is of another dataset or order.
        """
        if self._streaming is not None:
            self._streaming.load_state_dict(obj)
            self.num_samples_yielded = 0


class _Counted:
    """The iterator of one epoch: takes the tags off and counts them."""

    def __init__(self, loader: StreamingDataLoader, inner: Iterator[Any]) -> None:
        self._loader, self._inner = loader, inner

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> Any:
        samples, batch = next(self._inner)
        self._loader.num_samples_yielded += samples
        return batch

    def __getattr__(self, name: str) -> Any:
        # Tools look into a DataLoader's iterator (for its workers, say): show them the real one.
        return getattr(self._inner, name)


def _as_it_is(batch: Any) -> Any:
    return batch
