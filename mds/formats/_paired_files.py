"""Pictures or sounds with a text each, in a file of the same name or in a line of a transcript.

    000.jpg and 000.txt                               image, path, text
    images/000.jpg and labels/000.txt                 the same, if every name is there once
    84/12/84-12-0000.flac and 84/12/84-12.trans.txt   audio, path, text: a line for each sound

Texts are ``.txt``, ``.caption``, ``.lab`` or ``.xml``, all of one kind. Nine of ten files must have
a partner; the others are left out.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from mds.errors import FormatError
from mds.formats._media import PICTURES, SOUNDS, ending_of, media_column
from mds.formats._names import is_companion
from mds.formats._rows_of_files import FileRow, ListedRows, RowsOfFiles
from mds.formats._utf8 import decode_document

if TYPE_CHECKING:
    from mds.formats._facts import DataFile
    from mds.formats._source import FilePlace, Files

TEXTS_OF_MEDIA = (".caption", ".txt", ".lab", ".xml")
_TRANSCRIPT = ".trans.txt"
#: Reason for which a file is left out, in plural.
UNPAIRED = "files without a partner"
#: Least share of the files that have a partner.
_SHARE = 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairedFiles(RowsOfFiles):
    """Pictures or sounds with a text file each, or with lines of transcripts.

    The columns are ``image`` or ``audio``, ``path`` (of the picture or sound) and ``text``. Samples
    are in the order of the paths.

    - ``encoding`` (str, default "utf-8"): Encoding of the texts, such as ``"cp1252"``.
    - ``samples_per_shard`` (int, default 256): Number of consecutive pairs in a shard. Another
      number changes the order of an epoch.
    - ``encodings`` (Mapping[str, str] | None, default None): Encodings by column.
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode.

    Raises ConfigError for a number of samples below one.

    >>> StreamingDataset(local="captions", format="paired", batch_size=32)  # doctest: +SKIP
    """

    name: ClassVar[str] = "paired"
    title: ClassVar[str] = "files with texts of their names"
    endings: ClassVar[tuple[str, ...]] = ()

    encoding: str = "utf-8"

    @property
    def _text_encoding(self) -> str:
        return self.encoding

    def takes(self, key: str) -> bool:
        """Return True: every file may have a partner."""
        del key
        return True

    def list_rows(self, place: FilePlace, files: Files) -> ListedRows:
        """Return a row for each pair. Raises FormatError if less than 90 % of the files have one.

        Transcripts are read, other texts are not.
        """
        file_of = {file.key: file for file in self.choose(files.find(place), files)}
        names = [key for key in file_of if not is_companion(key)]
        media, texts = media_and_texts(names)
        rows: list[FileRow] | None = None
        used_texts = {*texts}
        if media and all(name.lower().endswith(_TRANSCRIPT) for name in texts):
            rows = self._rows_of_transcripts(media, texts, file_of, files)
        elif (pairs := find_pairs(names)) is not None:
            used_texts = {*pairs.text_of.values()}
            rows = [
                FileRow({"path": name}, {pairs.column: file_of[name], "text": file_of[text]})
                for name, text in sorted(pairs.text_of.items())
            ]
        if rows is None:
            raise FormatError(
                f"{files.url('')}: less than 90 % of the files are pictures or sounds with a text "
                f"file of the same name ({', '.join(TEXTS_OF_MEDIA)}). Read the pictures with "
                "format='images', the sounds with format='audio', or every file as it is with "
                "format='files' (--format)."
            )
        for key in sorted(file_of.keys() - {row.path for row in rows} - used_texts):
            files.leave_out(key, UNPAIRED)
        medium = "sound" if ending_of(rows[0].path) in SOUNDS else "picture"
        kind = _TRANSCRIPT if "text" in rows[0].values else ending_of(texts[0])
        note = (
            f"each {medium} has the text of the {kind} file with its name; --format files stores "
            "every file unchanged"
        )
        keys = [row.path for row in rows]
        column, encoding = media_column(keys) or ("", "")
        columns = {column: encoding, "path": "str", "text": "str"}
        return ListedRows(columns, rows, notes=[note])

    def _rows_of_transcripts(
        self,
        media: Sequence[str],
        texts: Sequence[str],
        file_of: Mapping[str, DataFile],
        files: Files,
    ) -> list[FileRow] | None:
        """Return sounds with lines of transcripts; None if most sounds have no line.

        A line begins with the name of a sound in the folder of the transcripts, without its ending:
        the text of 84-12-0000.flac is in the line ``84-12-0000 BUT WITH FULL``.
        """
        column, _ = media_column(media) or ("", "")
        name_of = _names_by_stem(_path_stem, media) or {}
        text_of: dict[str, str] = {}
        for key in texts:
            folder = key.rpartition("/")[0]
            data = files.whole(file_of[key])
            try:
                content = decode_document(data, key, self.encoding)
            except ValueError as error:
                raise FormatError(
                    f"{files.url(key)}: the transcripts cannot be read: {error}."
                ) from error
            for line in content.splitlines():
                stem, _, text = line.strip().partition(" ")
                sound = name_of.get(f"{folder}/{stem}" if folder else stem)
                if sound is not None:
                    text_of[sound] = text
        if len(text_of) < _SHARE * len(media):
            return None
        return [
            FileRow({"path": name, "text": text}, {column: file_of[name]})
            for name, text in sorted(text_of.items())
        ]


class Pairs(NamedTuple):
    """Pairs of files: the column of the pictures or sounds, and the text of each by name."""

    column: str
    text_of: Mapping[str, str]


def find_pairs(names: Sequence[str]) -> Pairs | None:
    """Return the pairs of files with one name; None if less than nine of ten have a partner."""
    media, texts = media_and_texts(names)
    column = media_column(media)
    if column is None or not texts:
        return None
    # Texts are beside their files (`_path_stem` gives "a/1" for a/1.jpg and a/1.txt), or have the
    # same name in another folder (`_last_stem` gives "1" for images/1.jpg, labels/1.txt).
    for stem_of in (_path_stem, _last_stem):
        media_by_stem = _names_by_stem(stem_of, media)
        text_by_stem = _names_by_stem(stem_of, texts)
        if media_by_stem is None or text_by_stem is None:
            continue
        shared_stems = media_by_stem.keys() & text_by_stem.keys()
        if shared_stems and 2 * len(shared_stems) >= _SHARE * len(names):
            pairs = {media_by_stem[stem]: text_by_stem[stem] for stem in shared_stems}
            return Pairs(column[0], pairs)
    return None


def may_be_pairs(names: Sequence[str]) -> bool:
    """Return True if the names of files are those of pairs, or of sounds and transcripts."""
    data_names = [name for name in names if not is_companion(name)]
    media, texts = media_and_texts(data_names)
    are_transcripts = bool(media) and all(name.lower().endswith(_TRANSCRIPT) for name in texts)
    return are_transcripts or find_pairs(data_names) is not None


def media_and_texts(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of pictures or sounds, and of texts.

    Both are empty unless the files are media of one type, and texts with one ending.
    """
    pictures: list[str] = []
    sounds: list[str] = []
    other_files: dict[str, list[str]] = {}  # by ending
    for name in names:
        ending = ending_of(name)
        if ending in PICTURES:
            pictures.append(name)
        elif ending in SOUNDS:
            sounds.append(name)
        else:
            other_files.setdefault(ending, []).append(name)
    if bool(pictures) == bool(sounds) or len(other_files) != 1:
        return [], []
    [(text_ending, texts)] = other_files.items()
    return (pictures or sounds, texts) if text_ending in TEXTS_OF_MEDIA else ([], [])


def _path_stem(name: str) -> str:
    return os.path.splitext(name)[0]


def _last_stem(name: str) -> str:
    return os.path.splitext(os.path.basename(name))[0]


def _names_by_stem(key: Callable[[str], str], names: Sequence[str]) -> dict[str, str] | None:
    """Return the name of each stem, which ``key`` returns; None if two names share a stem."""
    name_of = {key(name): name for name in names}
    return name_of if len(name_of) == len(names) else None
