r"""Find the records of CSV at the speed of memory: a record may span lines.

    id,text\n1,"a\nb"\n2,"say ""no"" to"\n
              |-------||-----------------|    records; a newline inside of quotes ends none

A quote opens a quoted cell at the beginning of a cell only; elsewhere outside of quotes it is a
character like others, as in the csv module. Inside of quotes a pair of quotes means one quote. If
all quotes that open a cell by their parity are where a cell begins, a newline ends a record exactly
if an even number of quotes is before it. That is computed for all newlines at once; otherwise the
quotes are looked at one by one.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator

import numpy as np

from mds.formats._newlines import LineRange, Offsets, Piece, line_ends

_QUOTE, _NEWLINE, _RETURN = 34, 10, 13


def record_ends(data: bytes | memoryview, separator: str, offset: int = 0) -> Offsets:
    """Return the position after each record that ends with a newline, int64 of shape (records,).

    ``data`` begins with a record, at the byte ``offset`` of the file (default 0). There, a byte
    order mark may come before the first cell.
    """
    ends = line_ends(data)
    array = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(array == _QUOTE)
    if not len(quotes) or not len(ends):
        return ends
    first = len(BOM_UTF8) if not offset and bytes(data[: len(BOM_UTF8)]) == BOM_UTF8 else 0
    opening = quotes[::2]
    before = array[opening[opening > first] - 1]
    is_regular = np.isin(before, [ord(separator), _NEWLINE, _QUOTE]).all()
    if not is_regular:
        quotes = _effective_quotes(array, quotes, ord(separator), first)
    outside: Offsets = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return outside


def _effective_quotes(array: np.ndarray, quotes: Offsets, separator: int, first: int) -> Offsets:
    """Return the positions of the quotes that open or close a cell, or are doubled inside one.

    ``first`` is the position of the first cell.
    """
    effective: list[int] = []
    is_inside = False
    for quote in quotes.tolist():
        starts_cell = quote == first or array[quote - 1] in (separator, _NEWLINE)
        # A quote right behind one that seemed to close the cell is the second one of a pair.
        is_pair = bool(effective) and effective[-1] == quote - 1
        if is_inside or starts_cell or is_pair:
            effective.append(quote)
            is_inside = not is_inside
    return np.array(effective, np.int64)


def record_bounds(
    data: bytes | memoryview, separator: str, offset: int = 0
) -> tuple[Offsets, Offsets]:
    """Return begin and end of each record, as two int64 arrays, without blank lines.

    The last record may have no newline at its end. The arguments are those of `record_ends`.
    """
    ends = record_ends(data, separator, offset)
    if len(data) and (not len(ends) or ends[-1] != len(data)):
        ends = np.append(ends, len(data))
    begins = np.concatenate([np.zeros(min(1, len(ends)), np.int64), ends[:-1]])
    if not len(ends):
        return begins, ends
    first = np.frombuffer(data, np.uint8)[begins]
    is_blank = (ends - begins <= 2) & ((first == _NEWLINE) | (first == _RETURN))
    return begins[~is_blank], ends[~is_blank]


def pieces_of_records(chunks: Iterable[bytes], offset: int, separator: str) -> Iterator[Piece]:
    """Yield the records of some chunks in pieces of whole records; see `Piece`.

    The first chunk begins at the byte ``offset``, with a record.
    """
    pending: list[bytes] = []  # the beginning of a record whose end has not come yet
    size = searched = 0  # bytes of it, and how many of them were searched for its end
    for chunk in chunks:
        pending.append(chunk)
        size += len(chunk)
        if size < 2 * searched:  # so that long records are not searched again with every chunk
            continue
        data = b"".join(pending)
        ends = record_ends(data, separator, offset)
        end = int(ends[-1]) if len(ends) else 0
        if end:
            yield offset, data[:end], *record_bounds(data[:end], separator, offset)
        offset += end
        pending = [data[end:]]
        size = len(data) - end
        searched = 0 if end else size
    if size:
        data = b"".join(pending)
        yield offset, data, *record_bounds(data, separator, offset)


def cut_records(pieces: Iterable[Piece], size: int | None, start: int = 0) -> Iterator[LineRange]:
    """Cut records, given in pieces, the first of which begins at ``start``, into ranges.

    A range ends with the first record that ends ``size`` bytes or more after its start; with None
    there is one range. The ranges do not depend on the pieces.
    """
    end, count = start, 0
    for offset, data, _, ends in pieces:
        first = 0  # record of the piece that is not in a range yet
        while size is not None:
            last = first + int(np.searchsorted(ends[first:], start + size - offset))
            if last == len(ends):
                break
            yield LineRange(start, offset + int(ends[last]), count + last + 1 - first)
            start, count, first = offset + int(ends[last]), 0, last + 1
        count += len(ends) - first
        end = offset + len(data)
    if end > start:
        yield LineRange(start, end, count)
