"""Conversion that keeps the shards of files in a format: one MDS shard for each of theirs.

Samples, their encodings and the number of samples of each shard are the same as in the files, so
the order of training is too: a run that began on the files can resume on the copy in the middle of
an epoch, and the other way round. A shard has the bytes that the cache would hold.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from mds._shardfile.layout import pack_header
from mds.errors import ConfigError, ShardError
from mds.formats._base import Format
from mds.formats._dataset import FormatData, open_files
from mds.formats._facts import Block
from mds.formats._source import Files
from mds.writers._mds import MDSWriter
from mds.writers._pipeline import FullShard
from mds.writers.convert._run import Progress, SplitSummary, Summary
from mds.writers.convert._spec import ConvertSpec

#: Shards that are decoded ahead of the one that is written.
_AHEAD = 2


def keep_shards(
    source: str,
    out: str,
    *,
    format: str | Format | None = None,  # noqa: A002 - what it is
    columns: Sequence[str] | None = None,
    compression: str | None = None,
    hashes: Sequence[str] = ("xxh3_64",),
    overwrite: bool = False,
    durable: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Convert files in a format to MDS, shard by shard, so that the order of samples stays.

    It is `convert` with ``keep_shards=True``, for a format or a store that has settings.

    * ``source`` (str): a file, a folder or a pattern, as ``remote=`` of a dataset has it.
    * ``out`` (str): a folder or a URL.
    * ``format`` (str | Format, None): the format of the files; None: by their endings.
    * ``columns`` (list[str], None): the only columns to write.
    * ``compression`` (str, None): how shards are compressed, such as "zstd:7".
    * ``hashes`` (list[str], ("xxh3_64",)): digests of every file to store.
    * ``overwrite`` (bool, False): replace the dataset at ``out``.
    * ``durable`` (bool, True): wait until shards and index are on the disk.
    * ``storage_options`` (dict[str, Any], None): settings of the store of the source.
    * ``progress`` (function, None): is called after every shard.

    Raises ConfigError for a source of no format, FormatError for a file that cannot be read, and
    FileExistsError for an output that is not empty.

    >>> keep_shards("s3://bucket/c4/*.parquet", "/data/c4")  # doctest: +SKIP
    """
    data, files = open_files(source, format, columns, storage_options)
    writer_options = {
        "compression": compression,
        "hashes": list(hashes),
        "exist_ok": overwrite,
        "durable": durable,
    }
    return copy_shards(data, files, out, writer_options, progress)


#: Options of `convert` that a conversion which keeps shards takes.
_OPTIONS = {"format", "columns", "compression", "hashes", "overwrite", "durable", "keep_shards"}


def check_spec(spec: ConvertSpec) -> None:
    """Raise ConfigError for options that would change shards or samples."""
    for field in dataclasses.fields(spec):
        is_default = getattr(spec, field.name) == getattr(ConvertSpec(), field.name)
        if not is_default and field.name not in _OPTIONS:
            option = {"tokens": "tokenizer"}.get(field.name, field.name.replace("_", "-"))
            raise ConfigError(
                f"--keep-shards keeps shards and samples unchanged, so --{option} cannot be used "
                "with it."
            )


def copy_shards(
    data: FormatData,
    files: Files,
    out: str,
    writer_options: Mapping[str, Any],
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Write every shard of some files to ``out``.

    - ``data`` (FormatData): The files as they were planned, with the columns to write.
    - ``files`` (Files): Reads their bytes.
    - ``writer_options`` (Mapping[str, Any]): Arguments of `MDSWriter`.
    - ``progress`` (function, default None): Called after every shard.
    """
    began = time.monotonic()
    encodings = dict(zip(data.columns.names, data.columns.encodings, strict=True))
    # Bytes of the shards 0 to i, for progress.
    total_sizes = np.cumsum(data.table.decoded).tolist()
    with _ShardWriter(columns=encodings, out=out, size_limit=None, **writer_options) as writer:
        for number, blocks in enumerate(_decoded(data, files)):
            writer.write_shard(blocks, data.where(number, files))
            if progress is not None:
                progress(
                    Progress(
                        size=total_sizes[number],
                        whole=total_sizes[-1],
                        samples=writer.samples,
                        shards=number + 1,
                        bad=0,
                    )
                )
    split = SplitSummary(
        name="",
        samples=writer.samples,
        shards=len(data.table),
        raw_size=writer.raw_size,
        zip_size=0,
    )
    return Summary(out=out, splits=(split,), seconds=time.monotonic() - began)


def _decoded(data: FormatData, files: Files) -> Iterator[list[Block]]:
    """Yield the blocks of samples of every shard in order, decoded a few shards ahead."""
    with ThreadPoolExecutor(_AHEAD, "mds-keep-shards") as pool:
        pending: deque[Future[list[Block]]] = deque()
        try:
            for number in range(len(data.table)):
                pending.append(pool.submit(lambda shard: list(data.blocks(shard, files)), number))
                if len(pending) > _AHEAD:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


class _ShardWriter(MDSWriter):
    """Writer of whole shards instead of samples.

    ``samples`` and ``raw_size`` count the samples and bytes that were written.
    """

    samples = raw_size = 0

    def write_shard(self, blocks: Sequence[Block], location: str) -> None:
        """Write one shard of blocks of samples.

        - ``blocks`` (Sequence[Block]): Each has the bytes of some samples, and the size of each.
        - ``location`` (str): The place of the source shard, for errors.

        Raises ShardError if sizes and bytes do not agree.
        """
        sizes = np.concatenate([block.sizes for block in blocks])
        parts = [block.data for block in blocks]
        if int(sizes.sum()) != sum(map(len, parts)):
            raise ShardError(f"{location}: the sizes of its samples do not add up to its bytes.")
        header = pack_header(sizes.tolist(), self._config)
        files = ((header, *parts),)
        shard = FullShard(
            number=self._shards,
            samples=len(sizes),
            format=self.format,
            files=files,
            config=self.get_config(),
            # Clearing the list of parts frees the memory when the shard is written.
            release=parts.clear,
        )
        self._pipeline.submit(shard)
        self._shards += 1
        self.samples += len(sizes)
        self.raw_size += len(header) + int(sizes.sum())
