"""Pages of HTML in one file: a stranger's text escaped, pictures bounded, no script.

The same pieces are a dataset's display in a notebook. Nothing is loaded from elsewhere, and a page
says so to the browser.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from mds.preview.pictures import to_data_uri
from mds.preview.words import is_picture, shorten_value
from mds.text.redaction import safe

MAX_TEXT = 600  # characters of a value
_MAX_SOUND_BYTES = 2 << 20
_MAX_ITEMS = 4  # of a list of pictures
_SOUNDS = {b"RIFF": "wav", b"fLaC": "flac", b"OggS": "ogg", b"ID3": "mpeg", b"\xff\xfb": "mpeg"}
_STYLE = """
.mds{font:13px/1.45 system-ui,sans-serif}
.mds table{border-collapse:collapse;margin:.5em 0}
.mds th,.mds td{border:1px solid #8885;padding:.25em .6em;text-align:left;vertical-align:top;
max-width:36em;overflow-wrap:anywhere;white-space:pre-wrap}
.mds th{font-weight:600}
.mds img{max-width:192px;max-height:192px;image-rendering:auto}
"""
# What a browser is told to load: nothing but what stands in the page.
_POLICY = "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'"


def make_page(title: str, pieces: Iterable[str]) -> str:
    """Return a whole page made of pieces of HTML."""
    body = "\n".join(pieces)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{to_html(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f'<body class="mds">\n{body}\n</body>\n</html>\n'
    )


def make_fragment(pieces: Iterable[str]) -> str:
    """Return pieces of HTML for a page of another program, such as a notebook."""
    return f'<div class="mds"><style>{_STYLE}</style>{"".join(pieces)}</div>'


def heading(text: str) -> str:
    """Return a heading."""
    return f"<h3>{to_html(text)}</h3>"


def paragraph(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{to_html(text)}</p>"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts."""
    return _table(headings, ([to_html(text) for text in row] for row in rows))


def samples_table(samples: Iterable[tuple[int, Mapping[str, Any]]]) -> str:
    """Return a table of decoded samples: one row each, with its number and its columns by name."""
    rows = [(number, dict(sample)) for number, sample in samples]
    names = list(dict.fromkeys(name for _, sample in rows for name in sample))
    return _table(
        ["sample", *names],
        (
            [str(number), *(_value(sample[name]) if name in sample else "" for name in names)]
            for number, sample in rows
        ),
    )


def to_html(text: str) -> str:
    """Return a foreign text for a page: without secrets, control characters and tags."""
    return escape("\n".join(map(safe, str(text).split("\n"))), quote=True)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{to_html(name)}</th>" for name in headings)
    body = "".join(f"<tr>{''.join(f'<td>{each}</td>' for each in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _value(value: Any) -> str:
    """Return the content of a cell."""
    if is_picture(value):
        words = to_html(shorten_value(value))  # first: to look at a picture may make it small
        uri = to_data_uri(value)
        return f'<img src="{uri}" alt="{words}"><br>{words}' if uri else f"{words}, not shown"
    if isinstance(value, (list, tuple)) and value and all(map(is_picture, value)):
        more = f"<br>and {len(value) - _MAX_ITEMS} more" if len(value) > _MAX_ITEMS else ""
        return "".join(map(_value, value[:_MAX_ITEMS])) + more
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _sound(bytes(value)) + to_html(shorten_value(bytes(value)))
    return to_html(shorten_value(value, MAX_TEXT))


def _sound(data: bytes) -> str:
    """Return a player for the bytes of a sound if they begin like one and are not too many."""
    kind = next((name for start, name in _SOUNDS.items() if data.startswith(start)), None)
    if kind is None or len(data) > _MAX_SOUND_BYTES or (kind == "wav" and data[8:12] != b"WAVE"):
        return ""
    encoded = base64.b64encode(data).decode("ascii")
    return f'<audio controls src="data:audio/{kind};base64,{encoded}"></audio><br>'
