"""Facts, samples and lengths of a dataset as values, for the commands that inspect one.

A dataset has an index.json of MDS, or consists of files in another format that are read in place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mds._arguments import did_you_mean
from mds._index.column_notes import read_notes
from mds._index.lengths import KIND, Lengths, emit_lengths, lengths_name
from mds._index.sidecar import write_sidecar
from mds._index.table import FilesIndexError, Index
from mds._preview import Undecodable
from mds._readers.base import Reader
from mds._readers.joint import joint_reader
from mds._shardfile.layout import INDEX_NAME
from mds.encodings import Encoding, parse_encoding
from mds.encodings._arrays import length_function
from mds.errors import ConfigError, MdsError, NotFoundError
from mds.formats._dataset import HERE, FormatData, open_files, pinned_format, read_pinned
from mds.formats._detect import format_of_files
from mds.formats._encode import shard_bytes
from mds.formats._registry import parse_format
from mds.formats._source import Files
from mds.storage import open_store
from mds.storage._url import Url, join, options_of, redact
from mds.writers._merge import read_lengths_files
from mds.writers.convert._inputs.mds import MdsInput

# ----------------------------------------------------------------------------------- find a dataset


def find_datasets(place: str, file_format: str | None = None) -> list[str]:
    """Return the URL of the dataset at ``place``, or the paths of those in its folders (splits).

    - ``file_format`` (str | None, default None): The format of files that are read in place.

    Raises NotFoundError if there is none.
    """
    url = Url(place)
    if file_format is not None:
        return [url]
    store = open_store(url)
    try:
        store.head(INDEX_NAME)
    except NotFoundError:
        local = store.local_path
        if local is not None and os.path.isdir(local):
            names = sorted(os.listdir(local))
            paths = [os.path.join(local, name) for name in names]
            splits = [path for path in paths if os.path.isfile(os.path.join(path, INDEX_NAME))]
            if splits:
                return splits
        if format_of_files(url) is not None:
            return [url]
        if local is not None and not os.path.isdir(local):
            raise _no_folder(redact(url), local) from None
        has_files = local is None or os.listdir(local)
        hint = " For other files, give their format, such as --format images." if has_files else ""
        raise NotFoundError(
            f"{redact(url)}: there is no {INDEX_NAME}, neither here nor in a folder below, so no "
            f"dataset.{hint}"
        ) from None
    return [url]


def _no_folder(url: str, path: str) -> NotFoundError:
    """Return the error for a local path that is not a folder: a file, or a misspelled name."""
    if os.path.exists(path):
        return NotFoundError(
            f"{url}: this is a file in no format that can be read directly. Give the folder of a "
            "dataset, or make one with mds-convert."
        )
    folder, name = os.path.split(path.rstrip("/"))
    near = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    return NotFoundError(f"{url}: there is no such file or folder.{did_you_mean(name, near)}")


def read_index(url: str) -> Index:
    """Return the index of a dataset. Raises NotFoundError and IndexFileError."""
    return Index.parse(open_store(url).get(INDEX_NAME), join(redact(url), INDEX_NAME))


# -------------------------------------------------------------------------------------------- facts


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """Summary of a dataset.

    Sizes are in bytes: ``raw_size`` uncompressed, ``zip_size`` compressed (0 without compression).
    ``columns`` maps names to encodings.
    """

    url: str
    columns: dict[str, str]
    samples: int
    shards: int
    raw_size: int
    zip_size: int
    formats: tuple[str, ...]
    compressions: tuple[str, ...]
    hashes: tuple[str, ...]
    size_limit: int | None
    #: Samples of the smallest, the middle and the largest shard.
    samples_per_shard: tuple[int, int, int]
    #: Bytes of the smallest, the middle and the largest shard, uncompressed.
    bytes_per_shard: tuple[int, int, int]
    #: Columns that differ between shards.
    mixed: tuple[str, ...]
    #: Notes beside the dataset, by column.
    descriptions: dict[str, str]
    class_names: dict[str, list[str]]


def describe(url: str, file_format: str | None = None) -> DatasetInfo:
    """Return the summary of a dataset, from its index and the notes on its columns.

    ``file_format`` is as in `find_datasets`. Sizes of files in other formats are estimates.
    """
    files_dataset = open_dataset(url, file_format)
    if files_dataset is None:
        index = read_index(url)
        notes = read_notes(open_store(url), index.fingerprint())
    else:
        index, notes = files_dataset[0].index(), {}
    columns: dict[str, str] = {}
    mixed = set()
    for schema in index.schemas:
        for name, encoding in zip(schema.columns.names, schema.columns.encodings, strict=True):
            if columns.setdefault(name, encoding) != encoding:
                mixed.add(name)
    for schema in index.schemas:
        mixed |= columns.keys() - set(schema.columns.names)
    raw = index.raw_size + index.raw_meta_size
    limits = {schema.size_limit for schema in index.schemas}
    return DatasetInfo(
        url=redact(url),
        columns=columns,
        samples=index.total_samples,
        shards=len(index),
        raw_size=int(raw.sum()),
        zip_size=int((index.zip_size + index.zip_meta_size).sum()),
        formats=(
            (files_dataset[0].format.name,)
            if files_dataset is not None
            else tuple(sorted({schema.format for schema in index.schemas}))
        ),
        compressions=tuple(sorted({schema.compression or "none" for schema in index.schemas})),
        hashes=tuple(sorted({name for schema in index.schemas for name in schema.hashes})),
        size_limit=limits.pop() if len(limits) == 1 else None,
        samples_per_shard=_spread(index.samples),
        bytes_per_shard=_spread(raw),
        mixed=tuple(sorted(mixed)),
        descriptions={name: note.description for name, note in notes.items() if note.description},
        class_names={name: [*note.class_names] for name, note in notes.items() if note.class_names},
    )


def index_facts(url: str, index: Index) -> dict[str, Any]:
    """Return what an index says of a dataset, as values of JSON: counts, and sizes in bytes."""
    return {
        "url": redact(url),
        "samples": index.total_samples,
        "shards": len(index),
        "raw_size": int((index.raw_size + index.raw_meta_size).sum()),
        "zip_size": int((index.zip_size + index.zip_meta_size).sum()),
    }


def _spread(values: Any) -> tuple[int, int, int]:
    """Return the smallest value of an array, the median and the largest; zeros if it is empty."""
    if not len(values):
        return 0, 0, 0
    return int(values.min()), int(np.median(values)), int(values.max())


# ------------------------------------------------------------------------------------------ samples


def head(url: str, count: int = 5, file_format: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the first ``count`` samples of a dataset, decoded; a pickle stays bytes.

    ``file_format`` is as in `find_datasets`. A value whose bytes do not decode is an
    `Undecodable`.
    """
    files_dataset = open_dataset(url, file_format)
    if files_dataset is not None:
        yield from _first_samples(*files_dataset, count)
        return
    source = MdsInput(url)
    for part in source.cut_parts(0):  # 0 bytes: each part is one shard
        names = part.address.schema.columns
        encodings = {
            name: parse_encoding(encoding)
            for name, encoding in zip(names.names, names.encodings, strict=True)
        }
        for _, record in source.read(part):
            if count <= 0:
                return
            count -= 1
            assert isinstance(record, dict), "a dataset has no bad records"
            yield {name: _decode(encodings[name], data) for name, data in record.items()}


def _decode(encoding: Encoding, data: bytes) -> Any:
    """Decode a value; return a pickle as bytes, and damaged bytes as an `Undecodable`."""
    try:
        return data if encoding.is_unsafe else encoding.decode(data)
    except Exception as error:  # noqa: BLE001 - Pillow's plugins raise anything on damaged files
        return Undecodable(error)


# -------------------------------------------------------------------------- files in another format


def open_dataset(url: str, file_format: str | None = None) -> tuple[FormatData, Files] | None:
    """Open a dataset of files in another format; return None for a dataset with an MDS index.

    With ``file_format``, the files of this format at ``url`` are opened. Files of all splits are
    one dataset.

    If `mds index` wrote an index of files at ``url``, exactly the files in this index are opened;
    else those that are at ``url`` now. Raises what opening such files raises.
    """
    if file_format is not None and parse_format(file_format) is not None:
        return open_files(url, file_format, split=None)
    store = open_store(url)
    try:
        Index.parse(store.get(INDEX_NAME), store.url_of(INDEX_NAME))
    except FilesIndexError as error:
        # The index is one of `mds index`, and the error has its contents.
        kind = pinned_format(error)
        root = url if error.remote == HERE else error.remote
        data = FormatData.of(kind, read_pinned(store, error, kind), location=Url(url))
        return data, Files(open_store(Url(root, options_of(url))))
    except (NotFoundError, NotADirectoryError):
        detected_format = format_of_files(url)
        return None if detected_format is None else open_files(url, detected_format, split=None)
    return None


def _open_reader(data: FormatData, files: Files, number: int) -> Reader:
    """Return a reader of a shard of a dataset in another format, converted to MDS in memory.

    Args:
        data: The dataset.
        files: Access to its files.
        number: Number of the shard.
    """
    info = data.index().shard(number)
    file_name = data.where(number, files)
    shard = shard_bytes(info.samples, data.columns, data.blocks(number, files), file_name)
    reader: Reader = joint_reader(info.schema, info.samples, shard, file_name)
    return reader


def _first_samples(data: FormatData, files: Files, count: int) -> Iterator[dict[str, Any]]:
    """Yield the first ``count`` samples of a dataset in another format, decoded.

    A sample that does not decode is ``{"": Undecodable}``: its columns are not known.
    """
    for number in range(len(data.table)):
        reader = _open_reader(data, files, number)
        for row in range(len(reader)):
            if count <= 0:
                return
            count -= 1
            try:
                yield reader.get(row)
            except MdsError as error:
                yield {"": Undecodable(error)}


def check_shard(data: FormatData, files: Files, number: int, *, decode: bool) -> tuple[int, str]:
    """Check a shard of a dataset in another format by converting it to MDS in memory.

    Return the bytes of its samples in MDS (0 after a fault), and its fault ('' for none).

    Args:
        data: The dataset.
        files: Access to its files.
        number: Number of the shard.
        decode: Whether to decode all samples as well.
    """
    try:
        reader = _open_reader(data, files, number)
        if decode:
            reader.samples(range(len(reader)))
        return sum(len(reader.sample_bytes(row)) for row in range(len(reader))), ""
    except MdsError as error:
        return 0, str(error)


# ------------------------------------------------------------------------------------------ lengths


def record_lengths(url: str, column: str) -> Lengths:
    """Write the lengths of the arrays of a column beside the index of a dataset; return them.

    Reads the whole dataset. Raises ConfigError for a column without lengths and for a place without
    an MDS index, and what reading and writing raise.
    """
    with open_store(url) as store:
        try:
            data = store.get(INDEX_NAME)
            index = Index.parse(data, store.url_of(INDEX_NAME))
        except (FilesIndexError, NotFoundError) as error:
            raise ConfigError(
                f"{url}: lengths are stored next to the index.json of an MDS dataset, but there is "
                "none. Files in other formats do not need them: a run measures lengths when it "
                "first makes packs, and stores them in the cache folder."
            ) from error
        lengths_of_samples = np.zeros(index.total_samples, np.int64)
        next_sample = 0
        if index.total_samples:
            source = MdsInput(url)
            for part in source.cut_parts(0):  # 0 bytes: each part is one shard
                columns = part.address.schema.columns
                encodings = dict(zip(columns.names, columns.encodings, strict=True))
                length = length_function(encodings, column)
                for number, record in source.read(part):
                    assert isinstance(record, dict), "a dataset has no bad records"
                    try:
                        lengths_of_samples[next_sample] = length(record[column])
                    except MdsError as error:
                        file_name = source.locate(part, number)
                        raise type(error)(f"{file_name}, column {column!r}: {error}") from error
                    next_sample += 1
        name, payload = lengths_name(column), emit_lengths(column, lengths_of_samples)
        write_sidecar(store, name, KIND, index.fingerprint(), payload)
    return Lengths.of(column, lengths_of_samples)


def lengths_facts(lengths: Lengths) -> dict[str, int]:
    """Return the distribution of lengths as values of JSON; zeros for a dataset without samples."""
    values = lengths.all()
    smallest, middle, largest = _spread(values)
    high = int(np.quantile(values, 0.99, method="lower")) if len(values) else 0
    return {
        "smallest": smallest,
        "middle": middle,
        "percentile_99": high,
        "largest": largest,
        "sum": int(values.sum()),
    }


def read_lengths(url: str) -> Iterator[Lengths]:
    """Yield the recorded lengths of each column of a dataset.

    Lengths that were recorded for another index are skipped; `mds verify` reports them.
    """
    with open_store(url) as store:
        try:
            index = Index.parse(store.get(INDEX_NAME), store.url_of(INDEX_NAME))
        except (FilesIndexError, NotFoundError):
            return  # files in another format: a run counts their lengths
        yield from read_lengths_files(store, index.fingerprint(), index.total_samples)
