"""Files of pictures and sounds: their endings, and the bytes that they begin with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

#: Kinds of pictures by the endings of their files.
PICTURES = {
    ".jpg": "jpeg",
    ".jpeg": "jpeg",
    ".jpe": "jpeg",
    ".png": "png",
    ".webp": "webp",
    ".gif": "gif",
    ".bmp": "bmp",
    ".tif": "tiff",
    ".tiff": "tiff",
}
#: First bytes of picture files: JPEG, PNG, GIF, WebP, BMP, TIFF.
PICTURE_STARTS = (
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"GIF8",
    b"RIFF",
    b"BM",
    b"II*\0",
    b"MM\0*",
)
#: Endings of sound files.
SOUNDS = (".flac", ".opus", ".wav", ".mp3", ".ogg")
#: First bytes of sound files: wav, flac, ogg, and mp3 with and without a tag.
SOUND_STARTS = (b"RIFF", b"RIFX", b"RF64", b"fLaC", b"OggS", b"ID3", b"\xff")


def ending_of(key: str) -> str:
    """Return the ending of a file in lower case, such as ".jpg"."""
    stem, dot, ending = key.rpartition("/")[2].rpartition(".")
    return dot + ending.lower() if stem.strip(".") else ""


def choose_encoding(kinds: Mapping[str, int]) -> str:
    """Return the encoding of pictures that are stored as they are.

    It is "jpeg" or "png", whichever most files are; "png" if there are files of other kinds. Both
    decode a picture by its content.

    Args:
        kinds: Number of pictures of each kind in `PICTURES`.
    """
    if {*kinds} <= {"jpeg", "png"}:
        return max(kinds, key=lambda kind: kinds[kind], default="jpeg")
    return "png"


def media_column(keys: Iterable[str]) -> tuple[str, str] | None:
    """Return the column of pictures or of sounds and its encoding; None for other files."""
    endings = Counter(map(ending_of, keys))
    if endings and {*endings} <= {*SOUNDS}:
        return "audio", "bytes"
    if endings and {*endings} <= {*PICTURES}:
        kinds: Counter[str] = Counter()
        for ending, count in endings.items():
            kinds[PICTURES[ending]] += count
        return "image", choose_encoding(kinds)
    return None
