"""JSONWriter, XSVWriter, CSVWriter, TSVWriter: lines of text, and a meta file that knows where.

Columns are `str`, `int` or `float`. The separated formats quote and escape nothing, so text with a
separator or newline in it is refused: it could not be read back.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mds.encodings import describe
from mds.errors import (
    ConfigError,
    EncodingError,
    EncodingTypeError,
    SeparatorError,
    UnknownEncodingError,
)
from mds.layout import config_bytes, pack_meta
from mds.writers.mds import sorted_names
from mds.writers.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mds.writers.spec import Out
    from mds.writers.writer import Data

_TYPES: dict[str, type] = {"str": str, "int": int, "float": float}


class LineWriter(Writer):
    """Base of the writers of text: a line a sample, offsets in a meta file."""

    def __init__(self, *, columns: dict[str, str], newline: str, **kwargs: Any) -> None:
        self._ended = "never began"
        names = sorted_names(columns)
        for name in names:
            if columns[name] not in _TYPES:
                raise UnknownEncodingError(
                    f"column {name!r}: {self.format} has no encoding {columns[name]!r}, only "
                    f"{', '.join(_TYPES)}. MDSWriter has more."
                )
        self.newline = newline
        self.columns = {name: columns[name] for name in names}
        self._types = [(name, _TYPES[columns[name]]) for name in names]
        self._header = b""
        super().__init__(**kwargs)
        self._config = config_bytes(self.get_config())

    def get_config(self) -> dict[str, Any]:
        """What every meta file and the index tell about the dataset."""
        return {**super().get_config(), "newline": self.newline}

    def _values(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the columns, their types checked."""
        values = {}
        name = ""
        try:
            for name, kind in self._types:
                value = values[name] = sample[name]
                if not isinstance(value, kind):
                    raise EncodingTypeError(  # noqa: TRY301 - told with its column below
                        f"encoding {kind.__name__}: expected a Python {kind.__name__}, "
                        f"got {describe(value)}"
                    )
        except Exception as error:
            raise self._explain(error, name, sample) from error
        return values

    def _bytes(self, text: str) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise EncodingError(
                f"sample {self._samples}: expected text that UTF-8 can hold ({error})"
            ) from error

    def _files(self, body: Data, sizes: Sequence[int]) -> tuple[Sequence[Data], ...]:
        return (self._header, body), (pack_meta(sizes, len(self._header), self._config),)


class JSONWriter(LineWriter):
    """Writes samples as lines of JSON.

    `columns` names the columns and their types (`str`, `int`, `float`), `newline` is what ends a
    line; for the other arguments see `Writer`.
    """

    format = "json"

    def __init__(
        self,
        *,
        columns: dict[str, str],
        newline: str = "\n",
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        samples_per_shard: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            columns=columns,
            newline=newline,
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            samples_per_shard=samples_per_shard,
            **kwargs,
        )

    def get_config(self) -> dict[str, Any]:
        """What every meta file and the index tell about the dataset."""
        return {**super().get_config(), "columns": self.columns}

    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        """A line of JSON. Raises EncodingError."""
        return self._bytes(json.dumps(self._values(sample), sort_keys=True) + self.newline)


class XSVWriter(LineWriter):
    """Writes samples as lines of text, values between separators, names in the first line.

    `columns` names the columns and their types (`str`, `int`, `float`), `separator` is what stands
    between values, `newline` what ends a line; for the other arguments see `Writer`. Raises
    SeparatorError (an AssertionError and ValueError) for a name with a separator in it, and
    `write` does for such a value.
    """

    format = "xsv"

    def __init__(
        self,
        *,
        columns: dict[str, str],
        separator: str,
        newline: str = "\n",
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        samples_per_shard: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._ended = "never began"
        if not separator:
            raise ConfigError(f"separator is a str that is not empty, got {separator!r}.")
        if not newline:
            raise ConfigError(f"newline must not be empty for {self.format}: no line could end.")
        self.separator = separator
        # Checked before anything is made on disk.
        self._samples, self.newline = 0, newline
        header = self._join(sorted_names(columns), "the names of the columns")
        super().__init__(
            columns=columns,
            newline=newline,
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            samples_per_shard=samples_per_shard,
            **kwargs,
        )
        self._header = header

    def get_config(self) -> dict[str, Any]:
        """What every meta file and the index tell about the dataset."""
        return {
            **super().get_config(),
            "column_names": list(self.columns),
            "column_encodings": list(self.columns.values()),
            "separator": self.separator,
        }

    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        """A line. Raises EncodingError; SeparatorError for text that cannot be told apart."""
        texts = [str(value) for value in self._values(sample).values()]
        return self._join(texts, f"sample {self._samples}")

    def _join(self, texts: list[str], what: str) -> bytes:
        line = self.separator.join(texts)
        # Splitting again finds separators inside values, and those that two neighbours make.
        if self.newline in line or line.split(self.separator) != texts:
            raise SeparatorError(
                f"{what}: expected text without the separator {self.separator!r} and the newline "
                f"{self.newline!r}, got {describe(line)}. {self.format} has no quoting; "
                "use JSONWriter or MDSWriter."
            )
        return self._bytes(line + self.newline)


class _FixedSeparatorWriter(XSVWriter):
    """Base of csv and tsv, whose separator is a matter of the format and not stored."""

    _separator: str

    def __init__(
        self,
        *,
        columns: dict[str, str],
        newline: str = "\n",
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        samples_per_shard: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            columns=columns,
            separator=self._separator,
            newline=newline,
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            samples_per_shard=samples_per_shard,
            **kwargs,
        )

    def get_config(self) -> dict[str, Any]:
        """What every meta file and the index tell about the dataset."""
        config = super().get_config()
        del config["separator"]
        return config


class CSVWriter(_FixedSeparatorWriter):
    """Writes samples as lines with commas; see `XSVWriter`."""

    format = "csv"
    _separator = ","


class TSVWriter(_FixedSeparatorWriter):
    """Writes samples as lines with tabs; see `XSVWriter`."""

    format = "tsv"
    _separator = "\t"
