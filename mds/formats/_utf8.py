"""Text in files: decoding of a document, and messages for bytes that are not UTF-8."""

from __future__ import annotations

import codecs

#: Message about text that Windows calls "Unicode".
UTF16 = "this is UTF-16; convert it to UTF-8 first: iconv -f UTF-16 -t UTF-8 FILE"
_PYTHON_ENDINGS = (".py", ".pyi", ".pyw")


def decode_document(data: bytes, name: str, encoding: str = "utf-8") -> str:
    """Return the text of a file, without a byte order mark.

    Python source is decoded with the encoding that it declares in a comment if ``encoding`` fails.

    Args:
        data: Content of the file.
        name: Name of the file, whose ending shows Python source.
        encoding: Encoding of the text.

    Raises ValueError with line and column of the first byte that cannot be decoded.
    """
    try:
        return data.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        text = _decode_python(data) if name.lower().endswith(_PYTHON_ENDINGS) else None
        if text is None:
            raise ValueError(not_utf8(data, error)) from error
        return text


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
    line = data.count(b"\n", 0, error.start) + 1
    return f"line {line}, column {column_of(data, error)}: {why_not_utf8(data, error)}"


def column_of(data: bytes, error: UnicodeDecodeError) -> int:
    """Return the number, from 1, of the first byte that cannot be decoded in its line."""
    return error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1


def why_not_utf8(data: bytes, error: UnicodeDecodeError) -> str:
    """Describe the first byte that cannot be decoded, with a remedy."""
    if is_utf16(data):
        return UTF16
    return (
        f"byte 0x{data[error.start]:02x} is not {error.encoding.upper()}; give --encoding (often "
        "cp1252), or --format files to store the bytes"
    )


def is_utf16(data: bytes) -> bool:
    """Return True if bytes begin with the byte order mark of UTF-16."""
    return data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
