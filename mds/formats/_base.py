"""The interface of a format: a kind of files that are read without conversion.

A format does three things:

- `plan_file` looks at one file and returns its shards: the number of samples of each (the order of
  a run depends on nothing else), their approximate sizes, and the columns.
- `blocks` reads one shard and yields its samples as the bytes that an MDS shard stores. The cache
  writes them to one MDS file. Readers, batches, limits, eviction and ranges therefore work for
  every format as they do for MDS shards.
- `reader` may read a shard of a file on a local disk directly, without a copy in the cache.

MDS itself is not a `Format`: it is what formats are decoded to (docs/decisions/0022).

To add a format: inherit `Format`, a frozen dataclass, in a file of this folder; set ``name`` and
``endings``; write `plan_file` and `blocks`; name the class in `_registry.py` (outside of this
package: `register_format`). `blocks` may yield `encode_records(shard.columns, records)` for samples
that are dicts, or `join_columns` for columns that are encoded already (`_encode.py`). Read bytes
with the `Files` that both methods get: it retries, joins ranges, and raises an error for a file
that changed since it was planned. Every format passes the tests of
`mds.testing.FormatContract`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from mds.errors import ConfigError, FormatError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection
    from mds._shardfile.layout import Columns
    from mds.formats._facts import Block, DataFile, FilePlan, FoundFiles, ShardPlace
    from mds.formats._source import FilePlace, Files


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format(ABC):
    """Base class of formats: a kind of files and the settings for reading them; picklable.

    - ``columns`` (Sequence[str] | None, default None): The only columns to fetch and decode; None
      takes all.
    - ``missing`` (str | None, default None): ``"null"`` fills a column that a file does not have
      with None; without it such a file is an error.

    >>> class Words(Format):
    ...     name, endings = "words", (".words",)
    ...
    ...     def plan_file(self, file, files):  # a shard of all words of a file
    ...         count = len(files.get(file).split())
    ...         return mds.formats.FilePlan({"word": "str"}, [count], sizes=[file.size + 8 * count])
    ...
    ...     def blocks(self, shard, files):
    ...         words = files.get(shard.file).decode().split()
    ...         records = [{"word": word} for word in words]
    ...         yield from mds.formats.encode_records(shard.columns, records, files.url(shard.file))
    >>> pathlib.Path("text.words").write_text("one two three")
    13
    >>> [sample["word"] for sample in mds.StreamingDataset("text.words", format=Words())]
    ['one', 'two', 'three']
    """

    #: Name of the format in ``format=``.
    name: ClassVar[str]
    #: Endings of its files in lower case, the longest first.
    endings: ClassVar[tuple[str, ...]]
    #: Increase this number if a change makes the same file yield other samples.
    revision: ClassVar[int] = 1
    #: Whether files never change under one name, so that equal sizes prove equal files.
    has_final_files: ClassVar[bool] = False

    columns: Sequence[str] | None = None
    missing: str | None = None

    def __post_init__(self) -> None:
        if self.columns is not None:
            if isinstance(self.columns, str):
                raise ConfigError(f"columns= must be a list of names, got {self.columns!r}.")
            object.__setattr__(self, "columns", tuple(self.columns))
        if self.missing not in (None, "null"):
            raise ConfigError(f"missing= must be 'null' or None, got {self.missing!r}.")

    @property
    def allow_missing(self) -> str:
        """Remedy for a column that some files or samples lack, for an error message."""
        return (
            "Leave it out with columns=, or read None there with "
            f"format={type(self).__name__}(missing='null'). On a command line, "
            f"mds index --format {self.name} --set missing=null does the same."
        )

    # ------------------------------------------------------------------ methods to write

    @abstractmethod
    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Return the columns and shards of one file. Called from several threads at once.

        Raises FormatError, with the file's name and the reason, if the file cannot be read.
        """

    def plan_bytes(self, file: DataFile, files: Files) -> int:
        """Return the number of bytes that `plan_file` reads; 0 if it reads a few kilobytes."""
        del file, files
        return 0

    @abstractmethod
    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block]:
        """Yield the samples of a shard, in order, some thousands in each block.

        Raises FormatError, with the file's name, the shard and the reason, for damaged data.
        """

    # ------------------------------------------------------------------ methods to override

    def narrow(self, place: FilePlace) -> FilePlace:
        """Return the part of a place whose files are listed. By default that is all of it."""
        return place

    def find(self, place: FilePlace, source: Files) -> FoundFiles:
        """List the files of a place, and return those that hold samples, in their order.

        ``source`` lists and reads the files. Formats whose files are named by a log or a manifest
        override this.
        """
        from mds.formats._facts import FoundFiles

        return FoundFiles(self.choose(source.find(place), source))

    def choose(self, files: Iterable[DataFile], source: Files) -> list[DataFile]:
        """Return those of the listed files that hold samples, in the order of the samples.

        ``source`` reads them, if a format must look into files to choose.
        """
        del source
        return sorted(file for file in files if self.takes(file.key))

    def value_lengths(
        self, shard: ShardPlace, column: str, files: Files
    ) -> npt.NDArray[np.int64] | None:
        """Return the number of elements of each array in a column, int64 of shape (samples,).

        Packing plans with these lengths. A format whose files store the lengths apart from the
        values returns them here. None makes packing fetch and decode the column.
        """
        del shard, column, files
        return None

    def can_range(self, shard: ShardPlace) -> bool:
        """Whether `rows` can read some samples of a shard without fetching the others."""
        del shard
        return False

    def rows(self, shard: ShardPlace, rows: Sequence[int], files: Files) -> Mapping[int, bytes]:
        """Return the MDS bytes of the samples ``rows``, by row; fetch no others.

        Called only if `can_range` is True.
        """
        raise NotImplementedError

    def reader(self, shard: ShardPlace, path: str, columns: ColumnSelection) -> Reader | None:
        """Return a reader of the shard in the local file ``path``, or None to decode to the cache.

        ``columns`` are the columns to decode. All shards of a dataset are read in place, or none
        is: see `is_read_in_place`.
        """
        del shard, path, columns
        return None

    def is_read_in_place(self, files: Sequence[DataFile]) -> bool:
        """Whether shards in these files are read in place if they are on a local disk."""
        del files
        return False

    def maps(self, note: bytes) -> bool:
        """Whether one file can be read in place, given that `is_read_in_place` is True.

        ``note`` is that of the file's `FilePlan`.
        """
        del note
        return True

    def shard_of(self, shard: ShardPlace) -> str:
        """Describe a shard within its file, for error messages."""
        return f"shard {shard.span[0]}"

    def share(self, shard: ShardPlace) -> float:
        """Estimate the share (0 to 1) of a shard's bytes that the wanted columns take."""
        del shard
        return 1.0

    def comes_whole(self, shard: ShardPlace) -> str:
        """Explain why a reader of some columns fetches all bytes of a shard; '' if it does not."""
        del shard
        return ""

    def slow_columns(self, columns: Columns) -> Sequence[str]:
        """Return the names of columns whose values are decoded one by one in Python."""
        del columns
        return ()

    @classmethod
    def recorded_name(cls) -> str:
        """Return the name in states, indexes and digests: the first name that the format had."""
        return cls.name

    def settings(self) -> Mapping[str, Any]:
        """Return the settings that affect samples, except ``columns``, as values of JSON."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in sorted(fields.items()) if name != "columns"}

    # ------------------------------------------------------------------ shared by all formats

    def takes(self, key: str) -> bool:
        """Whether a key has an ending of this format. Names with ``.`` or ``_`` in front do not."""
        parts = key.split("/")
        if any(part.startswith((".", "_")) for part in parts):
            return False
        return parts[-1].lower().endswith(self.endings)

    def merge(self, file_columns: Sequence[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
        """Return the encoding of each column of a dataset, by name.

        ``file_columns`` are pairs: the key of a file, and the encodings of its columns. Raises
        FormatError for files with different columns, or with encodings that cannot be merged.
        """
        from mds.formats._columns import merge_encodings

        merged = dict(file_columns[0][1]) if file_columns else {}
        first = file_columns[0][0] if file_columns else ""
        for key, columns in file_columns[1:]:
            for name in sorted({*merged, *columns}):
                merged_encoding, other = merged.get(name), columns.get(name)
                if merged_encoding is None or other is None:
                    if self.missing != "null":
                        file_without_column, file_with_column = (
                            (first, key) if merged_encoding is None else (key, first)
                        )
                        raise FormatError(
                            f"{file_without_column}: there is no column {name!r}, but "
                            f"{file_with_column} has one. {self.allow_missing}"
                        )
                    encoding = merged_encoding or other or ""
                    is_optional = encoding == "json" or encoding.startswith("optional[")
                    merged[name] = encoding if is_optional else f"optional[{encoding}]"
                    continue
                both = merge_encodings(merged_encoding, other)
                if both is None:
                    raise FormatError(
                        f"{key}: column {name!r} is {other}, but {merged_encoding} in {first}. "
                        f"Leave it out with columns=, or read the files as separate streams."
                    )
                merged[name] = both
        return merged
