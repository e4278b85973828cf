"""StreamingDataLoader: batches from a StreamingDataset, with an exact position.

To frameworks it is a torch DataLoader. Batches are made where the samples are read (in a worker
process, in a thread, or in the caller's thread), and each comes with its bookkeeping: how many
samples of the epoch it took. So the size of a batch is not guessed from its tensors, and a run
resumes exactly with packing, filters or any collate function. If samples are as stored, a batch is
gathered column by column into the memory of its tensors.
"""

from __future__ import annotations

import copy
import dataclasses
import errno
import inspect
import os
import time
import warnings
from collections.abc import Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from mds._arguments import check_arguments, no_attribute, plain_scalar
from mds._dataset.run import run_of, source_of
from mds._dataset.settings import check_assignment, raise_fixed
from mds._dataset.streaming import StreamingDataset
from mds._iteration.batch_maker import is_default_collate
from mds._loader.batches import Batches
from mds._loader.checks import (
    LOADER_RULES,
    check_generators,
    check_loader,
    check_microbatches,
    check_packs,
    check_same_columns,
    check_threads,
    check_wrapper,
    find_streaming,
    find_wrapped,
    refuse_sampling,
)
from mds._loader.counted_batches import CountedBatches, EpochCount, LoaderState
from mds._loader.messages import BatchIterator
from mds._process.mmaps import explain_limit
from mds._redaction import get_logger
from mds._words import WorkerType, plural
from mds.errors import ConfigError, NoSpaceError, PlanError, StateError
from mds.plan import OrderHash
from mds.plan._spec import OrderSpec
from mds.plan._state import ALL_KEYS

if TYPE_CHECKING:
    from mds.report import WaitReport
    from mds.report._account import CacheUse, LoaderSetup

log = get_logger("mds.loader")

# Arguments of the DataLoader inside; Batches handles the rest.
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
# Arguments that are read when the loader is made; torch refuses its own (``batch_size``, ...).
_FIXED = frozenset({"collate_fn", "microbatches", "worker_type"})
_OWN = ("worker_type", "microbatches")  # that torch's loader does not take
_ORDERED = ("shuffle", "sampler", "batch_sampler")  # after dataset and batch_size
# Options of worker processes. If one is given, worker_type="auto" chooses processes.
_ABOUT_PROCESSES = ("multiprocessing_context", "worker_init_fn", "persistent_workers", "timeout")


class StreamingDataLoader(DataLoader[Any]):
    """A torch DataLoader whose position can be saved and loaded exactly.

    The dataset determines the order, so ``shuffle``, ``sampler`` and ``batch_sampler`` are refused.
    For another kind of dataset, and for a map-style wrapper around a streaming one, it is a plain
    DataLoader without a state.

    - ``dataset`` (Any): A StreamingDataset, or an IterableDataset of yours that keeps one under
      ``.dataset``.
    - ``batch_size`` (int | None, default 1, samples): Size of a batch. If it is left out, it is
      that of the dataset; if the dataset has none, it takes that of the loader.
    - ``num_workers`` (int, default 0): Number of workers that make batches. 0 makes them in the
      thread that iterates.
    - ``worker_type`` ("auto", "processes" or "threads", default 'auto'): Kind of workers:
      ``"processes"``, as in torch, or ``"threads"``, which hand batches over without copying them.
      ``"auto"`` uses threads if only code of this library makes the batches. With ``"threads"``,
      several threads call your functions (``collate_fn``, ``map``, ``__getitem__`` of a subclass)
      at once, which is faster if they release the interpreter's lock. Options of worker processes
      (``timeout``, ``worker_init_fn``, ``multiprocessing_context``, ``persistent_workers``) are
      then refused. Both kinds need ``num_workers``.
    - ``microbatches`` (int, default 1, batches): Number of batches of this rank in a step of the
      optimizer (gradient accumulation). All that counts steps then counts steps of the optimizer:
      schedules, ``dataset.edits``, `steps_per_epoch`, ``mds run step`` and the state. ``len()``
      counts batches.
    - ``collate_fn`` (Callable | None, default None): Function that makes a batch of a list of
      samples.
    - ``drop_last`` (bool, default False): Whether a last batch that is not full is left out. With
      ``microbatches``, it is the whole last step. With ``remainder="mask"`` or ``"short"``, all
      ranks leave out a last step in which one of them lacks a sample. With ``packing``, they leave
      out every step in which a pack is missing.
    - ``prefetch_factor`` (int | None, default None, batches): Number of batches that each worker
      keeps ready; None is 2.
    - ``pin_memory`` (bool, default False): Whether tensors are copied to page-locked memory.
    - ``pin_memory_device`` (str, default ''): Device of the page-locked memory.
    - ``timeout`` (float, default 0, seconds): Longest wait for a batch of worker processes; 0 has
      no limit.
    - ``worker_init_fn`` (Callable | None, default None): Function of the worker's number that each
      worker process calls first.
    - ``multiprocessing_context`` (Any, default None): How worker processes are started.
    - ``generator`` (Any, default None): Random generator from which seeds of workers are drawn.
    - ``persistent_workers`` (bool, default False): Whether worker processes outlive an epoch.
    - ``in_order`` (bool, default True): Whether batches come in the order of the workers.

    Create a StreamingDataset for each loader: loaders of one dataset share its epoch and position,
    and warn if they iterate it in turn.

    Order, state and errors are the same with every kind of workers. Each thread has a copy of the
    dataset. In threads, torch's ``get_worker_info()`` is None, and the random generators of Python,
    NumPy and torch are those of the whole program, so draw random numbers from the argument ``rng``
    of ``map``.

    Worker processes send batches in nameless shared memory, which is used again when nothing in
    this process refers to it any more. Small batches that are made quickly arrive up to eight at
    once.

    Consecutive batches may be views of one tensor of at most 4 MB: ``clone()`` a batch that you
    keep for long or save by itself.

    With ``microbatches=k``, a step has ranks times k times ``batch_size`` samples. If this product
    stays the same, all steps have the same samples in the same order, so 4 ranks with one batch can
    go on as 2 ranks with two. In the middle of a step, the state is that of the beginning of the
    step, whose batches then come again. The last step of an epoch may have fewer batches.

    Raises ConfigError (a ValueError) for arguments that contradict each other or the dataset, and
    for threads if a class of yours iterates by itself.

    >>> loader = StreamingDataLoader(mds.StreamingDataset("data/train", batch_size=2))
    >>> for batch in loader:
    ...     state = loader.state_dict()
    ...     break
    >>> loader.load_state_dict(state)
    >>> next(iter(loader))["id"]
    tensor([2, 3])

    Two batches for each step of the optimizer:

    >>> dataset = mds.StreamingDataset("data/train", batch_size=2)
    >>> loader = mds.StreamingDataLoader(dataset, microbatches=2, drop_last=True)
    >>> for number, batch in enumerate(loader, 1):  # doctest: +SKIP
    ...     (model(batch) / 2).backward()
    ...     if number % 2 == 0:
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    >>> len(loader), loader.steps_per_epoch
    (4, 2)
    """

    #: Whether arguments that break a rule are refused.
    _is_strict = True

    #: Clock, in seconds, that times the waits and the making of batches.
    _clock = staticmethod(time.perf_counter)

    def __init__(
        self,
        dataset: Any,
        *args: Any,
        worker_type: WorkerType = "auto",
        microbatches: int = 1,
        **kwargs: Any,
    ) -> None:
        microbatches = plain_scalar(microbatches)
        own = {"worker_type": worker_type, "microbatches": microbatches}
        self._check_arguments(dataset, args, {**own, **kwargs})
        if "batch_size" in kwargs:
            kwargs["batch_size"] = plain_scalar(kwargs["batch_size"])
        self._streaming = find_streaming(dataset)
        if self._streaming is not None:
            self._refuse_sampling(args, kwargs)
            self._agree_on_batch_size(args, kwargs)
        super().__init__(dataset, *args, **kwargs)
        self.microbatches = microbatches
        if microbatches > 1:
            check_microbatches(self, self._streaming)
        if self._streaming is not None:
            check_packs(self, self._streaming)
        self._check_fit(dataset)
        self._batches = Batches(
            dataset, self.batch_size, self.drop_last, self.collate_fn, self._clock
        )
        if worker_type == "threads":
            self._check_threads(kwargs)
        self._threaded = worker_type == "threads" or (
            worker_type == "auto" and self._may_use_threads(kwargs)
        )
        # Settings of the order, number of workers, and the batches of an epoch with these.
        self._counted: tuple[OrderSpec, int, int] | None = None
        self._has_warned_of_length = False
        self._samples_yielded = 0  # that code of mosaicml-streaming has set, without a state
        state = None
        if self._streaming is not None:
            # Accelerate's prepare() hands loaders with this mark back as they are. It would deal
            # out again what rank 0 reads, and the other ranks' samples would never be seen.
            self._is_accelerate_prepared = True
            run = run_of(self._streaming)
            run.has_loader = True
            run.has_row_per_sample = self._batches.has_row_per_sample
            order = run.order
            if order.spec.microbatches != microbatches:
                order.spec = dataclasses.replace(order.spec, microbatches=microbatches)
            state = LoaderState(
                run,
                type(dataset),
                workers=self.num_workers,
                batch_size=self.batch_size,
                microbatches=microbatches,
                drop_last=self.drop_last,
                is_of_order=self._batches.is_of_order,
                is_strict=self._is_strict,
                advises_on_lists=self._is_strict and self.collate_fn is default_collate,
                clock=self._clock,
            )
        self._loader_state = state  # set last, see __setattr__

    def _check_steps(self) -> None:
        """Raise ConfigError if the dataset no longer divides its steps as this loader does."""
        if self._streaming is None:
            return
        if self.microbatches > 1:
            check_microbatches(self, self._streaming)  # batch_size may have been assigned
        count = run_of(self._streaming).order.spec.microbatches
        if count != self.microbatches:
            raise ConfigError(
                f"microbatches={self.microbatches}: another StreamingDataLoader has divided the "
                f"steps of this dataset into {count}. Create a StreamingDataset for each loader."
            )

    def _check_arguments(self, dataset: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check the arguments by `LOADER_RULES`; a loader of mds.compat checks only its own.

        ``args`` and ``kwargs`` are all arguments besides the dataset. Raises ConfigError.
        """
        if self._is_strict:
            # Names of torch's parameters after self and dataset, to which args belong.
            names = [*inspect.signature(DataLoader.__init__).parameters][2:]
            arguments = {**dict(zip(names, args, strict=False)), **kwargs}
            check_loader(type(self).__name__, dataset, arguments, [*names, *_OWN])
        else:
            rules = {name: LOADER_RULES[name] for name in _OWN}
            check_arguments(type(self).__name__, kwargs, rules)

    def _check_threads(self, kwargs: Mapping[str, Any]) -> None:
        """Refuse threads if the user's code cannot run in them, and options without effect.

        Raises ConfigError.
        """
        if not self._batches.may_use_threads:
            raise ConfigError(
                f"worker_type='threads': {type(self.dataset).__name__} has its own __iter__, so "
                "each thread would read all samples. Create samples in __getitem__ of a subclass "
                "or in map(), or use worker_type='processes'."
            )
        if self._streaming is not None:
            check_generators(self._streaming)
        check_threads(kwargs, _ABOUT_PROCESSES)

    def _may_use_threads(self, kwargs: Mapping[str, Any]) -> bool:
        """Return True if ``worker_type="auto"`` uses threads instead of processes.

        Nobody can notice that but by the speed, because no code of the user runs in the workers
        (``is_made_here``), and no option of worker processes is given.
        """
        return (
            self.num_workers > 0
            and self._batches.is_made_here
            and not any(kwargs.get(name) for name in _ABOUT_PROCESSES)
        )

    @staticmethod
    def _refuse_sampling(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse ``shuffle``, ``sampler`` and ``batch_sampler``, unless they are None or False.

        ``args``: positional arguments after the dataset. Raises ConfigError.
        """
        # args[0] is batch_size, args[1:4] are the three.
        arguments = {**dict(zip(_ORDERED, args[1:4], strict=False)), **kwargs}
        names = [name for name in _ORDERED if arguments.get(name, False) not in (None, False)]
        if names:
            refuse_sampling(names)

    def _check_fit(self, dataset: Any) -> None:
        """Check that a dataset and this loader fit together: wrappers, batch sizes, columns.

        Raises ConfigError for what cannot work, and warns of an inexact position or hidden samples.
        """
        streaming = self._streaming
        if streaming is None:
            check_wrapper(dataset, len(dataset) if hasattr(type(dataset), "__len__") else None)
        elif (
            streaming is dataset
            and self.num_workers > 1  # ranks may not be known yet: Lightning makes them later
            and self.batch_size not in {None, streaming.batch_size}
        ):
            warning = (
                f"the loader has batch_size {self.batch_size} but the dataset has "
                f"{streaming.batch_size}. With several workers, a position within an epoch is "
                "then not exact. Give batch_size to one of the two, or the same to both."
            )
            warnings.warn(warning, stacklevel=3)
        is_collated = self._is_strict and self.collate_fn is default_collate
        if streaming is not None and streaming is dataset and is_collated:
            check_same_columns(streaming)

    def _agree_on_batch_size(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the batch size of the dataset for the loader, or the other way round.

        ``args``: positional arguments after the dataset; the first one is the batch size.
        """
        dataset = self._streaming
        assert dataset is not None
        if not args and "batch_size" not in kwargs and "batch_sampler" not in kwargs:
            if dataset.batch_size is None:
                raise ConfigError("batch_size is missing. Pass it to the dataset or to the loader.")
            kwargs["batch_size"] = dataset.batch_size
        elif dataset.batch_size is None:
            dataset.batch_size = args[0] if args else kwargs.get("batch_size")

    def __len__(self) -> int:
        """Return ``len(dataset)`` in batches, as mosaicml-streaming does.

        The exact number of batches of this rank is `steps_per_epoch`, if no step is divided. Both
        are equal with ``remainder``, ``schedule`` and ``packing``; if they differ, a warning is
        given once. With ``microbatches`` the result is always exact.
        """
        if not self._counts_steps:
            return super().__len__()
        streaming = self._streaming
        assert streaming is not None
        if self.microbatches > 1 or run_of(streaming).order.counts_batches:
            return self._batches_per_epoch
        length = super().__len__()
        try:
            steps = self._batches_per_epoch
        except PlanError:  # impossible for these ranks, but a state may still be loaded
            return length
        if length != steps and not self._has_warned_of_length:
            self._has_warned_of_length = True
            warnings.warn(
                f"len() of this loader is {length:,}, from the number of samples, but an epoch "
                f"has {plural(steps, 'batch')}: padding adds samples, or batching_method drops "
                "some. Use "
                "loader.steps_per_epoch for a learning rate schedule.",
                stacklevel=2,
            )
        return length

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of a whole epoch on this rank, of ``microbatches`` batches each.

        Steps before a resume and steps that `OrderEdits.skip_steps` leaves out are counted; a
        filter makes batches smaller and not fewer. For a dataset that this library does not
        iterate, it follows from ``len(loader)``.
        """
        batches = self._batches_per_epoch if self._counts_steps else super().__len__()
        return -(-batches // self.microbatches)

    @property
    def _batches_per_epoch(self) -> int:
        """Number of batches of a whole epoch on this rank, if `_counts_steps`."""
        streaming = self._streaming
        assert streaming is not None
        self._check_steps()
        if streaming.packing is not None:  # an estimate, or another number in each epoch
            from mds._dataset.steps import count_steps

            run = run_of(streaming)
            steps = count_steps(run.order, run.world(), drop_last=self.drop_last)
            return steps * self.microbatches
        spec, workers = run_of(streaming).order.spec, max(1, self.num_workers)
        counted = self._counted
        # Counting is slow, so count again only for other settings. Loading a state makes another
        # spec, which may have equal values; so compare the objects.
        if counted is None or counted[0] is not spec or counted[1] != workers:
            counted = self._counted = spec, workers, self._count_batches(streaming, workers)
        return counted[2]

    @property
    def _counts_steps(self) -> bool:
        """True if the order determines the number of batches, and no class of the user."""
        streaming = self._streaming
        if streaming is None or not self._batches.is_of_order:
            return False
        has_plain_length = type(streaming).__len__ is StreamingDataset.__len__
        return (self._is_strict and has_plain_length) or streaming.packing is not None

    def _count_batches(self, streaming: StreamingDataset, workers: int) -> int:
        """Count the batches of all ``workers`` of this rank in a whole epoch."""
        # Each worker makes batches of its own samples, so each may have a last one that is smaller.
        run = run_of(streaming)
        world = run.world(workers)
        samples = run.order.worker_samples(world)
        size = self.batch_size or 1
        if self.drop_last and streaming.remainder != "repeat":
            from mds._dataset.steps import TrainingSteps

            return TrainingSteps(run.order, world).full_steps(0) * run.order.spec.batch() // size
        if self.drop_last and self.microbatches > 1:  # only whole steps come
            return sum(samples) // (size * self.microbatches) * self.microbatches
        return sum(count // size if self.drop_last else -(-count // size) for count in samples)

    @property
    def num_samples_yielded(self) -> int:
        """Number of places of the order that the batches of this rank took in this iteration."""
        return (
            self._samples_yielded
            if self._loader_state is None
            else self._loader_state.count.samples
        )

    @num_samples_yielded.setter
    def num_samples_yielded(self, samples: int) -> None:
        if self._loader_state is None:
            self._samples_yielded = samples
        else:
            self._loader_state.count.samples = self._loader_state.count.share = samples

    @property
    def order_hash(self) -> OrderHash:
        """Hash of the samples of this rank in this iteration; the sum over ranks is the plan's."""
        return OrderHash() if self._loader_state is None else self._loader_state.count.order_hash

    def report(self) -> WaitReport:
        """Return why the trainer waits for batches, and which argument would help.

        The report prints as a paragraph; its ``cause`` is one of `mds.report.CAUSES`. It may be
        made at any time and is about the current iteration, or else the last one. Raises
        ConfigError for a dataset that is not a streaming one.

        >>> loader = mds.StreamingDataLoader(mds.StreamingDataset("data/train", batch_size=2))
        >>> loader.report().cause  # before the first batch
        'none'
        """
        if self._loader_state is None or self._streaming is None:
            raise ConfigError(
                "report() needs a StreamingDataset, but this loader reads a "
                f"{type(self.dataset).__name__}. Give the loader a StreamingDataset, or an "
                "IterableDataset that iterates one."
            )
        from mds.report._diagnosis import explain_waits

        return explain_waits(
            self._loader_state.count.waits,
            _loader_setup(self, self._streaming, is_threaded=self._threaded),
            _cache_use(self._streaming, self._loader_state.samples_read),
        )

    def __getattr__(self, name: str) -> Any:
        raise no_attribute(self, name, "StreamingDataLoader")

    def __setattr__(self, name: str, value: Any) -> None:
        if "_loader_state" in vars(self):  # __init__ has set _loader_state, so it is over
            if name in _FIXED:
                raise_fixed(self, name, value)
            if self._is_strict and not name.startswith("_"):  # not for what a batch changes
                check_assignment(self, name, value, LOADER_RULES, LOADER_RULES)
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loader_state": copy.copy(self._loader_state)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._loader_state is not None and self._streaming is not None:
            self._loader_state.run, self._loader_state.reader = (
                run_of(self._streaming),
                type(self.dataset),
            )

    def __iter__(self) -> Any:
        """Begin an epoch, and return an iterator over its batches."""
        state = self._loader_state
        if state is None:
            return super().__iter__()
        state.run.check_ranks()
        self._check_steps()
        batches = CountedBatches(state, self._make_batches)
        # While an earlier iterator is in use, state_dict() is about that one. The new one takes
        # over with its first batch.
        state.begin(batches)
        return batches

    def _batches_of_epoch(
        self, *, may_be_over: bool = False, may_stop: bool = False
    ) -> Iterator[Any]:
        """Yield the batches of the rest of an epoch.

        A state that was saved after the last batch of an epoch leaves no batch. The next epoch
        follows then, unless the rest may be over (``may_be_over``). Raises ConfigError for a whole
        epoch without batches, also if a schedule has ended the training, unless that is expected
        (``may_stop``).
        """
        assert self._loader_state is not None
        run, is_empty = self._loader_state.run, True
        while is_empty:
            state = self.state_dict()
            is_whole = state["finished"] or not state["sample_in_epoch"]
            batches = StreamingDataLoader.__iter__(self)
            batches.is_followed = True
            for batch in batches:
                is_empty = False
                yield batch
            if is_empty and is_whole:
                if not run.order.may_stop or state["epoch"] < 0:
                    raise self._loader_state.empty_epoch_error()
                if may_stop:
                    return
                raise ConfigError(
                    "the schedule has ended the training (exhausted='stop'), but the trainer "
                    "begins another epoch. Give the trainer as many steps as the schedule has "
                    "samples for, or the schedule exhausted='repeat'."
                )
            if may_be_over:
                return

    def _batches_of_epochs(self) -> Generator[Any, None, None]:
        """Yield the batches of epochs that follow each other, until a schedule ends the training.

        Raises ConfigError as `_batches_of_epoch` does.
        """
        is_over = False
        while not is_over:
            is_over = True
            for batch in self._batches_of_epoch(may_stop=True):
                is_over = False
                yield batch

    def _make_batches(self) -> Iterator[Any]:
        """Begin an epoch, and return its batches with their bookkeeping."""
        source: IterableDataset[Any]
        state = self._loader_state
        assert state is not None
        state.workers = self.num_workers
        state.is_in_processes = bool(self.num_workers) and not self._threaded
        if state.is_in_processes:
            if state.inner is None or not self.persistent_workers:
                from mds._loader.worker_batches import WorkerBatches

                source = WorkerBatches(self._batches, self.num_workers)
                state.inner = self._make_inner(source, **self._passed_on())
            try:
                return BatchIterator(iter(state.inner), self.num_workers)
            except OSError as error:
                raise _start_error(error, self.num_workers) from error
        source = self._batches
        if self._threaded:
            workers = max(1, self.num_workers)
            from mds._loader.threads import ThreadedBatches

            source = ThreadedBatches(self._batches, workers, self.prefetch_factor or 2)
        if self.pin_memory:
            pinning = self._make_inner(source, pin_memory=True, generator=self.generator)
            return iter(pinning)
        # Without a DataLoader inside, whose ``next`` costs 10 us a batch. It would draw a seed even
        # without workers; so it is drawn here too, and later random numbers are the same.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return iter(source)

    def _passed_on(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _PASSED_ON if hasattr(self, name)}

    @staticmethod
    def _make_inner(source: IterableDataset[Any], **settings: Any) -> DataLoader[Any]:
        """Return torch's DataLoader of ``source``, which passes on its batches unchanged."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the outer loader has warned already
            return DataLoader(source, batch_size=None, collate_fn=_identity, **settings)

    def __repr__(self) -> str:
        name = type(self).__name__
        kind = "threads" if self._threaded else "processes"
        workers = f"{self.num_workers} {kind}" if self.num_workers else "no workers"
        steps = f", {self.microbatches} in a step," if self.microbatches > 1 else ""
        head = f"<{name}: batches of {self.batch_size}{steps} by {workers}"
        if self._streaming is None:
            return f"{head}, from a {type(self.dataset).__name__}, without a state>"
        samples = plural(self.num_samples_yielded, "sample")
        return f"{head}, {samples} yielded, from {self._streaming!r}>"

    # Typed as never None, so that a state can be passed on: it is None only without a streaming
    # dataset, where a training has no use for it.
    def state_dict(self) -> dict[str, Any]:
        """Return the position of all ranks, for `load_state_dict` on any number of ranks.

        It is the dict that `load_state_dict` takes: ``dataset.state_dict()`` with the
        ``order_hash`` of the samples so far, which is ``""`` before the first batch. Its keys and
        their types are always the same, so torch.distributed.checkpoint loads all of it. Returns
        None if the dataset is not a streaming one, with a warning if a wrapper hides one.
        """
        if self._loader_state is None or self._streaming is None:
            if find_wrapped(self.dataset) is not None:
                warnings.warn(self._no_position(), stacklevel=2)
            return None  # type: ignore[return-value]
        count, run, streaming = self._loader_state.count, self._loader_state.run, self._streaming
        self._check_steps()
        self._loader_state.warn_if_inexact()
        position = run.order.position_of(count, streaming.num_ranks)
        state: dict[str, Any] = {}
        # Before the first batch the dataset knows the position. A subclass that overrides
        # state_dict() is always asked, because it may add keys.
        if position is None or type(streaming).state_dict is not StreamingDataset.state_dict:
            # Where batches report the position (`count.end`), a number of samples says none.
            samples = 0 if count.end is not None else count.share * streaming.num_ranks
            state = streaming.state_dict(samples, from_beginning=False)
        if position is not None:
            # The position of this iteration, even if the dataset has begun another one.
            own_keys = {key: value for key, value in state.items() if key not in ALL_KEYS}
            state = own_keys | run.order.state(run.world(), position)
        # Before the first batch there is no hash to compare. Steps without packs add no samples to
        # the hash, but they have a position.
        order_hash = count.hash_of_steps
        has_hash = order_hash.count or count.end is not None
        return {**state, "order_hash": str(order_hash)} if has_hash else state

    def load_state_dict(self, obj: Mapping[str, Any] | None, *, other_data: bool = False) -> None:
        """Continue from a state with the next iteration.

        - ``obj`` (Mapping[str, Any] | None): A result of `state_dict`.
        - ``other_data`` (bool, default False): Whether the data may have other contents, see
          `StreamingDataset.load_state_dict`.

        Call it on every rank. A state that was saved after the loop over an epoch begins the next
        epoch. Raises StateError (a ValueError) if the state is of another dataset or order, and if
        the streaming dataset is inside a wrapper that keeps no position.

        >>> loader = mds.StreamingDataLoader(mds.StreamingDataset("data/train", batch_size=2))
        >>> batch, state = next(iter(loader)), loader.state_dict()
        >>> loader.load_state_dict(state)  # in the next process
        >>> next(iter(loader))["id"].tolist()
        [2, 3]
        """
        if self._streaming is not None:
            self._check_steps()
            # A subclass may have a load_state_dict() without this argument.
            options = {"other_data": True} if other_data else {}
            self._streaming.load_state_dict(obj, **options)  # type: ignore[arg-type]
            assert self._loader_state is not None
            self._loader_state.count = EpochCount()
        elif obj is not None and find_wrapped(self.dataset) is not None:
            raise StateError(self._no_position())

    def _go_to_epoch(self, epoch: int) -> None:
        """Begin an epoch with the next iteration, with the settings of the present state."""
        begin = {"epoch": epoch, "sample_in_epoch": 0, "finished": False}
        self.load_state_dict({**self.state_dict(), **begin, "cursor": "null", "order_hash": ""})

    def _no_position(self) -> str:
        """Return the message that a wrapper around a StreamingDataset keeps no position."""
        name = type(self.dataset).__name__
        if isinstance(self.dataset, IterableDataset):
            return (
                f"{name} has no position, because the loader found no StreamingDataset in its "
                "attribute self.dataset. To resume, store the StreamingDataset as self.dataset, "
                "or use one StreamingDataset with several streams: streams=[Stream(...), "
                "Stream(...)]."
            )
        return (
            f"{name} has no position, because torch reads its samples by number, in torch's "
            "order. To resume, transform samples with dataset.map(function), or use an "
            "IterableDataset that iterates self.dataset."
        )


def _start_error(error: OSError, workers: int) -> OSError:
    """Return an error with a remedy for worker processes that could not be started."""
    if error.errno == errno.ENOSPC:
        return NoSpaceError(
            f"start {workers} worker processes: /dev/shm is full, where Python keeps their locks. "
            "Delete old files there, give the container more (docker run --shm-size=1g), or use "
            "worker threads: worker_type='threads'.",
            url="/dev/shm",  # noqa: S108 - the system's own folder
            verb="write",
        )
    return explain_limit(error, "a pipe to a worker process")


def _identity(batch: Any) -> Any:
    return batch


def _loader_setup(loader: Any, dataset: StreamingDataset, *, is_threaded: bool) -> LoaderSetup:
    """Return the settings of a loader that a report needs, with its dataset's columns.

    ``is_threaded``: whether its workers are threads.
    """
    from mds.report._account import LoaderSetup
    from mds.transforms._chain import name_of

    ranks = run_of(dataset).world().ranks_per_node
    source = source_of(dataset)
    collate = loader.collate_fn
    is_users = not is_default_collate(collate)
    columns = {  # pairs of name and encoding without parameters, such as ("x", "ndarray")
        (name, encoding.partition(":")[0])
        for index in source.shards.indexes
        for schema in index.schemas
        for name, encoding in zip(schema.columns.names, schema.columns.encodings, strict=True)
    }
    return LoaderSetup(
        workers=loader.num_workers,
        kind="threads" if is_threaded else "processes",
        cores=max(1, _usable_cores() // max(ranks, 1)),  # for this rank
        functions=tuple(link.name for link in source.filter.chain.links),
        collate=name_of(collate) if is_users else "",
        columns=tuple(sorted(columns)),
    )


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cache_use(dataset: StreamingDataset, samples: int) -> CacheUse:
    """Return what this rank fetched, to compare with the shards that it needs.

    `report` compares ``fetches`` with ``needed``, both in shards: many more fetches mean that
    shards were evicted and fetched again.

    ``samples``: number of samples that this rank has read in all its epochs.
    """
    from mds.report._account import CacheUse

    stats, indexes = dataset.stats(), source_of(dataset).shards.indexes
    shards = sum(len(index) for index in indexes)
    world = run_of(dataset).world()
    # Fraction of the dataset that this rank needs, at most 1 / number of ranks. For example, with 4
    # ranks that have each read 1,000 of 10,000 samples it is 0.1.
    part = min(samples * world.num_ranks / max(dataset.num_samples, 1), 1.0) / world.num_ranks
    # A shard that does not fit into the cache is fetched to memory and released after its use: that
    # counts as a fetch and an eviction.
    fetches = int(stats["fetched_shards"] + stats["in_memory_shards"])
    return CacheUse(
        limit=dataset.cache_limit,
        total=sum(int(index.raw_size.sum()) for index in indexes) // max(world.num_nodes, 1),
        shards=shards,
        is_compressed=any(index.zip_size.any() for index in indexes),
        fetches=fetches,
        needed=part * shards,
        evictions=int(stats["evicted_shards"] + stats["in_memory_shards"]),
        bytes_fetched=int(stats["fetched_bytes"] + stats["ranged_bytes"]),
        ranged_bytes=int(stats["ranged_bytes"]),
    )
