"""Plain values that describe the files of a dataset, and the shards in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mds._shardfile.layout import Columns
from mds.errors import FormatError
from mds.formats._names import ALL_SPLITS, SplitError, split_names


class DataFile(NamedTuple):
    """One file of a dataset.

    - ``key``: path below the root of the dataset.
    - ``size``: in bytes; -1 if unknown.
    - ``version``: version or ETag that the store gives to the content; '' if it gives none.

    >>> DataFile("train/genes.fa", size=1200)
    DataFile(key='train/genes.fa', size=1200, version='')
    """

    key: str
    size: int
    version: str = ""


class FoundFiles(NamedTuple):
    """The files of a dataset, in the order of their samples.

    - ``pin``: version of a table or repository, such as ``{"version": 37}``.
    - ``facts``: facts of single files that were found while listing, by key; `Format.plan_file`
      gets them in `Files.facts`.
    - ``schema``: digest of what plans depend on besides the files, such as the schema of a table or
      indexes beside the files. If it differs, all files are planned again.
    - ``columns``: columns of a table. Some may not be in any of its files yet.
    - ``splits``: split of each file, by key; empty if a file has none. A format whose files are one
      sample each sets it, for others `list_split` does.
    - ``extras``: columns that a sample has only if the user names them.
    - ``class_names``: class names of columns of numbers, by column, in all splits.
    - ``notes``: sentences for the plan of a conversion.
    """

    files: list[DataFile]
    pin: Mapping[str, str | int] = {}
    facts: Mapping[str, bytes] = {}
    schema: str = ""
    columns: tuple[str, ...] = ()
    splits: Mapping[str, str] = {}
    class_names: Mapping[str, Sequence[str]] = {}
    extras: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits, sorted; none if there is only one."""
        return split_names(self.splits)

    def of_split(self, split: str | None, location: str) -> FoundFiles:
        """Return the files of one split.

        Args:
            split: Name of a split; "all" for the files of all. '' if there must be no splits; None
                for all files.
            location: URL of the folder, for errors.

        Raises FormatError if there are splits and none is chosen, and SplitError if there is no
        such split, or only a folder of this name.
        """
        names = self.split_names
        if split == "" and names:
            raise FormatError(
                f"{location}: the files are splits ({', '.join(names)}). Read one of them with "
                f"split={names[-1]!r}, or all of them mixed with split={ALL_SPLITS!r}."
            )
        if not split or not self.files:
            return self
        files = [file for file in self.files if self.splits.get(file.key) == split]
        if files:
            facts = {file.key: self.facts[file.key] for file in files if file.key in self.facts}
            return self._replace(files=files, facts=facts)
        if any(file.key.startswith(f"{split}/") for file in self.files):
            raise SplitError(f"{location}: the folder {split!r} is no split.", is_folder=True)
        if split == ALL_SPLITS:
            return self
        listed = ", ".join(sorted({*self.splits.values()}))
        reason = f"the splits are {listed}" if listed else "not every file is named after a split"
        raise SplitError(
            f"{location}: there is no split {split!r}: {reason}. Choose another split, leave "
            f"split={split!r} out, or give a pattern of the files."
        )


class FileCosts(NamedTuple):
    """Estimated cost of reading a dataset in a format.

    - ``format``: name of the format. ``files``: number of files.
    - ``size``: bytes to fetch. ``decoded``: bytes that the decoded shards take in the cache.
    - ``is_in_place``: whether files are read without copies in the cache.
    - ``slow_columns``: columns whose values are decoded one by one.
    - ``whole_file_reason``: why a reader of some columns needs whole files; '' if it does not.
    - ``left_out``: number and first key of the files and links that are not read, by reason.
    - ``followed``: number and first key of the links that are followed, by kind.
    """

    format: str
    files: int
    size: int
    decoded: int
    is_in_place: bool = False
    slow_columns: tuple[str, ...] = ()
    whole_file_reason: str = ""
    left_out: Mapping[str, tuple[int, str]] = {}
    followed: Mapping[str, tuple[int, str]] = {}


def describe_left_out(
    left_out: Mapping[str, tuple[int, str]], reasons: Iterable[str] | None = None
) -> str:
    """Describe files that are left out, such as "broken links: 2 (such as a.jpg)"; '' for none.

    - ``left_out`` (Mapping): Number and first key by reason; see `FileCosts`.
    - ``reasons`` (Iterable[str] | None, default None): The reasons to describe; None means all.
    """
    parts = [
        f"{reason}: {left_out[reason][0]:,} (such as {left_out[reason][1]})"
        for reason in (left_out if reasons is None else reasons)
        if reason in left_out
    ]
    return ", ".join(parts)


class Problem(NamedTuple):
    """A record of a file that cannot become a sample.

    - ``location``: file, and row, line or key, such as "train.jsonl, line 3, column 12".
    - ``reason``: what is wrong, such as "expected a number".
    - ``remedy``: what the user can do, as a sentence; '' if nothing is known.

    `Format.blocks` yields it in place of a sample. A dataset raises ``FormatError(problem)`` when
    it reads the record; `mds.convert` raises RecordError, or leaves the record out with
    ``on_error="skip"``.

    >>> str(Problem("train.jsonl, line 3", "expected a number", "Correct it."))
    'train.jsonl, line 3: expected a number. Correct it.'
    """

    location: str
    reason: str
    remedy: str = ""

    def __str__(self) -> str:
        # Messages of libraries end with a full stop or not.
        return f"{self.location}: {self.reason.rstrip('.')}. {self.remedy}".rstrip()

    @classmethod
    def of(cls, error: BaseException, location: str) -> Problem:
        """Return the problem that an error was raised with, else one with the error's text."""
        given = error.args[0] if error.args else None
        return given if isinstance(given, cls) else cls(location, str(error))


class Block(NamedTuple):
    """Some consecutive samples of a shard, encoded as in an MDS shard.

    - ``sizes``: bytes of each sample, int64.
    - ``data``: the samples, one after the other.

    >>> block = Block(sizes=np.array([3, 2]), data=b"abcde")
    >>> int(block.sizes.sum()) == len(block.data)
    True
    """

    sizes: npt.NDArray[np.int64]
    data: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class FilePlan:
    """Columns and shards of one file.

    - ``columns``: the encoding of every column, by name.
    - ``samples``: number of samples of each shard, in order. Shards without samples are dropped.
    - ``sizes``: approximate bytes of each shard as an MDS file.
    - ``spans``: two numbers for each shard, by which the format finds it in the file, such as first
      and last byte; None means (0, 0), (1, 1), ...
    - ``note``: bytes that the format gets again whenever it reads a shard of the file.

    A file of two shards, the bytes 0 to 99 with ten samples and the bytes 100 to 149 with four:

    >>> spans = [(0, 100), (100, 150)]
    >>> plan = FilePlan({"text": "str"}, samples=[10, 4], sizes=[300, 200], spans=spans)
    >>> sum(plan.samples)
    14
    """

    columns: Mapping[str, str]
    samples: Sequence[int]
    sizes: Sequence[int]
    spans: Sequence[tuple[int, int]] | None = None
    note: bytes = b""


@dataclasses.dataclass(frozen=True, slots=True)
class ShardPlace:
    """A shard that is to be read.

    - ``file``: the file that holds the shard.
    - ``span``, ``samples``, ``note``: two numbers by which the format finds the shard in the file,
      number of samples, and the file's note, as in its `FilePlan`.
    - ``columns``: the wanted columns.
    - ``has_chosen``: whether the user named the columns; samples may then have further ones.
    - ``dropped``: columns that the user leaves out; samples may have them.
    - ``mixed``: columns that are texts in some files and have another type in others.

    A format gets it in `Format.blocks`, here with spans that are the first and the last byte::

        def blocks(self, shard, files):
            lines = files.range(shard.file, *shard.span).splitlines()
            records = [{"text": line.decode()} for line in lines]
            yield from encode_records(shard.columns, records, files.url(shard.file))
    """

    file: DataFile
    span: tuple[int, int]
    samples: int
    note: bytes
    columns: Columns
    has_chosen: bool = False
    dropped: frozenset[str] = frozenset()
    mixed: frozenset[str] = frozenset()
