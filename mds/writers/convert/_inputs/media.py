"""Folders of pictures or sounds that have a text or a row of a table each.

`PairedFilesInput`, texts of the same name: captions, transcripts, annotations

    000.jpg and 000.txt                               image, path, text
    images/000.jpg and labels/000.txt                 the same, if every name is there once
    84/12/84-12-0000.flac and 84/12/84-12.trans.txt   audio, path, text: a line for each sound

`MetadataInput`, tables of metadata as Hugging Face and LJSpeech have them

    metadata.csv or metadata.jsonl, a.wav             audio or image, path, columns of the table
    train/metadata.csv, test/metadata.csv, ...        the same, with splits
    metadata.csv of id|text|text, wavs/ID.wav         audio, path, id, text, normalized_text

Texts are ``.txt``, ``.caption``, ``.lab`` or ``.xml``, all of one kind. Nine of ten files must have
a partner; the others are left out, and a note names them. The column ``file_name`` of a table has
the path of a file, relative to the folder of the table. One table beside pictures is a table of
labels unless ``--format metadata`` is given: `ImagesInput` also takes tables whose column of files
has another name.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from mds.errors import SourceError
from mds.formats._columns import Column, infer_columns, show_value
from mds.writers.convert._inputs.base import (
    SPLITS,
    BadRecord,
    Input,
    InputOptions,
    InputPart,
    Record,
)
from mds.writers.convert._inputs.files import AudioInput, WholeFilesInput, not_utf8
from mds.writers.convert._inputs.images import ImagesInput, read_label_rows
from mds.writers.convert._inputs.listing import Listing, ending

_TEXT_ENDINGS = (".txt", ".caption", ".lab", ".xml")
_TRANSCRIPT = ".trans.txt"
_TABLES = ("metadata.csv", "metadata.jsonl")
_FILE_NAME = "file_name"
_LJSPEECH_COLUMNS = ("id", "text", "normalized_text")


class MediaInput(WholeFilesInput):
    """Pictures or sounds, and files beside them that belong to the dataset too.

    - ``listing`` (Listing): The pictures or sounds.
    - ``kind`` (type[Input]): `ImagesInput` or `AudioInput`, which provides the columns of a file
      and checks that its bytes are a picture or a sound.
    - ``beside`` (Sequence[str]): The names of the other files.
    """

    def __init__(
        self, listing: Listing, kind: type[AudioInput | ImagesInput], beside: Sequence[str]
    ) -> None:
        super().__init__(listing)
        self._media = kind(listing)
        self._beside = beside

    def sample(self, name: str, data: bytes) -> dict[str, Any] | BadRecord:
        """Return the sample of the picture or sound alone."""
        return self._media.sample(name, data)

    def fingerprint(self) -> str:
        """Return a digest of the names, sizes and modification times of all files."""
        return f"{self.listing.digest}-{Listing(self.root, self._beside).digest}"

    def __getstate__(self) -> dict[str, Any]:
        # The names of the files beside are for the fingerprint, which only the planner computes.
        return {**super().__getstate__(), "_beside": []}


# ---------------------------------------------------------------------- texts


class PairedFilesInput(MediaInput):
    """Pictures or sounds with a text each.

    Texts are files of their own, or lines of files of transcripts (``.trans.txt``).

    - ``listing`` (Listing): All files of the folder.
    - ``text_of`` (Mapping[str, str]): The name of the text of each picture or sound.
    - ``kind`` (str): The ending of the texts.

    The address of a part is a dict with the name of the text of each file; for transcripts it has
    the text itself.
    """

    title: ClassVar[str] = "files with texts of their names"
    takes: ClassVar[frozenset[str]] = frozenset({"encoding"})

    def __init__(self, listing: Listing, text_of: Mapping[str, str], kind: str) -> None:
        media = listing.only(sorted(text_of))
        is_sound = ending(media.names[0]) in AudioInput.endings
        texts = sorted(set(text_of.values()))
        super().__init__(media, AudioInput if is_sound else ImagesInput, texts)
        self._text_of = dict(text_of)
        #: Text of each sound, if texts are lines of transcripts.
        self._transcripts: dict[str, str] = {}
        self._kind = kind
        medium = "sound" if is_sound else "picture"
        self.notes.append(
            f"each {medium} has the text of the {kind} file with its name; --format files stores "
            "every file unchanged"
        )
        unpaired = sorted({*listing.names} - {*media.names} - {*texts})
        if unpaired:
            self.notes.append(
                f"{len(unpaired):,} file{'s' * (len(unpaired) > 1)} without a partner left out "
                f"({_first_names(unpaired)})"
            )

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Open the pairs of these files. Raises SourceError if there are none."""
        pairs = cls.find(listing, options)
        if pairs is None:
            raise SourceError(
                f"{listing.root}: less than 90 % of the files are pictures or sounds with a text "
                f"file of the same name ({', '.join(_TEXT_ENDINGS)}). Leave --format out: the plan "
                "shows what mds-convert takes them for."
            )
        return pairs

    @classmethod
    def find(
        cls, listing: Listing, options: InputOptions, names: Sequence[str] | None = None
    ) -> PairedFilesInput | None:
        """Find the pairs of these files, or of some ``names``; None if most have no partner."""
        names = listing.names if names is None else names
        media, texts = _media_and_texts(names)
        if not media or not texts:
            return None
        if all(name.lower().endswith(_TRANSCRIPT) for name in texts):
            return cls._of_transcripts(listing, media, texts, options)
        # Texts are beside their files (`_path_stem` gives "a/1" for a/1.jpg and a/1.txt), or have
        # the same name in another folder (`_last_stem` gives "1" for images/1.jpg, labels/1.txt).
        for stem_of in (_path_stem, _last_stem):
            media_by_stem = _names_by_stem(stem_of, media)
            text_by_stem = _names_by_stem(stem_of, texts)
            if media_by_stem is None or text_by_stem is None:
                continue
            shared_stems = media_by_stem.keys() & text_by_stem.keys()
            if 2 * len(shared_stems) >= 0.9 * len(names):  # nine in ten files have a partner
                text_of = {media_by_stem[stem]: text_by_stem[stem] for stem in shared_stems}
                pairs = cls(listing, text_of, ending(texts[0]))
                pairs.encoding = options.encoding or pairs.encoding
                return pairs
        return None

    @classmethod
    def _of_transcripts(
        cls, listing: Listing, media: Sequence[str], texts: Sequence[str], options: InputOptions
    ) -> PairedFilesInput | None:
        """Pair sounds with lines of transcripts; return None if most sounds have no line.

        A line begins with the name of a sound in the folder of the transcripts, without its ending.
        """
        encoding = options.encoding or "utf-8"
        text_of, transcripts = {}, {}
        media_by_stem = _names_by_stem(_path_stem, media) or {}
        for name in texts:
            folder = name.rpartition("/")[0]
            for stem, text in _read_transcripts(listing.path(name), encoding):
                sound = media_by_stem.get(f"{folder}/{stem}" if folder else stem)
                if sound is not None:
                    text_of[sound], transcripts[sound] = name, text
        if len(text_of) < 0.9 * len(media):
            return None
        pairs = cls(listing, text_of, _TRANSCRIPT)
        pairs.encoding, pairs._transcripts = encoding, transcripts
        return pairs

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns of the picture or the sound, its path, and the text."""
        example = next((str(record["text"]) for record in self.probe()), "")
        columns = [*self._media.infer_columns(), Column("text", "str", show_value(example))]
        return sorted(columns, key=lambda column: column.name)

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Yield the parts of the pictures or sounds, each with what `read` needs of the texts."""
        texts = self._transcripts or self._text_of
        for part in super().cut_parts(size):
            address = {name: texts[name] for name in part.address}
            yield InputPart(part.number, part.size, address, part.split)

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield the picture or the sound, with its text."""
        for name, record in super().read(part):
            text_or_name = part.address[name]
            text = text_or_name if self._kind == _TRANSCRIPT else self._text(text_or_name)
            if isinstance(record, BadRecord):
                yield name, record
            elif isinstance(text, BadRecord):
                yield name, text
            else:
                yield name, {**record, "text": text}

    def _text(self, name: str) -> str | BadRecord:
        """Return the content of a text file, or why it cannot be read."""
        try:
            with open(self.listing.path(name), "rb") as file:
                data = file.read()
        except OSError as error:
            return BadRecord(f"its text {name} cannot be read: {error.strerror}")
        try:
            # A byte order mark is not part of the text.
            return data.decode("utf-8-sig" if self.encoding == "utf-8" else self.encoding)
        except UnicodeDecodeError as error:
            return BadRecord(f"its text {name}, {not_utf8(data, error)}")

    def describe(self) -> str:
        """Summarise number of files and bytes, and the kind of texts."""
        return f"{super().describe()}, each with a text in {self._kind}"

    def __getstate__(self) -> dict[str, Any]:
        # Processes that read parts need no table of all texts: each part has those of its files.
        return {**super().__getstate__(), "_text_of": {}, "_transcripts": {}}


def _media_and_texts(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of pictures or sounds, and of texts.

    Both are empty unless the files are media of one type, and texts with one ending.
    """
    pictures: list[str] = []
    sounds: list[str] = []
    other_files: dict[str, list[str]] = {}  # by ending
    for name in names:
        last = ending(name)
        if last in ImagesInput.endings:
            pictures.append(name)
        elif last in AudioInput.endings:
            sounds.append(name)
        else:
            other_files.setdefault(last, []).append(name)
    if bool(pictures) == bool(sounds) or len(other_files) != 1:
        return [], []
    [(text_ending, texts)] = other_files.items()
    return (pictures or sounds, texts) if text_ending in _TEXT_ENDINGS else ([], [])


def _path_stem(name: str) -> str:
    return os.path.splitext(name)[0]


def _last_stem(name: str) -> str:
    return os.path.splitext(os.path.basename(name))[0]


def _names_by_stem(key: Callable[[str], str], names: Sequence[str]) -> dict[str, str] | None:
    """Return the name of each stem, which ``key`` returns; None if two names share a stem."""
    name_of = {key(name): name for name in names}
    return name_of if len(name_of) == len(names) else None


def _read_transcripts(path: str, encoding: str) -> Iterator[tuple[str, str]]:
    """Yield the stem and the text of each line of a file of transcripts.

    The line ``84-12-0000 BUT WITH FULL`` has the stem ``84-12-0000``: the name of a sound without
    its folder and ending.
    """
    try:
        with open(path, encoding=encoding) as file:
            for line in file:
                stem, _, text = line.strip().partition(" ")
                yield stem, text
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: the transcripts cannot be read: {error}.") from error


# ---------------------------------------------------------------------- tables


class MetadataInput(MediaInput):
    """Pictures or sounds with a row each in a table of metadata.

    - ``listing`` (Listing): All files of the folder.
    - ``tables`` (Sequence[str]): The names of the tables.

    The address of a part is a dict with the row of each file, or None without one. The last part
    has the files that do not exist: its dict has the table that names each of them.
    """

    title: ClassVar[str] = "files with a table of metadata"
    takes: ClassVar[frozenset[str]] = frozenset({"labels"})

    def __init__(self, listing: Listing, tables: Sequence[str]) -> None:
        self._tables = tables
        #: Table and row of each file that a table names.
        self._rows = _read_tables(listing, tables)
        kind = _media_kind(listing.root, [*self._rows])
        media = [name for name in listing.names if ending(name) in kind.endings]
        if not media:
            raise SourceError(f"{listing.root}: {tables[0]} lists none of the chosen files.")
        super().__init__(listing.only(media), kind, tables)
        other_files = sorted({*listing.names} - {*media} - {*tables})
        if other_files:
            self.notes.append(
                f"{len(other_files):,} other file{'s' * (len(other_files) > 1)} left out "
                f"({_first_names(other_files)})"
            )
        media_names = {*media}
        #: Table that names a file, for each file that does not exist.
        self._missing = {
            name: table
            for name, (table, _) in self._rows.items()
            if name not in media_names and not os.path.lexists(listing.path(name))
        }
        reserved = {column.name for column in self._media.infer_columns()}
        for table, row in self._rows.values():
            if clash := reserved & row.keys():
                raise SourceError(
                    f"{table}: mds-convert adds a column {min(clash)!r} itself. Rename this column "
                    "of the table."
                )

    @classmethod
    def recognizes(cls, path: str) -> bool:
        """Return whether a folder has tables that name sounds, several tables, or is LJSpeech."""
        if not os.path.isdir(path):
            return False
        folders = ["", *sorted(SPLITS)]
        names = [posixpath.join(folder, table) for folder in folders for table in _TABLES]
        tables = [name for name in names if os.path.isfile(os.path.join(path, name))]
        if not tables:
            return False
        listing = Listing(path, tables)
        if _is_ljspeech(listing, tables):
            return True
        try:
            rows = read_label_rows(listing, tables[0])
        except SourceError:
            return False
        # The ending of the first file that is named. Pictures with a single table are a case of
        # `ImagesInput`.
        first = ending(str(rows[0].get(_FILE_NAME, ""))) if rows else ""
        return first in AudioInput.endings or (len(tables) > 1 and first in ImagesInput.endings)

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Open the files of a listing. Raises SourceError if there is no table of metadata."""
        if options.labels is not None:
            return ImagesInput.from_files(listing, options)
        # With `--include *.wav` the tables are not included, but they are needed all the same.
        names = sorted([*listing.names, *listing.not_included])
        tables = [name for name in names if posixpath.basename(name) in _TABLES]
        if not tables:
            raise SourceError(f"{listing.root}: there is no {' or '.join(_TABLES)} in the folder.")
        return cls(listing, tables)

    @property
    def is_text(self) -> bool:  # type: ignore[override]
        """Whether the values of the tables are text, as in CSV."""
        return self._tables[0].endswith(".csv")

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns of the picture or sound and its path, and those of the tables."""
        rows = [row for _table, row in self._rows.values()]
        columns = infer_columns(rows, is_text=self.is_text, nulls=self.nulls)
        return sorted([*self._media.infer_columns(), *columns], key=lambda column: column.name)

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Yield runs of files with their rows, then the files that do not exist."""
        number = 0
        for part in super().cut_parts(size):
            # `_rows` has (table, row). None is for a file that no table names.
            rows = {name: self._rows.get(name, ("", None))[1] for name in part.address}
            yield InputPart(part.number, part.size, rows, part.split)
            number = part.number + 1
        if self._missing:
            # All records of this part are bad, so any split will do; a part has one if others do.
            split = next(iter(self.list_splits()), None)
            yield InputPart(number, 0, dict(self._missing), split)

    def read(self, part: InputPart) -> Iterator[Record]:
        """Yield the picture or sound, its path and its row."""
        # The last part has the names of tables instead of rows.
        missing = {name: table for name, table in part.address.items() if isinstance(table, str)}
        for name, table in missing.items():
            yield name, BadRecord(f"{table} lists it, but there is no such file")
        if missing:  # the last part
            return
        for name, record in super().read(part):
            row = part.address[name]
            if isinstance(record, BadRecord):
                yield name, record
            elif row is None:
                yield name, BadRecord(f"no row of {' or '.join(self._tables)} lists it")
            else:
                yield name, {**row, **record}

    def describe(self) -> str:
        """Summarise number of files and bytes, splits and tables."""
        return f"{super().describe()}, rows in {', '.join(self._tables)}"

    def __getstate__(self) -> dict[str, Any]:
        # Processes that read parts need no table of all rows: each part has those of its files.
        return {**super().__getstate__(), "_rows": {}, "_missing": {}}


def _read_tables(listing: Listing, tables: Sequence[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return table and row of every file that the tables name.

    Raises SourceError for a row without a file of the folder, for a file that is named twice, and
    for tables that do not have the same columns.
    """
    if len({posixpath.splitext(table)[1] for table in tables}) > 1:
        raise SourceError(
            f"{listing.root}: some tables are CSV, others are JSON lines ({', '.join(tables)}). "
            "Keep one of them with --exclude."
        )
    entries: dict[str, tuple[str, dict[str, Any]]] = {}
    columns: dict[str, Sequence[str]] = {}
    for table in tables:
        rows = _read_rows(listing, tables, table)
        if table.endswith(".csv") and rows:
            # Each table must have the columns of the first one.
            columns[table] = sorted(rows[0])
            first = tables[0]
            # If the first one has no rows, its columns are unknown, and nothing is compared.
            if extra := {*columns[table]} ^ {*columns.get(first, columns[table])}:
                raise SourceError(
                    f"{listing.path(table)}: only one of {first} and this table has the column "
                    f"{min(extra)!r}. Convert their folders one by one."
                )
        for row in rows:
            name = _resolve(listing, table, row)
            if name in entries:
                raise SourceError(f"{listing.path(table)}: {name} is listed twice.")
            entries[name] = (table, {key: row[key] for key in row if key != _FILE_NAME})
    if not entries:
        raise SourceError(f"{listing.path(tables[0])}: there are no records to convert.")
    return entries


def _read_rows(listing: Listing, tables: Sequence[str], table: str) -> list[dict[str, Any]]:
    """Return the rows of a table, which may be in the format of LJSpeech."""
    if _is_ljspeech(listing, tables):
        return _read_ljspeech(listing.path(table))
    return read_label_rows(listing, table)


def _resolve(listing: Listing, table: str, row: dict[str, Any]) -> str:
    """Return the path below the root of the file that a row names.

    The row has the path from the folder of its ``table``. Raises SourceError if there is none, or
    if it is outside the root.
    """
    value = row.get(_FILE_NAME)
    if not isinstance(value, str) or not value:
        if _FILE_NAME in row:
            reason = f"must have paths, got {value!r}"
        else:
            reason = "is missing. The first line of a CSV must name the columns"
        raise SourceError(f"{listing.path(table)}: the column {_FILE_NAME!r} {reason}.")
    name = posixpath.normpath(posixpath.join(posixpath.dirname(table), value))
    if posixpath.isabs(value) or name.split("/")[0] == "..":
        raise SourceError(f"{listing.path(table)}: {value!r} is outside the folder.")
    return name


def _media_kind(root: str, names: Sequence[str]) -> type[AudioInput | ImagesInput]:
    """Return the input of the files that tables name. Raises SourceError if they are mixed."""
    if all(ending(name) in AudioInput.endings for name in names):
        return AudioInput
    if all(ending(name) in ImagesInput.endings for name in names):
        return ImagesInput
    media_endings = AudioInput.endings | ImagesInput.endings
    other = next((name for name in names if ending(name) not in media_endings), "")
    reason = f"{other} is neither" if other else "this one lists both"
    raise SourceError(f"{root}: a table of metadata must list pictures or sounds, but {reason}.")


def _is_ljspeech(listing: Listing, tables: Sequence[str]) -> bool:
    """Return whether a folder has a table without a header and the sounds in ``wavs``."""
    if [*tables] != ["metadata.csv"] or not os.path.isdir(listing.path("wavs")):
        return False
    with open(listing.path(tables[0]), "rb") as file:
        return file.readline().count(b"|") == len(_LJSPEECH_COLUMNS) - 1


def _read_ljspeech(path: str) -> list[dict[str, Any]]:
    """Return the rows of a table of LJSpeech: lines of id|text|text, for the file wavs/ID.wav."""
    rows = []
    # Quotes have no meaning in this table, and many of them are not closed.
    with open(path, encoding="utf-8-sig") as file:
        try:
            for number, line in enumerate(file, 1):
                values = line.rstrip("\n").split("|")
                if len(values) != len(_LJSPEECH_COLUMNS):
                    raise SourceError(
                        f"{path}, line {number}: {len(values)} values for "
                        f"{len(_LJSPEECH_COLUMNS)} columns."
                    )
                row = dict(zip(_LJSPEECH_COLUMNS, values, strict=True))
                rows.append({_FILE_NAME: f"wavs/{values[0]}.wav", **row})
        except UnicodeDecodeError as error:
            raise SourceError(f"{path}: this is not UTF-8: {error}.") from error
    return rows


def _first_names(names: Sequence[str]) -> str:
    """Return the first three names, and dots if there are others."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
