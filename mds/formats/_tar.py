"""Tars of samples (WebDataset), read in place: a tar is a shard, a file ending is a column.

Planning only needs the number of samples. It comes from a sidecar of the tar (`_tar_places.py`) or
from the headers in the tar. Columns are inferred from the first samples; images stay encoded and
numbers are read from their text, so nothing is decoded that is not used. A tar may be compressed:
it is then read from its beginning to its end.

The note of a tar, which its plan keeps for readers, lists its columns (`note_of`). Behind them are
the places of its files (`TarPlaces`) if a scan found them, or else the places of its samples if a
sidecar has them. A compressed tar has `COMPRESSED` there.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from mds._words import plural
from mds.errors import FormatError
from mds.formats._base import Format
from mds.formats._columns import KnownColumns, more_of, note_of
from mds.formats._encode import encode_records, sample_encoder
from mds.formats._facts import Block, DataFile, FilePlan, Problem, ShardPlace
from mds.formats._names import find_hidden
from mds.formats._tar_members import members
from mds.formats._tar_places import COMPRESSED, FoundPlaces, TarPlaces, noted_samples
from mds.formats._tar_reader import (
    SampleBytes,
    batches,
    key_at,
    problem_at,
    tar_blocks,
    tar_reader,
    whole_records,
)
from mds.formats._tar_samples import (
    KEY,
    OpenTar,
    TarColumns,
    TarValues,
    is_number,
    locate,
    open_tar,
)
from mds.formats._unpack import packed_endings

if TYPE_CHECKING:
    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection
    from mds.formats._source import Files

#: Bytes of a tar from which its columns are inferred, if a sidecar counts it or nothing does.
_LOOK, _LOOK_UNCOUNTED = 64 << 10, 1 << 20
#: If a sample is larger than this, unneeded files are skipped by separate requests. About
#: this many bytes arrive in the 30 ms of a request, if several tars are fetched at a time.
_HOP_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tar(Format):
    """Tars in which the files with one name, before the first dot, are a sample.

    - ``columns`` (Sequence[str] | None, default None): The endings to read, and ``"__key__"`` for
      the name; None takes all.
    - ``missing`` (str | None, default None): A file that a sample does not have is None there;
      ``"error"`` makes it an error, and ``"null"`` leaves out the warning.
    - ``encodings`` (Mapping[str, str] | None, default None): Encodings by ending, which replace
      those that follow from the files.

    >>> StreamingDataset(remote="s3://bucket/{00000..01023}.tar", batch_size=32)  # doctest: +SKIP
    """

    name: ClassVar[str] = "tar"
    endings: ClassVar[tuple[str, ...]] = (*packed_endings(".tar"), ".tgz")
    takes_other_endings: ClassVar[bool] = True
    revision: ClassVar[int] = 4

    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Find the samples and columns of a tar.

        Without a sidecar the headers of the whole tar are read. If a sidecar counts the samples,
        only some samples at the start are read, for the columns.
        """
        noted = noted_samples(file, files)
        if noted is not None:
            tar = open_tar(file, files, few=True)
            if not tar.is_compressed:
                return self._plan_counted(tar, noted, file)
        return self._plan_whole(open_tar(file, files))

    def plan_uncounted(self, file: DataFile, files: Files) -> FilePlan:
        """Find the columns of a tar; its samples only if it is on a disk and not compressed.

        To count other tars, all their bytes would be fetched or decompressed once more. Some
        samples at their start are read.
        """
        tar = open_tar(file, files)
        if tar.forget is None:
            return self._plan_whole(tar)
        columns, is_whole, samples = _look(tar, _LOOK_UNCOUNTED)
        encodings = columns.encodings(tar.location)
        note = note_of(encodings, COMPRESSED if tar.is_compressed else b"")
        return FilePlan(encodings, [samples if is_whole else -1], [file.size], note=note)

    def check_empty(self, file: DataFile, files: Files) -> None:
        """Raise FormatError if files of a tar are no samples because of their names."""
        tar, hidden = open_tar(file, files), ""
        for member in members(tar.read, tar.location, tar.size):
            if not find_hidden(member.name):
                raise FormatError(
                    f"{tar.location}: there are no samples, because its file {member.name!r} has "
                    "no ending. Name the files of a sample KEY.ENDING, such as 0001.txt."
                )
            hidden = hidden or member.name
            if tar.forget is not None:
                tar.forget(member.end)
        if hidden:
            raise FormatError(
                f"{tar.location}: there are no samples, because the names of all its files are "
                f"hidden, such as {hidden!r}: a name begins with '.', or that of a folder with "
                "'__'. Rename the files."
            )

    def plan_bytes(self, file: DataFile, files: Files) -> int:
        """Return the size of the tar, or 0 if a sidecar counts its samples."""
        return file.size if noted_samples(file, files) is None else 0

    def blocks(self, shard: ShardPlace, files: Files) -> Iterator[Block | Problem]:
        """Yield the samples of a tar, with few in memory at once.

        Files of columns that are not wanted are skipped if a scan found the places of all files, or
        if their number is known and the tar is read header by header.
        """
        values = TarValues(shard, files.url(shard.file))
        places = TarPlaces.of(shard)
        if places is None or not places.files:
            yield from self._blocks_in_order(shard, values, files)
            return
        for rows in batches(places, shard):
            for part in places.split(rows):
                if isinstance(part, int):
                    read = open_tar(shard.file, files, few=True).read
                    yield problem_at(places, part, values, read)
                    continue
                for sample_bytes in SampleBytes.fetch(places, part, shard, files).parts():
                    yield from tar_blocks(sample_bytes, shard, values)

    def cut(self, shard: ShardPlace, files: Files, size: int) -> Iterator[ShardPlace]:
        """Yield ranges of samples, if the places of the files in a tar are known."""
        del files
        places = TarPlaces.of(shard)
        if places is None or not places.files:
            yield shard
            return
        names = shard.note.removesuffix(more_of(shard.note))
        for first, end in places.cut(size):
            note = names + places.only(first, end).to_bytes()
            yield dataclasses.replace(shard, span=(first, end), samples=end - first, note=note)

    def location_of(self, shard: ShardPlace, row: int, files: Files) -> str:
        """Return the tar and the key of a sample."""
        places = TarPlaces.of(shard)
        if places is not None:
            key = key_at(places, row, shard, files)
        else:
            samples = open_tar(shard.file, files, few=True).samples()
            key = next(itertools.islice(samples, row, None)).key
        return locate(files.url(shard.file), key)

    def shard_of(self, shard: ShardPlace) -> str:
        """Describe a shard by its number of samples: it is the whole tar."""
        return plural(shard.samples, "sample")

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

        Only their bytes are fetched; neighbouring samples are fetched together. Raises FormatError
        for a sample that is none.
        """
        values, places = TarValues(shard, files.url(shard.file)), TarPlaces.of(shard)
        assert places is not None
        records: Iterable[Mapping[str, Any] | Problem]
        if wrong := set(places.problems.tolist()).intersection(rows):
            read = open_tar(shard.file, files, few=True).read
            raise FormatError(problem_at(places, min(wrong), values, read))
        if places.files:  # without them only the beginnings of samples are known, by a sidecar
            records = SampleBytes.fetch(places, rows, shard, files).records(values)
        else:
            records = whole_records(places, rows, shard, files, values)
        encode, encoded_rows = sample_encoder(shard.columns), {}
        for row, record in zip(rows, records, strict=True):
            if isinstance(record, Problem):
                raise FormatError(record)
            find_location = functools.partial(self.location_of, shard, row, files)
            encoded_rows[row] = encode(record, find_location)
        return encoded_rows

    def is_read_in_place(self, files: Sequence[DataFile]) -> bool:
        """Return True: `maps` says which tars are compressed."""
        del files
        return True

    def maps(self, note: bytes) -> bool:
        """Return True for a tar that is not compressed."""
        return more_of(note) != COMPRESSED

    def reader(self, shard: ShardPlace, path: str, columns: ColumnSelection) -> Reader:
        """Return a reader that knows where the files of each sample are, in the mapped tar."""
        return tar_reader(shard, path, columns)

    def merge(self, file_columns: Sequence[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
        """Merge the columns of all tars.

        A column that some samples of a tar lack is None there, see ``missing``. Numbers are text if
        they are text in one of the tars.
        """
        texts = set()  # columns of numbers that are text in a tar
        lacking: dict[str, str] = {}  # by column: the first tar whose samples lack it
        for key, columns in file_columns:
            for name, encoding in columns.items():
                if is_number(name) and encoding in ("str", "optional[str]"):
                    texts.add(name)
                if encoding.startswith("optional["):
                    if self.missing == "error":
                        raise FormatError(
                            f"{key}: some of its samples have a file .{name}, others have none. "
                            f"{self.allow_missing}"
                        )
                    lacking.setdefault(name, key)
        first = next(iter(lacking.values()), "")
        self.warn_missing(
            f"{first}, some samples", [n for n, key in lacking.items() if key == first]
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

    # ------------------------------------------------------------------ inside

    @staticmethod
    def _plan_whole(tar: OpenTar) -> FilePlan:
        """Plan a tar by the headers of all its files."""
        columns, places, size, samples = TarColumns(), FoundPlaces(), 0, 0
        for sample in tar.samples():
            columns.add(sample, tar.read)
            samples += 1
            size += sum(each.size for each in sample.files.values())
            if not tar.is_compressed:
                places.add(sample, is_problem=bool(sample.problem))
        encodings = columns.encodings(tar.location)
        note = note_of(encodings, COMPRESSED if tar.is_compressed else places.places().to_bytes())
        # Bound of the bytes of the samples once they are decoded, which cost up to 16 bytes each
        # besides their values.
        return FilePlan(encodings, [samples], [size + 16 * samples], note=note)

    @staticmethod
    def _plan_counted(tar: OpenTar, noted: int | list[int], file: DataFile) -> FilePlan:
        """Plan a tar whose samples a sidecar counts.

        ``noted`` is their number, or the bytes at which they begin and the last one ends. Raises
        FormatError if the tar has another number of samples, as far as it is looked at.
        """
        count = len(noted) - 1 if isinstance(noted, list) else noted
        columns, is_whole, samples = _look(tar, _LOOK)
        if samples > count or (is_whole and samples != count):
            raise FormatError(
                f"{tar.location}: there are "
                f"{plural(samples, 'sample')}{'' if is_whole else ' or more'}, but "
                f"the sidecar file says {count:,}. Delete the sidecar, so that the tar is read."
            )
        encodings = columns.encodings(tar.location)
        places = TarPlaces.of_starts(noted).to_bytes() if isinstance(noted, list) else b""
        return FilePlan(encodings, [count], [file.size], note=note_of(encodings, places))

    def _blocks_in_order(
        self, shard: ShardPlace, values: TarValues, files: Files
    ) -> Iterator[Block | Problem]:
        """Yield the samples of a tar whose places are not known, header by header."""
        tar = open_tar(shard.file, files, few=self._skips_unwanted_files(shard))
        key = ""

        def records() -> Iterator[Mapping[str, Any] | Problem]:
            nonlocal key
            for sample in tar.samples():
                key = sample.key
                yield values.of_sample(sample, tar.read)

        yield from encode_records(shard.columns, records(), lambda _: values.locate(key))

    @staticmethod
    def _skips_unwanted_files(shard: ShardPlace) -> bool:
        """Return whether to request a remote tar in pieces, without the files that are not wanted.

        Otherwise it is read as a whole. Pieces pay if samples are larger than `_HOP_BYTES` on
        average and some columns are not wanted. The key does not count: it is in the headers, which
        are read anyway.
        """
        is_large = shard.samples > 0 and shard.file.size > _HOP_BYTES * shard.samples
        return is_large and bool(KnownColumns(shard).omitted - {KEY})


def _look(tar: OpenTar, size: int) -> tuple[TarColumns, bool, int]:
    """Look at the samples in the first ``size`` bytes of a tar, or until its columns are known.

    Returns its columns, whether these were all samples, and their number.
    """
    columns, samples = TarColumns(), 0
    for sample in tar.samples():
        columns.add(sample, tar.read)
        samples += 1
        if columns.is_probed or sample.end > size:
            return columns, False, samples
    return columns, True, samples
