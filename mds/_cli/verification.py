"""Verification of a dataset: all files, sizes and digests, and whether every sample decodes.

Collects all faults instead of stopping at the first, for repairs need the whole list. `mds verify`
prints them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mds._cli.datasets import check_shard, open_dataset, read_index, read_lengths
from mds._index.column_notes import KIND as NOTES
from mds._index.column_notes import check_noted, parse_notes
from mds._index.lengths import KIND as LENGTHS
from mds._index.lengths import lengths_name, parse_lengths
from mds._index.shard_object import FileInfo, ShardInfo
from mds._index.sidecar import parse_sidecar, sidecars_of
from mds._index.table import Index
from mds._readers import make_decoder
from mds._shardfile.compression import parse_compression
from mds._shardfile.hashing import hexdigest
from mds._shardfile.layout import parse_meta_offsets, parse_offsets, split_sample
from mds._words import plural
from mds.encodings import Encoding, parse_encoding
from mds.encodings._arrays import length_function
from mds.errors import MdsError, NotFoundError
from mds.storage import open_store

#: Faults that are listed of one shard; more are counted.
MAX_LISTED_RECORDS = 20


@dataclass(slots=True)
class Report:
    """Result of a verification: counts of checked samples, shards and bytes, and the faults.

    ``size`` is in bytes. A fault is a sentence that begins with the name of a file.
    """

    samples: int = 0
    shards: int = 0
    size: int = 0
    faults: list[str] = field(default_factory=list)
    #: Columns whose values were not decoded, because loading a pickle runs code.
    unopened: set[str] = field(default_factory=set)
    #: Number of shards without a digest in the index: changed bytes may still decode.
    undigested: int = 0

    def add(self, other: Report) -> None:
        """Add the counts and faults of another part of the dataset."""
        self.samples += other.samples
        self.shards += other.shards
        self.size += other.size
        self.faults += other.faults
        self.unopened |= other.unopened
        self.undigested += other.undigested


def verify(
    url: str,
    *,
    decode: bool = True,
    workers: int = 1,
    progress: Callable[[Report, int], None] | None = None,
    file_format: str | None = None,
) -> Report:
    """Check a dataset and return a report of its faults.

    Args:
        url: URL or folder of the dataset.
        decode: Whether to decode all samples; without it only sizes, digests and offsets are
            checked.
        workers: Number of processes.
        progress: Function that is called after every shard with the report so far and the number of
            all shards.
        file_format: Format of files that are read in place; None finds it.

    Raises NotFoundError and IndexFileError if there is no index to compare with.
    """
    from mds.writers._engines import open_engine

    total = Report()
    files_dataset = open_dataset(url, file_format)
    if files_dataset is not None:
        data, files = files_dataset
        for number in range(len(data.table)):
            # Files in another format have no digests: converting them to MDS finds their faults.
            size, fault = check_shard(data, files, number, decode=decode)
            samples = 0 if fault else int(data.table.samples[number])
            total.add(Report(samples, 1, size, [fault] if fault else []))
            if progress is not None:
                progress(total, len(data.table))
        return total
    index = read_index(url)
    recorded = {each.column: each.all() for each in read_lengths(url)} if decode else {}
    with open_engine("local", max(1, min(workers, len(index)))) as engine:
        futures: list[Any] = []
        first_sample = 0
        for shard in index:
            lengths = {
                name: lengths_of_all[first_sample : first_sample + shard.samples]
                for name, lengths_of_all in recorded.items()
            }
            first_sample += shard.samples
            futures.append(engine.submit(verify_shard, url, shard, decode, lengths))
            if len(futures) >= 4 * engine.slots:  # keep few tasks queued
                _add_next_report(futures, total, progress, len(index))
        while futures:
            _add_next_report(futures, total, progress, len(index))
    total.faults += _sidecar_faults(url, index)
    return total


def _sidecar_faults(url: str, index: Index) -> Iterator[str]:
    """Yield the faults of an index's sidecars: files of lengths or notes beside it.

    A sidecar names the index that it describes by a fingerprint, so one of an older index is a
    fault.
    """
    columns = [name for schema in index.schemas for name in schema.columns.names]
    with open_store(url) as store:
        for name in sidecars_of(store):
            try:
                # None: any kind of sidecar, and lengths of any column.
                sidecar = parse_sidecar(store.get(name), name, None, index.fingerprint())
                if sidecar.kind == LENGTHS:
                    parse_lengths(sidecar.payload, index.total_samples, None, name)
                elif sidecar.kind == NOTES:
                    check_noted(parse_notes(sidecar.payload, name), columns)
            except MdsError as error:  # noqa: PERF203 - one file's fault hides no other's
                yield str(error)


def verify_shard(
    url: str,
    shard: ShardInfo,
    decode: bool = True,
    lengths: Mapping[str, NDArray[np.int64]] | None = None,
) -> Report:
    """Check one shard and return the report about it.

    Args:
        url: URL or folder of the dataset.
        shard: The shard, as the index describes it.
        decode: Whether to decode all samples.
        lengths: Recorded lengths of its samples by column, shape (samples,).
    """
    report = Report(shards=1)
    # With compression, the digests of the compressed files count: readers download these files.
    report.undigested = int(any(not (zipped or raw).hashes for raw, zipped in shard.files))
    faults = report.faults
    # One file, or the lines and their offsets of a split format.
    loaded = [_load(url, raw, zipped, shard, report) for raw, zipped in shard.files]
    files = [data for data in loaded if data is not None]
    if len(files) < len(loaded):
        return report
    file_name = shard.raw.basename
    try:
        if shard.schema.is_split:
            offsets = parse_meta_offsets(files[1], shard.samples, len(files[0]), file_name)
        else:
            offsets = parse_offsets(files[0], shard.samples, len(files[0]), file_name)
    except MdsError as error:
        faults.append(str(error))
        return report
    report.samples = shard.samples
    if not decode:
        return report
    check = _checker(shard, report, lengths or {})
    view = memoryview(files[0])
    bad = 0
    for number in range(shard.samples):
        for fault in check(number, view[int(offsets[number]) : int(offsets[number + 1])]):
            bad += 1
            if bad <= MAX_LISTED_RECORDS:
                faults.append(f"{file_name}: sample {number}: {fault}")
    if bad > MAX_LISTED_RECORDS:
        faults.append(f"{file_name}: {bad - MAX_LISTED_RECORDS} more faults")
    return report


def _add_next_report(
    futures: list[Any],
    total: Report,
    progress: Callable[[Report, int], None] | None,
    shards: int,
) -> None:
    """Wait for the first of ``futures``, remove it, and add its report to ``total``.

    Args:
        futures: Futures of `verify_shard` in the order of shards.
        total: Report about all shards so far.
        progress: Function to call with ``total`` and ``shards`` afterwards; None for none.
        shards: Number of shards of the dataset.
    """
    total.add(futures.pop(0).result())
    if progress is not None:
        progress(total, shards)


def _load(
    url: str, raw: FileInfo, zipped: FileInfo | None, shard: ShardInfo, report: Report
) -> bytes | None:
    """Return the uncompressed bytes of a file of a shard, or None if they cannot be read.

    The file may be stored uncompressed, compressed or both. Every stored copy is checked.

    Args:
        url: URL or folder of the dataset.
        raw: Name, size and digests of the uncompressed file, as the index lists them.
        zipped: The same of the compressed file; None for a shard without compression.
        shard: The shard, for its compression.
        report: Report that faults and read bytes are added to.
    """
    raw_data = _fetch(url, raw, report)
    zipped_data = _fetch(url, zipped, report) if zipped is not None else None
    if raw_data is None and zipped_data is None:
        report.faults.append(f"{(zipped or raw).basename}: the file is missing")
        return None
    checked_raw = _check(raw_data, raw, report)
    checked_zipped = _check(zipped_data, zipped, report)
    if checked_raw is not None or zipped is None:
        return checked_raw
    codec = parse_compression(shard.schema.compression)
    if checked_zipped is None or codec is None:
        return None
    try:
        data = codec.decompress(checked_zipped, raw.size)
    except MdsError as error:
        report.faults.append(f"{zipped.basename}: {error}")
        return None
    return _check(data, raw, report)


def _fetch(url: str, info: FileInfo, report: Report) -> bytes | None:
    """Return the stored bytes of a file, or None if it is missing.

    Also return None if it is unreadable, and add this fault to ``report``.
    """
    try:
        data = open_store(url).get(info.basename)
    except NotFoundError:
        return None
    except MdsError as error:
        report.faults.append(f"{info.basename}: {error}")
        return None
    report.size += len(data)
    return data


def _check(data: bytes | None, info: FileInfo | None, report: Report) -> bytes | None:
    """Return ``data``, the bytes of a file, if size and digests are those of the index.

    Else return None and add a fault to ``report``.
    """
    if data is None or info is None:
        return None
    if len(data) != info.size:
        report.faults.append(f"{info.basename}: {len(data)} bytes, the index says {info.size}")
        return None
    for name, digest in info.hashes.items():
        if (actual_digest := hexdigest(name, data)) != digest:
            report.faults.append(
                f"{info.basename}: {name} is {actual_digest}, the index says {digest}"
            )
            return None
    return data


def _checker(
    shard: ShardInfo, report: Report, lengths: Mapping[str, NDArray[np.int64]]
) -> Callable[[int, memoryview], Iterator[str]]:
    """Return a function that yields the faults of a sample of a shard.

    Its arguments are the number of the sample in the shard, and its stored bytes. The work that is
    the same for all samples, such as parsing the encodings, is done here once.

    Args:
        shard: The shard, as the index describes it.
        report: Report that columns which cannot be checked are added to.
        lengths: Recorded lengths of the shard's samples by column, int64 of shape (samples,).
    """
    columns = shard.schema.columns
    if shard.schema.is_split:
        decoder = make_decoder(shard.schema)
        return lambda _, data: _faults_of_line(decoder, data)
    encodings = [parse_encoding(name) for name in columns.encodings]
    report.unopened |= {
        name for name, each in zip(columns.names, encodings, strict=True) if each.is_unsafe
    }
    variable_columns = columns.sizes.count(None)
    encoding_names = dict(zip(columns.names, columns.encodings, strict=True))
    # By column: the function that computes the length of an array from its stored bytes.
    length_functions = {}
    for column in lengths:
        try:
            length_functions[column] = length_function(encoding_names, column)
        except MdsError as error:  # noqa: PERF203 - one column's fault hides no other's
            report.faults.append(f"{shard.raw.basename}: {lengths_name(column)}: {error}")

    def check(number: int, data: memoryview) -> Iterator[str]:
        """Yield the faults of sample ``number`` of the shard, whose stored bytes are ``data``."""
        try:
            values = split_sample(data, columns.sizes, variable_columns)
        except MdsError as error:
            yield str(error)
            return
        for name, encoding, value in zip(columns.names, encodings, values, strict=True):
            if not encoding.is_unsafe and (fault := _fault(encoding, value)):
                yield f"column {name!r}: {fault}"
            elif name in length_functions:  # the value decodes: compare its length with the record
                recorded = int(lengths[name][number])
                yield from _length_fault(name, length_functions[name], value, recorded)

    return check


def _length_fault(
    name: str, length: Callable[[memoryview], int], value: memoryview, recorded: int
) -> Iterator[str]:
    """Yield a fault if an array has another length than the recorded one.

    ``name`` is the column, and ``length`` returns the length of the stored bytes ``value``.
    """
    try:
        actual_length = length(value)
    except MdsError as error:
        yield f"column {name!r}: {error}"
        return
    if actual_length != recorded:
        yield (
            f"column {name!r} has {plural(actual_length, 'element')}, but {lengths_name(name)} "
            f"says {recorded}. Record them again with mds lengths."
        )


def _faults_of_line(decoder: Any, data: memoryview) -> Iterator[str]:
    """Yield the reason if the line of a sample of a split format does not decode."""
    try:
        decoder(data)
    except MdsError as error:
        yield str(error)


def _fault(encoding: Encoding, data: memoryview) -> str | None:
    """Return the reason why a value does not decode, or None if it does."""
    try:
        value = encoding.decode(data)
        for image in value if isinstance(value, list) else [value]:
            # Images are opened lazily; only their pixels show whether the file is whole.
            if hasattr(image, "load") and hasattr(image, "getbands"):
                with contextlib.closing(image):
                    image.load()
    except MdsError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - Pillow's plugins raise anything on damaged files
        return f"{type(error).__name__}: {error}"
    return None
