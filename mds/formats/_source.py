"""The files of a dataset: which of them a URL means, and their bytes, of one version.

A URL means a folder, one file, or a pattern (`parse_place`). ``*``, ``?`` and ``[...]`` match
inside one folder, ``**/`` any number of folders. ``{00..12}`` and ``{a,b}`` are spelled out, so
that they also work in a store that cannot list (plain HTTP).

`Files` lists files and reads them whole, in ranges or as a stream. Every answer is compared with
the size and the version that the file had when it was planned. A file that is replaced during a run
is therefore an error, and is never read half old, half new. Ranges are joined over small gaps, long
ones are cut, and they are fetched side by side if the store is behind a network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mds._process.fork_safe import new_lock
from mds._redaction import printable
from mds.errors import (
    ConfigError,
    CorruptError,
    FormatError,
    NotFoundError,
    ReplacedError,
    StoreError,
)
from mds.events import Fetched, Listed, emit
from mds.formats._facts import DataFile, Problem
from mds.formats._names import (
    HIDDEN,
    LINKED_FILES,
    LINKS_ABOVE,
    UNTRUSTED_FOLDERS,
    FolderListing,
    find_hidden,
    is_wanted,
    walk,
)
from mds.storage._base import check_key
from mds.storage._files import open_with_state, temporary_owner, version_of
from mds.storage._url import Url, is_local, local_path, options_of, reveal, scheme_of

if TYPE_CHECKING:
    from mds.storage import ObjectInfo, Store
    from mds.storage._retry import Retrying

T = TypeVar("T")
R = TypeVar("R")
#: Starts a call in another thread, as `Executor.submit` does.
Submit = Callable[..., "Future[Any]"]

#: Largest gap between ranges that are fetched together, and largest request, in bytes.
GAP, LONGEST = 64 << 10, 8 << 20
_SIDE_BY_SIDE = 8
#: Files that `Files.map` fetches or holds at once.
_AHEAD = 64
_FILES_BETWEEN_EVENTS = 10_000
_LONGEST_READ = 1 << 30
_SIDECAR_ENDINGS = (".idx", ".json", "/_metadata")


class Files:
    """Reader of the files below the root of a dataset. Thread-safe.

    - ``store`` (Store): Store of the root.
    - ``on_bytes`` (Callable[[int], object] | None, default None): Called with the number of bytes
      after each fetch.
    - ``submit`` (Submit | None, default None): Starts the calls of `map` in a pool that outlives a
      shard; None makes a pool for each call of `map`.
    - ``include``, ``exclude`` (Sequence[str], default ()): Shell patterns of the files to list, and
      of those to leave out. A pattern matches the name or the whole key.

    >>> files = Files(mds.storage.open_store("data/train"))
    >>> file = DataFile("index.json", size=-1)
    >>> files.range(file, 0, 10), os.path.relpath(files.path(file))
    (b'{"shards":', 'data/train/index.json')
    """

    def __init__(
        self,
        store: Store,
        on_bytes: Callable[[int], object] | None = None,
        submit: Submit | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> None:
        self.store = store
        self._include, self._exclude = include, exclude
        #: Listing of the whole folder, if it is known already; `find` uses it once.
        self.listing: FolderListing | None = None
        #: Keys that were listed and that no pattern of ``include`` matches.
        self.not_included: list[str] = []
        self._on_bytes = on_bytes
        self._submit = submit
        #: What a conversion tells the user: why columns have their encodings, by name, and remarks
        #: about the files, by subject.
        self.column_notes: dict[str, str] = {}
        self.remarks: dict[str, str] = {}
        #: Facts about single files, by key, which `Format.find` collected.
        self.facts: Mapping[str, bytes] = {}
        #: `ObjectInfo.revision` of the files that `find` returned, by key; without empty ones.
        self.revisions: dict[str, str] = {}
        self._sidecars: dict[str, DataFile | None] = {}  # sidecars, by key; None: not there
        self._listed: str | None = None  # prefix of all keys that were listed
        self._values_by_key: dict[str, Any] = {}  # results of `once`
        self._sidecar_bytes: dict[str, bytes] = {}  # contents of sidecars, by key
        self._lock = new_lock()
        #: Files and links that the listing found and the dataset does not read: number and first
        #: key, by reason.
        self.left_out: dict[str, tuple[int, str]] = {}
        #: Links that the listing followed: number and first key, by kind.
        self.followed: dict[str, tuple[int, str]] = {}
        #: Keys of links to folders that are left out because others may have planted them.
        self.untrusted_folders: list[str] = []

    @property
    def has_choice(self) -> bool:
        """Return True if the user chose files by patterns."""
        return bool(self._include or self._exclude)

    def leave_out(self, key: str, reason: str) -> None:
        """Count a file or link that the dataset does not read; see ``left_out``."""
        _count(self.left_out, key, reason)
        if reason == UNTRUSTED_FOLDERS:
            self.untrusted_folders.append(key)

    def count_left_out(self) -> Counter[str]:
        """Return the number of files and links in ``left_out``, by reason."""
        return Counter({reason: count for reason, (count, _) in self.left_out.items()})

    def count_followed(self) -> Counter[str]:
        """Return the number of links in ``followed``, by kind."""
        return Counter({kind: count for kind, (count, _) in self.followed.items()})

    @property
    def is_far(self) -> bool:
        """Whether the files are behind a network."""
        return self.store.local_path is None

    def url(self, file: DataFile | str) -> str:
        """Return the URL of a file, for messages."""
        return self.store.url_of(file if isinstance(file, str) else file.key)

    def path(self, file: DataFile) -> str | None:
        """Return the path of a file on a local disk, or None behind a network."""
        folder = self.store.local_path
        return None if folder is None else f"{folder.rstrip('/')}/{file.key}"

    def find(self, place: FilePlace) -> list[DataFile]:
        """List the files of a place, sorted by key. Raises NotFoundError for a missing named file.

        Named files (a literal, or patterns without wildcard) are looked up one by one if it is one
        file, or if the store cannot list. All others are taken from a listing, without those with
        a hidden name. Sidecars that the listing shows are kept for `beside` and `listed`.
        """
        names = place.names  # None if there is a wildcard, or all files are meant
        if names is not None and (not place.patterns or not self.store.can_list):
            with ThreadPoolExecutor(min(32, len(names))) as pool:
                return [self._found(info) for info in pool.map(self.store.head, names)]
        # A URL with wildcards in a store that cannot list: perhaps a file has exactly that name.
        if names is None and place.literal and not self.store.can_list:
            from mds.storage import RetryPolicy

            once = cast("Retrying", self.store).with_policy(RetryPolicy(attempts=1))
            with contextlib.suppress(StoreError):  # `list` raises what is wrong with the URL
                return [self._found(once.head(place.literal))]
        files = []
        folder = self.store.local_path

        def omit(key: str, reason: str) -> None:
            # Of folders, only those that may hold files of this place are looked at.
            is_folder = reason in (UNTRUSTED_FOLDERS, LINKS_ABOVE) or (
                reason == HIDDEN and os.path.isdir(os.path.join(folder or ".", key))
            )
            if is_folder or place.takes(key):
                self.leave_out(key, reason)

        def follow(key: str, kind: str) -> None:
            if kind != LINKED_FILES or place.takes(key):
                _count(self.followed, key, kind)

        # The present content of a folder, with the entries that are no files.
        infos: Iterable[ObjectInfo]
        listing, self.listing = self.listing, None
        if folder is None:
            infos = self.store.list(place.prefix)
        elif listing is not None and place.is_folder:
            infos = listing.replay(omit, follow)
        else:
            infos = walk(folder, place.prefix, place.may_enter, omit, follow)
        hidden = None  # the last hidden key or folder of keys
        for info in infos:
            if info.key == place.literal:  # a file whose name looks like a pattern
                return [self._found(info)]
            if f"/{info.key}".endswith(_SIDECAR_ENDINGS):
                self._sidecars[info.key] = _file(info)
            if temporary_owner(info.key) is None and place.takes(info.key):
                check_key(info.key)  # a bucket may have any key, and keys become paths
                if folder is not None or not (hidden_key := find_hidden(info.key)):
                    if not self.has_choice or self._is_wanted(info.key):
                        files.append(self._found(info))
                        if not len(files) % _FILES_BETWEEN_EVENTS:
                            emit(Listed(self.url(""), len(files)))
                elif hidden_key != hidden:
                    self.leave_out(hidden_key, HIDDEN)
                    hidden = hidden_key
        self._listed = place.prefix
        files.sort()
        # Some names have no file: perhaps the URL is the name of one file that contains braces.
        if names is not None and (missing := sorted(set(names) - {file.key for file in files})):
            with contextlib.suppress(NotFoundError):
                return [self._found(self.store.head(place.literal))]
            suffix = f", and {len(missing) - 1:,} more" if len(missing) > 1 else ""
            raise NotFoundError(
                f"list {self.url('')}: there is no {missing[0]}{suffix}.", url=self.url(missing[0])
            )
        return files

    def _is_wanted(self, key: str) -> bool:
        """Return True for a key that the user's patterns include, and do not exclude."""
        if is_wanted(key, self._include, self._exclude):
            return True
        if is_wanted(key, (), self._exclude):
            self.not_included.append(key)
        return False

    def _found(self, info: ObjectInfo) -> DataFile:
        """Return the file of a listed object, and keep its revision."""
        if info.revision:
            self.revisions[info.key] = info.revision
        return _file(info)

    def beside(self, key: str) -> DataFile | None:
        """Return the sidecar (``.idx``, ``.json``) with this key, or None if there is none.

        It costs no request if the files were listed.
        """
        if key not in self._sidecars:
            is_listed = self._listed is not None and key.startswith(self._listed)
            self._sidecars[key] = None if is_listed else self._ask(key)
        return self._sidecars[key]

    def listed(self, key: str) -> DataFile | None:
        """Return the sidecar with this key if the listing has found it, without a request."""
        return self._sidecars.get(key)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the result of ``make()``, which is called once for each ``name``; threads wait."""
        with self._lock:
            if name not in self._values_by_key:
                self._values_by_key[name] = make()
            return self._values_by_key[name]

    def _ask(self, key: str) -> DataFile | None:
        """Ask the store for a file; return None if it does not exist."""
        try:
            return _file(self.store.head(key))
        except NotFoundError:
            return None

    # ------------------------------------------------------------------ bytes

    def get(self, file: DataFile) -> bytes:
        """Read the whole file."""
        return b"".join(self.stream(file))

    def get_once(self, sidecar: DataFile) -> bytes:
        """Read a sidecar of a few kilobytes and keep it: planning needs it more than once."""
        if sidecar.key not in self._sidecar_bytes:
            self._sidecar_bytes[sidecar.key] = self.get(sidecar)
        return self._sidecar_bytes[sidecar.key]

    def whole(self, file: DataFile) -> bytes:
        """Read a whole file that is one sample, in the fastest way.

        Raises NotFoundError if there is none, and FormatError if a local file cannot be read.
        """
        path = self.path(file)
        if path is None:
            # A range avoids the costly way in which SDKs fetch whole objects.
            return self.range(file, 0, file.size) if file.size > 0 else self.get(file)
        if self._on_bytes is None:
            return read_local(path, file.version)
        began = time.monotonic()
        data = read_local(path, file.version)
        self._on_bytes(len(data))
        emit(Fetched(self.url(file), len(data), time.monotonic() - began, ranged=False))
        return data

    def range(self, file: DataFile, start: int, end: int) -> bytes:
        """Read the bytes from ``start`` to before ``end``."""
        return b"".join(self.stream(file, start, end))

    def ranges(
        self, file: DataFile, spans: Sequence[tuple[int, int]], gap: int = GAP
    ) -> list[bytes | memoryview]:
        """Read several half-open ranges, and return their bytes in the order of ``spans``.

        Ranges that are at most ``gap`` bytes apart are fetched together.
        """
        joined = list(_joined(sorted(spans), gap))
        joined_spans = [
            (start, min(start + LONGEST, end))
            for first, end in joined
            for start in range(first, end, LONGEST)
        ]  # long ones are cut
        if len(joined_spans) > 1 and self.is_far:
            with ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(joined_spans))) as pool:
                chunk_lists = list(
                    pool.map(lambda each: list(self.stream(file, *each)), joined_spans)
                )
        else:
            chunk_lists = [list(self.stream(file, *each)) for each in joined_spans]
        # Chunks stay as they came: to join them would copy everything.
        firsts: list[int] = []
        chunks: list[memoryview] = []
        for (first, _), span_chunks in zip(joined_spans, chunk_lists, strict=True):
            lengths = [len(chunk) for chunk in span_chunks]
            firsts += itertools.accumulate(lengths[:-1], initial=first)
            chunks += [memoryview(chunk) for chunk in span_chunks]
        return [_slice_chunks(span, firsts, chunks) for span in spans]

    def map(self, act: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield the results of ``act`` in order, many at once; the first error is raised."""
        if self._submit is not None:
            yield from _in_order(self._submit, act, items)
            return
        with ThreadPoolExecutor(_AHEAD // 2, "mds-files") as pool:
            yield from _in_order(pool.submit, act, items)

    def stream(
        self, file: DataFile, start: int = 0, end: int | None = None
    ) -> Generator[bytes, None, None]:
        """Yield the bytes from ``start`` to before ``end`` (None: the end) as they arrive.

        Raises ReplacedError if the file was replaced since it was planned.
        """
        began, size = time.monotonic(), 0
        try:
            with self.store.stream(file.key, start, end) as body:
                self._check_same(file, body.info)
                for chunk in body:
                    size += len(chunk)
                    yield chunk
        except ReplacedError:
            raise
        except CorruptError as error:
            raise self._replaced(file, str(error)) from error
        if self._on_bytes is not None:
            self._on_bytes(size)
        emit(Fetched(self.url(file), size, time.monotonic() - began, ranged=end is not None))

    def _check_same(self, file: DataFile, info: ObjectInfo) -> None:
        """Raise ReplacedError if the store's answer has another size or version than planned."""
        if -1 not in (info.size, file.size) and info.size != file.size:
            raise self._replaced(file, f"it had {file.size} bytes and now has {info.size}")
        if info.version and file.version and info.version != file.version:
            raise self._replaced(file, f"its version was {file.version} and is now {info.version}")

    def _replaced(self, file: DataFile, change: str) -> ReplacedError:
        """Return the error for a file that changed since it was planned."""
        return _changed_file_error("get", self.url(file), f": {change}")


def memory_error(location: str) -> FormatError:
    """Return the error for a file, or a part of one, for which there is too little memory."""
    return FormatError(
        f"{location}: this process may not take as much memory as it needs. Raise the limit "
        "(ulimit -v, or that of the container), or write shorter lines and smaller samples."
    )


def read_local(path: str, version: str = "") -> bytes:
    """Return the content of a local file, which must be of ``version``; "" is any.

    Raises NotFoundError for a file that is gone, ReplacedError for one that changed, and
    FormatError for one that cannot be read.
    """
    try:
        # A file object makes twice as many system calls, which count for many small files.
        handle, state = open_with_state(path, os.O_RDONLY)
        try:
            data = os.read(handle, state.st_size + 1)
            if len(data) != state.st_size:  # it grew, or it is read in pieces
                data = b"".join((data, *iter(lambda: os.read(handle, _LONGEST_READ), b"")))
        finally:
            os.close(handle)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(
            f"open {path}: {error.strerror}, but it existed at the start. Restart to read the "
            "files that exist now.",
            url=path,
            verb="open",
        ) from error
    except OSError as error:
        problem = Problem(path, f"cannot be read: {error.strerror or error}")
        raise FormatError(problem) from error
    check_version(path, state, version)
    return data


def check_version(path: str, state: os.stat_result, version: str, inode: int | None = None) -> None:
    """Raise ReplacedError if a local file is not the one of ``version``; "" is any.

    ``inode`` (int | None, default None) is that of the file when it was opened; None is any.
    """
    if (version and version != version_of(state)) or inode not in (None, state.st_ino):
        raise _changed_file_error("open", path)


def _changed_file_error(verb: str, url: str, change: str = "") -> ReplacedError:
    """Return the error for a file that changed since it was planned.

    ``change`` is a clause that begins with a colon, such as ": it had 8 bytes and now has 9".
    """
    return ReplacedError(
        f"{verb} {url}: the file changed while it was in use{change}. Restart to read its new "
        "content; if `mds index` wrote the index, run it again first.",
        url=url,
        verb=verb,
    )


def open_pinned(
    root: Url,
    open_at: Callable[[str], Store],
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> Files:
    """Open the files below a root at its current version: a later commit changes nothing.

    ``root`` may be a branch of a repository, such as of the Hugging Face Hub. Then the files are
    read from the URL of its current commit. Other stores have no such URL and are opened as they
    are. ``open_at`` opens the store of a URL; for the patterns see `Files`.
    """
    store = open_at(root)
    pinned = store.pinned_url()
    if pinned != store.url:
        store = open_at(Url(pinned, options_of(root)))
    return Files(store, include=include, exclude=exclude)


def _in_order(submit: Submit, act: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield the results of ``act`` for the items in order; `_AHEAD` calls are queued at once.

    Queued calls are cancelled when one fails, or when the caller stops.
    """
    remaining = iter(items)
    waiting: deque[Future[R]] = deque()
    try:
        waiting.extend(submit(act, item) for item in itertools.islice(remaining, _AHEAD))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(submit(act, item) for item in itertools.islice(remaining, 1))
    finally:
        for each in waiting:
            each.cancel()


def _count(counts: dict[str, tuple[int, str]], key: str, reason: str) -> None:
    """Count a key under a reason, of which the first key is kept as an example."""
    count, example = counts.get(reason, (0, printable(key)))
    counts[reason] = count + 1, example


def _file(info: ObjectInfo) -> DataFile:
    """Return the file of a listed object."""
    return DataFile(info.key, info.size, info.version)


def check_names(files: Iterable[DataFile], root: str) -> None:
    """Raise FormatError for a file below ``root`` whose name is not UTF-8."""
    for file in files:
        if not file.key.isascii() and re.search("[\ud800-\udfff]", file.key):
            raise FormatError(
                f"{root}: the name of the file {file.key!r} is not UTF-8, so an index or state "
                "cannot store it. Rename the file."
            )


def _joined(spans: Sequence[tuple[int, int]], gap: int) -> Iterator[tuple[int, int]]:
    """Join sorted spans that are at most ``gap`` bytes apart, and yield the joined spans."""
    if not spans:
        return
    start, end = spans[0]
    for first, last in spans[1:]:
        if first - end <= gap:
            end = max(end, last)
        else:
            yield start, end
            start, end = first, last
    yield start, end


def _slice_chunks(
    span: tuple[int, int], firsts: Sequence[int], chunks: Sequence[memoryview]
) -> bytes | memoryview:
    """Return the bytes of a span, from the chunks that cover it.

    ``firsts`` are the offsets in the file at which the chunks begin.
    """
    start, end = span
    index = max(bisect_right(firsts, start) - 1, 0)  # of the chunk that holds the byte `start`
    parts = []
    while start < end:
        part = chunks[index][start - firsts[index] : end - firsts[index]]
        parts.append(part)
        start += len(part)
        index += 1
    return parts[0] if len(parts) == 1 else b"".join(parts)


# --------------------------------------------------------------------- which files a URL means


_WILDCARD = re.compile(r"[*?\[{]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
#: Names that one pattern may be spelled out to.
_MOST_NAMES = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class FilePlace:
    """The files that a URL means.

    - ``root``: the folder.
    - ``patterns``: patterns of keys below the root. If empty and without ``literal``, all files.
    - ``literal``: a key to take literally. If a file has exactly this key, it takes precedence over
      the patterns that were made of it.
    """

    root: Url
    patterns: tuple[str, ...] = ()
    literal: str = ""

    @property
    def names(self) -> tuple[str, ...] | None:
        """The keys, if no pattern has a wildcard; None if the folder must be listed."""
        if self.literal and not self.patterns:
            return (self.literal,)
        if not self.patterns or any(map(_has_wildcard, self.patterns)):
            return None
        return tuple(dict.fromkeys(self.patterns))

    @property
    def prefix(self) -> str:
        """The common prefix of all keys, to list no more than needed.

        It is "train/0" for the patterns "train/00*.tar" and "train/01*.tar".
        """
        if not self.patterns:
            return self.literal
        heads = [re.split(r"[*?\[]", each, maxsplit=1)[0] for each in self.patterns]
        # What the first and the last head in order have in common, all heads between have, too.
        first, last = min(heads, default=""), max(heads, default="")
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
        return "".join(letter for letter, _ in pairs)

    @property
    def is_folder(self) -> bool:
        """Return True if all files of the folder are meant."""
        return not (self.patterns or self.literal or self.prefix)

    def may_enter(self, folder: str) -> bool:
        """Whether a subfolder, by its key, may hold files of this place."""
        if self.literal.startswith(f"{folder}/") or not (self.patterns or self.literal):
            return True
        names = folder.split("/")
        for pattern in self.patterns:
            # Folders before "**", which match one by one.
            parts = pattern.partition("**")[0].split("/")[:-1]
            start = "/".join(parts[: len(names)])
            is_deep = len(names) > len(parts)
            if (not is_deep or "**" in pattern) and _matcher(start).match(
                "/".join(names[: len(parts)])
            ):
                return True
        return False

    def takes(self, key: str) -> bool:
        """Whether a key below the root belongs to this place."""
        if not self.patterns:
            return key == self.literal or not self.literal
        return any(_matcher(each).match(key) for each in self.patterns)


def parse_place(location: str, endings: tuple[str, ...] = ()) -> FilePlace:
    """Parse a URL or path to the place that it means.

    A URL with wildcards or braces is a pattern. One that ends with one of ``endings`` is a file,
    others are folders; a local path is what it is on the disk. Raises ConfigError for braces that
    do not close or that give too many names.

    The root carries the settings of the store that ``location`` carries.
    """
    place = _parse_text(reveal(location), endings)
    return dataclasses.replace(place, root=Url(place.root, options_of(location)))


def _parse_text(url: str, endings: tuple[str, ...]) -> FilePlace:
    """Parse a URL or path; see `parse_place`."""
    if is_local(url):
        url = local_path(url)
        if os.path.isfile(url):
            return _place_of_file(url)
        if os.path.isdir(url) or not has_pattern(url):
            # A path that does not exist yet. No path ends with NUL: without endings it is a folder.
            is_file = not os.path.isdir(url) and url.lower().endswith(endings or ("\0",))
            return _place_of_file(url) if is_file else FilePlace(Url(url))
    head, tail = _split_pattern(url)
    if not tail:
        is_file = bool(endings) and url.rstrip("/").lower().endswith(endings)
        return _place_of_file(url) if is_file else FilePlace(Url(url))
    return FilePlace(Url(head), tuple(_expanded(tail)), tail)


def has_pattern(url: str) -> bool:
    """Whether a URL or path has a wildcard or braces after its bucket, host or first folder."""
    return bool(_split_pattern(reveal(url))[1])


def _split_pattern(url: str) -> tuple[str, str]:
    """Split a URL into the folder before the first wildcard, and the pattern below the folder.

    ``s3://bucket/data/0*/x.tar`` becomes ``s3://bucket/data`` and ``0*/x.tar``. Without a wildcard
    the pattern is ''.
    """
    start = url.index("://") + 3 if scheme_of(url) and "://" in url else 0
    if scheme_of(url) in ("http", "https") and "?" in url:
        url = url[: url.index("?")]  # there it begins a query
    wildcard = _WILDCARD.search(url, start)
    if not start:
        # A folder of this machine whose name has such characters itself is meant before a pattern.
        while wildcard is not None and (end := url.find("/", wildcard.start())) > 0:
            if not os.path.isdir(url[:end]):
                break
            wildcard = _WILDCARD.search(url, end)
    if wildcard is None:
        return url, ""
    slash = url.rfind("/", 0, wildcard.start())
    if slash < start:
        if start:
            raise ConfigError(
                f"{Url(url)!r}: the bucket or host must not have a wildcard. Write its name."
            )
        return ".", url
    return url[:slash] or "/", url[slash + 1 :]


def _place_of_file(url: str) -> FilePlace:
    folder, _, name = url.rstrip("/").rpartition("/")
    return FilePlace(Url(folder or ("/" if url.startswith("/") else ".")), literal=name)


def _has_wildcard(pattern: str) -> bool:
    return bool(re.search(r"[*?\[]", pattern))


def _expanded(pattern: str) -> list[str]:
    """Return the patterns that the braces of a pattern stand for."""
    parts = _BRACES.split(pattern)  # in turn: text outside of braces, text inside
    if any("{" in part or "}" in part for part in parts):
        raise ConfigError(f"{pattern!r}: braces must be closed and must not be nested.")
    choices = [
        [part] if index % 2 == 0 else list(_choices(part)) for index, part in enumerate(parts)
    ]
    count = 1
    for each in choices:
        count *= len(each)
    if count > _MOST_NAMES:
        raise ConfigError(f"{pattern!r} gives {count:,} names; the maximum is {_MOST_NAMES:,}.")
    return ["".join(each) for each in itertools.product(*choices)]


def _choices(text: str) -> Iterator[str]:
    """Yield the texts that a pair of braces stands for: ``00..12`` or ``a,b``."""
    bounds = _RANGE.fullmatch(text)
    if bounds is None:
        yield from text.split(",")
        return
    first, last = bounds.groups()
    if int(last) < int(first):
        raise ConfigError(f"{{{text}}}: the first number must be smaller than the second.")
    count = int(last) - int(first) + 1
    if count > _MOST_NAMES:
        raise ConfigError(f"{{{text}}} gives {count:,} names; the maximum is {_MOST_NAMES:,}.")
    for number in range(int(first), int(last) + 1):
        yield f"{number:0{len(first)}}"  # with as many leading zeros as the first number


@functools.lru_cache(maxsize=256)
def _matcher(pattern: str) -> re.Pattern[str]:
    return re.compile(_pattern_regex(pattern))


def _pattern_regex(pattern: str) -> str:
    """Translate a pattern to a regular expression.

    ``*``, ``?`` and ``[...]`` match inside one folder, ``**`` in any number of folders.
    """
    out, index = "", 0
    while index < len(pattern):
        letter = pattern[index]
        if pattern.startswith("**/", index):
            out, index = out + r"(?:.*/)?", index + 3
        elif pattern.startswith("**", index):
            out, index = out + ".*", index + 2
        elif letter == "*":
            out, index = out + "[^/]*", index + 1
        elif letter == "?":
            out, index = out + "[^/]", index + 1
        elif letter == "[" and (end := pattern.find("]", index + 2)) > 0:
            # "[!ab]" is "[^ab]" in a regular expression; a "^" at the begin means itself.
            inside = pattern[index + 1 : end].replace("\\", "\\\\")
            inside = "^" + inside[1:] if inside.startswith("!") else inside.replace("^", "\\^", 1)
            out, index = f"{out}[{inside}]", end + 1
        else:
            out, index = out + re.escape(letter), index + 1
    return f"(?:{out})\\Z"
