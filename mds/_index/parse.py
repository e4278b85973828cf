r"""Parse the text of index.json to columns, one shard object at a time.

Nearly every index repeats one object in which only numbers, names and digests change. So the first
object of a schema is parsed and checked as JSON, and its text becomes a regular expression with
groups for the values that may change:

    {"samples": 100, "raw_data": {"basename": "shard.00000.mds", "bytes": 4711, ...
    \{"samples": (0|[1-9]...), "raw_data": \{"basename": ("..."), "bytes": (0|[1-9]...), ...

Objects that match cost about 2 us each and make no Python objects. An object that does not match
(another schema, a strange name, a wrong number) is parsed and checked as JSON again. The expression
only makes parsing faster; it never decides what is valid.

So do the indexes of many small datasets, each with one shard: the text of a whole index becomes the
expression for the next ones.

A *schema* (`ShardSchema`) is what the shard objects of one writer have in common. It lists the
files of a shard, each of one *kind* (`KINDS`): the data file, its compressed form, and for split
formats (a data file and a file with offsets) the meta file and its compressed form.
"""

from __future__ import annotations

import collections
import json
import re
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mds._index.shard_object import (
    KINDS,
    LARGEST,
    VERSION,
    ShardSchema,
    has_encoded_sizes,
    parse_shard,
)
from mds._words import plural
from mds.errors import IndexFileError
from mds.storage._relative_name import INDEX_NAME, MAX_PLAIN_BYTES, PLAIN_NAME, RelativeName, shown

# An object of this size describes some 40,000 columns. The bound limits the memory that a hostile
# index takes.
LARGEST_OBJECT_BYTES = 4 << 20
_WINDOW = 16 << 10  # bytes of text in which the end of a JSON value is sought first
_BLOCK = 4096  # shards that are appended together
_MAX_TEMPLATES = 16
_SPACE = re.compile(rb"[ \t\n\r]*")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_LAST_VERSION = re.compile(rb'"version"\s*:\s*(-?\d{1,9})\s*\}\s*$')
_NUMBER = rb"(0|[1-9][0-9]{0,9})"
# Names that need no further check, and no escapes.
_NAME = b'"(%s)"' % PLAIN_NAME.encode()
_INDEX_NAME = INDEX_NAME.encode()

#: Shards; making a template for them would take longer than parsing them.
FEW = 8

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
        counts = collections.Counter(key for key, _ in pairs)
        raise _RepeatedKeyError(counts.most_common(1)[0][0])
    return mapping


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
# Returns the value at the start of a text, and the position after it.
_DECODE = _DECODER.raw_decode


class Template(NamedTuple):
    """The regular expression for objects of one schema.

    - ``match``: the method ``match`` of the compiled expression, called with bytes and a position.
      It matches one object and the comma after it, or the whole text of an index of one shard.
    - ``samples``, ``sizes``, ``names``, ``digests``: which groups of a match hold these values,
      counted from 0. ``sizes`` and ``names`` have one group for each file of a shard, ``digests``
      one for each digest. In the example of the module, ``samples`` is 0, ``names`` (1,) and
      ``sizes`` (2,).
    """

    match: Any
    samples: int
    sizes: tuple[int, ...]
    names: tuple[int, ...]
    digests: tuple[int, ...]


#: Templates for indexes of one shard, by schema. None: one index had it, which needs no template.
_single: dict[ShardSchema, Template | None] = {}


class NamesSeen:
    """The file names of an index, to find duplicates.

    No two files may have the same name, and no file may have the name of a folder of another file:
    shards with a common file would replace each other in a cache folder again and again. Names that
    differ in case are different.

    Only Python's hashes of names are kept, eight bytes each, which differ in every process, so
    nobody can prepare names with equal hashes. Names with equal hashes are then compared as text.
    """

    def __init__(self) -> None:
        self._hashes = array("q")  # of all names
        self._folders: set[bytes] = set()  # folders that directly contain a file

    def add(self, names: Iterable[bytes], *, have_folders: bool) -> None:
        """Add file names. ``have_folders`` must be True if one of them contains a slash.

        It is an argument because callers test many names at once, which is faster.
        """
        names = list(names)
        self._hashes.extend(map(hash, names))
        if have_folders:
            self._folders.update(name.rpartition(b"/")[0] for name in names)

    def check(self, names: Iterable[list[str]], location: str) -> None:
        """Raise IndexFileError if two files have one name, or a file has the name of a folder.

        - ``names`` (Iterable[list[str]]): The file names of each shard, in order: all names that
          were added. They are only read if two hashes are equal.
        - ``location`` (str): Name of the index, for errors.
        """
        if len(self._hashes) < 2:  # the only file has no other name than its own
            return
        hashes = np.sort(np.frombuffer(self._hashes, np.int64))
        # Neighbours in the sorted hashes that are equal: two files may have one name.
        repeated_hashes = hashes[1:][hashes[1:] == hashes[:-1]]
        # Look up the hash of each folder among the sorted hashes of files, by binary search: a file
        # may have the name of a folder.
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
            folder = folder.rpartition(b"/")[0]  # noqa: PLW2901 - the folder above


def _check_suspects(
    names: Iterable[list[str]], suspects: set[int], folders: set[bytes], location: str
) -> None:
    """Compare the names whose hashes are in ``suspects``; raise IndexFileError for a duplicate.

    Returns if there is none, because only hashes were equal. ``names`` are the file names of each
    shard, ``folders`` all folders that hold files, at any depth.
    """
    first: dict[bytes, int] = {}  # number of the first shard with each name
    for number, shard_names in enumerate(names):
        for name in shard_names:
            key = name.encode()
            if hash(key) not in suspects:
                continue
            if key in folders:
                raise IndexFileError(
                    f"{location}, shard {number}: {shown(name)} is a file of this shard, but a "
                    "folder of another one. Files of such an index cannot be stored on a disk."
                )
            if key in first:
                raise IndexFileError(
                    f"{location}, shard {number}: {shown(name)} is also a file of shard "
                    f"{first[key]}. Two shards cannot share a file."
                )
            first[key] = number


class Builder:
    """The columns of an index while it is parsed, with one entry a shard.

    `add` appends one parsed object, `extend` many objects that matched a template. The columns are
    those of `mds._index.table.Index`.
    """

    def __init__(self) -> None:
        self.schemas: dict[ShardSchema, int] = {}  # number of each schema, from 0
        self.schema_of = array("i")  # number of the shard's schema
        self.samples = array("q")
        # Bytes of the shard's file of each kind; 0 for a file that the shard lacks.
        self.sizes = {kind: array("q") for kind in KINDS}
        self.name_sizes = array("I")  # bytes of the shard's part of `names`
        self.names = bytearray()  # the shard's file names, joined by NUL
        self.names_seen = NamesSeen()
        self.digests = bytearray()  # all digests of the shard's files, as bytes, not as hex

    def add(self, raw: object, location: str) -> ShardSchema:
        """Check and append one shard, and return its schema. Raises IndexFileError.

        ``raw`` is the parsed JSON object of the shard, ``location`` the name of the index.
        """
        location = f"{location}, shard {len(self.samples)}"
        schema, row = parse_shard(raw, location)
        _check_sizes(schema, row.samples, row.sizes, location)
        self.schema_of.append(self.schemas.setdefault(schema, len(self.schemas)))
        self.samples.append(row.samples)
        # Every column gets an entry, also those of files that the schema lacks.
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
        - ``rows`` (list[tuple[bytes, ...]]): The groups of each match, one match for each shard.
        - ``location`` (str): Name of the index, for errors.

        Each step below handles one column of all shards, because a loop over shards would take
        several times as long.
        """
        first = len(self.samples)
        columns = list(zip(*rows, strict=True))  # for each group its value in every shard
        samples = [*map(int, columns[template.samples])]
        sizes = [[*map(int, columns[group])] for group in template.sizes]
        # A row is the number of samples and the sizes of a shard. Only a wrong one is checked again
        # by the function that raises the error, which needs a location.
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
                column.frombytes(bytes(8 * len(rows)))  # a zero of eight bytes for each shard
        # The names of each shard, joined by NUL. Nearly always a shard has only one file.
        names = [columns[group] for group in template.names]
        joined = list(names[0]) if len(names) == 1 else [*map(b"\0".join, zip(*names, strict=True))]
        packed = b"".join(joined)
        # The template matches only plain names. They are valid unless one equals the name of the
        # index or is too long. If this is possible, check each.
        if _INDEX_NAME in packed.lower() or max(map(len, joined)) > MAX_PLAIN_BYTES:
            for i, packed_names in enumerate(joined):
                for name in packed_names.decode().split("\0"):
                    RelativeName(name, f"{location}, shard {first + i}", IndexFileError)
        for names_of_kind in names:
            self.names_seen.add(names_of_kind, have_folders=b"/" in packed)
        self.name_sizes.extend(map(len, joined))
        self.names += packed
        if template.digests:
            # From the digests of each group to those of each shard, in hex, and to bytes.
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
        raise IndexFileError(f"{location}: an object has the key {str(error)!r} twice.") from error
    except RecursionError:
        # Without the cause: its traceback holds thousands of frames.
        raise IndexFileError(f"{location}: it is nested too deeply to be an index.") from None


class _Parser:
    """Parser of an index, which walks through its text and collects the columns of shards.

    - ``data``, ``location``, ``largest_object``: the arguments of `parse_index`.
    - ``position``: byte of ``data`` up to which it was parsed.
    - ``builder``: the columns of the shards up to there.
    - ``templates``: the schemas that were seen and their templates.
    - ``tried``: schemas for which a template was made, or could not be made.
    """

    def __init__(self, data: bytes, location: str, largest_object: int) -> None:
        self.data = data
        self.location = location
        self.largest_object = largest_object
        self.position = 3 if data.startswith(b"\xef\xbb\xbf") else 0  # skip a byte order mark
        self.builder = Builder()
        self.templates: list[tuple[ShardSchema, Template]] = []
        self.tried: set[ShardSchema] = set()

    def run(self) -> Builder:
        """Parse the outermost object ``{"shards": [...], "version": 2}``; return the columns."""
        if self._matches_single():
            return self.builder
        few_shards = self._few_shards()
        if few_shards is not None:
            for raw in few_shards:
                schema = self.builder.add(raw, self.location)
            if len(few_shards) == 1:
                self._note_single(schema)
            return self.builder
        if not self.data.strip():
            raise IndexFileError(f"{self.location}: the file is empty.")
        # The version is usually the last key. Check it first: shards of another version would fail
        # with errors that mislead.
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
                    " Is it an index of tars? Give format='tar', or end the path with /*.tar."
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

    def _matches_single(self) -> bool:
        """Append the only shard if the whole text matches a template; return whether it does."""
        if len(self.data) > min(_WINDOW, self.largest_object):
            return False
        for schema, template in list(_single.items()):
            if template is None or (match := template.match(self.data)) is None:
                continue
            if has_encoded_sizes(schema.columns):  # none was registered anew since then
                self.builder.schemas[schema] = 0
                self.builder.extend(schema, template, [match.groups()], self.location)
                return True
        return False

    def _note_single(self, schema: ShardSchema) -> None:
        """Make a template of an index of one shard, unless it is the first one of its schema."""
        if schema.is_split or len(_single) >= _MAX_TEMPLATES or _single.get(schema) is not None:
            return
        if schema not in _single:
            _single[schema] = None
            return
        # The second brace, also after white space; the value of the other key is a number.
        start = self.data.find(b"{", self.data.find(b"{") + 1)
        text = self.data[start:].decode()
        size = len(text[: _DECODE(text)[1]].encode())
        before, behind = re.escape(self.data[:start]), re.escape(self.data[start + size :])
        text = self.data[start : start + size].decode()
        _single[schema] = make_template(schema, text, before, behind + rb"\Z")

    def _few_shards(self) -> list[object] | None:
        """Return the parsed objects of a small index with few shards; None for another index.

        Also None if anything is wrong with it: walking through its text raises the error.
        """
        data = self.data
        if len(data) > min(_WINDOW, self.largest_object) or data.count(b'"raw_data"') > FEW:
            return None
        try:
            index = _DECODER.decode(data.decode())
        except (ValueError, RecursionError, _RepeatedKeyError):
            return None
        if not isinstance(index, dict) or index.keys() != {"shards", "version"}:
            return None
        version, shards = index["version"], index["shards"]
        is_known = type(version) is int and version == VERSION
        return shards if is_known and isinstance(shards, list) else None

    def _check_version(self, version: object) -> None:
        """Raise IndexFileError unless the index has the version that can be read."""
        if type(version) is not int or version != VERSION:
            raise IndexFileError(
                f"{self.location}: the index has version {shown(version)}, but mds reads only "
                f"version {VERSION}."
            )

    def _shards(self) -> None:
        """Parse the list of shards at this position, and append the shards to the columns."""
        self._expect(b"[", "a list of shards")
        if self._peek() == b"]":
            self._expect(b"]", "the end of the list")
            return
        while True:
            # Take as many objects as match a template. The last object never does, since no comma
            # follows it, so there is always one more, which is parsed as JSON.
            while any(self._take_matches(*pair) for pair in self.templates):
                pass
            raw, text = self._value()
            schema = self.builder.add(raw, self.location)
            if self._peek() == b"]":
                self._expect(b"]", "the end of the list")
                return
            self._expect(b",", "a comma or the end of the list of shards")
            if schema not in self.tried and len(self.templates) < _MAX_TEMPLATES:
                self.tried.add(schema)
                if (template := make_template(schema, text)) is not None:
                    self.templates.append((schema, template))
            self._peek()  # skips spaces, since templates begin at an object

    def _take_matches(self, schema: ShardSchema, template: Template) -> bool:
        """Parse the consecutive objects at this position that match a template, up to `_BLOCK`.

        Appends their shards to the columns. Returns whether an object matched.
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
        """Skip spaces, and return the byte at the new position; b"" at the end of the text."""
        self.position = _SPACE.match(self.data, self.position).end()  # type: ignore[union-attr]
        return self.data[self.position : self.position + 1]

    def _expect(self, byte: bytes, expectation: str) -> None:
        """Skip spaces and the ``byte`` after them. Raises IndexFileError if another byte is there.

        ``expectation`` describes the byte in the error.
        """
        if self._peek() != byte:
            raise self._broken(expectation)
        self.position += 1

    def _value(self) -> tuple[object, str]:
        """Parse the JSON value at this position, and move behind it; return the value and its text.

        The end of the value is unknown before it is parsed. So a window of the text is decoded,
        which grows until it contains the whole value. Raises IndexFileError if there is no JSON.
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
                # A larger window helps only if there is more text, and an object may be so large.
                if len(piece) < size or size >= self.largest_object:
                    raise self._broken("JSON in UTF-8", error) from error
                size *= 4
                continue
            # A number that ends with the window may continue after it.
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
        """Return the error for an index whose text at this position is not the expected one.

        ``expectation`` says what was expected, and ``error`` why it could not be parsed.
        """
        next_bytes = self.data[self.position : self.position + 40]
        actual = repr(next_bytes)[1:] if next_bytes else "the end of the file"
        reason = f" ({error})" if error else ""
        return IndexFileError(
            f"{self.location}: expected {expectation} at byte {self.position:,} of "
            f"{len(self.data):,}, found {actual}{reason}. The file is cut short or is not an index."
        )


def make_template(
    schema: ShardSchema,
    text: str,
    before: bytes = b"",
    behind: bytes = rb"[ \t\n\r]*,[ \t\n\r]*",
) -> Template | None:
    """Make a template for objects of a schema from the text of one; return None if that fails.

    Values that differ between shards become groups; the text between them must match exactly. See
    the example of the module.

    Args:
        schema: Schema of the object: which files and digests a shard has.
        text: JSON text of the object, which was parsed and checked before.
        before, behind: Regular expressions of what surrounds the object.
    """
    pattern: list[bytes] = []  # parts of the regular expression
    offset = 0  # up to which the text is in the pattern
    # Path of the value of each group, such as ("samples",) or ("raw_data", "bytes").
    fields: list[tuple[str, ...]] = []
    # Number of hex digits of each digest.
    widths = {(file.kind, name): digits for file in schema.stored for name, digits in file.hashes}
    for start, end, path in _scalars(text):
        if path == ("samples",) or (path[0] in KINDS and path[1:] == ("bytes",)):
            group = _NUMBER
        elif path[0] in KINDS and path[1:] == ("basename",):
            group = _NAME
        elif path[0] in KINDS and path[1:2] == ("hashes",):
            group = b'"([0-9a-f]{%d})"' % widths[path[0], path[2]]
        else:
            continue  # the same in all shards of the schema
        pattern += [re.escape(text[offset:start].encode()), group]
        fields.append(path)
        offset = end
    expression = b"".join(pattern) + re.escape(text[offset:].encode())
    # Make no template if the object has a file name with unusual characters, which ``_NAME`` does
    # not match, or if it repeats a key, so that two groups have the same value.
    self_match = re.fullmatch(expression, text.encode())
    if self_match is None or len(set(fields)) != len(fields):
        return None
    group_of = {path: group for group, path in enumerate(fields)}
    kinds = [file.kind for file in schema.stored]
    return Template(
        match=re.compile(before + expression + behind).match,
        samples=group_of["samples",],
        sizes=tuple(group_of[kind, "bytes"] for kind in kinds),
        names=tuple(group_of[kind, "basename"] for kind in kinds),
        digests=tuple(
            group_of[file.kind, "hashes", name] for file in schema.stored for name, _ in file.hashes
        ),
    )


def _scalars(text: str) -> list[tuple[int, int, tuple[Any, ...]]]:
    """Return (start, end, path of keys) of every scalar in an object's text, except in lists.

    In ``{"raw_data": {"bytes": 4711}}`` the path of 4711 is ``("raw_data", "bytes")``.
    """
    # The current key of each open object; None for an object without a key yet, and for a list.
    path: list[str | None] = []
    out: list[tuple[int, int, tuple[Any, ...]]] = []
    tokens = list(_TOKEN.finditer(text))
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        word = token.group()
        if word in {"{", "["}:
            path.append(None)
        elif word in {"}", "]"}:
            path.pop()
        elif following is not None and following.group() == ":":  # the word is a key
            path[-1] = json.loads(word)
        elif word not in {",", ":"} and None not in path:  # a scalar, and no list around it
            out.append((token.start(), token.end(), tuple(path)))
    return out


def _is_plausible(schema: ShardSchema, samples: int, sizes: tuple[int, ...]) -> bool:
    """Whether files of these sizes (bytes, in the order of `KINDS`) can hold the samples."""
    # The file with the offsets has the count, and an offset of four bytes for each sample and the
    # end. It is the data file, or for split formats the meta file, second in KINDS: [0] or [1].
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
            f"{location}: a shard of {sizes[0]:,} bytes is too large: the limit is 4 GiB."
        )
    raise IndexFileError(
        f"{location}: {plural(samples, 'sample')} do not fit into a file of "
        f"{sizes[schema.is_split]:,} "
        f"bytes; their offsets alone take {4 + 4 * (samples + 1):,}."
    )
