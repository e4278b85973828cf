r"""The table of a dataset in a format: its files when they were planned, and their shards.

The table is made once, from a listing and a plan of each file, and is kept beside the cache. It
holds everything that planning and reading need: a start that finds it only lists the files, and a
forked or spawned worker asks the store for nothing. It consists of columns of numbers and packed
names, with no Python object per shard. A table from a disk or a store is checked like an
index.json.

    b"mds table 1\n"
    8 bytes     xxh3_64 of everything that follows
    one line    JSON: header, schemas, number of files, of shards, and bytes of the three texts
    columns     of files: sizes i64, schema_of i32, note_ends i64
                of shards: file i32, samples i64, decoded i64, begin i64, end i64
    texts       keys, joined by NUL | versions, joined by NUL | notes, one after the other
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mds._shardfile.layout import Columns
from mds.encodings import parse_encoding
from mds.errors import FormatError, MdsError
from mds.formats._facts import DataFile, FilePlan, ShardPlace
from mds.storage._base import check_key

_MAGIC = b"mds table 1\n"
_CHECK = 8  # bytes of the digest
#: Entry of the header that differs if other files have the same names, sizes and versions.
REVISION = "revision"
#: Largest number in a table, so that sums stay inside int64.
_LARGEST = 1 << 48
_KEPT_NOTES = 64
#: Errors of parsing damaged bytes.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
_SHOWN_NAMES = 5
#: A version that is a digest of the content.
_CONTENT_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

_FILE_COLUMNS = {"sizes": "<i8", "schema_of": "<i4", "note_ends": "<i8"}
_NUMBERS = ("samples", "decoded", "begin", "end")
_SHARD_COLUMNS = {"file": "<i4", **dict.fromkeys(_NUMBERS, "<i8")}


def first_names(names: Sequence[str]) -> str:
    """Return the first few names as one text, and the number of the others."""
    suffix = f" and {len(names) - _SHOWN_NAMES:,} more" if len(names) > _SHOWN_NAMES else ""
    return ", ".join(names[:_SHOWN_NAMES]) + suffix


class FileTable:
    """Files and shards of a dataset, as columns.

    One entry a shard: ``samples``, ``decoded`` (approximate bytes as MDS), ``file`` (number of its
    file), ``begin`` and ``end`` (its span, see `FilePlan`). One entry a file: ``keys``,
    ``versions``, ``sizes`` (bytes), ``schema_of`` (position in ``schemas``) and ``note_ends``.

    The constructor takes the ``header`` (values of JSON; "schemas" are the distinct encodings by
    column), the ``columns`` of numbers by name, the ``keys`` and ``versions`` of the files, and
    their ``notes``, one after the other; the note of a file ends at its entry of ``note_ends``.
    """

    samples: npt.NDArray[np.int64]
    decoded: npt.NDArray[np.int64]
    file: npt.NDArray[np.int32]
    begin: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    schema_of: npt.NDArray[np.int32]
    note_ends: npt.NDArray[np.int64]

    def __init__(
        self,
        header: Mapping[str, Any],
        columns: Mapping[str, npt.NDArray[Any]],
        keys: Sequence[str],
        versions: Sequence[str],
        notes: bytes | memoryview,
    ) -> None:
        self.header = dict(header)
        self.schemas: list[dict[str, str]] = list(header["schemas"])
        for name in (*_FILE_COLUMNS, *_SHARD_COLUMNS):
            column = columns[name]
            column.flags.writeable = False
            setattr(self, name, column)
        self.keys, self.versions = list(keys), list(versions)
        self._notes = memoryview(notes)
        self._notes_read: dict[int, bytes] = {}

    @classmethod
    def build(
        cls, header: Mapping[str, Any], files: Sequence[DataFile], plans: Sequence[FilePlan]
    ) -> FileTable:
        """Build the table of files from their plans.

        ``header`` holds values of JSON that describe the dataset, such as its format and root.
        """
        schemas: dict[str, int] = {}  # number of each distinct set of columns, by its JSON
        schema_of = [
            schemas.setdefault(json.dumps(plan.columns, sort_keys=True), len(schemas))
            for plan in plans
        ]
        rows: list[tuple[int, int, int, int, int]] = []
        for number, plan in enumerate(plans):
            spans = plan.spans or [(shard, shard) for shard in range(len(plan.samples))]
            shards = zip(plan.samples, plan.sizes, spans, strict=True)
            rows += [(number, samples, size, *span) for samples, size, span in shards if samples]
        table = np.array(rows, np.int64).reshape(-1, 5)
        names = ("file", "samples", "decoded", "begin", "end")
        columns: dict[str, npt.NDArray[Any]] = {
            name: np.ascontiguousarray(table[:, position]).astype(_SHARD_COLUMNS[name])
            for position, name in enumerate(names)
        }
        columns["sizes"] = np.array([file.size for file in files], "<i8")
        columns["schema_of"] = np.array(schema_of, "<i4")
        columns["note_ends"] = np.cumsum([len(p.note) for p in plans], dtype="<i8")
        full_header = {**header, "schemas": [json.loads(each) for each in schemas]}
        keys, versions = [file.key for file in files], [file.version for file in files]
        return cls(full_header, columns, keys, versions, b"".join(plan.note for plan in plans))

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def files(self) -> list[DataFile]:
        """The files, in the order of their samples."""
        return [*map(DataFile, self.keys, self.sizes.tolist(), self.versions)]

    def file_of(self, number: int) -> DataFile:
        """Return one file, by its number."""
        return DataFile(self.keys[number], int(self.sizes[number]), self.versions[number])

    def note_of(self, number: int) -> bytes:
        """Return the note in the plan of a file, by the file's number.

        Some notes stay in memory as bytes: that of a tar with a million files has megabytes, and
        each read needs it.
        """
        note = self._notes_read.get(number)
        if note is None:
            start = int(self.note_ends[number - 1]) if number else 0
            note = bytes(self._notes[start : int(self.note_ends[number])])
            if len(self._notes_read) >= _KEPT_NOTES:
                self._notes_read.clear()
            self._notes_read[number] = note
        return note

    def place(
        self,
        number: int,
        columns: Columns,
        *,
        has_chosen: bool = False,
        mixed: frozenset[str] = frozenset(),
    ) -> ShardPlace:
        """Return shard ``number`` with the wanted columns; for the others see `ShardPlace`."""
        file = int(self.file[number])
        return ShardPlace(
            self.file_of(file),
            (int(self.begin[number]), int(self.end[number])),
            int(self.samples[number]),
            self.note_of(file),
            columns,
            has_chosen,
            mixed=mixed,
        )

    def plans(self) -> dict[DataFile, FilePlan]:
        """Return the plan of each file, so that unchanged files need not be planned again."""
        # First shard of each file, and the number of shards at the end: `file` is sorted.
        bounds = np.searchsorted(self.file, np.arange(len(self.keys) + 1)).tolist()
        out = {}
        for number, file in enumerate(self.files):
            shards = slice(bounds[number], bounds[number + 1])
            begins, ends = self.begin[shards].tolist(), self.end[shards].tolist()
            out[file] = FilePlan(
                columns=self.schemas[self.schema_of[number]],
                samples=self.samples[shards].tolist(),
                sizes=self.decoded[shards].tolist(),
                spans=list(zip(begins, ends, strict=True)),
                note=self.note_of(number),
            )
        return out

    def found_columns(self) -> list[tuple[str, Mapping[str, str]]]:
        """Return the distinct sets of columns, each with the key of the first file that has it.

        Files without samples do not count, unless no file has samples.
        """
        # `file` is sorted: the first shard of each file (np.unique imports much more of NumPy).
        is_first = np.diff(self.file, prepend=-1) > 0
        files = self.file[is_first] if len(self) else np.arange(len(self.keys))
        schemas = self.schema_of[files]
        firsts = sorted(
            int(files[np.argmax(schemas == schema)])
            for schema in range(len(self.schemas))
            if (schemas == schema).any()
        )
        return [(self.keys[first], self.schemas[self.schema_of[first]]) for first in firsts]

    def digest(self) -> str:
        """Return the digest of the dataset's files, versions, shards and columns."""
        import xxhash

        hasher = xxhash.xxh3_128()
        # Without the history of this cache folder, which differs between machines, and without
        # the files that are not read.
        others = ("changes", "left_out", "followed", REVISION)
        header = {name: value for name, value in self.header.items() if name not in others}
        for data in self._parts(header):
            hasher.update(data)
        return hasher.hexdigest()

    def list_digest(self) -> str:
        """Return the digest of the names and sizes of the files, for a state.

        The folder that all files are in is left out, so that a moved copy has the same digest.
        Versions count only where they are digests of contents, as those of the Hub.
        """
        import xxhash

        # Cut after a slash: half a name is no folder.
        folder = os.path.commonprefix(self.keys).rfind("/") + 1  # noqa: RUF071
        hasher = xxhash.xxh3_64("\0".join(key[folder:] for key in self.keys).encode())
        hasher.update(self.sizes.tobytes())
        if all(map(_CONTENT_DIGEST.fullmatch, self.versions)):
            hasher.update("\0".join(self.versions).encode())
        return hasher.hexdigest()

    def record_changes(self, older: FileTable) -> dict[str, list[str]]:
        """Record which files differ from those of an older table, and return their names.

        The names are sorted, under "new", "gone" and "replaced"; kinds without files are left out.
        Without such files, the change that was recorded last stays.
        """
        old, new = ({file.key: file for file in table.files} for table in (older, self))
        names = {
            "new": sorted(new.keys() - old.keys()),
            "gone": sorted(old.keys() - new.keys()),
            "replaced": sorted(key for key in new.keys() & old.keys() if new[key] != old[key]),
        }
        names = {kind: keys for kind, keys in names.items() if keys}
        described = "; ".join(f"{kind}: {first_names(keys)}" for kind, keys in names.items())
        if names:
            self.header["changes"] = [older.list_digest(), described]
        elif "changes" in older.header:
            self.header["changes"] = older.header["changes"]
        return names

    @property
    def left_out(self) -> dict[str, tuple[int, str]]:
        """Number and first key of the files and links that are not read, by reason."""
        return self._counts("left_out")

    @property
    def followed(self) -> dict[str, tuple[int, str]]:
        """Number and first key of the links that were followed, by kind."""
        return self._counts("followed")

    def _counts(self, name: str) -> dict[str, tuple[int, str]]:
        """Return numbers and keys of the header, by reason."""
        counts = self.header.get(name, {})
        return {reason: (count, example) for reason, (count, example) in counts.items()}

    @property
    def last_changes(self) -> tuple[str, str]:
        """The list digest of the files before their last change, and a description of the change.

        Both are '' if the files never changed since this cache folder was made.
        """
        match self.header.get("changes"):
            case [str(list_digest), str(described)]:
                return list_digest, described
        return "", ""

    # ------------------------------------------------------------------ as bytes

    def _parts(self, facts: Mapping[str, Any]) -> Iterable[bytes | memoryview]:
        """Yield the parts of the table's file after its digest; see the module's docstring.

        ``facts`` are the values of the JSON line, besides the counts.
        """
        texts = ["\0".join(self.keys).encode(), "\0".join(self.versions).encode()]
        header = {
            **facts,
            "files": len(self.keys),
            "shards": len(self),
            "parts": [len(texts[0]), len(texts[1]), len(self._notes)],
        }
        yield json.dumps(header, sort_keys=True).encode() + b"\n"
        for name in (*_FILE_COLUMNS, *_SHARD_COLUMNS):
            array: npt.NDArray[Any] = getattr(self, name)
            yield array.tobytes()
        yield from texts
        yield self._notes

    def to_bytes(self) -> bytes:
        """Return the bytes of the table's file."""
        import xxhash

        body = b"".join(self._parts(self.header))
        return _MAGIC + xxhash.xxh3_64_digest(body) + body

    @classmethod
    def parse(cls, data: bytes | memoryview, location: str) -> FileTable:
        """Parse the bytes of a table's file, called ``location`` in errors.

        Raises FormatError for bytes that are no table, damaged or inconsistent.
        """
        import xxhash

        view = memoryview(data)
        start = len(_MAGIC) + _CHECK
        if bytes(view[: len(_MAGIC)]) != _MAGIC or len(view) < start:
            raise FormatError(f"{location}: this is not a table of files, or has another version.")
        if xxhash.xxh3_64_digest(view[start:]) != bytes(view[len(_MAGIC) : start]):
            raise FormatError(f"{location}: the table of files is damaged; delete it.")
        try:
            return cls._parse(view[start:])
        except (*_DAMAGE, MdsError) as error:
            raise FormatError(f"{location}: this is not a table of files: {error}") from error

    @classmethod
    def _parse(cls, body: memoryview) -> FileTable:
        """Parse the bytes after the digest. Raises errors of many classes for damage."""
        end = bytes(body[: 16 << 20]).index(b"\n")
        header = json.loads(bytes(body[:end]))
        files, shards = int(header.pop("files")), int(header.pop("shards"))
        lengths = [int(each) for each in header.pop("parts")]
        if min(files, shards, *lengths) < 0 or len(lengths) != 3:
            raise ValueError("a count is negative")
        offset, columns = end + 1, {}
        for kinds, count in ((_FILE_COLUMNS, files), (_SHARD_COLUMNS, shards)):
            for name, dtype in kinds.items():
                columns[name] = np.frombuffer(body, dtype, count, offset)
                offset += columns[name].nbytes
        parts = []
        for length in lengths:
            parts.append(body[offset : offset + length])
            offset += length
        if offset != len(body):
            raise ValueError("it does not have its declared length")
        keys, versions = (bytes(part).decode().split("\0") for part in parts[:2])
        if not files:
            keys = versions = []
        table = cls(header, columns, keys, versions, parts[2])
        table._check(files, lengths[2])
        return table

    def _check(self, files: int, note_bytes: int) -> None:
        """Raise ValueError for a name or a number that no table can have.

        ``files`` is the number of files, ``note_bytes`` the bytes of all notes.
        """
        if len(self.keys) != files or len(self.versions) != files:
            raise ValueError("the numbers of files and names differ")
        for key in self.keys:
            check_key(key)
        for count, example in (*self.left_out.values(), *self.followed.values()):
            if type(count) is not int or not isinstance(example, str):
                raise ValueError("the files that are left out are no numbers and names")
        for columns in self.schemas:
            for encoding in columns.values():
                parse_encoding(encoding)
        bounds = {
            "file": files - 1,
            "schema_of": len(self.schemas) - 1,
            **dict.fromkeys(("samples", "decoded", "sizes", "begin", "end"), _LARGEST),
        }
        for name, maximum in bounds.items():
            column = getattr(self, name)
            if column.size and (int(column.min()) < 0 or int(column.max()) > maximum):
                raise ValueError(f"{name} is out of bounds")
        if np.any(self.begin > self.end):
            raise ValueError("a shard ends before it begins")
        ends = self.note_ends
        if ends.size and (int(np.diff(ends, prepend=0).min()) < 0 or int(ends[-1]) != note_bytes):
            raise ValueError("notes overlap")
        if np.any(np.diff(self.file) < 0):
            raise ValueError("shards are not in the order of their files")

    def __reduce__(self) -> tuple[Any, ...]:
        return FileTable.parse, (self.to_bytes(), "a table of files")
