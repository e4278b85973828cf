"""Values and datasets for people: in words, as pictures in a terminal, and as HTML.

The HTML is used by `mds head --html` and by notebooks. Datasets may come from strangers. So text is
escaped, pictures are decoded up to a limit and encoded again, so that only their pixels reach a
browser, and a page forbids the browser to load anything else.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from mds._redaction import safe
from mds.errors import MdsError

if TYPE_CHECKING:
    from rich.text import Text

#: Largest picture that is decoded, in pixels, and the longer side of its preview.
MAX_PIXELS = 50_000_000
MAX_SIDE = 192
MAX_TEXT = 600  # characters of a value on a page
_MAX_SOUND_BYTES = 2 << 20
_MAX_PICTURES = 4  # of a list
_SOUND_TYPES = {
    b"RIFF": "wav",
    b"fLaC": "flac",
    b"OggS": "ogg",
    b"ID3": "mpeg",
    b"\xff\xfb": "mpeg",
}
_STYLE = """
.mds{font:13px/1.45 system-ui,sans-serif}
.mds table{border-collapse:collapse;margin:.5em 0}
.mds th,.mds td{border:1px solid #8885;padding:.25em .6em;text-align:left;vertical-align:top;
max-width:36em;overflow-wrap:anywhere;white-space:pre-wrap}
.mds th{font-weight:600}
.mds img{max-width:192px;max-height:192px;image-rendering:auto}
"""
_POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"


class Undecodable:
    """Value whose bytes could not be decoded; its text is the reason."""

    def __init__(self, error: Exception) -> None:
        self._reason = f"{type(error).__name__}: {error}"

    def __repr__(self) -> str:
        return f"cannot be decoded: {self._reason}"


def shorten_value(value: Any, width: int = 200) -> str:
    """Describe a decoded value in a few words, with its content if that is short.

    ``width`` is the number of characters after which a text is cut.
    """
    if isinstance(value, (bytes, memoryview)):
        start = bytes(value[:16])
        return f"{len(value):,} bytes, {start!r}{'...' if len(value) > 16 else ''}"
    if hasattr(value, "dtype") and getattr(value, "shape", None):
        numbers = ", ".join(map(str, value.reshape(-1)[:8].tolist()))
        ellipsis = ", ..." if value.size > 8 else ""
        return f"{value.dtype} {'x'.join(map(str, value.shape))}: {numbers}{ellipsis}"
    if is_picture(value):
        return f"{value.format or 'raw'} image, {value.width} x {value.height} {value.mode}"
    if hasattr(value, "dtype"):  # repr says np.float64(0.5)
        return str(value)
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= width else f"{text[:width]}... ({len(text):,} characters)"


def is_picture(value: Any) -> bool:
    """Whether a value is a Pillow image."""
    return hasattr(value, "getbands") and hasattr(value, "width")


def make_small(picture: Any, side: int = MAX_SIDE) -> Any | None:
    """Return a small RGB copy of a Pillow image, or None if it is too large or damaged.

    ``side`` is the largest width and height of the copy, in pixels.
    A JPEG that is not decoded yet is decoded at a reduced size, and keeps that size afterwards.
    """
    if picture.width * picture.height > MAX_PIXELS or not picture.width * picture.height:
        return None
    try:
        picture.draft("RGB", (side, side))
        small = picture.convert("RGB")
        small.thumbnail((side, side))
    except Exception:  # noqa: BLE001 - Pillow's plugins raise anything on damaged files
        return None
    return small


def to_data_uri(picture: Any) -> str | None:
    """Return a small copy of a picture as a data URL, or None if it cannot be shown."""
    small = make_small(picture)
    if small is None:
        return None
    file = io.BytesIO()
    small.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def to_half_blocks(picture: Any, columns: int) -> Text | None:
    """Return a picture as coloured text for a terminal, or None if it cannot be shown.

    Each character is an upper half block. Its colour is one pixel, and its background the pixel
    below it. ``columns`` is the largest width, in characters.
    """
    from rich.text import Text

    small = make_small(picture, max(2, columns))
    if small is None:
        return None
    text = Text()
    for top in range(0, small.height - small.height % 2, 2):
        for x in range(small.width):
            upper, lower = (_hex_colour(small.getpixel((x, y))) for y in (top, top + 1))
            text.append("\u2580", style=f"{upper} on {lower}")
        text.append("\n")
    return text


def _hex_colour(pixel: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*pixel)


def make_page(title: str, parts: Iterable[str]) -> str:
    """Return a complete HTML page.

    ``title`` is plain text, and ``parts`` are pieces of HTML, as `element` and `table` return them.
    """
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{to_html(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f'<body class="mds">\n{body}\n</body>\n</html>\n'
    )


def make_fragment(parts: Iterable[str]) -> str:
    """Return parts in HTML for a page of another program, such as a notebook."""
    return f'<div class="mds"><style>{_STYLE}</style>{"".join(parts)}</div>'


def element(tag: str, text: str) -> str:
    """Return a text in HTML as one element, such as a paragraph ("p")."""
    return f"<{tag}>{to_html(text)}</{tag}>"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in HTML. ``headings`` and the cells of ``rows`` are plain texts."""
    return _table(headings, ([to_html(text) for text in row] for row in rows))


def samples_table(samples: Iterable[tuple[int, Mapping[str, Any]]]) -> str:
    """Return a table of decoded samples in HTML: a row for each, its number first.

    ``samples`` are pairs of a number and a dict of columns.
    """
    rows = [(number, dict(sample)) for number, sample in samples]
    names = list(dict.fromkeys(name for _, sample in rows for name in sample))
    return _table(
        ["sample", *names],
        (
            [str(number), *(_value_html(row[name]) if name in row else "" for name in names)]
            for number, row in rows
        ),
    )


def to_html(text: str) -> str:
    """Return a text escaped for HTML, without secrets and control characters."""
    return escape("\n".join(map(safe, str(text).split("\n"))), quote=True)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in HTML. Headings are plain texts, but cells are HTML already."""
    head = "".join(f"<th>{to_html(name)}</th>" for name in headings)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _value_html(value: Any) -> str:
    """Return a decoded value in HTML: a preview of pictures, a player of sounds, else a text."""
    if is_picture(value):
        caption = to_html(shorten_value(value))  # before the preview, which may shrink the picture
        uri = to_data_uri(value)
        return f'<img src="{uri}" alt="{caption}"><br>{caption}' if uri else f"{caption}, not shown"
    if isinstance(value, (list, tuple)) and value and all(map(is_picture, value)):
        count = len(value) - _MAX_PICTURES
        suffix = f"<br>and {count} more" if count > 0 else ""
        return "".join(map(_value_html, value[:_MAX_PICTURES])) + suffix
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _sound_html(bytes(value)) + to_html(shorten_value(bytes(value)))
    return to_html(shorten_value(value, MAX_TEXT))


def _sound_html(data: bytes) -> str:
    """Return a player for bytes that begin like a sound file and are not too many, else ""."""
    kind = next((name for start, name in _SOUND_TYPES.items() if data.startswith(start)), None)
    if kind is None or len(data) > _MAX_SOUND_BYTES or (kind == "wav" and data[8:12] != b"WAVE"):
        return ""
    encoded = base64.b64encode(data).decode("ascii")
    return f'<audio controls src="data:audio/{kind};base64,{encoded}"></audio><br>'


# ------------------------------------------------------------------ a dataset in a notebook

ROWS = 3  # samples that are shown
_SHOWN_CLASSES = 8


def show_dataset(dataset: Any) -> str:
    """Return a dataset in HTML: a summary, its columns, and its first samples as stored.

    A notebook's display must not fail, so errors (of a store, of a sample) are shown in the place
    of the part that they prevent.
    """
    pieces = [element("p", repr(dataset))]
    try:
        descriptions, class_names = dataset.descriptions, dataset.class_names
    except (MdsError, OSError) as error:
        pieces.append(element("p", f"The columns cannot be read: {error}"))
    else:
        rows = [
            (name, encoding, descriptions.get(name, ""), _classes(class_names.get(name, ())))
            for name, encoding in dataset.schema.items()
        ]
        pieces.append(table(["column", "encoding", "description", "classes"], rows))
    try:
        pieces.append(samples_table((n, _sample(dataset, n)) for n in range(_rows(dataset))))
    except Exception as error:  # noqa: BLE001 - of a store, of a sample, of the caller's own class
        pieces.append(element("p", f"The first samples cannot be shown: {error}"))
    return make_fragment(pieces)


def _rows(dataset: Any) -> int:
    return min(ROWS, int(dataset.num_samples))


def _sample(dataset: Any, number: int) -> dict[str, Any]:
    sample = dataset.get_item(number)
    return sample if isinstance(sample, dict) else {"": sample}


def _classes(names: Sequence[str]) -> str:
    listed = ", ".join(f"{number} {name}" for number, name in enumerate(names[:_SHOWN_CLASSES]))
    return listed + (f", ... ({len(names):,})" if len(names) > _SHOWN_CLASSES else "")


class Explanation(str):
    """Text of `explain`, which a notebook shows as a table."""

    __slots__ = ("_head", "_rows")
    _head: str
    _rows: list[tuple[str, str, str]]

    @classmethod
    def of(cls, head: str, rows: list[tuple[str, str, str]]) -> Explanation:
        """Make the text: ``head``, and an aligned line for each (setting, value, reason)."""
        label_width = max(len(label) for label, _, _ in rows)
        value_width = max(len(value) for _, value, _ in rows)
        lines = [
            f"  {label:<{label_width}}  {value:<{value_width}}  {why}".rstrip()
            for label, value, why in rows
        ]
        explanation = cls("\n".join([head, *lines]))
        explanation._head, explanation._rows = head, rows
        return explanation

    def _repr_html_(self) -> str:
        return make_fragment(
            [element("h3", self._head), table(["setting", "value", "why"], self._rows)]
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle has the text only, as a plain str.
        return str, (str(self),)
