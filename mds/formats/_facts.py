"""Plain values that describe the files of a dataset, and the shards in them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mds._shardfile.layout import Columns


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
    """

    files: list[DataFile]
    pin: Mapping[str, str | int] = {}
    facts: Mapping[str, bytes] = {}
    schema: str = ""
    columns: tuple[str, ...] = ()


class FileCosts(NamedTuple):
    """Estimated cost of reading a dataset in a format.

    - ``format``: name of the format. ``files``: number of files.
    - ``size``: bytes to fetch. ``decoded``: bytes that the decoded shards take in the cache.
    - ``is_in_place``: whether files are read without copies in the cache.
    - ``slow_columns``: columns whose values are decoded one by one.
    - ``whole_file_reason``: why a reader of some columns needs whole files; '' if it does not.
    """

    format: str
    files: int
    size: int
    decoded: int
    is_in_place: bool = False
    slow_columns: tuple[str, ...] = ()
    whole_file_reason: str = ""


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
