"""Facts and samples of a dataset, as values: the library side of `mds info` and `mds head`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mds.arguments import did_you_mean
from mds.cli.files_dataset import first_samples, open_dataset
from mds.encodings import Encoding, parse_encoding
from mds.errors import NotFoundError
from mds.formats.registry import format_of_files
from mds.index import Index
from mds.index.column_notes import read_notes
from mds.preview import Undecodable
from mds.shardfile.layout import INDEX_NAME
from mds.storage import join, open_store, redact
from mds.storage.url import Url
from mds.writers.convert.inputs.mds import MdsInput


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """Summary of a dataset; sizes in bytes, ``zip_size`` is 0 without compression."""

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


def find_datasets(place: str) -> list[str]:
    """Return the dataset at a place, or those in its folders (splits), by their indexes.

    Raises NotFoundError when there is none.
    """
    url = Url(place)
    store = open_store(url)
    try:
        store.head(INDEX_NAME)
    except NotFoundError:
        local = store.local_path
        if local is not None and os.path.isdir(local):
            names = sorted(os.listdir(local))
            inside = [os.path.join(local, name) for name in names]
            splits = [each for each in inside if os.path.isfile(os.path.join(each, INDEX_NAME))]
            if splits:
                return splits
        if format_of_files(url) is not None:
            return [url]
        if local is not None and not os.path.isdir(local):
            raise _no_folder(redact(url), local) from None
        raise NotFoundError(
            f"{redact(url)}: there is no {INDEX_NAME}, neither here nor in a folder below, so no "
            "dataset."
        ) from None
    return [url]


def _no_folder(url: str, path: str) -> NotFoundError:
    if os.path.exists(path):
        return NotFoundError(
            f"{url}: this is a file, and of no kind that is read as it lies. Give the folder of a "
            "dataset, or make one with mds-convert."
        )
    folder, name = os.path.split(path.rstrip("/"))
    near = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    return NotFoundError(f"{url}: there is no such file or folder.{did_you_mean(name, near)}")


def read_index(url: str) -> Index:
    """Return the index of a dataset. Raises NotFoundError and IndexFileError."""
    return Index.parse(open_store(url).get(INDEX_NAME), join(redact(url), INDEX_NAME))


def describe(url: str) -> DatasetInfo:
    """Return the summary of a dataset, from its index and the notes on its columns.

    Sizes of files in a format are estimates.
    """
    opened = open_dataset(url)
    index = read_index(url) if opened is None else opened[0].index()
    notes = read_notes(open_store(url), index.fingerprint()) if opened is None else {}
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
            (opened[0].format.name,)
            if opened is not None
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


def head(url: str, count: int = 5) -> Iterator[dict[str, Any]]:
    """Yield the first samples of a dataset, decoded; a pickle stays bytes and is never loaded.

    A value whose bytes do not decode is an `Undecodable`.
    """
    opened = open_dataset(url)
    if opened is not None:
        yield from first_samples(*opened, count)
        return
    source = MdsInput(url)
    for part in source.cut_parts(0):
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
    try:
        return data if encoding.is_unsafe else encoding.decode(data)
    except Exception as error:  # noqa: BLE001 - Pillow's plugins raise anything on damaged files
        return Undecodable(error)


def _spread(values: Any) -> tuple[int, int, int]:
    if not len(values):
        return 0, 0, 0
    return int(values.min()), int(np.median(values)), int(values.max())
