"""What is known of the files of a dataset and of the shards in them: plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mds.shardfile.layout import Columns


class DataFile(NamedTuple):
    """One file of a dataset: its key below the root, its bytes, and the store's version of it."""

    key: str
    size: int
    version: str = ""


class FoundFiles(NamedTuple):
    """The files of a dataset, in the order that samples have, and what they are files of.

    - ``pin``: what names this state of a table or repository, such as ``{"version": 37}``.
    - ``facts``: what is known of single files already, by key; `Format.plan_file` finds it in
      `Files.facts`.
    - ``schema``: digest of what plans depend on besides the files; with another one all files are
      planned again. Such are the schema of a table, and indexes that lie beside the files.
    - ``columns``: those of a table, of which some may be in none of its files yet.
    """

    files: list[DataFile]
    pin: Mapping[str, str | int] = {}
    facts: Mapping[str, bytes] = {}
    schema: str = ""
    columns: tuple[str, ...] = ()


class FileCosts(NamedTuple):
    """Cost of reading files of a format: ``size`` bytes of them, ``decoded`` in the cache.

    ``slow_columns`` are decoded value by value, where others are not. ``whole_file_reason`` says
    why a reader of a part needs the whole file; it is '' if a part is enough.
    """

    format: str
    files: int
    size: int
    decoded: int
    is_in_place: bool = False
    slow_columns: tuple[str, ...] = ()
    whole_file_reason: str = ""


class Block(NamedTuple):
    """Some samples of a shard as an MDS shard stores them: the bytes of each, and all of them."""

    sizes: npt.NDArray[np.int64]
    data: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class FilePlan:
    """Columns and shards of one file.

    - ``columns``: the encoding of every column by name.
    - ``samples``: samples of each shard, in order; a shard without samples is left out.
    - ``sizes``: about how many bytes each shard takes as an MDS file.
    - ``spans``: where in the file each shard is, as two numbers of the format's own choice; what is
      not given is (0, 0), (1, 1), ...
    - ``note``: what the format wants to know of the file when its shards are read.
    """

    columns: Mapping[str, str]
    samples: Sequence[int]
    sizes: Sequence[int]
    spans: Sequence[tuple[int, int]] | None = None
    note: bytes = b""


@dataclasses.dataclass(frozen=True, slots=True)
class ShardPlace:
    """One shard to be read: its file, its span and its note as planned, the columns wanted.

    ``has_chosen``: they were named, so that others do not matter.
    """

    file: DataFile
    span: tuple[int, int]
    samples: int
    note: bytes
    columns: Columns
    has_chosen: bool = False
