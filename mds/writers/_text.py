"""Writers of text: a line per sample, and a meta file with the offsets of the lines.

Columns are `str`, `int` or `float`. The formats with separators have no quotes or escapes, so a
text with a separator or a newline is refused: it could not be read back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mds._arguments import takes_names
from mds._shardfile.layout import config_bytes, pack_meta
from mds.encodings._base import describe
from mds.encodings._scalars import as_float, as_int
from mds.errors import (
    ConfigError,
    EncodingError,
    EncodingTypeError,
    SeparatorError,
    UnknownEncodingError,
)
from mds.writers._spec import options_in, parse_columns
from mds.writers._writer import Writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mds._words import Compression, Digest
    from mds.writers._spec import Out, Spelling
    from mds.writers._writer import Data

_TYPES: dict[str, type] = {"str": str, "int": int, "float": float}
#: Bytes of a letter beyond the basic plane, as JSON escapes it: the most that a letter takes.
_MAX_LETTER_BYTES = 12
#: Number of letters that are encoded at once to measure a long text.
_PIECE_LETTERS = 1 << 18


def _explain_encoding(name: str) -> str:
    """Return the type of a text format in place of an encoding of MDS, as " Write ...", or ''."""
    if name in ("string", "text", "utf8"):
        return " Write 'str'."
    if name.startswith(("int", "uint", "str_int", "long")):
        return " Write 'int'."
    return " Write 'float'." if name.startswith(("float", "str_float", "double")) else ""


def _convert(value: Any, kind: type) -> Any:
    """Return an integer or float of NumPy or torch as one of Python, and other values as they are.

    ``kind`` is the type of the column: int, float or str.
    """
    number = as_int(value) if kind is int else as_float(value) if kind is float else None
    return value if number is None else number


class LineWriter(Writer):
    """Base class of the writers of text: a line per sample, offsets in a meta file.

    The arguments are those of `JSONWriter`.
    """

    @takes_names
    def __init__(
        self,
        *,
        columns: Mapping[str, Spelling],
        out: Out,
        newline: str = "\n",
        keep_local: bool = False,
        compression: Compression | str | None = None,
        hashes: Sequence[Digest] | Sequence[str] | None = None,
        size_limit: int | str | None = 67108864,
        samples_per_shard: int | None = None,
        exist_ok: bool = False,
        retry: int = 2,
        max_workers: int | None = None,
        progress_bar: bool = False,
        durable: bool = True,
        strict: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        class_names: dict[str, list[str]] | None = None,
        descriptions: dict[str, str] | None = None,
    ) -> None:
        options = options_in(locals())
        self._ended = "never began"  # replaced when the constructor is complete
        encodings = self._parse_columns(columns)
        self.newline = newline
        self.columns = {name: encodings[name] for name in sorted(encodings)}
        self._types = [(name, _TYPES[encoding]) for name, encoding in self.columns.items()]
        self._header = b""  # the first line of the data file; formats with separators set it
        super().__init__(out=out, **options)
        self._config = config_bytes(self.get_config())
        if self._strict is not False:
            # `write` reports a sample with more keys than there are columns.
            self._max_keys = len(self.columns)

    def _parse_columns(self, columns: Any) -> dict[str, str]:
        """Return columns with names of encodings.

        Raises what `parse_columns` does, and UnknownEncodingError for encodings beyond `_TYPES`.
        """
        owner = type(self).__name__
        if self._converts and isinstance(columns, Mapping):
            # The type float is "float" here, and "float64" in `MDSWriter`.
            columns = {
                name: "float" if encoding is float else encoding
                for name, encoding in columns.items()
            }
        encodings = parse_columns(owner, columns, converts=self._converts)
        for name in sorted(encodings):
            if encodings[name] not in _TYPES:
                way_out = _explain_encoding(encodings[name])
                raise UnknownEncodingError(
                    f"column {name!r}: {self.format} files have no encoding {encodings[name]!r}, "
                    f"only {', '.join(_TYPES)}.{way_out} MDSWriter has more encodings."
                )
        return encodings

    def get_config(self) -> dict[str, Any]:
        """Return what every meta file and the index record about the dataset."""
        return {**super().get_config(), "newline": self.newline}

    def _values(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the columns, with their types checked."""
        values = {}
        name = ""  # the column at work, for the error
        letters = 0
        try:
            for name, kind in self._types:
                value = values[name] = sample[name]
                if not isinstance(value, kind) and self._converts:
                    value = values[name] = _convert(value, kind)
                if not isinstance(value, kind):
                    raise EncodingTypeError(  # noqa: TRY301 - the column is added below
                        f"encoding {kind.__name__}: expected a Python {kind.__name__}, "
                        f"got {describe(value)}"
                    )
                if kind is str:
                    letters += len(value)  # type: ignore[arg-type]  # a str, as its kind says
        except Exception as error:
            raise self._locate_error(error, name, sample) from error
        # Texts that surely fit are not measured.
        if letters * _MAX_LETTER_BYTES > self.max_shard_size:
            self._check_size(values)
        return values

    def _check_size(self, values: dict[str, Any]) -> None:
        """Raise WriterError for texts that fit into no shard, before a line is composed."""
        # Measured in pieces: a text of gigabytes would take as much memory again if it were encoded
        # as a whole.
        size = sum(
            self._stored_size(text[start : start + _PIECE_LETTERS])
            for text in values.values()
            if isinstance(text, str)
            for start in range(0, len(text), _PIECE_LETTERS)
        )
        if size > self.max_shard_size:
            raise self._too_large(size)

    def _stored_size(self, text: str) -> int:
        """Return the number of bytes that a text takes in a line, without what surrounds it."""
        return len(text.encode("utf-8", "surrogatepass"))

    def _bytes(self, text: str) -> bytes:
        """Return a line as UTF-8. Raises EncodingError for text with a lone surrogate."""
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise EncodingError(
                f"sample {self._samples}: expected text that UTF-8 can encode ({error})"
            ) from error

    def _files(self, body: Data, sizes: Sequence[int]) -> tuple[Sequence[Data], ...]:
        """Return the parts of the data file (header line, samples), and of the meta file."""
        return (self._header, body), (pack_meta(sizes, len(self._header), self._config),)


class JSONWriter(LineWriter):
    r"""Writes samples as lines of JSON.

    Arguments, all by name, beside those of `MDSWriter`:

    * ``columns`` (dict[str, str | type]): the type of each column: "str" or `str`, "int", "float".
    * ``newline`` (str, '\n'): what ends a line.

    >>> with JSONWriter(out="out", columns={"id": "int", "text": "str"}) as writer:
    ...     writer.write({"id": 1, "text": "red, green"})
    >>> print(pathlib.Path("out/shard.00000.json").read_text().strip())
    {"id": 1, "text": "red, green"}
    """

    format = "json"

    def get_config(self) -> dict[str, Any]:
        """Return what every meta file and the index record about the dataset."""
        return {**super().get_config(), "columns": self.columns}

    def _stored_size(self, text: str) -> int:
        # Characters such as a quote or a newline take more bytes in JSON.
        return len(json.dumps(text)) - 2  # without its quotes

    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        """Return a line of JSON. Raises EncodingError."""
        return self._bytes(json.dumps(self._values(sample), sort_keys=True) + self.newline)


class XSVWriter(LineWriter):
    r"""Writes samples as lines of text, values between separators, names in the first line.

    Arguments, all by name, beside those of `MDSWriter`:

    * ``columns`` (dict[str, str | type]): the type of each column: "str" or `str`, "int", "float".
    * ``separator`` (str): what stands between values.
    * ``newline`` (str, '\n'): what ends a line.

    Raises SeparatorError (an AssertionError and ValueError) for a name with a separator in it, and
    `write` does for such a value.

    >>> with XSVWriter(out="out", columns={"id": "int", "text": "str"}, separator=";") as writer:
    ...     writer.write({"id": 1, "text": "red, green"})
    >>> print(pathlib.Path("out/shard.00000.xsv").read_text().strip())
    id;text
    1;red, green
    """

    format = "xsv"

    @takes_names
    def __init__(
        self,
        *,
        columns: Mapping[str, Spelling],
        separator: str,
        out: Out,
        newline: str = "\n",
        keep_local: bool = False,
        compression: Compression | str | None = None,
        hashes: Sequence[Digest] | Sequence[str] | None = None,
        size_limit: int | str | None = 67108864,
        samples_per_shard: int | None = None,
        exist_ok: bool = False,
        retry: int = 2,
        max_workers: int | None = None,
        progress_bar: bool = False,
        durable: bool = True,
        strict: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        class_names: dict[str, list[str]] | None = None,
        descriptions: dict[str, str] | None = None,
    ) -> None:
        options = options_in(locals())
        self._ended = "never began"  # replaced when the constructor is complete
        if not separator:
            raise ConfigError(f"separator must be a str that is not empty, got {separator!r}.")
        if not newline:
            raise ConfigError(f"newline must not be empty: a line of {self.format} ends with it.")
        self.separator = separator
        # The header is joined, and its names are checked, before `Writer` creates folders; `_join`
        # needs these attributes.
        self._samples, self.newline = 0, newline
        header = self._join(sorted(self._parse_columns(columns)), "the names of the columns")
        super().__init__(columns=columns, out=out, newline=newline, **options)
        self._header = header

    def get_config(self) -> dict[str, Any]:
        """Return what every meta file and the index record about the dataset."""
        return {
            **super().get_config(),
            "column_names": list(self.columns),
            "column_encodings": list(self.columns.values()),
            "separator": self.separator,
        }

    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        """Return a line. Raises EncodingError, and SeparatorError for text with a separator."""
        texts = [str(value) for value in self._values(sample).values()]
        return self._join(texts, f"sample {self._samples}")

    def _join(self, texts: list[str], subject: str) -> bytes:
        """Return a line of texts between separators.

        Raises SeparatorError if the line could not be split into the same texts again; ``subject``
        names the line in the message.
        """
        line = self.separator.join(texts)
        # Splitting finds separators inside values, and separators across two values.
        if self.newline in line or line.split(self.separator) != texts:
            raise SeparatorError(
                f"{subject}: expected text without the separator {self.separator!r} and the "
                f"newline {self.newline!r}, got {describe(line)}. {self.format} has no quoting; "
                "use JSONWriter or MDSWriter."
            )
        return self._bytes(line + self.newline)


class _FixedSeparatorWriter(XSVWriter):
    """Base class of CSV and TSV writers, whose separator is fixed and not stored in the index."""

    _separator: str

    @takes_names
    def __init__(
        self,
        *,
        columns: Mapping[str, Spelling],
        out: Out,
        newline: str = "\n",
        keep_local: bool = False,
        compression: Compression | str | None = None,
        hashes: Sequence[Digest] | Sequence[str] | None = None,
        size_limit: int | str | None = 67108864,
        samples_per_shard: int | None = None,
        exist_ok: bool = False,
        retry: int = 2,
        max_workers: int | None = None,
        progress_bar: bool = False,
        durable: bool = True,
        strict: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        class_names: dict[str, list[str]] | None = None,
        descriptions: dict[str, str] | None = None,
    ) -> None:
        options = options_in(locals())
        super().__init__(
            columns=columns, separator=self._separator, out=out, newline=newline, **options
        )

    def get_config(self) -> dict[str, Any]:
        """Return what every meta file and the index record about the dataset."""
        config = super().get_config()
        del config["separator"]
        return config


class CSVWriter(_FixedSeparatorWriter):
    r"""Writes samples as lines with commas, names in the first line.

    Arguments, all by name, beside those of `MDSWriter`:

    * ``columns`` (dict[str, str | type]): the type of each column: "str" or `str`, "int", "float".
    * ``newline`` (str, '\n'): what ends a line.

    >>> with CSVWriter(out="out", columns={"id": "int", "text": "str"}) as writer:
    ...     writer.write({"id": 1, "text": "red"})
    >>> print(pathlib.Path("out/shard.00000.csv").read_text().strip())
    id,text
    1,red
    """

    format = "csv"
    _separator = ","


class TSVWriter(_FixedSeparatorWriter):
    r"""Writes samples as lines with tabs, names in the first line.

    Arguments, all by name, beside those of `MDSWriter`:

    * ``columns`` (dict[str, str | type]): the type of each column: "str" or `str`, "int", "float".
    * ``newline`` (str, '\n'): what ends a line.

    >>> with TSVWriter(out="out", columns={"id": "int", "text": "str"}) as writer:
    ...     writer.write({"id": 1, "text": "red, green"})
    >>> mds.LocalDataset("out")[0]
    {'id': 1, 'text': 'red, green'}
    """

    format = "tsv"
    _separator = "\t"
