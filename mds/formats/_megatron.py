r"""Token files of Megatron-LM: tokens in ``NAME.bin``, places of documents in ``NAME.idx``.

    NAME.idx   MMIDIDX\0\0 | u64 version | u8 dtype | u64 N sequences | u64 M cuts
               34: i32[N] lengths | i64[N] byte offsets | i64[M] cuts | optional: i8[N] modes

Document ``i`` consists of the sequences ``cuts[i]`` to before ``cuts[i + 1]``, and is one sample.
The sequences follow one another without gaps, so a document is one range of the ``.bin`` file.
Shards are virtual: consecutive documents of about 64 MB. Planning reads and checks the whole
``.idx``; reading a shard needs two ranges of it. Numbers are little-endian.

The format finds a shard (`ShardPlace`) again by two values of its plan: ``span`` has the number of
its first document in the file and the number after its last one, and ``note`` is a `_PlannedIndex`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, NoReturn

import numpy as np

from mds._units import parse_bytes
from mds._words import plural
from mds.encodings import parse_encoding
from mds.errors import ConfigError, FormatError
from mds.formats._base import Format
from mds.formats._encode import encode_records, sample_encoder
from mds.formats._facts import Block, DataFile, FilePlan, FoundFiles, Problem, ShardPlace
from mds.formats._made_reader import MadeReader
from mds.formats._source import Files
from mds.formats._tar_members import Mapped, mapped
from mds.storage import open_store

if TYPE_CHECKING:
    import numpy.typing as npt

    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection
    from mds.formats._source import FilePlace

    Int64s = npt.NDArray[np.int64]

#: The only column: the tokens of a document.
TOKENS = "tokens"

_MAGIC, _VERSION = b"MMIDIDX\0\0", 1
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {
    code: np.dtype(name)
    for code, name in enumerate(("u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"), 1)
}
#: Most documents of a shard, which limits shards of empty or tiny documents.
_MOST_DOCUMENTS = 1 << 20
# Number of shards and the end, dtype, sequences, cuts, size of the .idx, length of its version.
_NOTE = struct.Struct("<QBQQQH")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Megatron(Format):
    """Token files of Megatron-LM (``.bin`` beside ``.idx``), read in place; a document is a sample.

    - ``shard_size`` (int | str, default "64mb", bytes): A shard ends with the last document that
      fits into this size. Another size changes the order of an epoch.
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode; the format has
      one, ``"tokens"``.

    Raises ConfigError (a ValueError) for a size below one byte.

    >>> StreamingDataset(remote="s3://bucket/web", format="megatron")  # doctest: +SKIP
    """

    name: ClassVar[str] = "megatron"
    title: ClassVar[str] = "Megatron-LM tokens"
    endings: ClassVar[tuple[str, ...]] = (".bin",)

    shard_size: int | str = "64mb"

    def __post_init__(self) -> None:
        super().__post_init__()
        size = parse_bytes(self.shard_size)
        if size < 1:
            raise ConfigError(
                f"shard_size= must be a positive number of bytes, got {self.shard_size!r}."
            )
        object.__setattr__(self, "shard_size", size)  # in bytes; the dataclass is frozen

    def find(self, place: FilePlace, source: Files) -> FoundFiles:
        """Return the ``.bin`` files, and a digest of the ``.idx`` files beside them.

        The digest takes the place of the schema of a table: all files are planned again if it
        changes. It is made of the keys, sizes and versions of the ``.idx`` files, because the plans
        follow from their contents.
        """
        files = self.choose(source.find(place), source)
        indexes = [source.beside(_index_key(file)) for file in files]
        digest = hashlib.blake2s(repr(indexes).encode(), digest_size=8).hexdigest()
        return FoundFiles(files, schema=digest)

    def merge(self, file_columns: Sequence[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
        """Merge the columns of files, which must be all of integers or all of floats."""
        kinds = {key: "float" in columns.get("tokens", "") for key, columns in file_columns}
        for key, columns in file_columns:
            if "tokens" not in (self.encodings or {}) and kinds[key] != kinds[file_columns[0][0]]:
                raise FormatError(
                    f"{key}: column 'tokens' is {columns['tokens']}, but "
                    f"{file_columns[0][1]['tokens']} in {file_columns[0][0]}. Leave it out with "
                    "columns=, read the files as separate streams, or name an encoding for all of "
                    "them, such as encodings={'tokens': 'tensor:float64'}."
                )
        return super().merge(file_columns)

    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Cut the documents of a file into shards, by its ``.idx`` alone."""
        index = files.beside(_index_key(file))
        if index is None:
            raise FormatError(f"{files.url(file)}: there is no {_index_key(file)} next to it.")
        path = files.path(index)
        data = files.get(index) if path is None else mapped(path)
        location = files.url(index)
        header = _Header.parse(data[: _HEADER.size], len(data), location)
        document_sequences, bounds = _check_index(
            header, data, location, file.size, files.url(file)
        )
        cuts = _shard_cuts(bounds, int(self.shard_size))
        counts = np.diff(cuts)
        # First document, sequence and byte of each shard; the last row is the end of the file.
        planned = _PlannedIndex(
            header, index, np.stack([cuts, document_sequences[cuts], bounds[cuts]], axis=1)
        )
        # An `ndarray` has at least one element, a `tensor` may be empty.
        family = "tensor" if (np.diff(bounds) == 0).any() else "ndarray"
        return FilePlan(
            columns={TOKENS: f"{family}:{header.dtype.name}"},
            samples=counts.tolist(),
            sizes=(np.diff(bounds[cuts]) + 16 * counts).tolist(),
            spans=list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)),
            note=planned.to_bytes(),
        )

    def plan_bytes(self, file: DataFile, files: Files) -> int:
        """Return the size of the ``.idx`` file."""
        index = files.beside(_index_key(file))
        return 0 if index is None else index.size

    def value_lengths(self, shard: ShardPlace, column: str, files: Files) -> Int64s | None:
        """Return the number of tokens of each document of a shard, by the ``.idx``."""
        if column != TOKENS:
            return None
        bounds, dtype = self._document_bounds(shard, files)
        return np.asarray(np.diff(bounds) // dtype.itemsize, np.int64)

    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block | Problem]:
        """Yield the documents of a shard, fetched as one range."""
        bounds, dtype = self._document_bounds(shard, files)
        begin, end = int(bounds[0]), int(bounds[-1])
        (data,) = files.ranges(shard.file, [(begin, end)])
        convert = _converter(shard, dtype)
        bounds_in_data = (bounds - begin).tolist()
        documents = (
            {TOKENS: convert(data[start:stop])}
            for start, stop in itertools.pairwise(bounds_in_data)
        )
        locate = functools.partial(self.location_of, shard, files=files)
        yield from encode_records(shard.columns, documents, locate)

    def shard_of(self, shard: ShardPlace) -> str:
        """Describe a shard by the numbers of its documents in the file."""
        return f"documents {shard.span[0]:,} to {shard.span[1]:,}"

    def location_of(self, shard: ShardPlace, row: int, files: Files) -> str:
        """Return the file, and the number of the document in it, from 0."""
        return f"{files.url(shard.file)}, document {shard.span[0] + row:,}"

    def can_range(self, shard: ShardPlace) -> bool:
        """Return True: a document is a range of bytes."""
        del shard
        return True

    def rows(self, shard: ShardPlace, rows: Sequence[int], files: Files) -> Mapping[int, bytes]:
        """Return the MDS bytes of some documents of a shard, fetched by ranges."""
        bounds, dtype = self._document_bounds(shard, files)
        convert, encode = _converter(shard, dtype), sample_encoder(shard.columns)
        ranges = [(int(bounds[row]), int(bounds[row + 1])) for row in rows]
        return {
            row: encode(
                {TOKENS: convert(data)}, functools.partial(self.location_of, shard, row, files)
            )
            for row, data in zip(rows, files.ranges(shard.file, ranges), strict=True)
        }

    def is_read_in_place(self, files: Sequence[DataFile]) -> bool:
        """Return True: tokens are not compressed."""
        del files
        return True

    def reader(self, shard: ShardPlace, path: str, columns: ColumnSelection) -> Reader:
        """Return a reader of a shard's documents in the mapped ``.bin`` file."""
        root = path[: -len(shard.file.key)]
        bounds, dtype = self._document_bounds(shard, Files(open_store(root)))
        data = mapped(path)
        if len(data) < bounds[-1]:
            raise FormatError(
                f"{path}: it has {len(data):,} bytes, but documents up to byte {bounds[-1]:,} were "
                f"expected."
            )
        convert, encode = _converter(shard, dtype), sample_encoder(shard.columns)
        document_bounds = bounds.data  # a memoryview, whose elements are Python integers

        def mds_bytes(row: int) -> bytes:
            """Return the bytes of a document's sample as in an MDS shard."""
            tokens = convert(data[document_bounds[row] : document_bounds[row + 1]])
            return encode({TOKENS: tokens}, lambda: f"{path}, document {shard.span[0] + row:,}")

        return MadeReader(shard.columns, shard.samples, path, mds_bytes, columns)

    def _document_bounds(
        self, shard: ShardPlace, files: Files
    ) -> tuple[Int64s, np.dtype[np.generic]]:
        """Return the document bounds of a shard in the ``.bin``, in bytes, and the token's dtype.

        The bounds are int64 of shape (documents + 1,): document i of the shard has the bytes
        ``bounds[i]`` to before ``bounds[i + 1]``. Raises FormatError if the ``.idx`` differs from
        the one with which the shard was planned.

            lengths of sequences   3  2  4   (tokens of 2 bytes)     cuts  0  2  3
            bounds of sequences    0  6 10 18                        bounds of documents  0 10 18
        """
        planned = _PlannedIndex.parse(shard.note, shard.file)
        header, (first, last) = planned.header, shard.span
        # Each is (document, sequence, byte) at which the shard begins or ends.
        begin, end = planned.shard_rows(first, last, shard.file)
        location = files.url(planned.file)
        lengths_data, cuts_data = files.ranges(
            planned.file,
            [
                (header.lengths_at + 4 * begin[1], header.lengths_at + 4 * end[1]),
                (header.cuts_at + 8 * first, header.cuts_at + 8 * (last + 1)),
            ],
        )
        lengths = np.frombuffer(lengths_data, "<i4").astype(np.int64)
        ends = np.cumsum(lengths * header.dtype.itemsize)
        sequence_bounds = begin[2] + np.concatenate([np.zeros(1, np.int64), ends])
        cuts = np.frombuffer(cuts_data, "<i8") - begin[1]  # counted from the shard's first sequence
        is_planned = (
            (len(lengths) == 0 or int(lengths.min()) >= 0)
            and cuts[0] == 0
            and cuts[-1] == len(lengths)
            and not (cuts[1:] < cuts[:-1]).any()  # a difference could overflow
            and sequence_bounds[-1] == end[2]
        )
        if not is_planned:
            raise FormatError(
                f"{location}: {self.shard_of(shard)} changed since the start. Restart."
            )
        return sequence_bounds[cuts], header.dtype


class _Header(NamedTuple):
    """The header of an ``.idx`` file: code of the dtype, number of sequences, number of cuts."""

    code: int
    sequences: int
    cuts: int

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Type of a token."""
        return _DTYPES[self.code]

    @property
    def lengths_at(self) -> int:
        """First byte of the lengths of sequences."""
        return _HEADER.size

    @property
    def offsets_at(self) -> int:
        """First byte of the offsets of sequences."""
        return self.lengths_at + 4 * self.sequences

    @property
    def cuts_at(self) -> int:
        """First byte of the cuts between documents."""
        return self.offsets_at + 8 * self.sequences

    @classmethod
    def parse(cls, data: bytes, size: int, location: str) -> _Header:
        """Parse the header of an ``.idx`` file of ``size`` bytes.

        Raises FormatError, which names the offset, for a wrong header or another size.
        """
        if len(data) < _HEADER.size:
            _refuse(location, len(data), f"the file ends inside its header of {_HEADER.size} bytes")
        magic, version, code, sequences, cuts = _HEADER.unpack(data)
        if magic != _MAGIC:
            _refuse(location, 0, f"it begins with {magic!r}, but an index begins with {_MAGIC!r}")
        if version != _VERSION:
            _refuse(location, 9, f"its version is {version}, but only {_VERSION} can be read")
        if code not in _DTYPES:
            _refuse(location, 17, f"dtype {code} is unknown; the codes are 1 to {len(_DTYPES)}")
        header = cls(code, sequences, cuts)
        end = header.cuts_at + 8 * cuts
        if size < end:
            counted = f"{sequences:,} sequences and {cuts:,} cuts"
            _refuse(location, size, f"the file ends, but {counted} take {end:,} bytes")
        if size not in (end, end + sequences):
            counted = f"{sequences:,} sequences and {cuts:,} cuts"
            _refuse(location, end, f"{counted} end here, but the file has more bytes")
        if not cuts:
            _refuse(location, 26, "there are no cuts, but the first document needs one")
        return header


def _check_index(
    header: _Header, data: Mapped, location: str, size: int, tokens_location: str
) -> tuple[Int64s, Int64s]:
    """Check an ``.idx``, and return the first sequence and the first byte of each document.

    - ``header`` (_Header), ``data`` (Mapped): Header and content of the ``.idx``.
    - ``size`` (int): Bytes of the ``.bin``.
    - ``location``, ``tokens_location`` (str): Names of the ``.idx`` and the ``.bin``, for errors.

    Both arrays are int64 of shape (documents + 1,); the last entry is the end. Raises FormatError,
    which names the offset, unless all arrays of the ``.idx`` agree with one another and with the
    size of the ``.bin``.
    """
    count, item = header.sequences, header.dtype.itemsize
    lengths = np.frombuffer(data, "<i4", count, header.lengths_at)
    offsets = np.frombuffer(data, "<i8", count, header.offsets_at)
    cuts = np.frombuffer(data, "<i8", header.cuts, header.cuts_at)
    if (row := _first_true(lengths < 0)) is not None:
        _refuse(
            location,
            header.lengths_at + 4 * row,
            f"sequence {row:,} has {plural(lengths[row], 'token')}",
        )
    sizes = lengths.astype(np.int64) * item
    # Each sequence begins where the one before ends; `[:count]` is for a file without sequences.
    expected = np.concatenate([np.zeros(1, np.int64), offsets[:-1] + sizes[:-1]])[:count]
    if (row := _first_true((offsets != expected) | (offsets < 0))) is not None:
        _refuse(
            location,
            header.offsets_at + 8 * row,
            f"sequence {row:,} begins at byte {offsets[row]:,}, but the sequences before it end at "
            f"{expected[row]:,}",
        )
    end = int(offsets[-1]) + int(sizes[-1]) if count else 0
    if end > size:
        row = int(np.searchsorted(offsets + sizes, size, "right"))
        _refuse(
            tokens_location,
            size,
            f"the file ends, but in {location} sequence {row:,} has the bytes {offsets[row]:,} to "
            f"{int(offsets[row]) + int(sizes[row]):,}",
        )
    if cuts[0] != 0:
        _refuse(location, header.cuts_at, f"the first cut is {cuts[0]:,} instead of 0")
    if (row := _first_true(cuts[1:] < cuts[:-1])) is not None:  # a difference could overflow
        _refuse(
            location,
            header.cuts_at + 8 * (row + 1),
            f"cut {cuts[row + 1]:,} follows {cuts[row]:,}; cuts must increase",
        )
    if cuts[-1] != count:
        _refuse(
            location,
            header.cuts_at + 8 * (header.cuts - 1),
            f"the last cut is {cuts[-1]:,}, but there are {count:,} sequences",
        )
    return np.asarray(cuts), np.concatenate([offsets, np.array([end], np.int64)])[cuts]


def _refuse(location: str, offset: int, reason: str) -> NoReturn:
    raise FormatError(f"{location}, byte {offset:,}: {reason}.")


def _first_true(flags: npt.NDArray[np.bool_]) -> int | None:
    """Return the index of the first True, or None if there is none."""
    row = int(np.argmax(flags)) if len(flags) else 0
    return row if len(flags) and flags[row] else None


def _shard_cuts(bounds: Int64s, size: int) -> Int64s:
    """Return the first document of each shard, and at the end the number of documents.

    ``bounds`` are the bytes where documents begin, and where the last one ends; ``size`` is that of
    a shard in bytes. A shard has at least one document.
    """
    cuts, documents = [0], len(bounds) - 1
    while (first := cuts[-1]) < documents:
        # The last bound that is at most `size` bytes after the shard's beginning.
        fitting = int(np.searchsorted(bounds, bounds[first] + size, "right")) - 1
        cuts.append(min(max(fitting, first + 1), first + _MOST_DOCUMENTS, documents))
    return np.array(cuts, np.int64)


class _PlannedIndex(NamedTuple):
    """An ``.idx`` file when it was planned, and where in it each shard begins.

    - ``header``: its header. ``file``: its key, size and version.
    - ``starts``: first document, first sequence and first byte of each shard, and of the end; int64
      of shape (shards + 1, 3).
    """

    header: _Header
    file: DataFile
    starts: Int64s

    def to_bytes(self) -> bytes:
        """Return the bytes for the note of a `FilePlan`.

        rows of `starts`, header, size of the ``.idx``, length of the version | version | `starts`
        """
        version = self.file.version.encode()
        head = _NOTE.pack(len(self.starts), *self.header, self.file.size, len(version))
        return head + version + self.starts.astype("<i8").tobytes()

    @classmethod
    def parse(cls, note: bytes, file: DataFile) -> _PlannedIndex:
        """Parse the bytes of `to_bytes`, for the ``.bin`` file. Raises FormatError for others."""
        try:
            count, code, sequences, cuts, size, length = _NOTE.unpack_from(note)
            version = note[_NOTE.size : _NOTE.size + length].decode()
            starts = np.frombuffer(note, "<i8", 3 * count, _NOTE.size + length)
            header = _Header(code, sequences, cuts)
            _ = header.dtype  # raises KeyError for an unknown code
        except (struct.error, ValueError, KeyError, OverflowError) as error:
            raise _unplanned(file) from error
        return cls(header, DataFile(_index_key(file), size, version), starts.reshape(-1, 3))

    def shard_rows(self, first: int, last: int, file: DataFile) -> tuple[list[int], list[int]]:
        """Return where the shard of documents [first, last) begins and ends, as in `starts`.

        Both are [document, sequence, byte]. Raises FormatError if no such shard was planned; it
        names ``file``, the ``.bin``.
        """
        row = int(np.searchsorted(self.starts[:, 0], first))
        pair = self.starts[row : row + 2].tolist()
        if len(pair) != 2 or [pair[0][0], pair[1][0]] != [first, last]:
            raise _unplanned(file)
        begin, end = pair
        is_sound = 0 <= begin[1] <= end[1] <= self.header.sequences and last < self.header.cuts
        if not is_sound or not 0 <= begin[2] <= end[2]:
            raise _unplanned(file)
        return begin, end


def _unplanned(file: DataFile) -> FormatError:
    return FormatError(
        f"the table of files has no positions of the documents of {file.key}. Delete the table, or "
        "run mds index again."
    )


def _index_key(file: DataFile) -> str:
    return f"{file.key[: -len('.bin')]}.idx"


def _converter(
    shard: ShardPlace, dtype: np.dtype[np.generic]
) -> Callable[[bytes | memoryview], npt.NDArray[np.generic]]:
    """Return a function from the bytes of a document to its tokens, in the column's dtype.

    That dtype is wider than the file's if another file of the dataset has a wider one.
    """
    encoding = dict(zip(shard.columns.names, shard.columns.encodings, strict=True)).get(TOKENS)
    element = parse_encoding(encoding).element_dtype if encoding else dtype

    def convert(data: bytes | memoryview) -> npt.NDArray[np.generic]:
        return np.frombuffer(data, dtype).astype(element, copy=False)

    return convert
