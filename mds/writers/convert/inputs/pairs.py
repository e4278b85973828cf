"""Pictures or sounds, each with a text of its name: captions, transcripts, annotations.

    000.jpg and 000.txt                               image, path, text
    images/000.jpg and labels/000.txt                 the same; names are to be there once
    84/12/84-12-0000.flac and 84/12/84-12.trans.txt   audio, path, text: a line of it for each sound

Texts are ``.txt``, ``.caption``, ``.lab`` or ``.xml``, all of one kind. Nine files of ten have to
belong together; the others are left out, and told.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from mds.errors import SourceError
from mds.formats.columns import Column, show_value
from mds.writers.convert.inputs.base import BadRecord, Input, InputOptions, InputPart, Record
from mds.writers.convert.inputs.files import AudioInput, WholeFilesInput, not_utf8
from mds.writers.convert.inputs.images import ImagesInput
from mds.writers.convert.inputs.listing import Listing, ending

_TEXTS = (".txt", ".caption", ".lab", ".xml")
_TRANSCRIPT = ".trans.txt"


class PairedFilesInput(WholeFilesInput):
    """Pictures or sounds with a text each; which it is of, ``text_of`` tells."""

    title: ClassVar[str] = "files with texts of their names"
    takes: ClassVar[frozenset[str]] = frozenset({"encoding"})

    def __init__(self, listing: Listing, text_of: Mapping[str, str], kind: str) -> None:
        media = listing.only(sorted(text_of))
        super().__init__(media)
        # Asked for what a picture or a sound is, and whether the bytes are one.
        is_sound = ending(media.names[0]) in AudioInput.endings
        self._media = AudioInput(media) if is_sound else ImagesInput(media)
        self._text_of = dict(text_of)
        self._texts = sorted(set(text_of.values()))
        self._lines: dict[str, str] = {}
        self._kind = kind
        medium = "sound" if is_sound else "picture"
        self.notes.append(
            f"each {medium} has the text of the {kind} of its name; --as files stores every file "
            "as it is"
        )
        unpaired = sorted({*listing.names} - {*media.names} - {*self._texts})
        if unpaired:
            examples = ", ".join(unpaired[:3]) + (", ..." if len(unpaired) > 3 else "")
            self.notes.append(
                f"{len(unpaired):,} file{'s' * (len(unpaired) > 1)} without a partner left out "
                f"({examples})"
            )

    @classmethod
    def from_files(cls, listing: Listing, options: InputOptions) -> Input:
        """Open the pairs of these files. Raises SourceError if there are none."""
        pairs = cls.find(listing, options)
        if pairs is None:
            raise SourceError(
                f"{listing.root}: nine of ten files are not pictures or sounds with a text of "
                f"their name ({', '.join(_TEXTS)}). Leave --as out to see what they are taken for."
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
        for key in (_path_stem, _last_stem):
            media_by_stem, text_by_stem = _by(key, media), _by(key, texts)
            if media_by_stem is None or text_by_stem is None:
                continue
            both = media_by_stem.keys() & text_by_stem.keys()
            if 2 * len(both) >= 0.9 * len(names):
                pairs = cls(
                    listing, {media_by_stem[k]: text_by_stem[k] for k in both}, ending(texts[0])
                )
                pairs.encoding = options.encoding or pairs.encoding
                return pairs
        return None

    @classmethod
    def _of_transcripts(
        cls, listing: Listing, media: Sequence[str], texts: Sequence[str], options: InputOptions
    ) -> PairedFilesInput | None:
        encoding = options.encoding or "utf-8"
        text_of, lines = {}, {}
        media_by_stem = _by(_path_stem, media) or {}
        for name in texts:
            folder = name.rpartition("/")[0]
            for stem, line in _transcripts(listing.path(name), encoding):
                sound = media_by_stem.get(f"{folder}/{stem}" if folder else stem)
                if sound is not None:
                    text_of[sound], lines[sound] = name, line
        if len(text_of) < 0.9 * len(media):
            return None
        pairs = cls(listing, text_of, _TRANSCRIPT)
        pairs.encoding, pairs._lines = encoding, lines
        return pairs

    def infer_columns(self) -> Sequence[Column]:
        """Return the columns of the picture or the sound, its path, and the text."""
        example = next((str(record["text"]) for record in self.probe()), "")
        columns = [*self._media.infer_columns(), Column("text", "str", show_value(example))]
        return sorted(columns, key=lambda column: column.name)

    def cut_parts(self, size: int) -> Iterator[InputPart]:
        """Yield runs of files with the names of their texts, or with the texts."""
        texts = self._lines or self._text_of
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

    def sample(self, name: str, data: bytes) -> dict[str, Any] | BadRecord:
        """Return the sample of the picture or the sound, without its text."""
        return self._media.sample(name, data)

    def _text(self, name: str) -> str | BadRecord:
        try:
            with open(self.listing.path(name), "rb") as file:
                data = file.read()
        except OSError as error:
            return BadRecord(f"its text {name} cannot be read: {error.strerror}")
        try:
            # A byte order mark is no part of the text.
            return data.decode("utf-8-sig" if self.encoding == "utf-8" else self.encoding)
        except UnicodeDecodeError as error:
            return BadRecord(f"its text {name}, {not_utf8(data, error)}")

    def describe(self) -> str:
        """Summarise number of files and bytes, and the kind of texts."""
        return f"{super().describe()}, each with a text in {self._kind}"

    def fingerprint(self) -> str:
        """Return a digest of the names, sizes and modification times of all files."""
        return f"{self.listing.digest}-{Listing(self.root, self._texts).digest}"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_text_of": {}, "_texts": [], "_lines": {}}


def _media_and_texts(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return pictures or sounds, and texts if all other files are texts of one ending."""
    media: dict[type[Input], list[str]] = {ImagesInput: [], AudioInput: []}
    texts: dict[str, list[str]] = {}
    for name in names:
        last = ending(name)
        kind = next((kind for kind in (ImagesInput, AudioInput) if last in kind.endings), None)
        (media[kind] if kind else texts.setdefault(last, [])).append(name)
    sorts = [files_of_kind for files_of_kind in media.values() if files_of_kind]
    if len(sorts) != 1 or len(texts) != 1 or next(iter(texts)) not in _TEXTS:
        return [], []
    return sorts[0], next(iter(texts.values()))


def _path_stem(name: str) -> str:
    return os.path.splitext(name)[0]


def _last_stem(name: str) -> str:
    return os.path.splitext(os.path.basename(name))[0]


def _by(key: Callable[[str], str], names: Sequence[str]) -> dict[str, str] | None:
    """Map stems to names; return None if two names share a stem."""
    name_of = {key(name): name for name in names}
    return name_of if len(name_of) == len(names) else None


def _transcripts(path: str, encoding: str) -> Iterator[tuple[str, str]]:
    """Yield each stem in a file of transcripts with its text."""
    try:
        with open(path, encoding=encoding) as file:
            for line in file:
                stem, _, text = line.strip().partition(" ")
                yield stem, text
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: the transcripts cannot be read: {error}.") from error
