"""Samples that Python yields: a list, a generator, a dataset of another library, or a table.

The calling process iterates, because a generator can be read once and in one place. It cuts what
comes into parts, which carry their records to the processes that encode them.

    dicts                           columns are inferred from the first thousand
    a dict of split -> samples      a dataset for each split
    datasets.Dataset, ...           columns from its features; pictures and sound are not decoded
    pandas, polars, pyarrow         columns from the types of the table

A conversion that resumes iterates again, and encodes only what was not encoded before.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from mds._arguments import shown
from mds._shardfile.hashing import new_hash
from mds.encodings._images import own_jpeg
from mds.errors import ConfigError, SourceError
from mds.formats._arrow import encodings_of_table
from mds.formats._arrow_values import pyarrow, python_values
from mds.formats._columns import Column, infer_columns, show_value
from mds.formats._facts import Problem
from mds.writers.convert._inputs.base import (
    MAX_PROBED_RECORDS,
    Input,
    InputOptions,
    InputPart,
    Record,
)
from mds.writers.convert._inputs.huggingface import (
    HuggingFaceInput,
    columns_of_features,
    file_bytes,
    undecoded,
)

#: Least bytes and most samples of a part, and bytes of the records that are held to infer columns.
_PART_BYTES, _PART_SAMPLES, _PROBED_BYTES = 4 << 20, 10_000, 64 << 20
#: Options about files, which samples of Python do not have.
_FILE_OPTIONS = (
    *("format", "include", "exclude", "labels", "config", "source_split", "encoding", "no_header"),
    "null",
)
#: Modes of Pillow that a PNG file holds without loss.
_PNG_MODES = frozenset(("1", "L", "LA", "P", "RGB", "RGBA", "I;16"))


def open_samples(source: Any, options: InputOptions) -> Input:
    """Open samples that are no files: an iterable of dicts, a dataset, a table, or a dict of these.

    Raises ConfigError for a source that has no samples, and SourceError for one that is empty.
    """
    name = f"<{type(source).__name__}>"
    for option in _FILE_OPTIONS:
        if getattr(options, option) not in (None, False, ()):
            raise ConfigError(
                f"{option}={shown(getattr(options, option))} applies to files only, but the source "
                f"is {name}. Leave it out."
            )
    splits = source if isinstance(source, Mapping) else {None: source}
    package = {type(each).__module__.partition(".")[0] for each in splits.values()}
    if package == {"datasets"} and all(
        getattr(each, "cache_files", ()) for each in splits.values()
    ):
        # Tables in files on the disk, which every process maps by itself.
        tables = {split: undecoded(table) for split, table in splits.items()}
        opened: Input = HuggingFaceInput(name, tables=_single(tables))
    else:
        opened = SamplesInput(name, _single(splits), options)
    return opened


def _single(splits: Mapping[Any, Any]) -> dict[str | None, Any]:
    """Return the splits by name; a single one has no name, and is written to the output itself."""
    if not splits:
        raise SourceError("the source is an empty dict: there are no samples to write.")
    return {None if len(splits) == 1 else split: each for split, each in splits.items()}


class SamplesInput(Input):
    """The samples of one or more iterables.

    - ``name`` (str): The source in messages.
    - ``splits`` (Mapping[str | None, Any]): The samples of each split.
    - ``options`` (InputOptions): The options of the conversion.

    The address of a part is (number of its first sample in its split, records).
    """

    title: ClassVar[str] = "samples"
    has_late_keys: ClassVar[bool] = True

    def __init__(self, name: str, splits: Mapping[str | None, Any], options: InputOptions) -> None:
        super().__init__(name)
        self._splits = [split for split in splits if split is not None]
        #: Samples of each split by name, and iterators behind the first ones.
        self._sources: dict[str | None, _SampleSource] = {
            split: _SampleSource(source, name) for split, source in splits.items()
        }
        iterators = {split: iter(each.records) for split, each in self._sources.items()}
        #: Splits that can be read once, because they are iterators.
        self._once = {
            split for split, each in self._sources.items() if iterators[split] is each.records
        }
        # A generator never calls iter() again, which starts some datasets of other libraries anew.
        self._rests = {
            split: (record for record in iterator) for split, iterator in iterators.items()
        }
        #: The first records of each split, from which columns are inferred.
        self._first = {split: _take_first(records) for split, records in self._rests.items()}
        self._is_read = False
        self._count = sum(each.count for each in self._sources.values())
        if not any(self._first.values()):
            raise SourceError(
                f"{name} has no samples to write. A generator or an iterator can be "
                "read only once: create it again."
            )
        #: Columns of pictures that are stored as the files that they were opened from.
        self._picture_files: frozenset[str] = frozenset()
        self._infer(frozenset(options.encodings))

    @classmethod
    def open(cls, path: str, options: InputOptions) -> Input:
        """Raise ConfigError, since samples have no path."""
        del options
        raise ConfigError(f"{path!r} is a path, but this format takes samples from Python.")

    def _infer(self, user_columns: frozenset[str]) -> None:
        """Infer the columns from the first samples; ``user_columns`` have encodings of the user."""
        first = [record for records in self._first.values() for record in records]
        declared = next(iter(self._sources.values())).columns
        if declared is not None:
            self._columns = list(declared(first))
            return
        samples = [each for each in map(_plain, first) if not isinstance(each, Problem)]
        pictures: dict[str, list[Any]] = {}
        for sample in samples:
            for name, value in sample.items():
                if _is_picture(value):
                    pictures.setdefault(name, []).append(value)
        columns = {column.name: column for column in infer_columns(samples, has_types=True)}
        files = set()
        for name, values in pictures.items():
            encoding, note = _of_pictures(values)
            if encoding == "jpeg" and name not in user_columns:
                files.add(name)
            if any(sample.get(name) is None for sample in samples):
                encoding, note = f"optional[{encoding}]", "sometimes null"
            example = f"{values[0].mode} picture {values[0].size[0]} x {values[0].size[1]}"
            columns[name] = replace(columns[name], encoding=encoding, note=note, example=example)
        self._picture_files = frozenset(files)
        self._columns = [columns[name] for name in sorted(columns)]

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns, inferred when the input was opened."""
        return self._columns

    def probe(self) -> Iterator[dict[str, Any]]:
        """Yield the first records, which are held; a generator cannot be read twice."""
        for records in self._first.values():
            for record in map(_plain, records):
                if not isinstance(record, Problem):
                    yield record

    def find_bad_record(self) -> str:
        """Return place and reason of the first bad record among the first ones, or ''."""
        for split, records in self._first.items():
            for number, record in enumerate(map(_plain, records)):
                if isinstance(record, Problem):
                    part = InputPart(0, 0, (0, []), split)
                    return self.describe_problem(part, number, record)
        return ""

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Yield runs of samples of about ``size`` bytes, or a little more for small ones.

        Raises SourceError if the samples were read before, and cannot be read again.
        """
        size = max(size, _PART_BYTES)
        part_number = 0
        for split, samples in self._all_samples():
            start, records, part_bytes = 0, [], 0
            for number, record in enumerate(samples):
                records.append(self._record(record))
                part_bytes += _bytes_of(records[-1])
                if part_bytes >= size or len(records) == _PART_SAMPLES:
                    yield InputPart(part_number, part_bytes, (start, records), split)
                    part_number += 1
                    start, records, part_bytes = number + 1, [], 0
            if records:
                yield InputPart(part_number, part_bytes, (start, records), split)
                part_number += 1

    def _all_samples(self) -> Iterator[tuple[str | None, Iterable[Any]]]:
        """Yield the name and the samples of each split, from the first sample."""
        is_read, self._is_read = self._is_read, True
        for split, source in self._sources.items():
            remaining_records = self._rests[split]
            if not is_read:
                yield split, itertools.chain(self._first[split], remaining_records)
            elif split in self._once:
                raise SourceError(
                    f"{self.name} has already been read. A generator or an iterator can be read "
                    "only once: create it and the conversion again."
                )
            else:
                yield split, source.records

    def _record(self, record: Any) -> dict[str, Any] | Problem:
        """Return a sample as it is sent to another process."""
        values = _plain(record)
        if isinstance(values, Problem):
            return values
        for name in self._picture_files:
            value = values.get(name)
            if _is_picture(value):
                data = own_jpeg(value)
                if not data:
                    return Problem(
                        "",
                        f"column {name!r} stores unchanged JPEG files, but this picture was not "
                        f"read from one. Write encodings={{{name!r}: 'png'}}",
                    )
                values[name] = data
        return values

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield the samples of a part, with their numbers in the split."""
        start, records = part.address
        yield from enumerate(records, start)

    def locate(self, part: InputPart, position: Any) -> str:
        """Return the split and the number of the sample, from 0."""
        split = f", split {part.split}" if part.split else ""
        return f"{self.name}{split}, sample {position}"

    def describe(self) -> str:
        """Summarise number of samples and splits."""
        count = f"{self._count:,} of them" if self._count else "of unknown number"
        return f"{count}, splits {', '.join(self._splits)}" if self._splits else count

    def fingerprint(self) -> str:
        """Return a digest of the first samples; all of them are only known after reading them."""
        digest = new_hash("xxh3_128")
        for split, records in self._first.items():
            digest.update(repr((split, len(records))).encode())
            for record in map(_plain, records):
                if not isinstance(record, Problem):
                    for name in sorted(record):
                        digest.update(name.encode() + b"=" + _digest_bytes(record[name]))
        return digest.hexdigest()

    def list_splits(self) -> Sequence[str]:
        """Return the names of the splits, if the source is a dict of splits."""
        return self._splits

    def __getstate__(self) -> dict[str, Any]:
        # A part brings its records to the process that reads it.
        return {**self.__dict__, "_sources": {}, "_rests": {}, "_first": {}}


class _SampleSource:
    """One iterable of samples, of any library.

    - ``source`` (Any): The iterable, dataset or table.
    - ``name`` (str): The source in messages.

    ``records`` are its samples, ``columns`` a function from the first samples to the columns, or
    None if values decide them, and ``count`` their number, 0 if unknown.
    """

    def __init__(self, source: Any, name: str) -> None:
        self.columns: Callable[[Sequence[Any]], Sequence[Column]] | None = None
        classes = [each.__name__ for each in type(source).__mro__]
        package = type(source).__module__.partition(".")[0]
        if package == "pyspark":
            raise ConfigError(
                f"{name} is a data frame of Spark: write it with frame.write.format('mds') "
                "(docs/guides/spark.md)."
            )
        if package == "ray":
            raise ConfigError(
                f"{name} is a dataset of Ray: write it with its method write_datasink "
                "(docs/guides/ray.md)."
            )
        if "DataLoader" in classes:
            raise ConfigError(f"{name} yields batches: give its dataset, which yields samples.")
        if package == "datasets" and getattr(source, "features", None) is not None:
            self.records: Iterable[Any] = _Rows(undecoded(source))
            features = source.features
            self.columns = lambda first: columns_of_features(features, first)
        # A dataset of this library is iterated: Arrow has no types for some of its columns.
        elif hasattr(source, "__arrow_c_stream__") and "HasColumns" not in classes:
            table = _table_of(source)
            self.records = _TableRows(table)
            self.columns = lambda first: _columns_of_table(table, first)
        elif isinstance(source, (str, bytes, os.PathLike)) or not (
            hasattr(source, "__iter__") or hasattr(source, "__getitem__")
        ):
            raise ConfigError(
                f"mds.convert takes a path, a URL, an iterable of dicts, or a dict of such "
                f"iterables by split, got {shown(source)}."
            )
        elif hasattr(source, "__iter__"):
            self.records = source
        else:  # such as a dataset of torch, which has numbers for its samples
            self.records = _Numbered(source)
        self.count = len(source) if hasattr(source, "__len__") else 0


class _Rows:
    """Rows of a Hugging Face dataset; pictures and sound are the bytes of their files."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for row in self._dataset:
            yield {name: file_bytes(value) for name, value in row.items()}


class _Numbered:
    """Samples of an object that has ``len`` and numbers, but cannot be iterated."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return (self._dataset[number] for number in range(len(self._dataset)))


class _TableRows:
    """Rows of an Arrow table, as dicts."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._table.to_batches(max_chunksize=1024):
            columns = [python_values(column) for column in batch.columns]
            for values in zip(*columns, strict=True):
                yield dict(zip(batch.schema.names, values, strict=True))


def _table_of(source: Any) -> Any:
    """Return the rows of pandas, polars or another library as an Arrow table."""
    table = pyarrow().table(source)
    # pandas adds its index unless that only numbers the rows.
    return table.select([n for n in table.schema.names if not n.startswith("__index_level_")])


def _columns_of_table(table: Any, first: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns of an Arrow table; ``first`` are its first rows."""
    return [
        Column(name, encoding, show_value(first[0][name]))
        for name, encoding in sorted(encodings_of_table(table).items())
    ]


def _take_first(records: Iterator[Any]) -> list[Any]:
    """Return the first records: a thousand, or fewer if they are large."""
    first: list[Any] = []
    size = 0
    for record in itertools.islice(records, MAX_PROBED_RECORDS):
        first.append(record)
        size += _bytes_of(record)
        if size > _PROBED_BYTES:
            break
    return first


def _plain(record: Any) -> dict[str, Any] | Problem:
    """Return a sample with NumPy arrays instead of tensors, or what is wrong with it."""
    if not isinstance(record, Mapping):
        return Problem(
            "",
            "expected a dict with the columns as keys, such as {'text': 'a'}, got "
            f"{shown(record)}",
        )
    sample = {}
    for name, value in record.items():
        if not isinstance(name, str):
            return Problem("", f"expected names of columns as keys, got {shown(name)}")
        try:
            sample[name] = _plain_value(value)
        except (TypeError, RuntimeError) as error:
            return Problem("", f"column {name!r}: {error}")
    return sample


def _plain_value(value: Any) -> Any:
    """Return a tensor as an array, a number in an array as a scalar, and other values as is."""
    if type(value).__module__ == "torch" or type(value).__module__.startswith("torch."):
        value = value.detach().cpu().numpy() if hasattr(value, "detach") else value
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return value[()]
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _is_picture(value: Any) -> bool:
    """Return whether a value is an image of Pillow, without importing it."""
    return any(each.__module__ == "PIL.Image" for each in type(value).__mro__)


def _of_pictures(pictures: Sequence[Any]) -> tuple[str, str]:
    """Return the encoding that holds pictures of Pillow without loss, and a note."""
    if all(own_jpeg(each) for each in pictures[:20]) and all(
        type(each).__name__ == "JpegImageFile" for each in pictures
    ):
        return "jpeg", "the files unchanged"
    if {each.mode for each in pictures} <= _PNG_MODES:
        return "png", "without loss"
    return "pil", "without loss"


def _bytes_of(value: Any) -> int:
    """Estimate the bytes of a value: the same number for the same value in every run."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_bytes_of(each) + 8 for each in value.values())
    if isinstance(value, (list, tuple)):
        return sum(map(_bytes_of, value)) + 8
    if _is_picture(value):
        return int(value.size[0] * value.size[1] * len(value.getbands()))
    return int(getattr(value, "nbytes", 8))


def _digest_bytes(value: Any) -> bytes:
    """Return bytes that differ for different values, and not between runs."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, np.ndarray):
        return (
            repr((value.dtype, value.shape)).encode() + np.ascontiguousarray(value).data.tobytes()
        )
    if _is_picture(value):
        return repr((value.mode, value.size)).encode() + (own_jpeg(value) or value.tobytes())
    if isinstance(value, (str, int, float, list, dict, tuple, np.generic, type(None))):
        return repr(value).encode()
    return type(value).__name__.encode()
