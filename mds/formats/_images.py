"""Folders of pictures, one sample each: consecutive files make a shard.

    photos/cat/1.jpg     class   image                    label
           cat/2.jpg     cat     <bytes of the file>      0
           dog/1.jpg     dog     <bytes of the file>      1

Labels count the classes in alphabetical order, as `mds.convert` does. Pictures without folders have
the columns ``image`` and ``path``. Files on a local disk are read in place. Behind a network the
files of a shard are fetched side by side and kept as one MDS file.

A shard is named by its first picture, and has the bytes of all of its pictures. Its note lists them
(`pack_rows`): path, size and version of each, with its class and label.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from mds.errors import ConfigError, FormatError, NotFoundError
from mds.formats._encode import sample_encoder
from mds.formats._facts import DataFile, FilePlan, FoundFiles, ShardPlace
from mds.formats._made_reader import MadeReader
from mds.formats._raw_files import OneFileEach, Rows, pack_rows, unpack_rows
from mds.formats._source import check_version
from mds.storage._base import check_key
from mds.storage._files import open_regular

if TYPE_CHECKING:
    from mds._readers.base import Reader
    from mds._readers.fields import ColumnSelection
    from mds.formats._source import FilePlace, Files

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
#: Folders that are splits, and no classes.
_SPLITS = re.compile(
    r"(?i)(train|training|val|valid|validation|dev|test|testing|eval)((19|20)\d\d)?"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFiles(OneFileEach):
    """Pictures below a folder, one sample each, in the order of their paths.

    Pictures in a folder per class have the columns ``class``, ``image`` and ``label``, else
    ``image`` and ``path``. Images are ``jpeg`` or ``png`` if all files are one of these, else the
    bytes of the files.

    - ``samples_per_shard`` (int, default 256): Number of consecutive files in a shard. Another
      number changes the order of an epoch.
    - ``columns`` (Sequence[str] | None, default None): The only columns to decode; without
      ``image`` no file is read.

    Raises ConfigError for a number of samples below one.

    >>> StreamingDataset(local="photos", format="images", batch_size=32)  # doctest: +SKIP
    """

    name: ClassVar[str] = "images"
    endings: ClassVar[tuple[str, ...]] = tuple(PICTURES)

    samples_per_shard: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples_per_shard < 1:
            raise ConfigError(f"samples_per_shard={self.samples_per_shard} must be at least 1.")

    def find(self, place: FilePlace, source: Files) -> FoundFiles:
        """List the pictures, and return the first one of each shard, with the rows as its facts."""
        pictures = self.choose(source.find(place), source)
        classes = _number_classes(pictures, source)
        kinds = Counter(PICTURES[_ending(file.key)] for file in pictures)
        encoding = choose_encoding(kinds)
        shards, facts = [], {}
        step = self.samples_per_shard
        for number in range(0, len(pictures), step):
            files = pictures[number : number + step]
            rows = [_row(file, classes) for file in files]
            first = files[0]
            # The size of all of its pictures, so that states and costs count every file.
            shards.append(DataFile(first.key, sum(file.size for file in files), first.version))
            facts[first.key] = json.dumps({"encoding": encoding, "rows": rows}).encode()
        return FoundFiles(shards, facts=facts, schema=_digest(facts))

    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Return one shard, of the pictures that `find` put together. No picture is read."""
        facts = json.loads(files.facts[file.key])
        rows: Rows = facts["rows"]
        columns = {"image": facts["encoding"]}
        columns |= {"class": "str", "label": "int"} if "class" in rows[0] else {"path": "str"}
        return FilePlan(
            columns, samples=[len(rows)], sizes=[file.size], note=pack_rows(rows, files.url(file))
        )

    def shard_of(self, shard: ShardPlace) -> str:
        """Describe a shard by its number of pictures and its first one."""
        return f"{shard.samples:,} pictures from {shard.file.key!r}"

    def reader(self, shard: ShardPlace, path: str, columns: ColumnSelection) -> Reader:
        """Return a reader that opens a file for each sample.

        ``path`` is the local path of the first picture, from which the dataset's folder follows.
        """
        root = path[: -len(shard.file.key)]
        rows, encode = self._rows(shard), sample_encoder(shard.columns)
        reads_files = "image" in shard.columns.names

        def mds_bytes(row: int) -> bytes:
            """Return the bytes of a sample as in an MDS shard; read its file if that is wanted."""
            record = rows[row]
            place = os.path.join(root, record["path"])
            if reads_files:
                record = {**record, "image": _read_picture(place, record["version"])}
            return encode(record, lambda: place)

        return MadeReader(shard.columns, shard.samples, path, mds_bytes, columns)

    def _rows(self, shard: ShardPlace) -> Rows:
        """Return the rows of a shard: path, size, version, and perhaps class and label.

        They are checked, since the table may be from anywhere.
        """
        rows = unpack_rows(shard.note, shard.file.key)
        paths = [row.get("path") for row in rows]
        if len(rows) != shard.samples or not all(isinstance(path, str) for path in paths):
            raise FormatError(
                f"the table of files has other pictures for {shard.file.key}. Delete the table, or "
                "run mds index again."
            )
        for path in paths:
            check_key(str(path))  # so that it stays below the dataset's folder
        return rows

    def _describe_row(
        self, number: int, row: Mapping[str, Any], location: str, files: Files
    ) -> str:
        """Name the file of the picture."""
        del number, location
        return files.url(row["path"])

    @property
    def _content_column(self) -> str:
        return "image"

    def _fetched(self, rows: Rows, shard: ShardPlace, files: Files) -> Iterator[Mapping[str, Any]]:
        """Yield rows with the bytes of their pictures, fetched side by side."""
        if "image" not in shard.columns.names:
            yield from rows
            return

        def fetch(row: Mapping[str, Any]) -> Mapping[str, Any]:
            """Return a row with its picture as a further column."""
            size = row["size"]
            file = DataFile(row["path"], size, row["version"])
            # A range avoids the costly way in which SDKs fetch whole objects.
            data = files.range(file, 0, size) if size > 0 else files.get(file)
            return {**row, "image": _checked(data, files.url(file))}

        yield from files.map(fetch, rows)


def choose_encoding(kinds: Mapping[str, int]) -> str:
    """Return the encoding of pictures that are stored as they are: "jpeg", "png" or "bytes".

    ``kinds`` (Mapping[str, int]) has the number of pictures of each kind in `PICTURES`.
    """
    if {*kinds} <= {"jpeg", "png"}:
        return max(kinds, key=lambda kind: kinds[kind], default="jpeg")
    return "bytes"


def _number_classes(pictures: Sequence[DataFile], source: Files) -> dict[str, int]:
    """Return the label of each class; empty if a picture has no folder.

    Raises FormatError if the folders are splits, which have classes of their own.
    """
    folders = {file.key.split("/")[0] if "/" in file.key else "" for file in pictures}
    if "" in folders:
        return {}
    splits = sorted(filter(_SPLITS.fullmatch, folders))
    if splits and len(splits) == len(folders):
        raise FormatError(
            f"{source.url('')}: the folders are splits ({', '.join(splits)}), not classes. Read "
            f"one of them with split={splits[-1]!r}."
        )
    return {name: label for label, name in enumerate(sorted(folders))}


def _row(file: DataFile, classes: Mapping[str, int]) -> dict[str, Any]:
    """Return the row of a picture, with its class if there are classes."""
    row: dict[str, Any] = {"path": file.key, "size": file.size, "version": file.version}
    if classes:
        class_name = file.key.split("/")[0]
        row |= {"class": class_name, "label": classes[class_name]}
    return row


def _digest(facts: Mapping[str, bytes]) -> str:
    """Return a digest of all pictures with their sizes and versions."""
    import xxhash

    return xxhash.xxh3_64_hexdigest(b"\0".join(facts.values()))


def _read_picture(place: str, version: str) -> bytes:
    """Return the bytes of a local picture, which must have the version that it was listed with."""
    try:
        with open_regular(place) as file:
            state = os.fstat(file.fileno())
            data = file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(
            f"open {place}: {error.strerror}, but it existed at the start. Restart to read the "
            "pictures that exist now.",
            url=place,
            verb="open",
        ) from error
    except OSError as error:
        raise FormatError(f"{place} cannot be read: {error.strerror}.") from error
    check_version(place, state, version)
    return _checked(data, place)


def _checked(data: bytes, location: str) -> bytes:
    """Return the bytes of a picture. Raises FormatError if they do not begin like one."""
    if data.startswith(PICTURE_STARTS):
        return data
    reason = f"it starts with {data[:8]!r}" if data else "it is empty"
    raise FormatError(
        f"{location}: this is not a picture: {reason}. Remove it, or leave such samples out with "
        "on_error='skip'."
    )


def _ending(key: str) -> str:
    return os.path.splitext(key.lower())[1]
