"""The incumbent's writers of each format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mds.compat.encodings import packer_of
from mds.compat.writers import JointWriter, SplitWriter
from mds.writers import mds as native
from mds.writers import text as native_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from mds.encodings import Encoding
    from mds.shardfile.layout import Columns

    Out = str | tuple[str, str]


class ColumnDict(dict[str, str]):
    """The columns of a writer by name, in the order of their bytes, with what a format needs."""

    def __init__(self, columns: Columns) -> None:
        super().__init__(zip(columns.names, columns.encodings, strict=True))
        self.names, self.encodings, self.sizes = columns


class MDSWriter(JointWriter, native.MDSWriter):
    """As `mds.MDSWriter`."""

    __doc__ = native.MDSWriter.__doc__
    format = "mds"

    def __init__(
        self,
        *,
        columns: dict[str, str],
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        native.MDSWriter.__init__(
            self,
            columns=columns,
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )
        self.columns = ColumnDict(self.columns)  # type: ignore[assignment]
        self.column_names = list(self.columns.names)
        self.column_encodings = list(self.columns.encodings)
        self.column_sizes = list(self.columns.sizes)
        self.config_data = self._config

    def _packer(self, encoding: Encoding) -> Callable[[Any], bytes]:
        return packer_of(encoding)

    def encode_joint_shard(self) -> bytes:
        """The file of the samples that are in memory."""
        samples = self.new_samples
        (parts,) = native.MDSWriter._files(self, b"".join(samples), [*map(len, samples)])  # noqa: SLF001
        return b"".join(parts)


class _LinesWriter(SplitWriter):
    """Lines of text."""

    def encode_split_shard(self) -> tuple[bytes, bytes]:
        """The data and the meta file of the samples that are in memory."""
        samples = self.new_samples
        data, meta = super()._files(b"".join(samples), [*map(len, samples)])
        return b"".join(data), b"".join(meta)


class JSONWriter(_LinesWriter, native_text.JSONWriter):
    """As `mds.JSONWriter`."""

    __doc__ = native_text.JSONWriter.__doc__
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
        **kwargs: Any,
    ) -> None:
        native_text.JSONWriter.__init__(
            self,
            columns=columns,
            newline=newline,
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )


class XSVWriter(_LinesWriter, native_text.XSVWriter):
    """As `mds.XSVWriter`."""

    __doc__ = native_text.XSVWriter.__doc__
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
        **kwargs: Any,
    ) -> None:
        native_text.XSVWriter.__init__(
            self,
            columns=columns,
            separator=separator,
            newline=newline,
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.columns)

    @property
    def column_encodings(self) -> list[str]:
        """What the columns hold."""
        return list(self.columns.values())


class _SeparatedWriter(XSVWriter):
    """XSV whose separator is the format's."""

    separator: str

    def __init__(
        self,
        *,
        columns: dict[str, str],
        newline: str = "\n",
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            columns=columns,
            separator=type(self).separator,
            newline=newline,
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )


class CSVWriter(_SeparatedWriter, native_text.CSVWriter):
    """As `mds.CSVWriter`."""

    __doc__ = native_text.CSVWriter.__doc__
    format = "csv"
    separator = ","


class TSVWriter(_SeparatedWriter, native_text.TSVWriter):
    """As `mds.TSVWriter`."""

    __doc__ = native_text.TSVWriter.__doc__
    format = "tsv"
    separator = "\t"
