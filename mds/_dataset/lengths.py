"""Lengths of documents for a packed order, from a file beside the index or from shard headers.

Nothing is read before packs are first used. The file is then read from the folder of data that are
read in place, else from the cache folder, else from the remote. Without a file, lengths are
computed from the offsets at the beginning of each shard, a ranged read of four bytes for each
sample; this needs a column that alone has no fixed size. Results are kept in the cache folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from mds._cache.folder import CacheFolder
from mds._cache.ownership import control_folder
from mds._index.binary_copy import map_file
from mds._index.lengths import (
    KIND,
    JoinedLengths,
    Lengths,
    emit_lengths_file,
    lengths_name,
    most_bytes,
    parse_lengths,
    parse_lengths_file,
)
from mds._index.sidecar import read_sidecar
from mds._shardfile.layout import parse_offsets
from mds.encodings import DecodeKind, parse_encoding
from mds.encodings._arrays import has_lengths, length_function
from mds.errors import CacheError, ConfigError, IndexFileError, StoreError
from mds.formats._columns import as_columns
from mds.formats._source import Files
from mds.plan._pack_filling import DocumentLengths, PackFilling
from mds.plan._pack_schedule import Documents
from mds.plan._packing import DEFAULT_COLUMN, LABELS, Packing
from mds.storage import open_store
from mds.storage._base import settings_for
from mds.storage._control_files import make_control_folder, publish_control_file
from mds.storage._files import open_regular
from mds.storage._relative_name import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mds._cache.source import Source
    from mds._index.shard_object import ShardInfo, ShardSchema
    from mds._iteration.shard_map import ShardMap
    from mds._readers.fields import ColumnSelection
    from mds.encodings import Encoding
    from mds.formats import Block
    from mds.storage import Store

    Ids = NDArray[np.int64]

_MAX_HEADER_BYTES = 64 << 10  # of the header lines of a file of lengths
_CONNECTIONS = 16
_AT_ONCE = 1 << 20  # samples whose lengths are added up


class SelectedLengths(DocumentLengths):
    """Lengths of the samples of a dataset, by their numbers in its selection.

    Args:
        joined: Lengths of all stored samples.
        shards: Shards of the dataset, with its selection.

    Attributes:
        digest: Digest of the lengths of all stored samples.
        total: Sum of these lengths.
        count: Number of these lengths.
    """

    def __init__(self, joined: JoinedLengths, shards: ShardMap) -> None:
        self._joined, self._shards = joined, shards
        self.digest, self.total, self.count = joined.digest, joined.total, joined.count
        self._packed: dict[tuple[tuple[int, ...], str], list[Documents]] = {}

    def packed(self, counts: Sequence[int], packing: Packing) -> list[Documents]:
        """Return the number of documents and tokens of each stream, as they will be packed.

        The first call with the same arguments takes about a second for a hundred million samples.

        Args:
            counts: Number of samples of each stream.
            packing: Packing, which may cut or leave out long documents.
        """
        key = tuple(counts), repr(packing.facts())
        if key not in self._packed:
            first, documents = 0, []
            for count in counts:
                tokens = 0
                for start in range(first, first + count, _AT_ONCE):
                    lengths = self.take(np.arange(start, min(start + _AT_ONCE, first + count)))
                    tokens += int(packing.tokens(lengths).sum())
                documents.append(Documents(count, tokens))
                first += count
            self._packed[key] = documents
        return self._packed[key]

    def pack_counts(self, filling: PackFilling) -> list[Ids]:
        """Return the number of packs of each window, which the cache folder may have."""
        from mds._dataset.pack_counts import counts_by_key

        return counts_by_key.count(filling)

    def known_pack_counts(self, filling: PackFilling) -> list[Ids] | None:
        """Return the number of packs of each window if they were counted before, else None."""
        from mds._dataset.pack_counts import counts_by_key

        return counts_by_key.find(filling)

    def take(self, ids: Ids) -> Ids:
        """Return the lengths of the samples ``ids``, int64, of the same shape."""
        return self._joined.take(self._shards.stored(ids))


def open_lengths(sources: Sequence[Source], column: str) -> JoinedLengths:
    """Return the lengths of a column for all samples of several sources, one after the other.

    Raises ConfigError if there is no file and headers do not have them, IndexFileError for a file
    that is damaged or belongs to another index, and the StoreError of a remote that fails.
    """
    return JoinedLengths([_of_source(source, column) for source in sources])


def _of_source(source: Source, column: str) -> Lengths:
    """Return the lengths of a column for all samples of one source.

    They come from a local file, else from a file of the remote, else from the shards.
    """
    index, name = source.index, lengths_name(column)
    fingerprint, samples = index.fingerprint(), index.total_samples
    _check_column(source, column)
    in_place = source.remote is None
    folder = source.folder if in_place else control_folder(source.folder)
    path = os.path.join(folder, name)
    # Lengths in a cache folder belong to the data there, see `identity_for`: without digests, other
    # data may have an index of the same bytes.
    owner = fingerprint if in_place else CacheFolder(source, 0, 0).fingerprint().hex()
    file = map_file(path, max_bytes=most_bytes(samples) + _MAX_HEADER_BYTES)
    if file is not None:
        try:
            return parse_lengths_file(file, samples, column, owner, path)
        except IndexFileError:
            if in_place:
                raise
            # The copy belongs to an earlier index; the file at the remote replaces it.
    place = source.remote or source.folder
    options = settings_for(place, source.options)
    store = source.store or open_store(place, options=options, timeout=source.timeout)
    if not in_place:
        sidecar = read_sidecar(store, name, KIND, fingerprint, max_bytes=most_bytes(samples))
        if sidecar is not None:
            lengths = parse_lengths(sidecar.payload, samples, column, store.url_of(name))
            return _keep(path, lengths, owner)
    compute = _from_headers if source.data is None else _from_files
    return _keep(None if in_place else path, compute(source, store, column), owner)


def _keep(path: str | None, lengths: Lengths, owner: str) -> Lengths:
    """Write lengths to a file of the cache folder; return them, mapped from it if that worked.

    Args:
        path: The file; None to keep no file.
        lengths: Lengths to keep.
        owner: Identity of the data in the cache folder.
    """
    if path is None:
        return lengths
    data = emit_lengths_file(lengths.column, lengths.all(), owner)
    with contextlib.suppress(OSError, StoreError, CacheError):
        folder = os.path.dirname(path)
        make_control_folder(folder)
        # The mode of the folder without the right to execute: its readers may read the file.
        mode = stat.S_IMODE(os.stat(folder).st_mode) & 0o666 | 0o600
        with publish_control_file(path, mode) as file:
            file.write(data)
        mapped = map_file(path, max_bytes=len(data))
        if mapped is not None:
            return parse_lengths_file(mapped, len(lengths), lengths.column, owner, path)
    return lengths


def find_token_column(sources: Sequence[Source], columns: ColumnSelection, packing: Packing) -> str:
    """Return the column of the tokens for a packing that does not name it.

    It is ``tokens`` if that column has lengths, else the only column of one-dimensional integers
    beside ``labels``.

    Args:
        sources: Places of the data, and their indexes.
        columns: Columns that are read. Others count if none of these may be the tokens.
        packing: Packing, for errors.

    Raises ConfigError if there is no such column, or if there are several.
    """
    schemas = [schema for source in sources for schema in source.index.schemas]
    encodings = [
        dict(zip(schema.columns.names, schema.columns.encodings, strict=True)) for schema in schemas
    ]
    common = [name for name in encodings[0] if all(name in each for each in encodings)]
    read = [name for name in common if name in columns]

    def matching(names: Sequence[str], condition: Callable[[str], bool]) -> list[str]:
        """Return those of ``names`` whose encodings in all schemas fulfil a condition."""
        return [name for name in names if all(condition(each[name]) for each in encodings)]

    if DEFAULT_COLUMN in read and matching([DEFAULT_COLUMN], _is_measurable):
        return DEFAULT_COLUMN
    candidates = matching(read, _is_of_integers) or matching(common, _is_of_integers)
    if DEFAULT_COLUMN in candidates:
        return DEFAULT_COLUMN
    if len(tokens := [name for name in candidates if name != LABELS] or candidates) == 1:
        return tokens[0]
    size = packing.size_argument
    if candidates:
        # Such as "input_ids" beside "attention_mask".
        likely = max(candidates, key=lambda name: name.endswith("ids"))
        raise ConfigError(
            f"Packing({size}): more than one column may have the tokens: "
            f"{', '.join(map(shown, candidates))}. Write packing=Packing({size}, "
            f"column={likely!r}), or name another of these columns."
        )
    usable = matching(common, _is_measurable)
    remedy = (
        f"Write packing=Packing({size}, column={usable[0]!r}) if this column has the tokens."
        if usable
        else "To convert texts to tokens, use mds-convert --tokenizer."
    )
    listed = ", ".join(map(shown, common)) or "of all streams"
    raise ConfigError(
        f"Packing({size}): none of the columns {listed} has one-dimensional arrays of integers. "
        f"{remedy}"
    )


def _is_measurable(text: str) -> bool:
    """Whether the values of an encoding, such as "ndarray:int32", have lengths."""
    return has_lengths(parse_encoding(text))


def _is_of_integers(text: str) -> bool:
    """Whether an encoding, such as "list[int64]", is of one-dimensional arrays of integers."""
    if not _is_measurable(text):
        return False
    if text.startswith("optional["):
        text = text[len("optional[") : -1]
    is_list = text.startswith("list[")
    element = parse_encoding(text[len("list[") : -1] if is_list else text)
    dtype = element.element_dtype if element.dtype is None else element.dtype
    is_scalar = element.shape == ()
    return dtype is not None and dtype.kind in "iu" and is_scalar == is_list


def _check_column(source: Source, column: str) -> None:
    """Raise ConfigError, naming usable columns, if some shard has no column of this name."""
    for schema in source.index.schemas:
        if column not in schema.columns.names:
            pairs = zip(schema.columns.names, schema.columns.encodings, strict=True)
            usable = [name for name, text in pairs if has_lengths(parse_encoding(text))]
            remedy = (
                f"Write Packing(..., column={usable[0]!r}), or name another column of arrays: "
                f"{', '.join(usable)}."
                if usable
                else "None of its columns has arrays. To convert texts to tokens, use mds-convert "
                "--tokenizer."
            )
            raise ConfigError(
                f"Packing needs the column {shown(column)}, but {source.remote or source.folder} "
                f"has only {', '.join(schema.columns.names)}. {remedy}"
            )


def _from_headers(source: Source, store: Store, column: str) -> Lengths:
    """Return lengths from the headers of MDS shards, which begin with the offsets of their samples.

    Args:
        source: Place of the shards, and their index.
        store: Store to read shards from that are not in the folder of ``source``.
        column: Column whose arrays are measured.

    Raises ConfigError if headers do not have the lengths.
    """
    place = source.remote or source.folder
    item_sizes = [_item_size(schema, column, place) for schema in source.index.schemas]
    folder = CacheFolder(source, 0, 0)

    def is_local(info: ShardInfo) -> bool:
        """Whether the raw file of a shard is in the folder of ``source`` and has its content."""
        if source.remote is None:
            return os.path.isfile(info.raw.basename.under(source.folder))
        return folder.has_ownership_marker(info)  # files of older data may have the same name

    def of_shard(shard: ShardInfo) -> Ids:
        """Return the lengths of the column in a shard, int64 of shape (samples,).

        A sample is stored as the sizes of its values of no fixed size (uint32), then all values.
        The column is the only one of no fixed size, so its size is the sample's less all others.
        """
        item_size = item_sizes[int(source.index.schema_of[shard.number])]
        columns = shard.schema.columns
        if item_size is None:  # all values have the same length
            shape = parse_encoding(columns.encodings[columns.names.index(column)]).shape
            assert shape is not None
            return np.full(shard.samples, shape[0], np.int64)
        # A shard begins with uint32: the number of samples, where each begins, and their end.
        head_bytes = 4 * (shard.samples + 2)
        name = shard.raw.basename
        has_file = is_local(shard)
        if shard.zip is not None and not has_file:
            raise _no_lengths(place, column, "its shards are compressed")
        if has_file:
            with open_regular(name.under(source.folder)) as file:
                data = file.read(head_bytes)
        else:
            data = store.get_range(name, 0, head_bytes)
        offsets = parse_offsets(data, shard.samples, shard.raw.size, str(name))
        other_bytes = 4 + sum(size for size in columns.sizes if size is not None)
        sizes = np.asarray(np.diff(offsets.astype(np.int64)) - other_bytes, np.int64)
        return _vector_lengths(sizes, item_size, place)

    with ThreadPoolExecutor(_CONNECTIONS, "mds-lengths") as pool:
        parts = list(pool.map(of_shard, source.index))
    return Lengths.of(column, np.concatenate([np.zeros(0, np.int64), *parts]))


def _from_files(source: Source, store: Store, column: str) -> Lengths:
    """Return lengths of a column of files of another format than MDS.

    Some formats know them without reading values. For others, that column alone is read.
    """
    place, data_of_files = source.remote or source.folder, source.data
    assert data_of_files is not None
    columns = dict(zip(data_of_files.columns.names, data_of_files.columns.encodings, strict=True))
    data = dataclasses.replace(data_of_files, columns=as_columns(columns, [column]))
    encoding, files = parse_encoding(columns[column]), Files(store)
    if not has_lengths(encoding):
        raise _not_of_arrays(place, column, encoding)
    if encoding.shape is not None:
        return Lengths.of(column, np.full(source.index.total_samples, encoding.shape[0], np.int64))
    length = length_function(columns, column)

    def of_shard(number: int) -> Ids:
        """Return the lengths of the column in the shard ``number``, int64 of shape (samples,).

        ``data`` describes the shards of the files with this column alone.
        """
        known_lengths = data.value_lengths(number, column, files)
        if known_lengths is not None:
            return known_lengths
        # With one column, an encoded sample is the size of the value (uint32, unless the size is
        # fixed) and the value.
        blocks = [*data.blocks(number, files)]
        sizes = np.concatenate([np.zeros(0, np.int64), *(block.sizes for block in blocks)])
        if encoding.decode_kind is DecodeKind.VECTOR and encoding.element_dtype is not None:
            return _vector_lengths(sizes - 4, encoding.element_dtype.itemsize, place)
        samples = (sample for block in blocks for sample in _cut(block))
        # Without the size, which these encodings have; each value is decoded.
        return np.array([length(sample[4:]) for sample in samples], np.int64)

    with ThreadPoolExecutor(4, "mds-lengths") as pool:
        parts = list(pool.map(of_shard, range(len(source.index))))
    return Lengths.of(column, np.concatenate([np.zeros(0, np.int64), *parts]))


def _cut(block: Block) -> Iterator[memoryview]:
    """Yield the bytes of each sample of a block, which lie end to end in its data."""
    data, ends = memoryview(block.data), np.cumsum(block.sizes).tolist()
    for end, size in zip(ends, block.sizes.tolist(), strict=True):
        yield data[end - size : end]


def _item_size(schema: ShardSchema, column: str, place: str) -> int | None:
    """Return the bytes of an element of a column, or None if all its values have one length.

    Raises ConfigError, with ``place`` for the message, if headers do not tell the lengths.
    """
    columns = schema.columns
    encoding = parse_encoding(columns.encodings[columns.names.index(column)])
    if encoding.shape is not None and len(encoding.shape) == 1:
        return None
    if not has_lengths(encoding):
        raise _not_of_arrays(place, column, encoding)
    if encoding.decode_kind is not DecodeKind.VECTOR or encoding.element_dtype is None:
        raise _no_lengths(place, column, f"it is stored as {encoding.name!r}")
    if schema.is_split:
        raise _no_lengths(place, column, f"its shards are {schema.format} files")
    if columns.sizes.count(None) > 1:
        other_columns = [
            name
            for name, size in zip(columns.names, columns.sizes, strict=True)
            if size is None and name != column
        ]
        raise _no_lengths(place, column, f"{', '.join(other_columns)} has no fixed size either")
    return encoding.element_dtype.itemsize


def _not_of_arrays(place: str, column: str, encoding: Encoding) -> ConfigError:
    """Return the error for a column whose values are not one-dimensional arrays."""
    return ConfigError(
        f"{place}: column {shown(column)} is stored as {encoding.name!r}, but packing needs "
        "one-dimensional arrays. Name another column with column= of Packing, or convert texts "
        "to tokens with mds-convert --tokenizer."
    )


def _no_lengths(place: str, column: str, why: str) -> ConfigError:
    """Return the error for data without a file of lengths and whose headers do not suffice."""
    return ConfigError(
        f"{place} has no file with the lengths of column {shown(column)}, and the headers of its "
        f"shards do not contain them: {why}. Record the lengths once: mds lengths {place} "
        f"--column {column}"
    )


def _vector_lengths(sizes: Ids, item_size: int, place: str) -> Ids:
    """Return the number of elements of encoded one-dimensional arrays, from their sizes in bytes.

    An encoded array is a byte for the dtype, the number of elements in the smallest of 1, 2, 4 or 8
    bytes that holds it, and the elements. For each width w of the number, ``count = (size - 1 - w)
    / item_size`` must be a whole number that needs w bytes.

    Args:
        sizes: Bytes of each encoded array, int64 of shape (arrays,).
        item_size: Bytes of an element.
        place: URL or path of the data, for errors.

    Raises ConfigError if a size fits no number of elements.
    """
    lengths = np.full(len(sizes), -1, np.int64)
    minimum = 0  # smallest number that needs this width
    for width in (1, 2, 4, 8):
        end = 1 << (8 * width)
        count, remainder = np.divmod(sizes - 1 - width, item_size)
        fits = (remainder == 0) & (count >= minimum)
        if width < 8:  # all int64 need at most 8 bytes
            fits &= count < end
        new = fits & (lengths < 0)
        lengths[new] = count[new]
        minimum = end
    if len(lengths) and int(lengths.min()) < 0:
        raise ConfigError(
            f"{place}: sample {int(np.argmin(lengths))} of a shard is not a one-dimensional array, "
            "so it has no length in tokens."
        )
    return lengths
