"""Folders of files, each file one sample: as it is, as text, or as sound.

files    path, bytes      whatever it is
audio    path, audio      wav, flac, mp3, ogg: the file's bytes
text     path, text       UTF-8 documents
"""

from __future__ import annotations

import codecs
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from mds._units import format_bytes
from mds.formats._columns import Column, show_value
from mds.writers.convert._inputs.base import (
    BadRecord,
    FileInput,
    Input,
    InputOptions,
    InputPart,
    Record,
    find_splits,
    split_folder,
)
from mds.writers.convert._inputs.listing import Listing, ending


class FolderClasses:
    """Classes of the files of a folder: the first folder of a path that is not named after a split.

    For example ``train/cat/1.jpg`` has the class ``cat``. A label is the number of a class in
    alphabetical order. It is the same in every split, and also if only some of the files are
    converted.

    - ``names`` (Sequence[str]): The files to convert, with their splits in ``split_of``.
    - ``not_included`` (Sequence[str]): Files of the folder that are not converted; their classes
      count.
    """

    def __init__(
        self, names: Sequence[str], split_of: Mapping[str, str], not_included: Sequence[str] = ()
    ) -> None:
        self._has_splits = bool(split_of)
        classes = {_class_of(name, split_of.get(name)) for name in names}
        # Files that are not converted have no entry in `split_of`: their folders show the split. If
        # other files have splits, those outside of all splits have no class.
        for name in not_included:
            split = split_folder(name.split("/")[:-1]) if self._has_splits else None
            if split is not None or not self._has_splits:
                classes.add(_class_of(name, split))
        self.numbers = {name: number for number, name in enumerate(sorted(classes - {""}))}

    @staticmethod
    def are_in(names: Sequence[str]) -> bool:
        """Return whether every file has a class.

        A file has none if it is directly in the root or in the folder of a split.
        """
        splits = find_splits(names, by_file=False)
        return bool(names) and all(_class_of(name, splits.get(name)) for name in names)

    def of(self, name: str) -> dict[str, str | int]:
        """Return the columns of a file: ``{"class": "cat", "label": 0}`` for train/cat/1.jpg."""
        folders = name.split("/")[:-1]
        class_name = _class_of(name, split_folder(folders) if self._has_splits else None)
        return {"class": class_name, "label": self.numbers[class_name]}

    def columns(self, first: str) -> list[Column]:
        """Return the columns "class" and "label", with examples from the file ``first``."""
        example = self.of(first)
        last_label = len(self.numbers) - 1
        class_column = Column("class", "str", example=show_value(example["class"]))
        label_column = Column(
            "label",
            "int",
            example=str(example["label"]),
            note=f"0 to {last_label}",
            class_names=tuple(self.numbers),
        )
        return [class_column, label_column]

    def __str__(self) -> str:
        return f"{len(self.numbers)} class{'es' if len(self.numbers) != 1 else ''}"


def _class_of(name: str, split: str | None) -> str:
    """Return the first folder of a path that is not its ``split``; '' if there is none."""
    folders = name.split("/")[:-1]
    if split is not None:
        folders.remove(split)
    return folders[0] if folders else ""


_TEXT_ENDINGS = (
    *(".txt", ".text", ".md", ".rst", ".tex", ".html", ".htm", ".xml", ".css", ".srt", ".vtt"),
    *(".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".java", ".kt", ".js", ".jsx"),
    *(".ts", ".tsx", ".go", ".rs", ".rb", ".php", ".pl", ".sh", ".sql", ".r", ".jl", ".scala"),
    *(".swift", ".lua", ".m", ".cs", ".hs", ".ml", ".ex", ".erl", ".clj", ".lisp", ".el"),
    *(".toml", ".yaml", ".yml", ".ini", ".cfg"),
)


#: Size in bytes from which on a note says that a document is one sample.
_LONG_DOCUMENT = 256 << 10


class WholeFilesInput(FileInput):
    """Every file is a sample: its path below the folder, and its bytes.

    The address of a part is the list of its files.
    """

    title: ClassVar[str] = "files"
    names_splits: ClassVar[bool] = False
    #: Name and encoding of the column with the content of a file.
    value: ClassVar[tuple[str, str]] = ("bytes", "bytes")

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        #: Column that decides the split, cheaper than the content of a file.
        self.key = "path"

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns of the path and of the content."""
        name, encoding = self.value
        first = self.listing.names[0]
        size = self.listing.sizes[0]
        return sorted(
            [Column("path", "str", show_value(first)), Column(name, encoding, format_bytes(size))],
            key=lambda column: column.name,
        )

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Yield lists of files of about ``size`` bytes together, each of one split."""
        number = 0
        # A single round without a split if the folder has no splits.
        for split in self.list_splits() or (None,):
            # Keep only the files of this split.
            keep = functools.partial(self._is_of, split) if split is not None else None
            for names, total in self.listing.batches(size, keep=keep):
                yield InputPart(number, total, names, split)
                number += 1

    def _is_of(self, split: str, name: str) -> bool:
        return self.split_of[name] == split

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield one sample per file."""
        for name in part.address:
            try:
                with open(self.listing.path(name), "rb") as file:
                    data = file.read()
            except OSError as error:
                yield name, BadRecord(f"cannot be read: {error.strerror}")
                continue
            yield name, self.sample(name, data)

    def sample(self, name: str, data: bytes) -> dict[str, Any] | BadRecord:
        """Return the sample of one file."""
        return {"path": name, self.value[0]: data}

    def locate(self, part: InputPart, position: Any) -> str:
        """Return the path of the file."""
        del part
        return os.path.join(self.root, position)


class AudioInput(WholeFilesInput):
    """Sound files, each stored byte for byte as it is."""

    title: ClassVar[str] = "audio"
    endings: ClassVar[frozenset[str]] = frozenset({".wav", ".flac", ".mp3", ".ogg", ".opus"})
    value: ClassVar[tuple[str, str]] = ("audio", "bytes")

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Open sound files with a class per folder, or without."""
        del options
        kind = AudioClassesInput if FolderClasses.are_in(listing.names) else AudioInput
        return kind(listing)

    #: First bytes of sound files: wav, flac, ogg, and mp3 with and without a tag.
    _STARTS: ClassVar[tuple[bytes, ...]] = (
        b"RIFF",
        b"RIFX",
        b"RF64",
        b"fLaC",
        b"OggS",
        b"ID3",
        b"\xff",
    )

    def sample(self, name: str, data: bytes) -> dict[str, Any] | BadRecord:
        """Return the sample if the bytes begin like a sound file."""
        if not data.startswith(self._STARTS):
            return BadRecord(f"this is not wav, flac, mp3 or ogg: it starts with {data[:8]!r}")
        return super().sample(name, data)


class AudioClassesInput(AudioInput):
    """Sound files in a folder per class, perhaps below or above folders that name splits."""

    title: ClassVar[str] = "audio folder"
    endings: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, listing: Listing) -> None:
        super().__init__(listing)
        not_included = [name for name in listing.not_included if ending(name) in AudioInput.endings]
        self._classes = FolderClasses(listing.names, self.split_of, not_included)

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns of sound, class, label and path."""
        first = self.listing.names[0]
        return [*super().infer_columns(), *self._classes.columns(first)]

    def sample(self, name: str, data: bytes) -> dict[str, Any] | BadRecord:
        """Return the sound with its class."""
        sample = super().sample(name, data)
        return sample if isinstance(sample, BadRecord) else {**sample, **self._classes.of(name)}

    def describe(self) -> str:
        """Summarise number of files, classes, bytes and splits."""
        return f"{super().describe()}, {self._classes}"


class TextFilesInput(WholeFilesInput):
    """Text files, each a document."""

    title: ClassVar[str] = "text documents"
    endings: ClassVar[frozenset[str]] = frozenset(_TEXT_ENDINGS)
    value: ClassVar[tuple[str, str]] = ("text", "str")
    takes: ClassVar[frozenset[str]] = frozenset({"encoding"})

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Open these files, one document each."""
        documents = cls(listing)
        documents.encoding = options.encoding or documents.encoding
        if len(listing) == 1 and listing.size >= _LONG_DOCUMENT:
            documents.notes.append(
                "the file is one sample; --format lines makes each line a sample, --tokenizer "
                "makes blocks of tokens"
            )
        return documents

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns of path and text."""
        first = next((record for record in self.probe()), {"path": "", "text": ""})
        return [Column(name, "str", show_value(first[name])) for name in ("path", "text")]

    def sample(self, name: str, data: bytes) -> dict[str, Any] | BadRecord:
        """Return path and text of the file, which must be UTF-8 unless an encoding is given."""
        try:
            # A byte order mark is not part of the text.
            encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
            return {"path": name, "text": data.decode(encoding)}
        except UnicodeDecodeError as error:
            # Python source may declare its encoding in a comment.
            text = _decode_python(data) if name.endswith((".py", ".pyi", ".pyw")) else None
            return (
                BadRecord(not_utf8(data, error)) if text is None else {"path": name, "text": text}
            )


def _decode_python(data: bytes) -> str | None:
    """Decode Python source with the encoding it declares, or return None if that fails."""
    import io
    import tokenize

    try:
        return data.decode(tokenize.detect_encoding(io.BytesIO(data).readline)[0])
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return None


def not_utf8(data: bytes, error: UnicodeDecodeError) -> str:
    """Describe bytes that are not UTF-8, with line and column."""
    before = data[: error.start]
    line = before.count(b"\n") + 1
    return f"line {line}, column {_column(data, error)}: {_no_utf8(data, error)}"


def bad_line(data: bytes, error: UnicodeDecodeError) -> BadRecord:
    """Return a bad record for one line with bytes that are not UTF-8, with the column."""
    return BadRecord(_no_utf8(data, error), column=_column(data, error))


#: Message about text that Windows calls "Unicode".
UTF16 = "this is UTF-16; convert it to UTF-8 first: iconv -f UTF-16 -t UTF-8 FILE"


def is_utf16(data: bytes) -> bool:
    """Return whether bytes begin with the byte order mark of UTF-16."""
    return data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def _column(data: bytes, error: UnicodeDecodeError) -> int:
    return error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1


def _no_utf8(data: bytes, error: UnicodeDecodeError) -> str:
    """Describe the first byte that cannot be decoded, with a remedy."""
    if is_utf16(data):
        return UTF16
    return (
        f"byte 0x{data[error.start]:02x} is not {error.encoding.upper()}; give --encoding (often "
        "cp1252), or --format files to store the bytes"
    )
