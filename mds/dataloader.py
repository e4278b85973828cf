"""StreamingDataLoader: batches from a StreamingDataset, counted where they are made.

To frameworks it is the torch DataLoader that they know. Inside, batches are assembled next to the
samples (in the worker process, the thread, or here) and travel with a tag: how many samples of the
epoch they used up. So nobody guesses a batch's size from its tensors, and packing, filtering or any
collate function resumes exactly. Where samples are nothing but the readers' columns, a batch is
gathered column by column into the memory that becomes the tensor.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from mds.batches import Batches, Threaded, find_streaming
from mds.bundles import Tag, Unbundled
from mds.errors import ConfigError
from mds.plan import OrderHash

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
# Options that make no sense without worker processes: whoever gives one wants them.
_ABOUT_PROCESSES = ("multiprocessing_context", "worker_init_fn", "persistent_workers", "timeout")


class StreamingDataLoader(DataLoader[Any]):
    """A torch DataLoader whose position can be saved and loaded exactly.

    Takes what DataLoader takes. ``batch_size`` may be left to the dataset, or the dataset's be left
    to the loader. For another kind of dataset it is a plain DataLoader, without a state.

    ``workers``: whether the ``num_workers`` are "processes", as in torch, or "threads", which hand
    batches over without copying them; order, state and errors are the same. "auto" takes threads
    where nothing but the library's own code makes the batches (no subclass, no collate function, no
    option that is about processes). Raises ConfigError (a ValueError) for another word, and for
    threads where the caller's code makes the samples.

    Consecutive batches may be views of one tensor of at most 4 MB: ``clone()`` a batch that is to
    be kept for long or saved by itself.

    >>> loader = StreamingDataLoader(dataset, num_workers=8)  # doctest: +SKIP
    >>> for batch in loader:
    ...     torch.save(loader.state_dict(), "position.pt")
    """

    def __init__(self, dataset: Any, *args: Any, workers: str = "auto", **kwargs: Any) -> None:
        if workers not in {"auto", "processes", "threads"}:
            raise ConfigError(f"workers is 'auto', 'processes' or 'threads', got {workers!r}.")
        self._streaming = find_streaming(dataset)
        if self._streaming is not None:
            self._agree_on_batch_size(args, kwargs)
        super().__init__(dataset, *args, **kwargs)
        self._batches = Batches(dataset, self.batch_size, self.drop_last, self.collate_fn)
        if workers == "threads" and not self._batches.is_plain:
            raise ConfigError(
                f"workers='threads' is for samples as they are stored; {type(dataset).__name__} "
                "changes them, in code that may not be fit for threads. Use processes."
            )
        self._threaded = workers == "threads" or (
            workers == "auto" and self._may_use_threads(kwargs)
        )
        self._inner: DataLoader[Any] | None = None
        self.num_samples_yielded = 0
        #: Of the samples of this rank in this iteration; the sum over ranks is the plan's.
        self.order_hash = OrderHash()
        if self._streaming is not None:
            # Accelerate's prepare() hands loaders with this mark back as they are. It would deal
            # out again what rank 0 reads, and the other ranks' samples would never be seen.
            self._is_accelerate_prepared = True

    def _may_use_threads(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether nobody could tell threads from processes, but for the speed."""
        return (
            self.num_workers > 0
            and self._batches.is_made_here
            and not any(kwargs.get(name) for name in _ABOUT_PROCESSES)
        )

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
        self.num_samples_yielded, self.order_hash = 0, OrderHash()
        if self._streaming is None:
            return super().__iter__()
        if self.num_workers and not self._threaded:
            if self._inner is None or not self.persistent_workers:
                self._inner = self._make_inner(self._batches, **self._passed_on())
            return _Counted(self, Unbundled(iter(self._inner), self.num_workers))
        source: IterableDataset[Any] = self._batches
        if self._threaded:
            source = Threaded(self._batches, max(1, self.num_workers), self.prefetch_factor or 2)
        if self.pin_memory:
            pinning = self._make_inner(source, pin_memory=True, generator=self.generator)
            return _Counted(self, iter(pinning))
        # Without a loader inside, whose ``next`` costs 10 us a batch. torch's iterator draws a seed
        # even where it has no workers: random numbers must not depend on which loader is taken.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return _Counted(self, iter(source))

    def _passed_on(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _PASSED_ON if hasattr(self, name)}

    @staticmethod
    def _make_inner(source: IterableDataset[Any], **settings: Any) -> DataLoader[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about workers; said of the outer one
            return DataLoader(source, batch_size=None, collate_fn=_as_it_is, **settings)

    def count(self, tag: Tag) -> None:
        """Note what a batch took from the order; called for each batch that is handed out."""
        self.num_samples_yielded += tag.samples
        self.order_hash.take(*tag.order)
        # A worker process reports what it left out to its own copy of the dataset.
        if tag.left_out and self.num_workers and self._streaming is not None:
            self._streaming.left_out.extend(tag.left_out)

    def state_dict(self) -> dict[str, Any] | None:
        """Where this rank is, for ``load_state_dict`` on this or another number of ranks.

        None when the dataset is not a streaming one.
        """
        if self._streaming is None:
            return None
        samples = self.num_samples_yielded * self._streaming.num_ranks
        state = self._streaming.state_dict(samples, from_beginning=False)
        return {**state, "order_hash": str(self.order_hash)} if self.order_hash.count else state

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
        tag, batch = next(self._inner)
        self._loader.count(tag)
        return batch

    def __getattr__(self, name: str) -> Any:
        # Tools look into a DataLoader's iterator (for its workers, say): show them the real one.
        return getattr(self._inner, name)


def _as_it_is(batch: Any) -> Any:
    return batch
