"""The interface of a format: a kind of files that are read without conversion.

A format does three things:

- `plan_file` looks at one file and returns its shards: the number of samples of each (the order of
  a run depends on nothing else), their approximate sizes, and the columns.
- `blocks` reads one shard and yields its samples as the bytes that an MDS shard stores, and a
  `Problem` in place of a record that is no sample. The cache writes the bytes to one MDS file, so
  readers, batches, limits, eviction and ranges work for every format as they do for MDS shards. A
  conversion writes the same bytes.
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

from mds._redaction import get_logger
from mds.encodings import parse_encoding
from mds.errors import ConfigError, FormatError
from mds.formats._names import OTHER_KINDS, drop_companions, drop_underscored

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection
    from mds._shardfile.layout import Columns
    from mds.formats._facts import Block, DataFile, FilePlan, FoundFiles, Problem, ShardPlace
    from mds.formats._source import FilePlace, Files

log = get_logger("mds.formats")

#: Settings that digests and indexes have only with another value than the default, so that they are
#: the same as before the settings existed.
_LATER_SETTINGS = frozenset({"encoding", "encodings", "labels", "no_header", "null"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format(ABC):
    """Base class of formats: a kind of files and the settings for reading them; picklable.

    - ``columns`` (Sequence[str] | None, default None): The only columns to fetch and decode; None
      takes all.
    - ``missing`` (str | None, default None): What to do if a file lacks a column that others have.
      ``"null"`` makes it None there, ``"error"`` raises FormatError. None is ``"null"`` with a
      warning.
    - ``encodings`` (Mapping[str, str] | None, default None): Encodings by column, which replace
      those that follow from the files.

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
    #: What people call such files, such as "images"; by default the name and "files".
    title: ClassVar[str] = ""
    #: Endings of its files in lower case, the longest first.
    endings: ClassVar[tuple[str, ...]]
    #: Increase this number if a change makes the same file yield other samples.
    revision: ClassVar[int] = 1
    #: Whether a README and other files that describe a dataset are left out.
    omits_companions: ClassVar[bool] = True
    #: Whether names that begin with ``_`` are left out, as engines such as Spark and Hive do.
    omits_underscored: ClassVar[bool] = False
    #: Whether all files of a folder are read if none has an ending of the format.
    takes_other_endings: ClassVar[bool] = False
    #: Whether a file holds many samples, so that its name may be that of a split.
    has_many_samples: ClassVar[bool] = True
    #: Whether folders such as ``lang=en`` name columns, as in tables of Hive and Spark.
    has_partitions: ClassVar[bool] = False
    #: Whether samples may have columns that the planned ones did not have.
    has_late_keys: ClassVar[bool] = False
    #: Whether files never change under one name, so that equal sizes prove equal files.
    has_final_files: ClassVar[bool] = False

    columns: Sequence[str] | None = None
    missing: str | None = None
    encodings: Mapping[str, str] | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "title" not in cls.__dict__ and hasattr(cls, "name"):
            cls.title = f"{cls.name} files"

    def __post_init__(self) -> None:
        if self.columns is not None:
            if isinstance(self.columns, str):
                raise ConfigError(f"columns= must be a list of names, got {self.columns!r}.")
            object.__setattr__(self, "columns", tuple(self.columns))
        if self.missing not in (None, "null", "error"):
            raise ConfigError(f"missing= must be 'null' or 'error', got {self.missing!r}.")
        if self.encodings is not None:
            if not isinstance(self.encodings, Mapping):
                raise ConfigError(
                    "encodings= must be a dict of column and encoding, such as {'id': 'int'}, got "
                    f"{self.encodings!r}."
                )
            for encoding in self.encodings.values():
                parse_encoding(encoding)
            object.__setattr__(self, "encodings", dict(self.encodings))

    @property
    def allow_missing(self) -> str:
        """Remedy for a column that some files or samples lack, for an error message."""
        return (
            "Leave it out with columns=, or read None there with "
            f"format={type(self).__name__}(missing='null'). On a command line, "
            f"mds index --format {self.name} --set missing=null does the same."
        )

    def warn_missing(self, location: str, names: Sequence[str]) -> None:
        """Warn that the columns ``names`` are None in a file, unless ``missing`` accepts it."""
        if names and self.missing is None:
            log.warning(
                "%s: there is no column %s, so samples have None there. If this is right, give the "
                "format missing='null'; missing='error' raises an error instead.",
                location,
                ", ".join(map(repr, names)),
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
    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block | Problem]:
        """Yield the samples of a shard, in order, some thousands in each block.

        A record that is no sample is a `Problem` in its place, so each row of the shard is in a
        block or is a problem. Raises FormatError, with the file's name, the shard and the reason,
        if the shard cannot be read at all.
        """

    # ------------------------------------------------------------------ methods to override

    @property
    def lists_files(self) -> bool:
        """Return True if the files are found by listing a folder.

        If a log or a manifest names them, ``split=`` is the folder of the log.
        """
        return True

    def narrow(self, place: FilePlace) -> FilePlace:
        """Return the part of a place whose files are listed. By default that is all of it."""
        return place

    def find(self, place: FilePlace, source: Files) -> FoundFiles:
        """List the files of a place, and return those that hold samples, in their order.

        ``source`` lists and reads the files. A file that the place names is taken whatever its
        ending. Formats whose files are named by a log or a manifest override this.
        """
        from mds.formats._facts import FoundFiles

        listed = source.find(place)
        if place.literal and [file.key for file in listed] == [place.literal]:
            return FoundFiles(listed)
        return FoundFiles(self.choose(listed, source))

    def choose(self, files: Iterable[DataFile], source: Files) -> list[DataFile]:
        """Return those of the listed files that hold samples, in the order of the samples.

        ``source`` reads them, if a format must look into files to choose.
        """
        from mds.formats._source import check_names

        chosen_files: list[DataFile] = []
        listed = list(files)
        takes_all = self.takes_other_endings and not any(self.takes(file.key) for file in listed)
        for file in listed:
            if takes_all or self.takes(file.key):
                chosen_files.append(file)
            else:
                source.leave_out(file.key, OTHER_KINDS)
        if self.omits_companions and not takes_all:
            chosen_files = drop_companions(chosen_files, lambda file: file.key, source.leave_out)
        if self.omits_underscored:
            chosen_files = drop_underscored(chosen_files, lambda file: file.key, source.leave_out)
        check_names(chosen_files, source.url(""))
        return sorted(chosen_files)

    def value_lengths(
        self, shard: ShardPlace, column: str, files: Files
    ) -> npt.NDArray[np.int64] | None:
        """Return the number of elements of each array in a column, int64 of shape (samples,).

        Packing plans with these lengths. A format whose files store the lengths apart from the
        values returns them here. None makes packing fetch and decode the column.
        """
        del shard, column, files
        return None

    def check_empty(self, file: DataFile, files: Files) -> None:  # noqa: B027 - often unknown
        """Raise FormatError with the reason why a file has no samples, if it is known.

        Called if no file of a dataset has samples.
        """

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

    def plan_uncounted(self, file: DataFile, files: Files) -> FilePlan:
        """Return the plan of a file for a conversion, which does not need the numbers of samples.

        A format that must read a file to count its samples overrides this. Its plan has -1 in place
        of numbers that are not known.
        """
        return self.plan_file(file, files)

    def cut(self, shard: ShardPlace, files: Files, size: int) -> Iterator[ShardPlace]:
        """Yield pieces of a shard, of about ``size`` bytes each, that are read apart.

        Processes of a conversion read them side by side. By default a shard is one piece.
        """
        del files, size
        yield shard

    def location_of(self, shard: ShardPlace, row: int, files: Files) -> str:
        """Return where a sample is, for errors: its file, and its row, line or key.

        Args:
            shard: A shard, or a piece of one that `cut` yielded.
            row: Number of the sample in it, from 0.
            files: Files of the dataset.
        """
        return f"{files.url(shard.file)}, {self.shard_of(shard)}, sample {row}"

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

    def class_names(self, shards: Iterable[ShardPlace]) -> Mapping[str, Sequence[str]]:
        """Return the class names of columns of numbers, by name: number 0 is the first name."""
        del shards
        return {}

    @classmethod
    def recorded_name(cls) -> str:
        """Return the name in states, indexes and digests: the first name that the format had."""
        return cls.name

    def settings(self) -> Mapping[str, Any]:
        """Return the settings that affect samples, except ``columns``, as values of JSON."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {
            name: value
            for name, value in sorted(dataclasses.asdict(self).items())
            if name != "columns" and (name not in _LATER_SETTINGS or value != defaults[name])
        }

    # ------------------------------------------------------------------ shared by all formats

    def takes(self, key: str) -> bool:
        """Return True if a key has an ending of this format."""
        return key.lower().endswith(self.endings)

    def merge(self, file_columns: Sequence[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
        """Return the encoding of each column of a dataset, by name.

        ``file_columns`` are pairs: the key of a file, and the encodings of its columns. A column
        that a file lacks is None there, see ``missing``. The user's ``encodings`` replace those of
        the files. Raises FormatError for encodings that cannot be merged.
        """
        from mds.formats._columns import as_optional, merge_encodings, settled

        chosen_encodings = self.encodings or {}
        merged: dict[str, str] = {}
        first_keys: dict[str, str] = {}  # by column: the first file that has it
        for key, columns in file_columns:
            for name, encoding in columns.items():
                first = first_keys.setdefault(name, key)
                if name in chosen_encodings:
                    merged[name] = chosen_encodings[name]
                    continue
                before = merged.get(name, encoding)
                both = merge_encodings(before, encoding)
                if both is None:
                    raise FormatError(
                        f"{key}: column {name!r} is {encoding}, but {before} in {first}. Leave it "
                        "out with columns=, read the files as separate streams, or name an "
                        f"encoding for all of them, such as encodings={{{name!r}: 'json'}}."
                    )
                merged[name] = both
        lacking = []  # columns that a file lacks
        for name in sorted(merged):
            keys = [key for key, columns in file_columns if name not in columns]
            if not keys:
                continue
            if self.missing == "error":
                raise FormatError(
                    f"{keys[0]}: there is no column {name!r}, but {first_keys[name]} has one. "
                    f"{self.allow_missing}"
                )
            lacking.append((keys[0], name))
            merged[name] = as_optional(merged[name])
        if lacking:
            key = lacking[0][0]
            self.warn_missing(key, [name for first, name in lacking if first == key])
        return {
            name: encoding if name in chosen_encodings else settled(encoding)
            for name, encoding in merged.items()
        }
