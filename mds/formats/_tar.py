"""Tars of samples (WebDataset), read in place: a tar is a shard, a file ending is a column.

Planning only needs the number of samples. It comes from a sidecar of the tar (`_tar_places.py`) or
from the headers in the tar. Columns are inferred from the first samples; images stay encoded and
numbers are read from their text, so nothing is decoded that is not used.

The note of a tar, which its plan keeps for readers, lists its columns (`note_of`). Behind them are
the places of its files (`TarPlaces`) if a scan found them, or else the places of its samples if a
sidecar has them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from mds.errors import FormatError
from mds.formats._base import Format
from mds.formats._columns import KnownColumns, note_of
from mds.formats._encode import encode_records, sample_encoder
from mds.formats._facts import Block, DataFile, FilePlan, ShardPlace
from mds.formats._tar_members import Arriving, ReadAt, Windows, mapped, members, reads
from mds.formats._tar_places import FoundPlaces, TarPlaces, noted_samples
from mds.formats._tar_reader import SampleBytes, batches, tar_block, tar_reader, whole_records
from mds.formats._tar_samples import (
    KEY,
    TarColumns,
    TarSample,
    TarValues,
    check_sample,
    group,
    is_number,
)
from mds.formats._unpack import compression_of, content

if TYPE_CHECKING:
    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection
    from mds.formats._source import Files

#: Bytes that are fetched at once to infer the columns of a tar with a sidecar.
_LOOK = 64 << 10
#: If a sample is larger than this, unneeded files are skipped by separate requests. About
#: this many bytes arrive in the 30 ms of a request, if several tars are fetched at a time.
_HOP_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tar(Format):
    """Tars in which the files with one name, before the first dot, are a sample.

    - ``columns`` (Sequence[str] | None, default None): The endings to read, and ``"__key__"`` for
      the name; None takes all.
    - ``missing`` (str | None, default None): ``"null"`` fills a file that a sample does not have
      with None; without it such a sample is an error.

    >>> StreamingDataset(remote="s3://bucket/{00000..01023}.tar", batch_size=32)  # doctest: +SKIP
    """

    name: ClassVar[str] = "tar"
    endings: ClassVar[tuple[str, ...]] = (".tar",)
    revision: ClassVar[int] = 3

    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Find the samples and columns of a tar.

        Without a sidecar the headers of the whole tar are read. If a sidecar counts the samples,
        only some samples at the start are read, for the columns.
        """
        location = files.url(file)
        # What a sidecar says: the number of samples, or the bytes at which the samples begin and
        # the last one ends. None without a sidecar.
        noted = noted_samples(file, files)
        count = len(noted) - 1 if isinstance(noted, list) else noted
        columns, places, size, samples = TarColumns(), FoundPlaces(), 0, 0
        is_whole = True  # whether all samples were looked at
        # With a count few samples are needed: those up to the first `_LOOK` bytes, or until the
        # columns are known.
        for sample, read in self.samples(file, files, is_counted=count is not None):
            check_sample(sample, location)
            columns.add(sample, read, location)
            samples += 1
            if count is None:
                places.add(sample)
                size += sum(each.size for each in sample.files.values())
            elif columns.is_probed or sample.end > _LOOK:
                is_whole = False
                break
        if count is not None and (samples > count or (is_whole and samples != count)):
            raise FormatError(
                f"{location}: there are {samples:,} samples{'' if is_whole else ' or more'}, but "
                f"the sidecar file says {count:,}. Delete the sidecar, so that the tar is read."
            )
        extra = b""  # for readers: places of files or of samples, if they are known
        if count is None:
            extra = places.places().to_bytes()
        elif isinstance(noted, list):
            extra = TarPlaces.of_starts(noted).to_bytes()
        encodings = columns.encodings(location)
        total = samples if count is None else count
        # Bound of the bytes of the samples once they are decoded, which cost up to 16 bytes each
        # besides their values. Without a scan it is the size of the tar.
        size = file.size if count is not None else size + 16 * total
        return FilePlan(encodings, [total], [size], note=note_of(encodings, extra))

    def plan_bytes(self, file: DataFile, files: Files) -> int:
        """Return the size of the tar, or 0 if a sidecar counts its samples."""
        return file.size if noted_samples(file, files) is None else 0

    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block]:
        """Yield the samples of a tar, with few in memory at once.

        Files of columns that are not wanted are skipped if a scan found the places of all files, or
        if their number is known and the tar is read header by header.
        """
        location = files.url(shard.file)
        values, places = TarValues(shard, location), TarPlaces.of(shard)
        if places is not None and places.files:
            for rows in batches(places, shard):
                for part in SampleBytes.fetch(places, rows, shard, files).parts():
                    yield tar_block(part, shard, values)
            return
        skips_files = self._skips_unwanted_files(shard)
        samples = self.samples(shard.file, files, is_counted=skips_files)
        records = (values.of_sample(sample, read) for sample, read in samples)
        yield from encode_records(shard.columns, records, location)

    def shard_of(self, shard: ShardPlace) -> str:
        """Describe a shard by its number of samples: it is the whole tar."""
        return f"{shard.samples:,} samples"

    def share(self, shard: ShardPlace) -> float:
        """Return the share (0 to 1) of a tar's bytes in the files of the wanted columns.

        It is 1.0 if the places of files are unknown.
        """
        places = TarPlaces.of(shard)
        if places is None or not places.files:
            return 1.0
        names = [name for name in shard.columns.names if name in places.files]
        return (places.size(names) + 1) / (places.size([*places.files]) + 1)

    def comes_whole(self, shard: ShardPlace) -> str:
        """Return why a reader of some columns fetches whole tars, or '' if it does not.

        It fetches whole tars if a sidecar counts the samples, so that no scan found their files,
        and if requests for single files would not pay.
        """
        places = TarPlaces.of(shard)
        is_known = (places is not None and places.files) or self._skips_unwanted_files(shard)
        if is_known or not KnownColumns(shard).omitted - {KEY}:
            return ""
        return "the sidecar of the tars has counts of samples, but not the positions of their files"

    def can_range(self, shard: ShardPlace) -> bool:
        """Whether the places of samples in the tar are known."""
        return TarPlaces.of(shard) is not None

    def rows(self, shard: ShardPlace, rows: Sequence[int], files: Files) -> Mapping[int, bytes]:
        """Return the MDS bytes of the samples ``rows``, by row.

        Only their bytes are fetched; neighbouring samples are fetched together.
        """
        location, encode = files.url(shard.file), sample_encoder(shard.columns)
        values, places = TarValues(shard, location), TarPlaces.of(shard)
        assert places is not None
        if places.files:  # without them only the beginnings of samples are known, by a sidecar
            records = SampleBytes.fetch(places, rows, shard, files).records(values)
        else:
            records = whole_records(places, rows, shard, files, values)
        return {
            row: encode(record, functools.partial("{}, sample {}".format, location, row))
            for row, record in zip(rows, records, strict=True)
        }

    def is_read_in_place(self, files: Sequence[DataFile]) -> bool:
        """Return True: a file that ends with ``.tar`` is not compressed."""
        del files
        return True

    def reader(self, shard: ShardPlace, path: str, columns: ColumnSelection) -> Reader:
        """Return a reader that knows where the files of each sample are, in the mapped tar."""
        return tar_reader(shard, path, columns)

    def merge(self, file_columns: Sequence[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
        """Merge the columns of all tars.

        A column that some samples of a tar lack needs ``missing="null"``. Numbers are text if they
        are text in one of the tars.
        """
        texts = set()  # columns of numbers that are text in a tar
        for key, columns in file_columns:
            for name, encoding in columns.items():
                if is_number(name) and encoding in ("str", "optional[str]"):
                    texts.add(name)
                if encoding.startswith("optional[") and self.missing != "null":
                    raise FormatError(
                        f"{key}: some of its samples have a file .{name}, others have none. "
                        f"{self.allow_missing}"
                    )

        def common_encoding(name: str, encoding: str) -> str:
            """Return the encoding of a column in one tar, made equal to that in other tars.

            Numbers become text if a tar has text there (`texts`). JSON is never optional, because
            it can hold null itself.
            """
            if name in texts:
                return encoding.replace("int", "str")  # also inside of "optional[int]"
            return encoding.replace("optional[json]", "json")

        return super().merge(
            [(key, {name: common_encoding(name, each) for name, each in columns.items()})
             for key, columns in file_columns]
        )  # fmt: skip

    @staticmethod
    def samples(
        file: DataFile,
        files: Files,
        span: tuple[int, int] | None = None,
        *,
        is_counted: bool = False,
    ) -> Iterator[tuple[TarSample, ReadAt]]:
        """Yield samples of a tar, with a function that reads their bytes until the next one.

        - ``span`` (tuple[int, int] | None, default None): Only samples whose first header is at a
          byte of this half-open range, which must begin with a header. For local tars only.
        - ``is_counted`` (bool, default False): Whether few samples are needed; a remote tar is then
          read in pieces and not as a whole.

        A tar may be compressed; it is then read from its beginning to its end.
        """
        location, path = files.url(file), files.path(file)
        is_packed = compression_of(file.key) is not None
        if path is not None and not is_packed:  # a local tar: mapped
            read = reads(mapped(path))
            start, end = span or (0, file.size)
            tar_members = members(read, location, file.size, start)
            before_end = itertools.takewhile(lambda member: member.header < end, tar_members)
            for sample in group(before_end if span else tar_members):
                yield sample, read
        elif is_counted:  # few samples of a remote tar: fetched in pieces as far as they are read
            read = Windows(files, file, _LOOK).read
            for sample in group(members(read, location, file.size)):
                yield sample, read
        else:  # all samples, one after the other: bytes are freed when their sample is done
            source = Arriving(content(file, files))
            size = None if is_packed else file.size
            for sample in group(members(source.read, location, size)):
                yield sample, source.read
                source.forget(sample.end)

    # ------------------------------------------------------------------ inside

    @staticmethod
    def _skips_unwanted_files(shard: ShardPlace) -> bool:
        """Return whether to request a remote tar in pieces, without the files that are not wanted.

        Otherwise it is read as a whole. Pieces pay if samples are larger than `_HOP_BYTES` on
        average and some columns are not wanted. The key does not count: it is in the headers, which
        are read anyway.
        """
        is_large = shard.file.size > _HOP_BYTES * shard.samples
        return is_large and bool(KnownColumns(shard).omitted - {KEY})
