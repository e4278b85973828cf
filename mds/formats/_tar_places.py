"""Where the samples of a tar begin, and where the files in them are: a few bytes per file.

The table of a dataset keeps the places that a scan found, so no reader scans again and a sample of
a remote tar is fetched by ranges. Places are counted in blocks of 512 bytes: samples from the
beginning of the tar, files from the beginning of their sample. Each column uses the narrowest
integers that hold its numbers, so a million files take about 5 MB.

A sidecar may replace the scan. It says how many samples a tar has:

    00000.tar.idx     Megatron Energon: where each sample begins and the last one ends, u64 each
    index.json        wids: ``{"shardlist": [{"url": "00000.tar", "nsamples": 1000}, ...]}``
    00000_stats.json  img2dataset: ``{"successes": 998, ...}``

A wrong count is reported when the tar is read.
"""

from __future__ import annotations

import array
import contextlib
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mds.errors import FormatError
from mds.formats._columns import more_of
from mds.formats._facts import ShardPlace
from mds.formats._tar_members import BLOCK
from mds.formats._tar_samples import TarSample
from mds.formats._unpack import compression_of

if TYPE_CHECKING:
    from mds.formats._facts import DataFile
    from mds.formats._source import Files

Numbers = npt.NDArray[np.int64]
Narrow = npt.NDArray[np.unsignedinteger[Any]]
_TYPES = {"<u1": 1, "<u2": 2, "<u4": 4, "<u8": 8}
_LARGEST = 1 << 48
#: What the note of a compressed tar has in place of places, which would be of no use.
COMPRESSED = b"compressed\n"
_NO_ROWS: Narrow = np.zeros(0, "<u1")


class TarPlaces:
    """The places of the samples of a tar, and of the files in them.

    - ``starts``: block at which each sample begins, and block at which the last one ends; shape
      (samples + 1,).
    - ``files``: two arrays of shape (samples,) for each column. The first has the block, counted
      from that of the sample, at which the file's content begins, or 0 if the sample has no such
      file. The second has the size of the file in bytes.
    - ``problems``: numbers of the samples that are none, rising; they have no files here.

        block of the tar   100      101         102      103       106
                           | header | 17.txt    | header | 17.jpg  | next sample
        starts [.., 100, 106, ..]   files {"txt": ([.., 1], [.., 9]), "jpg": ([.., 3], [.., 1500])}
    """

    def __init__(
        self,
        starts: Narrow,
        files: Mapping[str, tuple[Narrow, Narrow]],
        problems: Narrow = _NO_ROWS,
    ) -> None:
        self.starts, self.files, self.problems = starts, dict(files), problems

    def __len__(self) -> int:
        return max(len(self.starts) - 1, 0)

    def spans(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Return (begin, end) of the samples ``rows``, in bytes."""
        indices = np.asarray(rows, np.int64)
        begins, ends = (
            self.starts[each].astype(np.int64) * BLOCK for each in (indices, indices + 1)
        )
        return list(zip(begins.tolist(), ends.tolist(), strict=True))

    def bounds(self, name: str) -> tuple[Numbers, Numbers]:
        """Return begin and end of a column's file in each sample, in bytes; -1 if it has none.

        Both are int64 of shape (samples,).
        """
        if name not in self.files:
            nothing = np.full(len(self), -1, np.int64)
            return nothing, nothing
        blocks, sizes = self.files[name]
        begins = (self.starts[:-1].astype(np.int64) + blocks) * BLOCK
        begins[blocks == 0] = -1
        return begins, np.where(blocks == 0, -1, begins + sizes.astype(np.int64))

    def heads(self) -> tuple[Numbers, Numbers]:
        """Return begin and end of the headers of each sample's first file, in bytes.

        They precede the content of the first file. Both are int64 of shape (samples,).
        """
        starts = self.starts[:-1].astype(np.int64)
        # The smallest block of a file's content; 0 means a missing file.
        none = 1 << 62
        first = np.full(len(self), none, np.int64)
        for blocks, _ in self.files.values():
            np.minimum(first, blocks, out=first, where=blocks > 0)
        first[first == none] = 1
        return starts * BLOCK, (starts + first) * BLOCK

    def size(self, names: Sequence[str]) -> int:
        """Return the total size of the files of some columns, in bytes, without headers."""
        return sum(int(self.files[name][1].sum(dtype=np.int64)) for name in names)

    # ------------------------------------------------------------------ ranges of samples

    def split(self, rows: range) -> Iterator[range | int]:
        """Yield ``rows`` in order: ranges of samples, and single numbers of those that are none."""
        start = rows.start
        first, end = np.searchsorted(self.problems, [rows.start, rows.stop])
        for row in self.problems[first:end].tolist():
            if start < row:
                yield range(start, row)
            yield row
            start = row + 1
        if start < rows.stop:
            yield range(start, rows.stop)

    def cut(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield consecutive ranges of rows whose samples take about ``size`` bytes in the tar."""
        starts = self.starts.astype(np.int64) * BLOCK
        count = max(1, int(starts[-1] - starts[0]) // max(size, 1))
        bounds = np.searchsorted(starts, np.linspace(starts[0], starts[-1], count + 1))
        yield from itertools.pairwise(np.unique(bounds).tolist())

    def only(self, first: int, end: int) -> TarPlaces:
        """Return the places of the samples ``first`` to ``end``, which is not one of them."""
        files = {
            name: (blocks[first:end], sizes[first:end])
            for name, (blocks, sizes) in self.files.items()
        }
        problems = self.problems.astype(np.int64)
        problems = problems[(problems >= first) & (problems < end)] - first
        return TarPlaces(self.starts[first : end + 1], files, _narrow(problems))

    # ------------------------------------------------------------------ as bytes

    def to_bytes(self) -> bytes:
        """Return the places as bytes for the note of a file.

        one line   JSON: names of columns, dtype of each array, number of problems if there are any
        arrays     starts | blocks and sizes of the first column | of the second | ... | problems
        """
        arrays = _arrays(self)
        header: dict[str, Any] = {
            "files": list(self.files),
            "types": [each.dtype.str for each in arrays],
        }
        if len(self.problems):
            header["problems"] = len(self.problems)
        # NumPy writes "|u1" for bytes, which have no order; `_TYPES` has "<u1".
        head = json.dumps(header).replace("|u1", "<u1").encode()
        return head + b"\n" + b"".join(each.tobytes() for each in arrays)

    @classmethod
    def of(cls, shard: ShardPlace) -> TarPlaces | None:
        """Return the places in the note of a tar, or None if it has none.

        Raises FormatError for a note that does not fit the tar.
        """
        return _parsed(shard.note, shard.samples, shard.file.size)

    @classmethod
    def of_starts(cls, starts: Sequence[int]) -> TarPlaces:
        """Return places from the first byte of each sample and the end of the last one."""
        return cls(_narrow(np.asarray(starts, np.int64) // BLOCK), {})


class FoundPlaces:
    """Collector of the places of samples while a tar is scanned."""

    def __init__(self) -> None:
        self._starts = array.array("q")  # first byte of each sample
        self._end = 0  # byte after the last sample
        self._names: dict[str, int] = {}  # number of each column, by ending
        # Four numbers for each file: sample, column, byte where it begins, size.
        self._files = array.array("q")
        self._problems: list[int] = []

    def add(self, sample: TarSample, *, is_problem: bool) -> None:
        """Add the next sample; ``is_problem`` says that it is none."""
        row, names = len(self._starts), self._names
        self._starts.append(sample.start)
        self._end = sample.end
        if is_problem:
            self._problems.append(row)
            return
        for name, file in sample.files.items():
            self._files.extend((row, names.setdefault(name, len(names)), file.start, file.size))

    def places(self) -> TarPlaces:
        """Return the places of all samples that were added."""
        count = len(self._starts)
        # The first byte of each sample and the end of the last one; nothing without samples.
        starts = np.append(np.frombuffer(self._starts, np.int64), self._end)[: count + bool(count)]
        table = np.frombuffer(self._files, np.int64).reshape(-1, 4)  # a row for each file
        files = {}
        for name, column in sorted(self._names.items()):
            rows_of_column = table[table[:, 1] == column]
            blocks, sizes = np.zeros((2, count), np.int64)  # 0 for a sample without such a file
            samples = rows_of_column[:, 0]
            blocks[samples] = (rows_of_column[:, 2] - starts[samples]) // BLOCK
            sizes[samples] = rows_of_column[:, 3]
            files[name] = (_narrow(blocks), _narrow(sizes))
        return TarPlaces(_narrow(starts // BLOCK), files, _narrow(np.array(self._problems, int)))


@functools.lru_cache(maxsize=64)
def _parsed(note: bytes, samples: int, size: int) -> TarPlaces | None:
    """Parse the places in the note of a tar, and check every number.

    ``samples`` and ``size`` are the number of samples and the bytes of the tar. Returns None for a
    note without places. Raises FormatError for places that cannot be right.
    """
    data = more_of(note)
    if data in (b"", COMPRESSED):
        return None
    try:
        places = _decoded(data, samples)
        _check(places, size)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(
            f"the table of tars has positions of samples that are impossible: {error}. Delete the "
            f"table, or run mds index again."
        ) from error
    return places


def _decoded(data: bytes, samples: int) -> TarPlaces:
    """Parse the bytes of `TarPlaces.to_bytes`. Raises ValueError, KeyError or TypeError."""
    head, _, body = data.partition(b"\n")
    header = json.loads(head)
    names, types = list(header["files"]), list(header["types"])
    problems = int(header.get("problems", 0))
    # Starts; blocks and sizes of columns; problems.
    lengths = [samples + 1, *[samples] * (2 * len(names)), *[problems] * (problems > 0)]
    if len(types) != len(lengths) or len({*names}) != len(names):
        raise ValueError("the number of columns differs")
    sizes = [_TYPES[kind] * length for kind, length in zip(types, lengths, strict=True)]
    if sum(sizes) != len(body):
        raise ValueError("the number of bytes differs")
    begins = itertools.accumulate(sizes, initial=0)
    arrays: list[Any] = [
        np.frombuffer(body, kind, length, begin)
        for kind, length, begin in zip(types, lengths, begins, strict=False)
    ]
    columns = arrays[1 : 1 + 2 * len(names)]
    pairs = zip(columns[::2], columns[1::2], strict=True)
    rows = arrays[-1] if problems else _NO_ROWS
    return TarPlaces(arrays[0], dict(zip(names, pairs, strict=True)), rows)


def _check(places: TarPlaces, size: int) -> None:
    """Raise ValueError for places outside of a tar of ``size`` bytes, or that overlap."""
    if max(int(each.max(initial=0)) for each in _arrays(places)) > _LARGEST:
        raise ValueError("a number is too large")
    starts = places.starts.astype(np.int64)
    lengths = np.diff(starts)
    if lengths.size and (int(lengths.min()) < 1 or int(starts[-1]) * BLOCK > size):
        raise ValueError("samples overlap, or end after the tar")
    rows = places.problems.astype(np.int64)
    if len(rows) and (np.any(np.diff(rows) < 1) or rows[0] < 0 or rows[-1] >= len(lengths)):
        raise ValueError("the numbers of samples are wrong")
    has_file = sum(blocks > 0 for blocks, _ in places.files.values())
    if places.files and not np.array_equal(np.flatnonzero(has_file == 0), rows):
        raise ValueError("a sample has no file")
    for blocks, sizes in places.files.values():
        is_present = blocks > 0
        ends = blocks.astype(np.int64) * BLOCK + sizes.astype(np.int64)
        if np.any(is_present & (ends > lengths * BLOCK)) or np.any(~is_present & (sizes > 0)):
            raise ValueError("a file is outside of its sample")


def _arrays(places: TarPlaces) -> list[Narrow]:
    columns = (each for pair in places.files.values() for each in pair)
    return [places.starts, *columns, *[places.problems] * (len(places.problems) > 0)]


def _narrow(numbers: Numbers) -> Narrow:
    """Return the numbers in the narrowest type that holds them."""
    largest = int(numbers.max(initial=0))
    kind = next(kind for kind, width in _TYPES.items() if largest < 1 << (8 * width))
    return numbers.astype(kind)


# --------------------------------------------------------------------- sidecars


_LARGEST_SIDECAR = 64 << 20  # bytes


def noted_samples(file: DataFile, files: Files) -> int | list[int] | None:
    """Return what a sidecar says of a tar: the number of samples, or where each begins.

    The list has the first byte of each sample and the end of the last one. None if there is no
    sidecar, and for a compressed tar. Raises FormatError for a sidecar that cannot be read.
    """
    folder, slash, name = file.key.rpartition("/")
    if compression_of(file.key) is not None:
        return None
    # Sidecars of this tar alone, and the parser of each.
    own_sidecars = (
        (f"{file.key}.idx", _energon),
        (f"{file.key.removesuffix('.tar')}_stats.json", _stats),
    )
    for key, read in own_sidecars:
        if (sidecar := _small_sidecar(key, files)) is not None:
            with _explain_damage(sidecar, name, files):
                return read(files.get_once(sidecar), file.size)
    sidecar = _small_sidecar(f"{folder}{slash}index.json", files)
    if sidecar is None:
        return None
    with _explain_damage(sidecar, name, files):
        # It counts all tars of the folder, and is fetched and parsed once for them.
        counts = files.once(sidecar.key, lambda: _wids(files.get(sidecar)))
        return _count(counts[name]) if name in counts else None


def _small_sidecar(key: str, files: Files) -> DataFile | None:
    sidecar = files.beside(key)
    return sidecar if sidecar is not None and sidecar.size <= _LARGEST_SIDECAR else None


@contextlib.contextmanager
def _explain_damage(sidecar: DataFile, name: str, files: Files) -> Iterator[None]:
    """Raise FormatError, with the remedy, for any error while a sidecar is parsed.

    ``name`` is the file name of the tar.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{files.url(sidecar)}: it has no count of the samples of {name}: "
            f"{str(error).rstrip('.')}. Delete it, so that the tar is read."
        ) from error


def _energon(data: bytes, size: int) -> list[int]:
    """Parse the index of Megatron Energon for a tar of ``size`` bytes.

    Returns the bytes at which the samples begin and the last one ends. Raises ValueError.
    """
    places = [
        int.from_bytes(data[offset : offset + 8], "little") for offset in range(0, len(data), 8)
    ]
    is_rising = all(first < second for first, second in itertools.pairwise(places))
    # The first place need not be 0: some tars begin with a folder.
    is_whole = not any(place % BLOCK for place in places)
    if len(data) % 8 or not (places and is_whole and is_rising) or places[-1] > size:
        raise ValueError("it is not a list of positions in the tar")
    return places


def _stats(data: bytes, size: int) -> int:
    del size
    return _count(json.loads(data)["successes"])


def _wids(data: bytes) -> dict[str, Any]:
    """Return the number of samples by file name of a tar, from an index.json of wids.

    Returns {} for an index.json of another kind.
    """
    counts = json.loads(data)
    if not isinstance(counts, dict) or "shardlist" not in counts:
        return {}
    return {
        str(shard["url"]).rpartition("/")[2]: shard["nsamples"] for shard in counts["shardlist"]
    }


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise ValueError(f"{value!r} is not a number of samples")
    return value
