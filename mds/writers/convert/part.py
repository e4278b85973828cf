"""One part of a source to the bytes of its samples: what runs in every process of a conversion.

Leaves a run of sample bytes per split and, last, the note that the part is read. Does not know
how samples become shards, nor which other parts there are.
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, BinaryIO

from mds.encodings import parse_encoding
from mds.errors import EncodingError, MdsError, RecordError
from mds.hashing import new_hash
from mds.storage.files import publish
from mds.writers.convert.coerce import coercer
from mds.writers.convert.source import Bad, Part, Source
from mds.writers.convert.tokens import TokenSpec, to_bytes
from mds.writers.convert.work import PartDone, Work

#: Bad records that are listed; more are counted.
LISTED = 100


@dataclass(frozen=True, slots=True)
class Job:
    """All that a process needs to know to read any part."""

    source: Source
    names: tuple[str, ...]
    encodings: tuple[str, ...]
    #: Columns whose encoding was asked for, so that text is read as numbers for them.
    asked: frozenset[str]
    #: Keys that records may have beside the columns, because they were left out on purpose.
    dropped: frozenset[str]
    splits: tuple[str, ...]
    shares: tuple[float, ...]
    key: str | None
    tokens: TokenSpec | None
    limit: int | None
    skip_bad: bool
    work: Work


def read_part(job: Job, part: Part) -> int:
    """Read a part, unless that was done before, and give its number back.

    Raises RecordError for the first bad record, unless those are skipped.
    """
    if job.work.load_part(part.number) is None:
        with contextlib.ExitStack() as runs:
            done = _Reading(job, part, runs).all()
        job.work.save_part(done)
    return part.number


class _Reading:
    """One part under way."""

    def __init__(self, job: Job, part: Part, runs: contextlib.ExitStack) -> None:
        self._job = job
        self._part = part
        self._runs = runs
        self._files: dict[int, BinaryIO] = {}
        self._pack = _packer(job)
        self._bounds = list(accumulate(job.shares))[:-1]

    def all(self) -> PartDone:
        """Every record of the part."""
        splits, sizes = bytearray(), []
        bad: list[str] = []
        count = 0
        for mark, record in self._job.source.records(self._part):
            try:
                split, data = self._sample(record)
            except ValueError as error:
                count += 1
                if count <= LISTED or not self._job.skip_bad:
                    bad.append(self._job.source.sentence(self._part, mark, str(error)))
                if not self._job.skip_bad:
                    raise RecordError(
                        f"{bad[0]}. Mend it, or leave such records out with --skip-bad."
                    ) from (error if isinstance(error, MdsError) else None)
                continue
            self._file(split).write(data)
            splits.append(split)
            sizes.append(len(data))
            if len(sizes) == self._job.limit:
                break
        return PartDone(self._part.number, splits, sizes, tuple(bad), count)

    def _sample(self, record: Any) -> tuple[int, bytes]:
        if isinstance(record, Bad):
            raise ValueError(str(record))  # noqa: TRY004 - a record is bad by value
        data = self._pack(record)
        if self._part.split is not None:
            return self._job.splits.index(self._part.split), data
        if not self._bounds:
            return 0, data
        key = data if self._job.key is None else record.get(self._job.key)
        if key is None:
            raise ValueError(f"the split is decided by {self._job.key!r}, which is missing or null")
        return bisect_right(self._bounds, fraction(key)), data

    def _file(self, split: int) -> BinaryIO:
        if split not in self._files:
            path = self._job.work.run(self._part.number, split)
            temporary = self._runs.enter_context(publish(path))
            self._files[split] = self._runs.enter_context(
                open(temporary, "wb", 1 << 20)  # noqa: SIM115 - the stack closes it
            )
        return self._files[split]


def fraction(key: Any) -> float:
    """A number from 0 to before 1 that depends on the key alone: on no seed, order or machine."""
    data = key if isinstance(key, bytes) else str(key).encode("utf-8", "surrogatepass")
    digest = new_hash("xxh3_64")
    digest.update(data)
    return int(digest.hexdigest()[:13], 16) / (1 << 52)


def _packer(job: Job) -> Callable[[dict[str, Any]], bytes]:
    if job.tokens is not None:
        return _tokens_of(job.tokens, job.names[0])
    is_text, is_plain = job.source.is_text, job.source.is_plain
    if job.source.is_encoded:
        texts = tuple(True if name in job.asked else None for name in job.names)
    else:
        texts = tuple(is_text or name in job.asked for name in job.names)
    return _packer_of(job.names, job.encodings, texts, is_plain, job.dropped)


def _tokens_of(spec: TokenSpec, column: str) -> Callable[[dict[str, Any]], bytes]:
    def pack(record: dict[str, Any]) -> bytes:
        text = record.get(column)
        if isinstance(text, bytes):
            text = text.decode()
        if not isinstance(text, str):
            raise ValueError(f"column {column!r}: expected text, got {type(text).__name__}")  # noqa: TRY004
        return to_bytes(spec, text)

    return pack


def _as_it_is(value: bytes | None) -> bytes:
    if value is None:
        raise ValueError("the sample has no such column")
    return value


@lru_cache(maxsize=8)
def _packer_of(
    names: tuple[str, ...],
    encodings: tuple[str, ...],
    texts: tuple[bool | None, ...],
    is_plain: bool,
    dropped: frozenset[str],
) -> Callable[[dict[str, Any]], bytes]:
    """The function from a record to the bytes of a sample (see layout.py), made once.

    ``texts`` says of each column whether it is read from text; None for one that is encoded.
    """
    parsed = [parse_encoding(name) for name in encodings]
    columns: list[tuple[str, Callable[[Any], bytes], Callable[[Any], Any] | None, str]] = []
    for name, encoding, text in zip(names, parsed, texts, strict=True):
        if text is None:
            columns.append((name, _as_it_is, None, encoding.name))
            continue
        fit = coercer(encoding.name, from_text=text, plain=is_plain)
        columns.append((name, encoding.pack, fit, encoding.name))
    varying = [number for number, encoding in enumerate(parsed) if encoding.size is None]
    words = struct.Struct(f"<{len(varying)}I")
    known = {*names, *dropped}

    def pack(record: dict[str, Any]) -> bytes:
        values = []
        for name, encode, fit, encoding in columns:
            try:
                value = record.get(name)
                values.append(encode(value if fit is None else fit(value)))
            except (EncodingError, ValueError, TypeError, OverflowError) as error:  # noqa: PERF203
                missing = "" if name in record else " The record has no such key."
                raise ValueError(f"column {name!r} ({encoding}): {error}{missing}") from error
        if len(record) > len(names) and (extra := record.keys() - known):
            raise ValueError(
                f"it has the key {min(extra)!r}, which is no column; give it one with "
                f"--columns {min(extra)}:json, or leave it out with --drop {min(extra)}"
            )
        return words.pack(*[len(values[number]) for number in varying]) + b"".join(values)

    return pack
