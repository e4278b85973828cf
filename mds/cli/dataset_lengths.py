"""Lengths of a column of a dataset: recorded beside its index, and read from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mds.encodings.arrays import length_function
from mds.errors import ConfigError, MdsError, NotFoundError
from mds.index import Index
from mds.index.lengths import KIND, Lengths, emit_lengths, lengths_name
from mds.index.sidecar import write_sidecar
from mds.index.table import FilesIndexError
from mds.shardfile.layout import INDEX_NAME
from mds.storage import open_store
from mds.writers.convert.inputs.mds import MdsInput
from mds.writers.merge import read_recorded

if TYPE_CHECKING:
    from collections.abc import Iterator


def record_lengths(url: str, column: str) -> Lengths:
    """Write the lengths of a column of a dataset beside its index, and give them.

    Reads all of it. Raises ConfigError for a column that has none and without an index, and what
    reading and writing raise.
    """
    with open_store(url) as store:
        try:
            data = store.get(INDEX_NAME)
            index = Index.parse(data, store.url_of(INDEX_NAME))
        except (FilesIndexError, NotFoundError) as error:
            raise ConfigError(
                f"{url}: lengths are recorded beside the index.json of MDS, and there is none. Of "
                "files that are read as they lie nothing is to be recorded: a run counts lengths "
                "when it first makes packs, and keeps them in the cache folder."
            ) from error
        lengths_of_samples = np.zeros(index.total_samples, np.int64)
        next_sample = 0
        if index.total_samples:
            source = MdsInput(url)
            for part in source.cut_parts(0):
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


def read_lengths(url: str) -> Iterator[Lengths]:
    """Yield the lengths that are recorded beside the index of a dataset, column by column.

    Those of another index are left out; `mds verify` tells of them.
    """
    with open_store(url) as store:
        try:
            index = Index.parse(store.get(INDEX_NAME), store.url_of(INDEX_NAME))
        except (FilesIndexError, NotFoundError):
            return  # files that are read in place, whose lengths are counted when packs begin
        yield from read_recorded(store, index.fingerprint(), index.total_samples)
