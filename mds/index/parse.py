r"""Parse the text of index.json to columns, one shard object at a time.

Nearly every index repeats one object in which only numbers, names and digests change. So the first
object of a schema is parsed and checked as JSON, and its text becomes a regular expression with
groups for the values that may change:

    {"samples": 100, "raw_data": {"basename": "shard.00000.mds", "bytes": 4711, ...
    \{"samples": (0|[1-9]...), "raw_data": \{"basename": ("..."), "bytes": (0|[1-9]...), ...

Objects that match cost about 2 us each and make no Python objects. An object that does not match
(another schema, a strange name, a wrong number) is parsed and checked as JSON again. The expression
only makes parsing faster; it never decides what is valid.
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
# Names that need no further check, and no escapes.
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
    """An object has a key twice: readers would differ in which value they use."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the dict of a JSON object's pairs. Raises _RepeatedKeyError for a repeated key."""
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise _RepeatedKeyError(", ".join(sorted({key for key, _ in pairs})))
    return mapping


# Returns the value at the start of a text, and the position after it.
_DECODE = json.JSONDecoder(object_pairs_hook=_unique).raw_decode


class Template(NamedTuple):
    """The regular expression for objects of one schema.

    - ``match``: the compiled expression's ``match``, called with bytes and a position. It matches
      one object and the comma after it.
    - ``samples``, ``sizes``, ``names``, ``digests``: numbers of the groups that hold these values,
      counted from 0. ``sizes`` and ``names`` have one group a file, ``digests`` one a digest.
    """

    match: Any
    samples: int
    sizes: tuple[int, ...]
    names: tuple[int, ...]
    digests: tuple[int, ...]


class NamesSeen:
    """The file names of an index, to find duplicates.

    No two files may have the same name, and no file may have the name of a folder of another file:
    shards with a common file would replace each other in a cache folder again and again. Names are
    compared by their hashes, eight bytes each, which are salted in every process. Only names with
    equal hashes are compared as text. Names that differ in case are different.
    """

    def __init__(self) -> None:
        self._hashes = array("q")
        self._folders: set[bytes] = set()

    def add(self, names: Iterable[bytes], *, have_folders: bool) -> None:
        """Add names. ``have_folders`` must be True if one of them contains a slash."""
        names = list(names)
        self._hashes.extend(map(hash, names))
        if have_folders:
            self._folders.update(name.rpartition(b"/")[0] for name in names)

    def check(self, names: Iterable[list[str]], location: str) -> None:
        """Raise IndexFileError if two files have one name, or a file has the name of a folder.

        - ``names`` (Iterable[list[str]]): The file names of each shard, in order: all names that
          were added. They are only read if hashes agree.
        - ``location`` (str): Name of the index, for errors.
        """
        if not self._hashes:
            return
        hashes = np.sort(np.frombuffer(self._hashes, np.int64))
        repeated_hashes = hashes[1:][hashes[1:] == hashes[:-1]]
        # Look up the hash of each folder among the sorted hashes of files, by binary search.
        folders = set(_with_parents(self._folders))
        folder_hashes = np.fromiter(map(hash, folders), np.int64, len(folders))
        nearest_hashes = hashes[np.minimum(hashes.searchsorted(folder_hashes), len(hashes) - 1)]
        shared_hashes = folder_hashes[nearest_hashes == folder_hashes]
        suspects = {*repeated_hashes.tolist(), *shared_hashes.tolist()}
        if suspects:
            _check_suspects(names, suspects, folders, location)


def _with_parents(folders: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the folders and all folders above them, each once."""
    parents: set[bytes] = set()
    for folder in folders:
        while folder and folder not in parents:
            parents.add(folder)
            yield folder
            folder = folder.rpartition(b"/")[0]  # noqa: PLW2901 - upwards


def _check_suspects(
    names: Iterable[list[str]], suspects: set[int], folders: set[bytes], location: str
) -> None:
    """Compare the names whose hashes are in ``suspects``; raise IndexFileError for a duplicate.

    ``names`` are the file names of each shard, ``folders`` all folders that hold files.
    """
    first: dict[bytes, int] = {}  # number of the first shard with each name
    for number, shard_names in enumerate(names):
        for name in shard_names:
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
    """The columns of an index while it is parsed, with one entry a shard.

    `add` appends one parsed object, `extend` many objects that matched a template.
    """

    def __init__(self) -> None:
        self.schemas: dict[ShardSchema, int] = {}  # number of each schema
        self.schema_of = array("i")  # number of the shard's schema
        self.samples = array("q")
        self.sizes = {kind: array("q") for kind in KINDS}  # bytes; 0 for a file that it lacks
        self.name_sizes = array("I")  # bytes of the shard's part of `names`
        self.names = bytearray()  # the shard's file names, joined by NUL
        self.names_seen = NamesSeen()
        self.digests = bytearray()  # raw bytes of all digests of the shard's files

    def add(self, raw: object, location: str) -> ShardSchema:
        """Check and append one shard, and return its schema. Raises IndexFileError.

        ``raw`` is the parsed JSON object of the shard, ``location`` the name of the index.
        """
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
        """Append shards whose text matched a template. Raises IndexFileError for wrong values.

        - ``schema`` (ShardSchema): Their schema, which `add` has returned before.
        - ``template`` (Template): The template of the schema.
        - ``rows`` (list[tuple[bytes, ...]]): The groups of each match.
        - ``location`` (str): Name of the index, for errors.
        """
        first = len(self.samples)
        columns = list(zip(*rows, strict=True))  # the values of each group, in all shards
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
                column.frombytes(bytes(8 * len(rows)))  # as many zeros
        names = [columns[group] for group in template.names]
        joined = list(names[0]) if len(names) == 1 else [*map(b"\0".join, zip(*names, strict=True))]
        packed = b"".join(joined)
        # The one name in plain letters that no shard may have, or a name that may be too long.
        if _INDEX_NAME in packed.lower() or max(map(len, joined)) > MAX_PLAIN_BYTES:
            for i, packed_names in enumerate(joined):
                for name in packed_names.decode().split("\0"):
                    RelativeName(name, f"{location}, shard {first + i}", IndexFileError)
        for names_of_kind in names:
            self.names_seen.add(names_of_kind, have_folders=b"/" in packed)
        self.name_sizes.extend(map(len, joined))
        self.names += packed
        if template.digests:
            digests = zip(*(columns[group] for group in template.digests), strict=True)
            self.digests += bytes.fromhex(b"".join(map(b"".join, digests)).decode())


def parse_index(data: bytes, location: str, largest_object: int = LARGEST_OBJECT_BYTES) -> Builder:
    """Parse all shards of an index.

    - ``data`` (bytes): Content of the index.json.
    - ``location`` (str): Name of the file, for errors.
    - ``largest_object`` (int, bytes): A larger object of a shard is refused, because parsing it
      would take many times that memory.

    Raises IndexFileError for bytes that are not an index.
    """
    try:
        return _Parser(data, location, largest_object).run()
    except _RepeatedKeyError as error:
        raise IndexFileError(f"{location}: an object repeats one of its keys {error}.") from error
    except RecursionError:
        # Without the cause: its traceback holds thousands of frames.
        raise IndexFileError(f"{location}: nested too deeply to be an index.") from None


class _Parser:
    """Parser of an index: a position in its text, and the columns up to there.

    See `parse_index` for the arguments.
    """

    def __init__(self, data: bytes, location: str, largest_object: int) -> None:
        self.data = data
        self.location = location
        self.largest_object = largest_object
        self.position = 3 if data.startswith(b"\xef\xbb\xbf") else 0  # after a byte order mark
        self.builder = Builder()
        self.templates: list[tuple[ShardSchema, Template]] = []
        self.tried: set[ShardSchema] = set()  # schemas for which a template was tried

    def run(self) -> Builder:
        """Parse the outermost object ``{"shards": [...], "version": 2}``; return the columns."""
        if not self.data.strip():
            raise IndexFileError(f"{self.location}: the file is empty.")
        # The version is usually the last key. Report another one before shards of its form fail.
        if last_version := _LAST_VERSION.search(self.data[-256:]):
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
        """Raise IndexFileError unless the index has the version that can be read."""
        if type(version) is not int or version != VERSION:
            raise IndexFileError(
                f"{self.location}: the index has version {shown(version)}; "
                f"only version {VERSION} is known."
            )

    def _shards(self) -> None:
        """Parse the list of shards at this position, and append the shards to the columns."""
        self._expect(b"[", "a list of shards")
        if self._peek() == b"]":
            self._expect(b"]", "the end of the list")
            return
        while True:
            # Templates first. They never match the last object, since no comma follows it.
            while any(self._take_matches(*pair) for pair in self.templates):
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

    def _take_matches(self, schema: ShardSchema, template: Template) -> bool:
        """Parse the consecutive objects at this position that match a template, up to `_BLOCK`.

        Returns whether there was one.
        """
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
        """Move behind ``byte``. Raises IndexFileError, with the expectation, for another one."""
        if self._peek() != byte:
            raise self._broken(expectation)
        self.position += 1

    def _value(self) -> tuple[object, str]:
        """Return the JSON value at this position, and its text; move behind it.

        The end of the value is unknown before it is parsed, so a window of the text is decoded,
        which grows until the value is whole. Raises IndexFileError for anything else.
        """
        self._peek()
        size = _WINDOW
        while True:
            # Bytes that are not UTF-8 become surrogates, which are refused below.
            piece = self.data[self.position : self.position + size]
            window = piece.decode("utf-8", "surrogateescape")
            try:
                value, end = _DECODE(window)
            except ValueError as error:
                if len(piece) < size or size >= self.largest_object:
                    raise self._broken("JSON in UTF-8", error) from error
                size *= 4
                continue
            # A number at the end of the window may continue after it.
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
        """Return the error for text at this position that is not the expected one."""
        next_bytes = self.data[self.position : self.position + 40]
        actual = repr(next_bytes)[1:] if next_bytes else "the end of the file"
        reason = f" ({error})" if error else ""
        return IndexFileError(
            f"{self.location}: expected {expectation} at byte {self.position:,} of "
            f"{len(self.data):,}, found {actual}{reason}. The file is cut short or is not an index."
        )


def make_template(schema: ShardSchema, text: str) -> Template | None:
    """Make a template for objects of a schema from the text of one, or None if that fails.

    Values that differ between shards become groups; the text between them must match exactly.
    """
    pattern, offset, fields = [], 0, list[tuple[str, ...]]()  # fields: path of each group's value
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
    # A strange name in the object itself, or a repeated field, means that no template is safe.
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
    """Return (start, end, path of keys) of every scalar in an object's text, except in lists.

    In ``{"raw_data": {"bytes": 4711}}`` the path of 4711 is ``("raw_data", "bytes")``.
    """
    path: list[str | None] = []  # the current key of each open object; None in a list
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
    """Whether files of these sizes (bytes, in the order of `KINDS`) can hold the samples."""
    # The file with the offsets: the meta file of split formats comes second among KINDS.
    return (
        sizes[schema.is_split] >= 4 + 4 * (samples + 1)
        and sizes[0] < 1 << 32
        and max(sizes) <= LARGEST
    )


def _check_sizes(schema: ShardSchema, samples: int, sizes: tuple[int, ...], location: str) -> None:
    """Raise IndexFileError for more samples or bytes than the shard's files can hold.

    ``sizes`` are the bytes of its files, in the order of `KINDS`.
    """
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
