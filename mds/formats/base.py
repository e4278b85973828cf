"""What a format is: files that are read as they lie, behind one seam.

A format says three things. `plan_file` looks at one file and says which shards it holds: how many
samples each has (the order follows from nothing else), about how many bytes, and which columns.
`blocks` reads one shard and gives its samples as the bytes that an MDS shard stores; the cache
writes them to one MDS file in its folder, so everything that is known of MDS shards (readers,
batches, limits, eviction, ranges in memory) holds for every format. `reader` may read a shard where
it lies instead, without a copy, when the file is on a local disk. MDS itself is what the seam gives
(docs/decisions/0022).

To add a format: inherit `Format`, a frozen dataclass, in a file of this folder; set ``name`` and
``endings``; write `plan_file` and `blocks`; name the class in `registry.py` (outside of this
package: `register_format`). `blocks` may yield `encode_records(shard.columns, records)` for samples
that are dicts, or `join_columns` for columns that are encoded already (`encode.py`). Bytes come
through the `Files` that both are given: it retries, joins ranges, and refuses a file that changed
since it was planned. `mds.testing.file_format_contract.FormatContract` is the test that every
format passes.
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

    from mds.formats.facts import Block, DataFile, FilePlan, FoundFiles, ShardPlace
    from mds.formats.source import FilePlace, Files
    from mds.readers import ColumnSelection, Reader
    from mds.shardfile.layout import Columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format(ABC):
    """A kind of files, and the settings with which they are read; frozen, and fit for a pickle.

    - ``columns`` (Sequence[str] | None, default None): The only columns to fetch and decode.
    - ``missing`` (str | None, default None): With ``"null"`` a column that a file does not have is
      None there; else it is an error.
    """

    #: What ``format=`` calls it.
    name: ClassVar[str]
    #: How its files end, in lower case, the longest first.
    endings: ClassVar[tuple[str, ...]]
    #: Changes when the same file would give other samples than before.
    revision: ClassVar[int] = 1
    #: Whether a file of one name never changes, so that a size says that it is the same.
    has_final_files: ClassVar[bool] = False

    columns: Sequence[str] | None = None
    missing: str | None = None

    def __post_init__(self) -> None:
        if self.columns is not None:
            if isinstance(self.columns, str):
                raise ConfigError(f"columns= takes a list of names, got the text {self.columns!r}.")
            object.__setattr__(self, "columns", tuple(self.columns))
        if self.missing not in (None, "null"):
            raise ConfigError(f"missing= is 'null' or None, got {self.missing!r}.")

    @property
    def allow_missing(self) -> str:
        """Advice about a column that some files or samples lack, for an error message."""
        return (
            "Leave it out with columns=, or have it None there with "
            f"format={type(self).__name__}(missing='null'); on a command line, "
            f"mds index --as {self.name} --set missing=null makes an index that says so."
        )

    # ------------------------------------------------------------------ what a format says

    @abstractmethod
    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Return the shards of one file; called for many files side by side.

        Raises FormatError with the file's name and the reason where it cannot be read.
        """

    def plan_bytes(self, file: DataFile, files: Files) -> int:
        """Return the bytes of a file that `plan_file` reads; 0 if a few are enough."""
        del file, files
        return 0

    @abstractmethod
    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block]:
        """Yield the samples of a shard, in order, some thousands at a time.

        Raises FormatError with the file's name, the shard and the reason.
        """

    def narrow(self, place: FilePlace) -> FilePlace:
        """Return the part of a given place that is to be listed: here all of it."""
        return place

    def find(self, place: FilePlace, source: Files) -> FoundFiles:
        """Return the files of a place that hold samples, by one listing."""
        from mds.formats.facts import FoundFiles

        return FoundFiles(self.choose(source.find(place), source))

    def choose(self, files: Iterable[DataFile], source: Files) -> list[DataFile]:
        """Return those of the listed files that hold samples, in the order of the samples."""
        del source
        return sorted(file for file in files if self.takes(file.key))

    def value_lengths(
        self, shard: ShardPlace, column: str, files: Files
    ) -> npt.NDArray[np.int64] | None:
        """Return how many elements each value of a column of arrays has, in the order of samples.

        Packing plans by these lengths. None makes it fetch and decode the column; a format whose
        files hold the lengths somewhere else returns them, so that no value is read to plan.
        """
        del shard, column, files
        return None

    def can_range(self, shard: ShardPlace) -> bool:
        """Whether `rows` gives some samples of a shard without the bytes of the others."""
        del shard
        return False

    def rows(self, shard: ShardPlace, rows: Sequence[int], files: Files) -> Mapping[int, bytes]:
        """Return the stored bytes of some samples by row; called if `can_range`."""
        raise NotImplementedError

    def reader(self, shard: ShardPlace, path: str, columns: ColumnSelection) -> Reader | None:
        """Return a reader of the shard in a local file, or None to decode it to the cache.

        Either all shards of a dataset are read in place or none (`is_read_in_place`).
        """
        del shard, path, columns
        return None

    def is_read_in_place(self, files: Sequence[DataFile]) -> bool:
        """Whether shards in these files, on a local disk, are read without a copy."""
        del files
        return False

    def maps(self, note: bytes) -> bool:
        """Whether a file with this note is read so, where `is_read_in_place`."""
        del note
        return True

    def shard_of(self, shard: ShardPlace) -> str:
        """Return the name of a shard for errors, which follows that of its file."""
        return f"shard {shard.span[0]}"

    def share(self, shard: ShardPlace) -> float:
        """About which share of the decoded bytes of a shard is of the columns that are wanted."""
        del shard
        return 1.0

    def comes_whole(self, shard: ShardPlace) -> str:
        """Why all bytes of a shard come where some columns are wanted; '' where they do not."""
        del shard
        return ""

    def slow_columns(self, columns: Columns) -> Sequence[str]:
        """Columns whose values are decoded one by one in Python, where others are not."""
        del columns
        return ()

    def settings(self) -> Mapping[str, Any]:
        """Return the settings that change samples, as JSON; not the columns."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in sorted(fields.items()) if name != "columns"}

    # ------------------------------------------------------------------ what follows from it

    def takes(self, key: str) -> bool:
        """Whether a file is of this format by its name; hidden files and ``_...`` are not."""
        parts = key.split("/")
        if any(part.startswith((".", "_")) for part in parts):
            return False
        return parts[-1].lower().endswith(self.endings)

    def merge(self, file_columns: Sequence[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
        """Return the columns of a dataset, given those of its files, each with a file's name.

        Raises FormatError for files that do not go together.
        """
        from mds.formats.columns import merge_encodings

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
                            f"{file_without_column}: there is no column {name!r}, which "
                            f"{file_with_column} has. {self.allow_missing}"
                        )
                    encoding = merged_encoding or other or ""
                    is_optional = encoding == "json" or encoding.startswith("optional[")
                    merged[name] = encoding if is_optional else f"optional[{encoding}]"
                    continue
                both = merge_encodings(merged_encoding, other)
                if both is None:
                    raise FormatError(
                        f"{key}: column {name!r} is {other}, and {merged_encoding} in {first}. "
                        f"Leave it out with columns=, or read the files as streams of their own."
                    )
                merged[name] = both
        return merged
