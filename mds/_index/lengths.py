"""The length of each sample in one column of a dataset, in a sidecar of its index.

    one line  JSON: column, samples, width (bytes of a length), long (number of long samples)
    lengths   uint8 or uint16, little-endian; the largest number marks a long sample
    long      int64: the numbers of the long samples, ascending, and then their lengths

The line is padded with spaces to a multiple of 64 bytes, so that the file can be mapped. A length
takes one or two bytes, however long a few samples are. The lengths 7, 300, 12 and 90 000 are stored
in two bytes each as 7, 300, 12 and 65 535, with the list of long samples 3, 90 000.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._index.sidecar import pack_sidecar, parse_sidecar, sidecar_name
from mds._index.table import fingerprint_of
from mds.errors import IndexFileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]  # sample numbers or lengths, of shape (n,)

KIND = "lengths"
#: Largest length of an array.
LARGEST = (1 << 32) - 1
_MAX_HEADER_BYTES = 1 << 16


class Lengths:
    """Lengths of all samples of one dataset in one column.

    - ``column``: name of the column. ``digest``: digest of the payload of the sidecar.
    - ``lengths``: uint8 or uint16 of shape (samples,). The largest number of the type marks a long
      sample, whose length it cannot hold.
    - ``long``: numbers of the long samples, ascending, int64.
    - ``of_long``: lengths of these samples, int64.
    """

    def __init__(
        self, column: str, lengths: NDArray[Any], long: Ids, of_long: Ids, digest: str
    ) -> None:
        self.column, self.digest = column, digest
        self._lengths, self._long, self._of_long = lengths, long, of_long

    @classmethod
    def of(cls, column: str, lengths: Any) -> Lengths:
        """Make the object from the lengths of all samples of ``column``, a sequence of ints."""
        payload = emit_lengths(column, np.asarray(lengths))
        return parse_lengths(payload, len(lengths), column, "lengths")

    def __len__(self) -> int:
        return len(self._lengths)

    def take(self, numbers: Ids) -> Ids:
        """Return the lengths of the samples ``numbers``, which count through the dataset; int64."""
        lengths = self._lengths[numbers].astype(np.int64)
        if len(self._long):
            top = np.iinfo(self._lengths.dtype).max  # the mark of a long sample
            long_rows = np.flatnonzero(lengths == top)
            # Find each long sample in the sorted list of them.
            lengths[long_rows] = self._of_long[np.searchsorted(self._long, numbers[long_rows])]
        return lengths

    def all(self) -> Ids:
        """Return the lengths of all samples, int64."""
        lengths = self._lengths.astype(np.int64)
        lengths[self._long] = self._of_long
        return lengths

    @property
    def total(self) -> int:
        """The sum of all lengths."""
        top = int(np.iinfo(self._lengths.dtype).max)
        stored_sum = int(self._lengths.sum(dtype=np.int64)) + int(self._of_long.sum())
        return stored_sum - top * len(self._long)  # a mark is no length


class JoinedLengths:
    """Lengths of the samples of several streams, numbered from the first stream to the last.

    With streams of 100 and 50 samples, number 120 is sample 20 of the second stream. ``parts`` are
    the lengths of each stream. ``digest`` identifies all lengths, ``total`` is their sum, and
    ``count`` the number of samples.
    """

    def __init__(self, parts: Sequence[Lengths]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])
        self.digest = (
            parts[0].digest
            if len(parts) == 1
            else fingerprint_of("".join(part.digest for part in parts).encode())
        )
        self.total = sum(part.total for part in parts)
        self.count = sum(map(len, parts))

    def take(self, numbers: Ids) -> Ids:
        """Return the lengths of the samples ``numbers``, which count through all streams; int64."""
        if len(self._parts) == 1:
            return self._parts[0].take(numbers)
        part_of_sample = np.searchsorted(self._ends, numbers, side="right")
        lengths = np.empty(len(numbers), np.int64)
        for part in np.unique(part_of_sample).tolist():
            is_in_part = part_of_sample == part
            before = int(self._ends[part - 1]) if part else 0
            lengths[is_in_part] = self._parts[part].take(numbers[is_in_part] - before)
        return lengths


def lengths_name(column: str) -> str:
    """Return the name of the sidecar with the lengths of a column."""
    return sidecar_name(KIND, column)


def emit_lengths(column: str, lengths: NDArray[Any]) -> bytes:
    """Return the payload of a sidecar with the lengths of ``column``; see the module's docstring.

    ``lengths`` are integers of shape (samples,), from 0 to below 2**32.
    """
    values = np.asarray(lengths, np.int64)
    # One byte if all lengths fit beside the mark 255, else two; longer ones are listed.
    width = 1 if not len(values) or int(values.max()) < 255 else 2
    dtype = np.dtype(f"<u{width}")
    top = np.iinfo(dtype).max
    long = np.flatnonzero(values >= top)
    head = {"column": column, "samples": len(values), "width": width, "long": len(long)}
    line = json.dumps(head).encode("ascii")
    line += b" " * (-(len(line) + 1) % 64) + b"\n"
    small = np.minimum(values, top).astype(dtype).tobytes()
    small += b"\0" * (-len(small) % 8)  # so that the int64 numbers that follow are aligned
    return b"".join(
        (line, small, long.astype("<i8").tobytes(), values[long].astype("<i8").tobytes())
    )


def emit_lengths_file(column: str, lengths: NDArray[Any], index: str) -> bytes:
    """Return the bytes of a sidecar with lengths; ``index`` is the fingerprint of the index."""
    return pack_sidecar(KIND, 1, index, emit_lengths(column, lengths))


def most_bytes(samples: int) -> int:
    """Return the most bytes that a payload of lengths for ``samples`` samples can have."""
    return _MAX_HEADER_BYTES + 24 * samples


def parse_lengths_file(data: Any, samples: int, column: str, index: str, location: str) -> Lengths:
    """Parse a sidecar with lengths, without copying its bytes.

    - ``data`` (bytes-like): The whole file.
    - ``samples``, ``column``: number of samples of the dataset, and the column that is expected.
    - ``index`` (str): Fingerprint of the dataset's index.
    - ``location`` (str): Name of the sidecar, for errors.

    Raises IndexFileError for a sidecar that is damaged, or of another index or column.
    """
    sidecar = parse_sidecar(data, location, KIND, index)
    return parse_lengths(sidecar.payload, samples, column, location)


def parse_lengths(payload: Any, samples: int, column: str | None, location: str) -> Lengths:
    """Parse the payload of a sidecar with lengths, without copying its bytes.

    ``payload`` is bytes-like; the docstring of the module shows its parts. ``samples`` is the
    expected number of samples, ``column`` the expected column (None: any), and ``location`` names
    the sidecar. Raises IndexFileError for a payload that does not fit.
    """
    view = memoryview(payload)
    try:
        end = bytes(view[:_MAX_HEADER_BYTES]).index(b"\n") + 1
        head = json.loads(bytes(view[:end]))
        head_column, head_samples = head["column"], head["samples"]
        width, long_count = head["width"], head["long"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise IndexFileError(
            f"{location} has no lengths. Write it again with mds lengths."
        ) from error
    column = head_column if column is None and isinstance(head_column, str) else column
    is_plausible = head_column == column and head_samples == samples and str(width) in ("1", "2")
    is_plausible = is_plausible and type(long_count) is int and 0 <= long_count <= samples
    # Bytes of the lengths, padded to a multiple of 8. A long sample then takes two int64.
    small_bytes = samples * width if is_plausible else 0
    small_bytes += -small_bytes % 8
    if not is_plausible or len(view) != end + small_bytes + 16 * long_count:
        raise IndexFileError(
            f"{location} has lengths of column {head_column!r:.60} of {head_samples!r:.30} "
            f"samples; expected column {column!r} of {samples}. Write it again with mds lengths."
        )
    dtype = np.dtype(f"<u{width}")
    lengths = np.frombuffer(view, dtype, samples, end)
    long = np.frombuffer(view, "<i8", long_count, end + small_bytes)
    of_long = np.frombuffer(view, "<i8", long_count, end + small_bytes + 8 * long_count)
    _check_long(lengths, long, of_long, location)
    return Lengths(str(column), lengths, long, of_long, fingerprint_of(view))


def _check_long(lengths: NDArray[Any], long: Ids, of_long: Ids, location: str) -> None:
    """Raise IndexFileError unless exactly the marked samples are in the list of long ones.

    ``location`` names the sidecar in errors; see `Lengths` for the arrays.
    """
    top = np.iinfo(lengths.dtype).max
    is_consistent = (
        np.array_equal(np.flatnonzero(lengths == top), long)
        and (of_long >= top).all()
        and (of_long <= LARGEST).all()
    )
    if not is_consistent:
        raise IndexFileError(
            f"{location} is damaged: the table of long lengths does not match the others. Write it "
            "again with mds lengths."
        )
