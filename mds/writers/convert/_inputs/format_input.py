"""Files in a format as the source of a conversion.

Converting files is reading them in place plus writing: the format finds the files, plans their
shards and columns, and yields the samples as the bytes of MDS, which the conversion writes as they
are. Values are decoded only in columns that get another encoding here, such as those of ``fill=``.

A part has pieces of shards: whole shards, or what `Format.cut` makes of large ones. Processes that
read parts need no table of files, because a part brings its pieces.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mds._units import format_bytes
from mds._words import plural
from mds.encodings import Encoding, parse_encoding
from mds.errors import ConfigError, FormatError, SourceError
from mds.formats._arrow_values import encoding_of_file
from mds.formats._base import Format
from mds.formats._columns import Column, as_columns, as_optional, show_value, without_optional
from mds.formats._dataset import FormatData, find_files, make_table
from mds.formats._facts import Block, FoundFiles, Problem, ShardPlace
from mds.formats._source import Files, has_pattern
from mds.storage import open_store
from mds.storage._base import ObjectInfo
from mds.storage._local import revised_version, unlisted_error
from mds.storage._url import is_local, local_path, redact
from mds.writers.convert._inputs.base import (
    Input,
    InputOptions,
    InputPart,
    Record,
)
from mds.writers.convert._inputs.mds import column_splitter

#: Most pieces of a part: with small files, parts stay small enough to be sent to processes.
_MAX_PIECES = 256
#: Options of a conversion that are settings of a format.
_SETTINGS = ("encodings", "encoding", "null", "no_header", "labels")


class RecordPosition(NamedTuple):
    """The position of a record in a part: number of its piece, and number of its row in that."""

    piece: int
    row: int


class FormatInput(Input):
    """The samples of files in a format, with the encodings that the format gives them.

    Args:
        data: Shards and columns that the format has planned.
        files: Reads the bytes of the files.
        splits: Split of each file by key; empty if there are no splits.
    """

    is_encoded: ClassVar[bool] = True

    def __init__(self, data: FormatData, files: Files, splits: Mapping[str, str]) -> None:
        super().__init__(files.store.url)
        self.kind = data.format
        self.size = int(data.table.sizes.sum())
        #: None in processes that read parts: a part has its shards.
        self._data: FormatData | None = data
        self._splits = splits
        if not self.kind.has_many_samples and "path" in data.columns.names:
            #: Column that decides the split, cheaper than the content of a file.
            self.key = "path"
        self.notes += files.remarks.values()
        self._dropped: frozenset[str] = frozenset()
        self._keeps_shards = False
        self._files = files
        self._digest = _digest(data, files)
        self._decoded_columns: frozenset[str] = frozenset()
        #: Beginning of absolute paths of the files, and what the user gave for it.
        self._root = self._given_root = ""

    def _remember_path(self, path: str) -> None:
        """Keep how the user wrote the folder of the files, for messages."""
        folder = self._files.store.local_path
        for given in (path, os.path.dirname(path)) if folder is not None else ():
            if os.path.abspath(given or ".") == os.path.abspath(folder or "."):
                self._root = os.path.join(os.path.abspath(folder or "."), "")
                self._given_root = os.path.join(given, "") if given else ""
                return

    @classmethod
    def open(cls, path: str, options: InputOptions) -> FormatInput:
        """Open the files at a path, a URL or a pattern. Raises SourceError if there are none."""
        return cls.open_kind(path, options, is_counted=False)

    @classmethod
    def open_kind(cls, path: str, options: InputOptions, *, is_counted: bool) -> FormatInput:
        """Open the files at a path.

        Args:
            path: A path, a URL or a pattern.
            options: The options of the conversion.
            is_counted: Plan with the number of samples of each shard.

        Raises SourceError if there are no files, or if they cannot be read.
        """
        path = local_path(path) if path and is_local(path) else path
        _check_exists(path)
        with _source_errors():
            kind, files, listing = _find_files(path, options)
            if not listing.files:
                raise SourceError(f"{redact(path)}: there are no {kind.name} files.")
            table = make_table(kind, files, listing, is_counted=is_counted)
            data = FormatData.of(kind, table, None, path)
        opened = cls(data, files, listing.splits if listing.split_names else {})
        opened._remember_path(path)
        opened.notes += listing.notes
        return opened

    @property
    def title(self) -> str:  # type: ignore[override]
        """What people call files of the format."""
        return self.kind.title

    @property
    def takes(self) -> frozenset[str]:  # type: ignore[override]
        """Names of the special options that are settings of the format."""
        return frozenset({*_SETTINGS} & {field.name for field in dataclasses.fields(self.kind)})

    @property
    def has_late_keys(self) -> bool:  # type: ignore[override]
        """Whether samples may have columns that the planned ones did not have."""
        return self.kind.has_late_keys

    @property
    def data(self) -> FormatData:
        """The files and shards as the format planned them; not in processes that read parts."""
        assert self._data is not None, "an input is cut into parts where it was opened"
        return self._data

    @property
    def decoded_columns(self) -> frozenset[str]:
        """Return the columns whose values are decoded."""
        return self._decoded_columns

    @property
    def stores_files(self) -> bool:
        """Return True if samples are files, stored as they are."""
        return not self.kind.has_many_samples

    def choose(
        self,
        names: Sequence[str],
        *,
        decoded: frozenset[str],
        filled: Container[str],
        dropped: frozenset[str],
        has_chosen: bool,
    ) -> None:
        """Choose what is read.

        Args:
            names: The columns to read.
            decoded: Those whose values are decoded, because they get another encoding.
            filled: Columns whose missing values are replaced.
            dropped: Columns that the user leaves out; samples may have them.
            has_chosen: The user named the columns; samples may have further ones.
        """
        columns = self.data.columns
        encodings = {
            name: as_optional(encoding) if name in filled else encoding
            for name, encoding in zip(columns.names, columns.encodings, strict=True)
        }
        encodings.update(self.data.extras)
        self._data = dataclasses.replace(
            self.data, columns=as_columns(encodings, names), has_chosen=has_chosen
        )
        self._decoded_columns, self._dropped = decoded, dropped

    def keep_shards(self) -> None:
        """Make each shard a part."""
        self._keeps_shards = True

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns of all files, with an example of each."""
        columns = self.data.columns
        example: Mapping[str, Any] = {}
        with contextlib.suppress(SourceError):  # reading the file reports the error
            example = next(self.probe(), {})
        class_names = self.data.class_names()
        return [
            Column(
                name,
                encoding,
                show_value(example[name]) if name in example else "",
                self._files.column_notes.get(name)
                or _picture_note(name, encoding, example.get(name))
                or _count_classes(class_names.get(name, ())),
                class_names=tuple(class_names.get(name, ())),
            )
            for name, encoding in zip(columns.names, columns.encodings, strict=True)
        ]

    def list_extra_columns(self) -> Sequence[Column]:
        """Return the columns that are written on request, such as the path of a picture."""
        return [Column(name, encoding) for name, encoding in self.data.extras.items()]

    # ------------------------------------------------------------------ parts

    def list_splits(self) -> Sequence[str]:
        """Return the splits that files and folders are named after."""
        return sorted({*self._splits.values()})

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Yield consecutive pieces of shards of one split, of about ``size`` bytes together."""
        number, total = 0, 0.0
        pieces: list[ShardPlace] = []
        split: str | None = None
        for piece, piece_size in self._pieces(size):
            piece_split = self._splits.get(piece.file.key)
            is_full = total + piece_size > size or len(pieces) == _MAX_PIECES or self._keeps_shards
            if pieces and (is_full or piece_split != split):
                yield InputPart(number, int(total), tuple(pieces), split)
                number, total, pieces = number + 1, 0.0, []
            pieces.append(piece)
            total += piece_size
            split = piece_split
        if pieces:
            yield InputPart(number, int(total), tuple(pieces), split)

    def _pieces(self, size: int) -> Iterator[tuple[ShardPlace, float]]:
        """Yield the shards, large ones in pieces, each with its bytes in its file."""
        data, table = self.data, self.data.table
        decoded = np.maximum(table.decoded, 1).astype(np.float64)
        of_file = np.bincount(table.file, decoded, len(table.keys))
        sizes = (decoded * (table.sizes / np.maximum(of_file, 1))[table.file]).tolist()
        for number, shard_size in enumerate(sizes):
            shard = dataclasses.replace(data.place(number), dropped=self._dropped)
            if shard_size <= size or self._keeps_shards:
                yield shard, shard_size
                continue
            with _source_errors():
                pieces = list(self.kind.cut(shard, self._files, size))
            for piece in pieces:
                yield piece, shard_size / len(pieces)

    # ------------------------------------------------------------------ samples

    def blocks(self, part: InputPart) -> Iterator[tuple[RecordPosition, Block | Problem]]:
        """Yield the samples of a part as bytes, and the records that are no samples.

        The position is that of the problem, or of the first sample of the block.
        """
        files = self._open_files()
        for number, piece in enumerate(part.address):
            row = 0
            with _source_errors():
                for item in self.kind.blocks(piece, files):
                    yield RecordPosition(number, row), item
                    row += 1 if isinstance(item, Problem) else len(item.sizes)

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield samples as the bytes of their columns, or as values where these are decoded."""
        for (number, row), item in self.blocks(part):
            if isinstance(item, Problem):
                yield RecordPosition(number, row), item
                continue
            split_columns = column_splitter(part.address[number].columns, self._decoded_columns)
            data, start = memoryview(item.data), 0
            for index, size in enumerate(item.sizes.tolist()):
                yield RecordPosition(number, row + index), split_columns(data[start : start + size])
                start += size

    def probe(self) -> Iterator[dict[str, Any]]:
        """Yield samples with their values, but the bytes of pictures, of some of the parts."""
        everything = self._decoded_columns
        self._decoded_columns = frozenset(
            name
            for name, encoding in zip(
                self.data.columns.names, self.data.columns.encodings, strict=True
            )
            if _is_shown(parse_encoding(without_optional(encoding)))
        )
        try:
            yield from super().probe()
        finally:
            self._decoded_columns = everything

    def locate(self, part: InputPart, position: Any) -> str:
        """Return the location of a sample in its file, with the path as it was given."""
        number, row = position
        location = self.kind.location_of(part.address[number], row, self._open_files())
        return self._as_given(location)

    def describe_problem(self, part: InputPart, position: Any, problem: Problem) -> str:
        """Describe a bad record, with the path as it was given."""
        return self._as_given(super().describe_problem(part, position, problem))

    def _as_given(self, text: str) -> str:
        """Return a text that begins with an absolute path with the path that the user gave."""
        if not self._root or not text.startswith(self._root):
            return text
        return self._given_root + text.removeprefix(self._root)

    def _open_files(self) -> Files:
        return Files(open_store(self.root or "."))

    # ------------------------------------------------------------------ descriptions

    def describe(self) -> str:
        """Summarise number of files, bytes, samples, classes and splits."""
        table = self.data.table
        samples = int(table.samples.sum())
        files = len(table.keys) if self.kind.has_many_samples else samples
        parts = [plural(files, "file"), format_bytes(self.size)]
        if self.kind.has_many_samples and len(table) and int(table.samples.min()) >= 0:
            parts.append(plural(samples, "sample"))
        parts += [plural(len(names), "class") for names in self.data.class_names().values()]
        if splits := self.list_splits():
            parts.append(f"splits {', '.join(splits)}")
        return ", ".join(parts)

    def left_out(self) -> Mapping[str, tuple[int, str]]:
        """Return number and first key of the files and links that are left out, by reason."""
        counts, table = dict(self._files.left_out), self.data.table
        if self.kind.has_many_samples and len(empty := np.flatnonzero(table.sizes == 0)):
            counts["empty files"] = len(empty), table.keys[int(empty[0])]
        return counts

    def followed(self) -> Mapping[str, tuple[int, str]]:
        """Return number and first key of the links that are followed, by kind."""
        return self._files.followed

    def fingerprint(self) -> str:
        """Return a digest of the files, their versions, and the settings of the format."""
        return self._digest

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_data": None, "_files": None, "_splits": {}}


def _check_exists(path: str) -> None:
    """Raise SourceError for a local path that does not exist."""
    if not is_local(path) or os.path.exists(path) or has_pattern(path):
        return
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceError(
            f"{path or repr(path)}: there is no such file or folder. {_hint(path)}".rstrip()
        ) from error
    except OSError as error:
        raise unlisted_error(path, error) from error


def _hint(root: str) -> str:
    """Return a similar path that exists, as a sentence for the error; '' if there is none."""
    folder = os.path.dirname(root.rstrip("/")) or "."
    if not os.path.isdir(folder):
        return f"Nor is there a folder {folder}."
    near = difflib.get_close_matches(os.path.basename(root.rstrip("/")), os.listdir(folder), n=1)
    return f"Did you mean {os.path.join(folder, near[0])}?" if near else ""


def _settings(options: InputOptions) -> dict[str, Any]:
    """Return the options that are settings of a format."""
    settings = {name: getattr(options, name) for name in _SETTINGS}
    if getattr(options, "tokens", None) is not None:
        del settings["encodings"]  # they are of the column of tokens, which no file has
    return settings


def _is_shown(encoding: Encoding) -> bool:
    """Return True if values of a column are decoded to be shown: not pictures, nor pickles."""
    return not encoding.is_unsafe and encoding.decode_array is None


def _picture_note(name: str, encoding: str, value: Any) -> str:
    """Return a note on a column of bytes that are pictures, or ''."""
    if without_optional(encoding) != "bytes" or not isinstance(value, bytes):
        return ""
    picture = encoding_of_file(value[:16])
    return "" if picture == "bytes" else f"pictures: see --encodings {name}:{picture}"


def _count_classes(names: Sequence[str]) -> str:
    """Return the range of the numbers of classes as text; "" for a column without classes."""
    return f"0 to {len(names) - 1}" if names else ""


def _find_files(path: str, options: InputOptions) -> tuple[Format, Files, FoundFiles]:
    """Return format, reader and files of a path. Raises SourceError if no format is found."""
    try:
        return find_files(
            path,
            options.format,
            split=None,
            settings=_settings(options),
            include=options.include,
            exclude=options.exclude,
        )
    except ConfigError as error:
        if options.format is None:  # it is about the files
            raise SourceError(str(error)) from error
        raise


def _digest(data: FormatData, files: Files) -> str:
    """Return a digest that changes with any file, its version, and the settings of the format."""
    import xxhash

    hasher = xxhash.xxh3_128()
    hasher.update(repr((files.store.endpoint, data.table.digest(), data.columns)).encode())
    for file in data.table.files:
        info = ObjectInfo(file.key, file.size, file.version, files.revisions.get(file.key, ""))
        hasher.update(repr(revised_version(info, files.store.local_path)).encode())
    return hasher.hexdigest()


@contextlib.contextmanager
def _source_errors() -> Iterator[None]:
    """Raise a FormatError as a SourceError with the same message."""
    try:
        yield
    except FormatError as error:
        raise SourceError(str(error)) from error
