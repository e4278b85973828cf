"""The text of index.json to columns, one shard object at a time.

Nearly every index repeats one object whose numbers, names and digests change. So the first object
of a kind is taken apart with care, and from its own text a regular expression is made that accepts
exactly such objects and gives what differs; the next ones cost about 2 us each and leave no Python
objects behind. An object that does not match (another schema, a strange name, a number that is not
one) goes the careful way, so the expression decides about speed and never about truth.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mds.errors import IndexFileError
from mds.index.shard_object import KINDS, LARGEST, VERSION, ShardSchema, parse_shard
from mds.storage.relative_name import INDEX_NAME, MAX_PLAIN_BYTES, PLAIN_NAME, RelativeName, shown

# An object larger than this describes some 40,000 columns; it bounds the memory of a hostile one.
LARGEST_OBJECT_BYTES = 4 << 20
_WINDOW = 16 << 10
_BLOCK = 4096
_MAX_TEMPLATES = 16
_SPACE = re.compile(rb"[ \t\n\r]*")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_LAST_VERSION = re.compile(rb'"version"\s*:\s*(-?\d{1,9})\s*\}\s*$')
_NUMBER = rb"(0|[1-9][0-9]{0,9})"
# Names that need no further look, and no escapes.
_NAME = b'"(%s)"' % PLAIN_NAME.encode()
_INDEX_NAME = INDEX_NAME.encode()


#: Columns of the table of shards, with the dtype of each.
COLUMN_DTYPES = {
    "samples": "<i8",
    "raw_size": "<i8",
    "raw_meta_size": "<i8",
    "zip_size": "<i8",
    "zip_meta_size": "<i8",
    "schema_of": "<i4",
    "name_ends": "<i8",
    "names": "|u1",
    "digests": "|u1",
}


class _RepeatedKeyError(Exception):
    """An object that says a thing twice; readers would differ in which of them they believe."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise _RepeatedKeyError(", ".join(sorted({key for key, _ in pairs})))
    return mapping


_DECODE = json.JSONDecoder(object_pairs_hook=_unique).raw_decode


class Template(NamedTuple):
    """The expression for one schema, and which of its groups hold what."""

    match: Any
    samples: int
    sizes: tuple[int, ...]
    names: tuple[int, ...]
    digests: tuple[int, ...]


class NamesSeen:
    """The names of an index so far, and the folders that they need.

    No two files may have one name, and none may lie where another needs a folder: two shards with
    one file would take each other's place in a cache folder, for ever. Names are compared by their
    hash, eight bytes each, which is salted in every process; only names that seem to occur twice
    are compared letter by letter. Case may differ: most file systems tell it apart.
    """

    def __init__(self) -> None:
        self._hashes = array("q")
        self._folders: set[bytes] = set()

    def add(self, names: Iterable[bytes], *, have_folders: bool) -> None:
        """Count names; ``have_folders`` says that some contain a slash."""
        names = list(names)
        self._hashes.extend(map(hash, names))
        if have_folders:
            self._folders.update(name.rpartition(b"/")[0] for name in names)

    def check(self, names: Iterable[list[str]], location: str) -> None:
        """Raise IndexFileError for a name that occurs twice, given the names of all shards."""
        if not self._hashes:
            return
        hashes = np.sort(np.frombuffer(self._hashes, np.int64))
        twice = hashes[1:][hashes[1:] == hashes[:-1]]
        folders = set(_with_parents(self._folders))
        folder_hashes = np.fromiter(map(hash, folders), np.int64, len(folders))
        nearest_hashes = hashes[np.minimum(hashes.searchsorted(folder_hashes), len(hashes) - 1)]
        suspects = {*twice.tolist(), *folder_hashes[nearest_hashes == folder_hashes].tolist()}
        if suspects:
            _compare(names, suspects, folders, location)


def _with_parents(folders: Iterable[bytes]) -> Iterator[bytes]:
    parents: set[bytes] = set()
    for folder in folders:
        while folder and folder not in parents:
            parents.add(folder)
            yield folder
            folder = folder.rpartition(b"/")[0]  # noqa: PLW2901 - upwards


def _compare(
    names: Iterable[list[str]], suspects: set[int], folders: set[bytes], location: str
) -> None:
    first: dict[bytes, int] = {}
    for number, of_shard in enumerate(names):
        for name in of_shard:
            key = name.encode()
            if hash(key) not in suspects:
                continue
            if key in folders:
                raise IndexFileError(
                    f"{location}, shard {number}: {shown(name)} is a file here and the folder of "
                    "another shard. An index like this cannot be laid out on a disk."
                )
            if key in first:
                raise IndexFileError(
                    f"{location}, shard {number}: {shown(name)} is also a file of shard "
                    f"{first[key]}. Two shards cannot share a file."
                )
            first[key] = number


class Builder:
    """Columns that grow. Kinds of files that a shard does not have count 0 bytes."""

    def __init__(self) -> None:
        self.schemas: dict[ShardSchema, int] = {}
        self.schema_of = array("i")
        self.samples = array("q")
        self.sizes = {kind: array("q") for kind in KINDS}
        self.name_sizes = array("I")
        self.names = bytearray()
        self.names_seen = NamesSeen()
        self.digests = bytearray()

    def add(self, raw: object, location: str) -> ShardSchema:
        """Append one parsed JSON object."""
        location = f"{location}, shard {len(self.samples)}"
        schema, row = parse_shard(raw, location)
        _check_sizes(schema, row.samples, row.sizes, location)
        self.schema_of.append(self.schemas.setdefault(schema, len(self.schemas)))
        self.samples.append(row.samples)
        sizes = dict(zip((file.kind for file in schema.stored), row.sizes, strict=True))
        for kind, column in self.sizes.items():
            column.append(sizes.get(kind, 0))
        names = "\0".join(row.names).encode()
        self.names_seen.add(names.split(b"\0"), have_folders=b"/" in names)
        self.name_sizes.append(len(names))
        self.names += names
        self.digests += bytes.fromhex(row.digests)
        return schema

    def extend(
        self, schema: ShardSchema, template: Template, rows: list[tuple[bytes, ...]], location: str
    ) -> None:
        """Append what the expression of a schema has found."""
        first = len(self.samples)
        columns = list(zip(*rows, strict=True))
        samples = [*map(int, columns[template.samples])]
        sizes = [[*map(int, columns[group])] for group in template.sizes]
        for i, row in enumerate(zip(samples, *sizes, strict=True)):
            if not _is_plausible(schema, row[0], row[1:]):
                _check_sizes(schema, row[0], row[1:], f"{location}, shard {first + i}")
        self.schema_of.extend([self.schemas[schema]] * len(rows))
        self.samples.extend(samples)
        sizes_by_kind = dict(zip((file.kind for file in schema.stored), sizes, strict=True))
        for kind, column in self.sizes.items():
            if kind in sizes_by_kind:
                column.extend(sizes_by_kind[kind])
            else:
                column.frombytes(bytes(8 * len(rows)))
        names = [columns[group] for group in template.names]
        joined = list(names[0]) if len(names) == 1 else [*map(b"\0".join, zip(*names, strict=True))]
        packed = b"".join(joined)
        # The one name in plain letters that no shard may have, or a name that may be too long.
        if _INDEX_NAME in packed.lower() or max(map(len, joined)) > MAX_PLAIN_BYTES:
            for i, packed_names in enumerate(joined):
                for name in packed_names.decode().split("\0"):
                    RelativeName(name, f"{location}, shard {first + i}", IndexFileError)
        for of_kind in names:
            self.names_seen.add(of_kind, have_folders=b"/" in packed)
        self.name_sizes.extend(map(len, joined))
        self.names += packed
        if template.digests:
            digests = zip(*(columns[group] for group in template.digests), strict=True)
            self.digests += bytes.fromhex(b"".join(map(b"".join, digests)).decode())


def parse_index(data: bytes, location: str, largest_object: int = LARGEST_OBJECT_BYTES) -> Builder:
    """Parse all shards of an index; raise IndexFileError if it is not an index.

    A value of more than ``largest_object`` bytes is refused: parsed, it would take many times that.
    """
    try:
        return _Parser(data, location, largest_object).run()
    except _RepeatedKeyError as error:
        raise IndexFileError(f"{location}: an object repeats one of its keys {error}.") from error
    except RecursionError:
        # Without the cause: its traceback holds thousands of frames.
        raise IndexFileError(f"{location}: nested too deeply to be an index.") from None


class _Parser:
    """A position in the text of an index, and the columns so far."""

    def __init__(self, data: bytes, location: str, largest_object: int) -> None:
        self.data = data
        self.location = location
        self.largest_object = largest_object
        self.position = 3 if data.startswith(b"\xef\xbb\xbf") else 0
        self.builder = Builder()
        self.templates: list[tuple[ShardSchema, Template]] = []
        self.tried: set[ShardSchema] = set()

    def run(self) -> Builder:
        """Walk the outermost object."""
        if not self.data.strip():
            raise IndexFileError(f"{self.location}: the file is empty.")
        if (last_version := _LAST_VERSION.search(self.data[-256:])) and int(
            last_version[1]
        ) != VERSION:
            self._check_version(int(last_version[1]))
        self._expect(b"{", "an object with 'shards' and 'version'")
        keys: set[str] = set()
        while self._peek() != b"}":
            if keys:
                self._expect(b",", "a comma")
            key, _ = self._value()
            if key not in ("shards", "version") or key in keys:
                # The wids library also names its index of tar files index.json.
                hint = (
                    " Is it of tars? Say format='tar', or /*.tar behind."
                    if b'"shardlist"' in self.data
                    else ""
                )
                raise IndexFileError(
                    f"{self.location}: the key {shown(key)} is unknown or repeated.{hint}"
                )
            keys.add(str(key))
            self._expect(b":", "a colon")
            if key == "shards":
                self._shards()
            else:
                self._check_version(self._value()[0])
        self._expect(b"}", "the end")
        if missing := {"shards", "version"} - keys:
            raise IndexFileError(f"{self.location}: {' and '.join(sorted(missing))} missing.")
        if self._peek():
            raise self._broken("the end of the file")
        return self.builder

    def _check_version(self, version: object) -> None:
        if type(version) is not int or version != VERSION:
            raise IndexFileError(
                f"{self.location}: the index has version {shown(version)}; "
                f"only version {VERSION} is known."
            )

    def _shards(self) -> None:
        self._expect(b"[", "a list of shards")
        if self._peek() == b"]":
            self._expect(b"]", "the end of the list")
            return
        while True:
            while any(self._run(schema, template) for schema, template in self.templates):
                pass
            raw, text = self._value()
            schema = self.builder.add(raw, self.location)
            if schema not in self.tried and len(self.templates) < _MAX_TEMPLATES:
                self.tried.add(schema)
                if (template := make_template(schema, text)) is not None:
                    self.templates.append((schema, template))
            if self._peek() == b"]":
                self._expect(b"]", "the end of the list")
                return
            self._expect(b",", "a comma or the end of the list of shards")
            self._peek()

    def _run(self, schema: ShardSchema, template: Template) -> bool:
        """Take the objects at this position that one expression accepts."""
        match, data, position = template.match, self.data, self.position
        rows: list[tuple[bytes, ...]] = []
        while len(rows) < _BLOCK and (row_match := match(data, position)) is not None:
            rows.append(row_match.groups())
            position = row_match.end()
        if rows:
            self.builder.extend(schema, template, rows, self.location)
        self.position = position
        return bool(rows)

    def _peek(self) -> bytes:
        """Return the next byte that is not a space, b"" at the end."""
        self.position = _SPACE.match(self.data, self.position).end()  # type: ignore[union-attr]
        return self.data[self.position : self.position + 1]

    def _expect(self, byte: bytes, expectation: str) -> None:
        if self._peek() != byte:
            raise self._broken(expectation)
        self.position += 1

    def _value(self) -> tuple[object, str]:
        """Return the JSON value at this position, and its text."""
        self._peek()
        size = _WINDOW
        while True:
            # Wrong bytes become surrogates, and those inside of the value are found below.
            piece = self.data[self.position : self.position + size]
            window = piece.decode("utf-8", "surrogateescape")
            try:
                value, end = _DECODE(window)
            except ValueError as error:
                if len(piece) < size or size >= self.largest_object:
                    raise self._broken("JSON in UTF-8", error) from error
                size *= 4
                continue
            # A number that ends with the window may go on behind it.
            if end < len(window) or len(piece) < size:
                break
            size *= 4
        text = window[:end]
        try:
            self.position += len(text.encode())
        except UnicodeEncodeError as error:
            raise self._broken("UTF-8", error) from error
        return value, text

    def _broken(self, expectation: str, error: Exception | None = None) -> IndexFileError:
        next_bytes = self.data[self.position : self.position + 40]
        actual = repr(next_bytes)[1:] if next_bytes else "the end of the file"
        reason = f" ({error})" if error else ""
        return IndexFileError(
            f"{self.location}: expected {expectation} at byte {self.position:,} of "
            f"{len(self.data):,}, found {actual}{reason}. The file is cut short or is not an index."
        )


def make_template(schema: ShardSchema, text: str) -> Template | None:
    """Make the expression that accepts objects of the form of ``text``; None if there is none."""
    pattern, offset, fields = [], 0, list[tuple[str, ...]]()
    widths = {(file.kind, name): digits for file in schema.stored for name, digits in file.hashes}
    for start, end, path in _scalars(text):
        if path == ("samples",) or (path[0] in KINDS and path[1:] == ("bytes",)):
            group = _NUMBER
        elif path[0] in KINDS and path[1:] == ("basename",):
            group = _NAME
        elif path[0] in KINDS and path[1:2] == ("hashes",):
            group = b'"([0-9a-f]{%d})"' % widths[path[0], path[2]]
        else:
            continue
        pattern += [re.escape(text[offset:start].encode()), group]
        fields.append(path)
        offset = end
    expression = b"".join(pattern) + re.escape(text[offset:].encode())
    self_match = re.fullmatch(expression, text.encode())
    if self_match is None or len(set(fields)) != len(fields):
        return None
    place = {path: group for group, path in enumerate(fields)}
    kinds = [file.kind for file in schema.stored]
    return Template(
        match=re.compile(expression + rb"[ \t\n\r]*,[ \t\n\r]*").match,
        samples=place["samples",],
        sizes=tuple(place[kind, "bytes"] for kind in kinds),
        names=tuple(place[kind, "basename"] for kind in kinds),
        digests=tuple(
            place[file.kind, "hashes", name] for file in schema.stored for name, _ in file.hashes
        ),
    )


def _scalars(text: str) -> list[tuple[int, int, tuple[Any, ...]]]:
    """Start, end and path of every scalar in an object's text, those in lists left out."""
    path: list[str | None] = []
    out: list[tuple[int, int, tuple[Any, ...]]] = []
    tokens = list(_TOKEN.finditer(text))
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        word = token.group()
        if word in {"{", "["}:
            path.append(None)
        elif word in {"}", "]"}:
            path.pop()
        elif following is not None and following.group() == ":":
            path[-1] = json.loads(word)
        elif word not in {",", ":"} and None not in path:
            out.append((token.start(), token.end(), tuple(path)))
    return out


def _is_plausible(schema: ShardSchema, samples: int, sizes: tuple[int, ...]) -> bool:
    # The file with the offsets: the meta file of split formats comes second among KINDS.
    return (
        sizes[schema.is_split] >= 4 + 4 * (samples + 1)
        and sizes[0] < 1 << 32
        and max(sizes) <= LARGEST
    )


def _check_sizes(schema: ShardSchema, samples: int, sizes: tuple[int, ...], location: str) -> None:
    """Refuse counts that the file cannot hold, before memory is allocated for them."""
    if _is_plausible(schema, samples, sizes):
        return
    if sizes[0] >= 1 << 32:
        raise IndexFileError(
            f"{location}: {sizes[0]:,} bytes of raw data; offsets of 32 bits end at 4 GiB."
        )
    raise IndexFileError(
        f"{location}: {samples:,} samples cannot be in a file of {sizes[schema.is_split]:,} bytes; "
        f"their offsets alone take {4 + 4 * (samples + 1):,}."
    )
