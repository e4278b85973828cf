"""The incumbent's readers of each format, and ``reader_from_json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mds.compat.overrides import SealedDict, find_remedy
from mds.compat.readers import Answered, FileInfo, JointReader, Reader, SplitReader
from mds.errors import IndexFileError

if TYPE_CHECKING:
    from typing_extensions import Self

_FILES = ("raw_data", "raw_meta", "zip_data", "zip_meta")


class VersionError(IndexFileError, AssertionError):
    """A shard of a version that there is not."""


class FormatNameError(IndexFileError, KeyError):
    """A shard of a format that there is not, or that does not say."""


def _file(info: FileInfo | None) -> dict[str, Any] | None:
    return None if info is None else vars(info)


class _FromIndex:
    """What an entry of an index's ``shards`` says."""

    format: str

    @classmethod
    def from_json(cls, dirname: str, split: str | None, obj: dict[str, Any]) -> Self:
        """The reader of one entry of an index's ``shards``."""
        for key in ("version", "format"):
            if key not in obj:
                raise FormatNameError(f"the shard has no {key!r}.")
        if obj["version"] != 2:
            raise VersionError(
                f"the shard has version {obj['version']!r}; only version 2 is known."
            )
        if obj["format"] != cls.format:
            raise VersionError(f"the shard is {obj['format']!r}, not {cls.format!r}.")
        given = {key: value for key, value in obj.items() if key not in ("version", "format")}
        for key in _FILES:
            if given.get(key) is not None:
                given[key] = FileInfo(**given[key])
        kind: Any = cls  # whose arguments are those of the format
        made: Self = kind(dirname=dirname, split=split, **given)
        return made


class MDSReader(_FromIndex, JointReader):
    """A shard in the binary row format."""

    format = "mds"

    def __init__(
        self,
        dirname: str,
        split: str | None,
        column_encodings: list[str],
        column_names: list[str],
        column_sizes: list[int | None],
        compression: str | None,
        hashes: list[str],
        raw_data: FileInfo,
        samples: int,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
    ) -> None:
        super().__init__(
            dirname, split, compression, hashes, raw_data, samples, size_limit, zip_data
        )
        self.column_encodings, self.column_names = column_encodings, column_names
        self.column_sizes = column_sizes

    def _entry(self) -> dict[str, Any]:
        return {
            "column_encodings": self.column_encodings,
            "column_names": self.column_names,
            "column_sizes": self.column_sizes,
            "raw_data": _file(self.raw_data),
            "zip_data": _file(self.zip_data),
        }


class _LinesReader(_FromIndex, SplitReader):
    newline: str

    def _entry(self) -> dict[str, Any]:
        files = {name: _file(getattr(self, name)) for name in _FILES}
        return {**files, "newline": self.newline}


class JSONReader(_LinesReader):
    """A shard of JSON lines."""

    format = "json"

    def __init__(
        self,
        dirname: str,
        split: str | None,
        columns: dict[str, str],
        compression: str | None,
        hashes: list[str],
        newline: str,
        raw_data: FileInfo,
        raw_meta: FileInfo,
        samples: int,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
        zip_meta: FileInfo | None,
    ) -> None:
        super().__init__(
            dirname,
            split,
            compression,
            hashes,
            raw_data,
            raw_meta,
            samples,
            size_limit,
            zip_data,
            zip_meta,
        )
        self.columns, self.newline = columns, newline

    def _entry(self) -> dict[str, Any]:
        return {**super()._entry(), "columns": self.columns}


class XSVReader(_LinesReader):
    """A shard of lines with a separator."""

    format = "xsv"

    def __init__(
        self,
        dirname: str,
        split: str | None,
        column_encodings: list[str],
        column_names: list[str],
        compression: str | None,
        hashes: list[str],
        newline: str,
        raw_data: FileInfo,
        raw_meta: FileInfo,
        samples: int,
        separator: str,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
        zip_meta: FileInfo | None,
    ) -> None:
        super().__init__(
            dirname,
            split,
            compression,
            hashes,
            raw_data,
            raw_meta,
            samples,
            size_limit,
            zip_data,
            zip_meta,
        )
        self.column_encodings, self.column_names = column_encodings, column_names
        self.newline, self.separator = newline, separator

    def _entry(self) -> dict[str, Any]:
        columns = {
            "column_encodings": self.column_encodings,
            "column_names": self.column_names,
        }
        separator = {"separator": self.separator} if self.format == "xsv" else {}
        return {**super()._entry(), **columns, **separator}


class _SeparatedReader(XSVReader):
    """XSV whose separator is the format's."""

    separator: str

    def __init__(
        self,
        dirname: str,
        split: str | None,
        column_encodings: list[str],
        column_names: list[str],
        compression: str | None,
        hashes: list[str],
        newline: str,
        raw_data: FileInfo,
        raw_meta: FileInfo,
        samples: int,
        size_limit: int | None,
        zip_data: FileInfo | None,
        zip_meta: FileInfo | None,
    ) -> None:
        super().__init__(
            dirname,
            split,
            column_encodings,
            column_names,
            compression,
            hashes,
            newline,
            raw_data,
            raw_meta,
            samples,
            type(self).separator,
            size_limit,
            zip_data,
            zip_meta,
        )


class CSVReader(_SeparatedReader):
    """A shard of lines with commas."""

    format = "csv"
    separator = ","


class TSVReader(_SeparatedReader):
    """A shard of lines with tabs."""

    format = "tsv"
    separator = "\t"


_readers: dict[str, type[Any]] = SealedDict(
    "streaming.base.format._readers",
    {kind.format: kind for kind in (CSVReader, JSONReader, MDSReader, TSVReader, XSVReader)},
    find_remedy("_readers"),
)


def reader_from_json(dirname: str, split: str | None, obj: dict[str, Any]) -> Reader:
    """The reader of one entry of an index's ``shards``. Raises IndexFileError (a ValueError)."""
    if obj.get("format") not in _readers:
        known = ", ".join(_readers)
        raise FormatNameError(f"{obj.get('format')!r} is not a shard format. There are {known}.")
    made: Reader = _readers[obj["format"]].from_json(dirname, split, obj)
    if isinstance(made, Answered):
        made.facts  # noqa: B018 - what makes no sense is told now
    return made


def get_index_basename() -> str:
    """What an index is called."""
    return "index.json"
