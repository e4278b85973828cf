"""Running a conversion: parts in, shards out, the index last; and going on after a stop."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from mds.encodings import parse_encoding
from mds.errors import SourceError
from mds.index import Index
from mds.layout import INDEX_NAME, config_bytes, empty_shard_size
from mds.storage import open_store
from mds.writers.convert.assemble import Output, write_shard
from mds.writers.convert.cut import Cutter, Shard
from mds.writers.convert.output import check_output, clean, read_index
from mds.writers.convert.part import LISTED, Job, read_part
from mds.writers.convert.source import Part
from mds.writers.convert.spec import ConvertSpec
from mds.writers.convert.tokens import load_tokenizer
from mds.writers.convert.work import PartDone, Work
from mds.writers.engines.base import Engine, open_engine


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a conversion is; ``size`` and ``whole`` are bytes of the source (0 unknown)."""

    size: int
    whole: int
    samples: int
    shards: int
    bad: int


@dataclass(frozen=True, slots=True)
class SplitSummary:
    """What was written for one split; sizes in bytes, ``zip_size`` 0 without compression."""

    name: str
    samples: int
    shards: int
    raw_size: int
    zip_size: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What a conversion did."""

    out: str
    splits: tuple[SplitSummary, ...]
    seconds: float
    bad_count: int = 0
    bad: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    resumed_parts: int = 0

    @property
    def samples(self) -> int:
        """Samples of all splits."""
        return sum(split.samples for split in self.splits)


def run(
    job: Job,
    output: Output,
    spec: ConvertSpec,
    identity: dict[str, Any],
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Convert; see `Conversion.run`."""
    began = time.monotonic()
    if check_output(output, spec):
        job.work.remove()
        note = "everything was done already"
        return Summary(output.url, _splits(output), time.monotonic() - began, notes=(note,))
    with job.work.locked():
        resumed = job.work.begin_or_resume(identity)
        clean(output)
        with _nothing_for_nothing(job.work), open_engine(spec.engine, spec.workers) as engine:
            under_way = _Run(job, output, engine, progress)
            under_way.all()
        if not under_way.samples:
            job.work.remove()
            raise SourceError(f"{job.source.name}: no sample was found; nothing is written.")
        for split in range(len(output.splits)):
            _publish(output, split, under_way.cutters[split].shards)
        job.work.finish()
        clean(output)
        job.work.remove()
    return Summary(
        output.url,
        _splits(output),
        time.monotonic() - began,
        under_way.bad_count,
        tuple(under_way.bad[:LISTED]),
        tuple(under_way.notes),
        resumed,
    )


@contextlib.contextmanager
def _nothing_for_nothing(work: Work) -> Iterator[None]:
    """Leave no work folder behind where it would hold nothing to go on with."""
    try:
        yield
    except BaseException:
        if not work.parts_done():
            work.remove()
        raise


class _Run:
    """Decides what is done next; everything heavy is done by the engine."""

    def __init__(
        self,
        job: Job,
        output: Output,
        engine: Engine,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._job, self._output, self._engine = job, output, engine
        self._work = job.work
        self._progress = progress
        overhead = empty_shard_size(config_bytes(output.config))
        self.cutters = [
            Cutter(split, size_limit=output.size_limit or 0, overhead=overhead)
            for split in range(len(output.splits))
        ]
        self._block = parse_encoding(job.tokens.column).size if job.tokens is not None else None
        self._parts: Iterator[Part] | None = job.source.parts(_part_size(job.source.size))
        #: Parts asked for and not cut yet, in order; and which of them are read.
        self._ahead: deque[Part] = deque()
        self._read: set[int] = set()
        self._shards: deque[Shard] = deque()
        self._running: dict[Future[Any], Part | Shard] = {}
        #: How many shards still need the run of a part, by part and split.
        self._needed: Counter[tuple[int, int]] = Counter()
        self._size = 0
        self._shards_done = 0
        self.samples = 0
        self.bad: list[str] = []
        self.bad_count = 0
        self.notes: list[str] = []

    def all(self) -> None:
        """Read every part and make every shard."""
        finished = False
        while True:
            self._start()
            if not self._running:
                if finished:
                    return
                finished = True
                self._finish()
                continue
            done, _ = wait(self._running, return_when=FIRST_COMPLETED)
            for future in done:
                task = self._running.pop(future)
                future.result()
                if isinstance(task, Part):
                    self._read.add(task.number)
                else:
                    self._made(task)
            self._cut()
            self._tell()

    def _start(self) -> None:
        """Give the engine work: shards first, which free what parts left behind."""
        slots = self._engine.slots
        while len(self._running) < 2 * slots:
            if self._shards:
                shard = self._shards.popleft()
                self._submit(shard, write_shard, self._output, shard)
                continue
            # A slow part holds back the cutting; reading far ahead of it would fill the disk.
            part = next(self._parts, None) if self._parts and len(self._ahead) < 8 * slots else None
            if part is None:
                return
            self._ahead.append(part)
            if self._work.has_part(part.number):
                self._read.add(part.number)
                self._cut()
            else:
                self._submit(part, read_part, self._job, part)

    def _submit(self, task: Part | Shard, function: Callable[..., Any], *arguments: Any) -> None:
        self._running[self._engine.submit(function, *arguments)] = task

    def _cut(self) -> None:
        """Cut all parts that are read, up to the first that is not."""
        while self._ahead and self._ahead[0].number in self._read:
            part = self._ahead.popleft()
            self._read.discard(part.number)
            done = self._work.load_part(part.number)
            assert done is not None, "a part that was read has left its note"
            self._size += part.size
            self._feed(done)

    def _feed(self, done: PartDone) -> None:
        splits, sizes = done.splits, done.sizes
        limit = self._job.limit
        if limit is not None and self.samples + len(sizes) >= limit:
            splits, sizes = splits[: limit - self.samples], sizes[: limit - self.samples]
            # Parts beyond the limit may have been read already; nobody asks for them any more.
            self._parts = None
        self.samples += len(sizes)
        self.bad += done.bad[: LISTED - len(self.bad)]
        self.bad_count += done.bad_count
        for cutter in self.cutters:
            own = sizes[splits == cutter.split]
            length = int(own.sum())
            if self._block is not None:
                blocks = (cutter.leftover() + length) // self._block
                own = np.full(blocks, self._block, np.int64)
            self._emit(cutter.feed(done.number, length, own))
        if self._parts is None:
            for part in self._ahead:
                self._read.discard(part.number)
            self._ahead.clear()

    def _emit(self, shards: Iterator[Shard]) -> None:
        for shard in shards:
            for piece in shard.pieces:
                self._needed[piece.part, shard.split] += 1
            if self._work.has_shard(shard.split, shard.number):
                self._made(shard)
            else:
                self._shards.append(shard)

    def _made(self, shard: Shard) -> None:
        self._shards_done += 1
        for piece in shard.pieces:
            key = (piece.part, shard.split)
            self._needed[key] -= 1
            if not self._needed[key] and not self.cutters[shard.split].holds(piece.part):
                del self._needed[key]
                self._work.forget_run(*key)

    def _finish(self) -> None:
        """Every part is cut: make the last shard of every split."""
        for cutter in self.cutters:
            rest = cutter.leftover() if self._block is not None else 0
            if rest:
                self._emit(self._last_block(cutter, rest))
            self._emit(cutter.finish())
        self._tell()

    def _last_block(self, cutter: Cutter, rest: int) -> Iterator[Shard]:
        spec, block = self._job.tokens, self._block
        assert spec is not None
        assert block is not None
        width = block // spec.block
        end = load_tokenizer(spec.tokenizer, spec.end).end
        of = f" of {self._output.splits[cutter.split]}" if self._output.splits[0] else ""
        if spec.drop_last or end is None:
            cutter.drop()
            self.notes.append(
                f"the last {rest // width:,} tokens{of} fill no block, and are dropped"
            )
            return iter(())
        missing = (block - rest) // width
        self.notes.append(f"the last block{of} is filled up with {missing:,} end tokens")
        dtype = parse_encoding(spec.column).dtype
        padding = np.full(missing, end, dtype).tobytes()
        return cutter.finish(padding, np.array([block], np.int64))

    def _tell(self) -> None:
        if self._progress is not None:
            whole = self._job.source.size
            self._progress(
                Progress(self._size, whole, self.samples, self._shards_done, self.bad_count)
            )


def _part_size(whole: int) -> int:
    """Bytes of a part: enough of them for progress and resuming, large enough to be worth it.

    The output does not depend on it.
    """
    return min(16 << 20, max(1 << 20, whole // 64))


def _publish(output: Output, split: int, shards: int) -> None:
    entries = (output.work.load_shard(split, number) for number in range(shards))
    data = Index.build(entries).to_json()
    open_store(output.url).put(output.key(split, INDEX_NAME), data)


def _splits(output: Output) -> tuple[SplitSummary, ...]:
    found = []
    for number, name in enumerate(output.splits):
        index = read_index(output, number)
        assert index is not None, "it was published"
        sizes = int(index.raw_size.sum()), int(index.zip_size.sum())
        found.append(SplitSummary(name, index.total_samples, len(index), *sizes))
    return tuple(found)
