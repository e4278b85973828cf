"""Scheduler of a conversion: it has parts read and shards written, and publishes the index last.

Finished parts and shards are recorded in the work folder (`Checkpoint`), so a conversion that was
stopped at any moment can resume.
"""

from __future__ import annotations

import contextlib
import html
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mds._redaction import printable
from mds._shardfile.layout import config_bytes, empty_shard_size
from mds._units import format_bytes
from mds._words import plural
from mds.encodings import parse_encoding
from mds.errors import SourceError, WriterError
from mds.storage._url import redact
from mds.writers._engines import Engine, open_engine
from mds.writers.convert._checkpoint import Checkpoint, PartDone
from mds.writers.convert._inputs.base import InputPart
from mds.writers.convert._output import (
    ConversionLocks,
    check_output,
    check_shards,
    publish_index,
    read_index,
    remove_temporary_files,
)
from mds.writers.convert._read_part import MAX_LISTED_RECORDS, ReadSpec, read_part
from mds.writers.convert._spec import ConvertSpec
from mds.writers.convert._tokens import load_tokenizer
from mds.writers.convert._write_shard import Output, Shard, ShardCutter, write_shard

_SECONDS_BETWEEN_BARS = 0.2  # in a notebook


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a conversion.

    - ``size`` (int), ``whole`` (int): Bytes of the source that are done, and all of its bytes (0 if
      unknown). A byte that is read counts half until its shard is written.
    - ``samples`` (int), ``shards`` (int): Number of samples and shards that are finished.
    - ``bad`` (int): Number of records that were left out.
    """

    size: int
    whole: int
    samples: int
    shards: int
    bad: int


@dataclass(frozen=True, slots=True)
class SplitSummary:
    """Result of one split; sizes in bytes, ``zip_size`` 0 without compression."""

    name: str
    samples: int
    shards: int
    raw_size: int
    zip_size: int


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """Result of a conversion.

    - ``out`` (str), ``seconds`` (float): The output, and the time that the conversion took.
    - ``bad_count`` (int): Number of records that were left out; ``bad`` describes the first ones.
    - ``notes`` (tuple[str, ...]): Remarks for the user: on the source and its plan, such as files
      that were left out, and on the conversion.
    - ``resumed_parts`` (int): Number of parts that an earlier run had read.
    """

    out: str
    splits: tuple[SplitSummary, ...]
    seconds: float
    bad_count: int = 0
    bad: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    resumed_parts: int = 0
    #: False if an earlier run had finished the conversion.
    is_new: bool = True

    @property
    def samples(self) -> int:
        """Number of samples of all splits."""
        return sum(split.samples for split in self.splits)

    def __repr__(self) -> str:
        """Return the result in lines for people: what was written, and the notes."""
        lines = [f"<Summary of {redact(self.out)} in {self.seconds:.1f} s"]
        for split in self.splits:
            name = f"{split.name}: " if split.name else ""
            size = format_bytes(split.zip_size or split.raw_size)
            lines.append(
                f"{name}{plural(split.samples, 'sample')} in {plural(split.shards, 'shard')}, "
                f"{size}"
            )
        if self.bad_count:
            lines.append(f"{plural(self.bad_count, 'record')} left out")
        lines += [f"note: {printable(note)}" for note in self.notes]
        return "\n  ".join(lines) + ">"

    def _repr_html_(self) -> str:
        """Return the same lines for a notebook."""
        return f"<pre>{html.escape(repr(self)[1:-1])}</pre>"


def show_in_notebook() -> Callable[[Progress], None] | None:
    """Return a function that shows progress below the cell of a notebook; None elsewhere."""
    ipython: Any = sys.modules.get("IPython")
    if getattr(ipython and ipython.get_ipython(), "kernel", None) is None:
        return None
    page = ipython.display
    handle = page.display(page.HTML("converting"), display_id=True)
    shown_at = 0.0

    def show(progress: Progress) -> None:
        """Draw the bar again, at most a few times in a second."""
        nonlocal shown_at
        is_done = progress.size == progress.whole
        if time.monotonic() - shown_at < _SECONDS_BETWEEN_BARS and not is_done:
            return
        shown_at = time.monotonic()
        value = f' value="{progress.size}" max="{progress.whole}"' if progress.whole else ""
        words = f"{plural(progress.samples, 'sample')}, {plural(progress.shards, 'shard')}"
        handle.update(page.HTML(f"<progress{value}></progress> {words}"))

    return show


def run(
    reading: ReadSpec,
    output: Output,
    spec: ConvertSpec,
    identity: dict[str, Any],
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Convert, and return what was written; see `Conversion.run`.

    - ``reading`` (ReadSpec), ``output`` (Output): Settings of the processes that read and write.
    - ``spec`` (ConvertSpec): The options of the conversion.
    - ``identity`` (dict[str, Any]): All that decides the output; a resume must have the same.
    - ``progress`` (function, default None): Called after every part and shard.
    """
    began = time.monotonic()
    with ConversionLocks(output) as locks:
        locks.lock_output()
        if check_output(output, spec):
            # An earlier run has published this dataset. Perhaps its work folder is left.
            reading.checkpoint.remove()
            note = "the conversion was already complete"
            seconds = time.monotonic() - began
            return Summary(
                out=output.url,
                splits=_summarize_splits(output),
                seconds=seconds,
                notes=(note,),
                is_new=False,
            )
        locks.lock_rest()
        if spec.engine == "local":  # inode numbers hold on this machine only
            output = replace(output, identities=locks.identities())
        resumed_parts = reading.checkpoint.begin_or_resume(identity)
        remove_temporary_files(output)
        with (
            _remove_if_nothing_read(reading.checkpoint),
            open_engine(spec.engine, spec.num_workers) as engine,
        ):
            running = _RunningConversion(reading, output, engine, progress)
            running.run()
        if not running.samples:
            reading.checkpoint.remove()
            why = ""
            if running.bad_count:
                why = f" Left out: {plural(running.bad_count, 'record')}, first {running.bad[0]}."
            raise SourceError(
                f"{reading.source.name}: no sample was found, so no dataset was written.{why}"
            )
        shards = [cutter.shards for cutter in running.cutters]
        _publish(output, shards, running.lengths(), locks)
        reading.checkpoint.finish()
        remove_temporary_files(output)
        reading.checkpoint.remove()
    return Summary(
        out=output.url,
        splits=_summarize_splits(output),
        seconds=time.monotonic() - began,
        bad_count=running.bad_count,
        bad=tuple(running.bad[:MAX_LISTED_RECORDS]),
        notes=tuple(running.notes),
        resumed_parts=resumed_parts,
    )


@contextlib.contextmanager
def _remove_if_nothing_read(checkpoint: Checkpoint) -> Iterator[None]:
    """Remove the work folder after an error if no part was finished that a resume could use."""
    try:
        yield
    except BaseException:
        if not checkpoint.parts_done():
            checkpoint.remove()
        raise


class _RunningConversion:
    """State of a conversion in progress, which decides what the engine does next.

        parts -> read by the engine -> cut into shards, in order -> written by the engine

    Parts are read in any order. They are cut here in the order of the source, from the sizes of
    their samples, so that the shards are always the same.

    - ``reading`` (ReadSpec), ``output`` (Output): Settings of the processes that read and write.
    - ``engine`` (Engine): Runs `read_part` and `write_shard`.
    - ``progress`` (function | None): Called after every part and shard.
    """

    def __init__(
        self,
        reading: ReadSpec,
        output: Output,
        engine: Engine,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._reading, self._output, self._engine = reading, output, engine
        self._checkpoint = reading.checkpoint
        self._progress = progress
        overhead = empty_shard_size(config_bytes(output.config))
        self.cutters = [
            ShardCutter(
                split,
                size_limit=output.size_limit or 0,
                overhead=overhead,
                max_shard_size=output.max_shard_size,
                keeps_parts=output.keeps_parts,
            )
            for split in range(len(output.splits))
        ]
        #: Bytes of a block of tokens; None without a tokenizer.
        self._block_size = (
            parse_encoding(reading.tokens.column).size if reading.tokens is not None else None
        )
        self._parts: Iterator[InputPart] | None = reading.source.cut_parts(reading.part_size)
        #: Parts that were submitted and are not cut into shards yet, in order.
        self._uncut_parts: deque[InputPart] = deque()
        #: Numbers of the uncut parts that are read.
        self._read_numbers: set[int] = set()
        #: Shards that are cut and not submitted yet.
        self._shard_queue: deque[Shard] = deque()
        #: Calls that the engine was given: to read a part, or to write a shard.
        self._running: dict[Future[Any], InputPart | Shard] = {}
        #: Number of shards that still need the samples of a part, by part and split.
        self._open_shards: Counter[tuple[int, int]] = Counter()
        self._read_bytes = self._reported_bytes = 0
        self._shards_done = 0
        #: Lengths of the samples of each split, one array per part.
        self._lengths: list[list[Any]] = [[] for _ in output.splits]
        self.samples = 0
        self.bad: list[str] = []
        self.bad_count = 0
        self.notes: list[str] = []

    def run(self) -> None:
        """Read every part and make every shard."""
        is_last_queued = False
        while True:
            self._submit_next()
            if not self._running:
                # All parts are read and cut. The last shards are queued, and one more round waits
                # for them.
                if is_last_queued:
                    return
                is_last_queued = True
                self._queue_last_shards()
                continue
            completed, _ = wait(self._running, return_when=FIRST_COMPLETED)
            for future in completed:
                task = self._running.pop(future)
                future.result()  # raises the error of the call
                if isinstance(task, InputPart):
                    self._read_numbers.add(task.number)
                else:
                    self._count_shard(task)
            self._cut_read_parts()
            self._report_progress()

    def _submit_next(self) -> None:
        """Submit work to the engine: shards first, because they free the disk space of parts."""
        slots = self._engine.slots
        while len(self._running) < 2 * slots:
            if self._shard_queue:
                shard = self._shard_queue.popleft()
                self._submit(shard, write_shard, self._output, shard)
                continue
            # A slow part holds back the cutting; reading far ahead of it would fill the disk.
            part = (
                next(self._parts, None)
                if self._parts and len(self._uncut_parts) < 8 * slots
                else None
            )
            if part is None:
                return
            self._uncut_parts.append(part)
            if self._checkpoint.has_part(part.number):
                self._read_numbers.add(part.number)
                self._cut_read_parts()
                self._report_progress()
            else:
                self._submit(part, read_part, self._reading, part)

    def _submit(
        self, task: InputPart | Shard, function: Callable[..., Any], *arguments: Any
    ) -> None:
        """Submit a call to the engine, and remember the part or shard that it works on."""
        self._running[self._engine.submit(function, *arguments)] = task

    def _cut_read_parts(self) -> None:
        """Cut the parts that are read into shards, up to the first that is not read."""
        while self._uncut_parts and self._uncut_parts[0].number in self._read_numbers:
            part = self._uncut_parts.popleft()
            self._read_numbers.discard(part.number)
            part_done = self._checkpoint.load_part(part.number)
            assert part_done is not None, "a part that was read has left its note"
            self._read_bytes += part.size
            self._add_samples(part_done)

    def _add_samples(self, part_done: PartDone) -> None:
        """Add the samples of a part to the cutters of their splits, up to the limit.

        The cutters yield the shards that are full then, which are queued.

        - ``part_done`` (PartDone): The number of the split, the size in bytes and, if recorded, the
          length of each record of the part, in order.
        """
        splits, sizes, lengths = part_done.splits, part_done.sizes, part_done.lengths
        limit = self._reading.limit
        if limit is not None and self.samples + len(sizes) >= limit:
            splits, sizes = splits[: limit - self.samples], sizes[: limit - self.samples]
            # Parts beyond the limit may have been read already; they are not asked for any more.
            self._parts = None
        self.samples += len(sizes)
        self.bad += part_done.bad[: MAX_LISTED_RECORDS - len(self.bad)]
        self.bad_count += part_done.bad_count
        for cutter in self.cutters:
            is_in_split = splits == cutter.split  # a bool for each record
            own_sizes = sizes[is_in_split]
            run_length = int(own_sizes.sum())
            if self._block_size is not None:
                # A record is a document, and samples are blocks of the joined documents.
                blocks = (cutter.leftover_bytes() + run_length) // self._block_size
                own_sizes = np.full(blocks, self._block_size, np.int64)
            if lengths is not None:
                self._lengths[cutter.split].append(lengths[: len(splits)][is_in_split])
            self._queue_shards(cutter.feed(part_done.number, run_length, own_sizes))
        if self._parts is None:
            # The limit is reached: parts that were read ahead are not used.
            for part in self._uncut_parts:
                self._read_numbers.discard(part.number)
            self._uncut_parts.clear()

    def _queue_shards(self, shards: Iterator[Shard]) -> None:
        """Queue shards to be written, except those that an earlier run has written."""
        for shard in shards:
            for piece in shard.pieces:
                self._open_shards[piece.part, shard.split] += 1
            if self._checkpoint.has_shard(shard.split, shard.number):
                self._count_shard(shard)
            else:
                self._shard_queue.append(shard)

    def _count_shard(self, shard: Shard) -> None:
        """Count a shard that is written, and delete runs that no other shard needs."""
        self._shards_done += 1
        for piece in shard.pieces:
            key = (piece.part, shard.split)
            self._open_shards[key] -= 1
            if not self._open_shards[key] and not self.cutters[shard.split].holds(piece.part):
                del self._open_shards[key]
                self._checkpoint.forget_run(*key)

    def _queue_last_shards(self) -> None:
        """Queue the last shard of every split, after all parts are cut."""
        for cutter in self.cutters:
            # Only tokens can be left over: a record that is a sample belongs to a shard at once.
            leftover = cutter.leftover_bytes() if self._block_size is not None else 0
            if leftover:
                self._queue_shards(self._last_block(cutter, leftover))
            self._queue_shards(cutter.finish())
        self._report_progress()

    def _last_block(self, cutter: ShardCutter, leftover: int) -> Iterator[Shard]:
        """Complete the last block of tokens with end tokens, or drop it; yield its shards.

        - ``leftover`` (int): Bytes of tokens that fill no block.
        """
        spec, block = self._reading.tokens, self._block_size
        assert spec is not None
        assert block is not None
        width = block // spec.block  # bytes of a token
        end = load_tokenizer(spec.tokenizer, spec.end).end
        of_split = f" of {self._output.splits[cutter.split]}" if self._output.splits[0] else ""
        if spec.drop_last or end is None:
            cutter.drop_leftover()
            self.notes.append(
                f"the last {plural(leftover // width, 'token')}{of_split} do not fill a block "
                "and are dropped"
            )
            return iter(())
        missing = (block - leftover) // width
        self.notes.append(f"the last block{of_split} is filled up with {missing:,} end tokens")
        dtype = parse_encoding(spec.column).dtype
        padding = np.full(missing, end, dtype).tobytes()
        return cutter.finish(padding, np.array([block], np.int64))

    def lengths(self) -> list[npt.NDArray[Any] | None]:
        """Return, for each split, the lengths of its samples as integers; None if not recorded."""
        if self._output.lengths is None:
            return [None] * len(self.cutters)
        if self._reading.tokens is not None:
            # Samples are blocks, which all have the same number of tokens.
            block = self._reading.tokens.block
            return [np.full(cutter.samples, block, np.int64) for cutter in self.cutters]
        # For a split without samples: numpy cannot join an empty list of arrays.
        nothing = np.zeros(0, np.uint32)
        return [np.concatenate([nothing, *pieces]) for pieces in self._lengths]

    def _report_progress(self) -> None:
        """Call the user's function with what is done so far, if there is one."""
        if self._progress is not None:
            running = sum(isinstance(task, Shard) for task in self._running.values())
            shards = self._shards_done + running + len(self._shard_queue)
            written = self._shards_done / shards if shards else 0.0
            done_bytes = int(self._read_bytes * (1 + written) / 2)
            # New shards lower the share that is written, but a bar only grows.
            self._reported_bytes = max(self._reported_bytes, done_bytes)
            self._progress(
                Progress(
                    size=self._reported_bytes,
                    whole=self._reading.source.size,
                    samples=self.samples,
                    shards=self._shards_done,
                    bad=self.bad_count,
                )
            )


def _publish(output: Output, shards: list[int], lengths: list[Any], locks: ConversionLocks) -> None:
    """Publish the index of every split, after checking that the shards of all splits exist.

    - ``shards`` (list[int]): The number of shards of each split.
    - ``lengths`` (list): The recorded lengths of the samples of each split, or None.
    """
    splits = [
        [_load_shard_record(output, split, number) for number in range(count)]
        for split, count in enumerate(shards)
    ]
    locks.check_in_place()
    for split, entries in enumerate(splits):
        check_shards(output, split, entries, locks)
    for split, entries in enumerate(splits):
        publish_index(output, split, entries, locks, lengths[split])


def _load_shard_record(output: Output, split: int, number: int) -> tuple[dict[str, Any], str]:
    """Return index entry and file version of a shard. Raises WriterError if its record is gone."""
    shard = output.checkpoint.load_shard(split, number)
    if shard is None:
        raise WriterError(
            f"{output.checkpoint.shard_path(split, number)} is missing: the work folder was "
            "deleted while the dataset was written. No index is published; convert again, with "
            "--overwrite."
        )
    return shard


def _summarize_splits(output: Output) -> tuple[SplitSummary, ...]:
    """Return the summary of each split, from its published index."""
    results = []
    for number, name in enumerate(output.splits):
        index = read_index(output, number)
        assert index is not None, "it was published"
        raw_size, zip_size = int(index.raw_size.sum()), int(index.zip_size.sum())
        results.append(SplitSummary(name, index.total_samples, len(index), raw_size, zip_size))
    return tuple(results)
