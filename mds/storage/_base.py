"""The interface of a provider: `Store`, a few verbs on keys below a URL, and its options.

A provider (of S3, HTTP, ...) implements `stream`, `_write`, `head`, `list` and `delete`; each makes
one try. All other verbs (whole objects, files, checks of size) are built on those here. Behaviour
such as retries is added by wrappers (`mds.storage._wrappers`, `mds.storage._retry`).

The *version* of an object is an etag, a generation or a time of change, from which a replaced
object is noticed. A ``url`` in a message has no secrets (`Store.url_of`).

A store may be used by many threads and in forked children. It pickles as its URL and options:
connections belong to a process (`mds._process.fork_safe.per_process`).
"""

from __future__ import annotations

import dataclasses
import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, TypeVar
from urllib.parse import urlsplit

from mds._process.fork_safe import new_event
from mds._redaction import printable
from mds.errors import (
    ConfigError,
    CorruptError,
    ReplacedError,
    StalledError,
    StoreError,
    TransientError,
)
from mds.storage._files import open_target, read_back, translate_write_errors, write_at
from mds.storage._url import Url, is_local, join, redact, scheme_of

#: Bytes asked of a connection at a time. Measured over loopback HTTP, 1 MB costs the least
#: processor time; 64 KB a quarter more, 8 MB a third more.
CHUNK = 1 << 20

# A key that needs no escape and cannot be mistaken for a login or a query of a URL.
_PLAIN_KEY = re.compile(r"[0-9A-Za-z_./-]+").fullmatch

# Hosts of providers where one name is one bucket or repository, whatever the region.
_USUAL_HOSTS = (
    *(".amazonaws.com", ".amazonaws.com.cn"),
    *(".storage.googleapis.com", ".huggingface.co"),
)

T = TypeVar("T")

#: Function called with each piece of a file; the piece is valid until the next call.
OnBytes = Callable[["bytes | memoryview"], object]


def check_key(key: str) -> str:
    """Return the key. Raises ConfigError for a key that leads out of its store (``../x``)."""
    parts = key.split("/")
    if key.startswith("/") or ".." in parts or "\0" in key:
        raise ConfigError(f"{key!r} is not the name of an object below a URL.")
    return key


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The key of an object, its size in bytes (-1: unknown), its version and its revision.

    ``version`` is an etag, a generation or a time of change. It differs when the content does. It
    is '' if the store gives none of these. ``revision`` is a time of change, an inode or another
    text that also differs after the same content was written again. It is '' if there is none, or
    if ``version`` says as much. It does not count when two facts are compared.

    >>> mds.storage.open_store("data/train").head("shard.00000.mds").size
    298
    """

    key: str
    size: int
    version: str = ""
    revision: str = dataclasses.field(default="", compare=False, repr=False)


def is_same_object(first: ObjectInfo, second: ObjectInfo) -> bool:
    """Whether two answers may describe the same content: sizes and versions do not contradict.

    A size or a version that one of them does not know is not compared.
    """
    if first.size >= 0 and second.size >= 0 and first.size != second.size:
        return False
    return not (first.version and second.version) or first.version == second.version


def replaced_error(url: str, first: ObjectInfo, second: ObjectInfo) -> ReplacedError:
    """Return the error for an object that was replaced while its parts were read.

    ``first`` and ``second`` are the facts of two answers that differ.
    """
    return ReplacedError(
        f"get {url}: the object changed while it was read ({describe_info(first)} before, "
        f"{describe_info(second)} now)",
        url=url,
        verb="get",
    )


def describe_info(info: ObjectInfo) -> str:
    """Describe the size and version of an object for people."""
    size = f"{info.size} bytes" if info.size >= 0 else "unknown size"
    return f"{size}, version {info.version!r}" if info.version else size


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart upload that did not end: the key of its object, and the store's id for it."""

    key: str
    identifier: str


class Body(Iterator[bytes]):
    """The bytes of one answer as they arrive; iterate it once, `close` it when you stop early.

    If fewer or more bytes arrive than promised, the iteration raises TransientError.

    Args:
        info: Key, size and version of the whole object, also for a range.
        chunks: Iterator over the bytes, in pieces of any size.
        length: Number of bytes that must arrive (None: unknown).
        url: URL of the object in errors.
        close: Function that releases the connection.

    >>> with mds.storage.open_store("data/train").stream("index.json") as body:
    ...     size = sum(len(chunk) for chunk in body)
    >>> size == body.info.size == body.length
    True
    """

    def __init__(
        self,
        info: ObjectInfo,
        chunks: Iterator[bytes],
        length: int | None,
        *,
        url: str = "",
        close: Callable[[], object] | None = None,
    ) -> None:
        self.info = info
        self.length = length
        #: Headers of the answer, if the store uses HTTP.
        self.headers: Mapping[str, str] = {}
        self._chunks = chunks
        self._received = 0
        self._url = url
        self._on_close = [close] if close is not None else []

    def __next__(self) -> bytes:
        # A loop only to pass over empty chunks, which an iterator of bytes need not return.
        for chunk in self._chunks:
            self._received += len(chunk)
            if self.length is not None and self._received > self.length:
                self._fail("then still more")
            if chunk:
                return chunk
        if self.length is not None and self._received < self.length:
            self._fail("then the connection ended")
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Release the connection. Closing twice is fine."""
        while self._on_close:
            self._on_close.pop()()

    def on_close(self, act: Callable[[], object]) -> None:
        """Register ``act`` to be called when the body ends or is closed, the latest first."""
        self._on_close.append(act)

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fail(self, problem: str) -> None:
        """Close the body and raise the TransientError for a wrong number of bytes."""
        self.close()
        raise TransientError(
            f"get {self._url}: {self._received} of {self.length} bytes arrived, {problem}",
            url=self._url,
            verb="get",
        )


class Settings(NamedTuple):
    """Settings of a provider that errors name, as users write them.

    Attributes:
        endpoint: What has the scheme, the host and the port of the server.
        certificate: Half a sentence: how to trust another certificate.
        credentials: Sentence: how to give credentials; '' if errors of the provider say it.
    """

    endpoint: str = "the URL"
    certificate: str = (
        "set SSL_CERT_FILE and REQUESTS_CA_BUNDLE to a file with the certificates to trust"
    )
    credentials: str = ""


class Store(ABC):
    """Objects below a URL. Keys are relative paths with '/', and '' is the URL itself.

    Subclasses implement the abstract methods. Wrappers (`Wrapper`) are stores, too.

    >>> with mds.storage.open_store("memory://bucket/train") as store:
    ...     store.put("a/word", b"hello").size
    ...     [info.key for info in store.list("a/")]
    ...     store.get_range("a/word", 1, 3)
    5
    ['a/word']
    b'el'

    A provider of your own inherits it::

        class Shelf(Store):
            def stream(self, key, start=0, end=None): ...
            def head(self, key): ...
            def list(self, prefix=""): ...
            def delete(self, key): ...
            def _write(self, key, file, size): ...

        mds.storage.register_store("shelf", Shelf)
    """

    _url = Url("")
    _printable_parts: tuple[str, str] | None = None  # around a plain key in `url_of`
    #: Folder that holds the objects as plain files, if the store is on a mounted disk.
    local_path: str | None = None
    #: Whether the provider can list the objects below a URL.
    can_list: bool = True
    #: Whether `list` requests hundreds of objects at a time, and not folder by folder.
    lists_pages: bool = False
    #: Whether objects can be written and deleted.
    can_write: bool = True
    #: `get_file` downloads objects of at least two parts in parts of `part_size` bytes, with
    #: `part_connections` requests at a time.
    part_size: int = 16 << 20
    part_connections: int = 4
    #: Whether `get_file` should request a whole object as the range of all its bytes, because that
    #: is faster in this store.
    asks_for_ranges: bool = False
    #: Bytes a second below which a transfer counts as stalled, over HTTP and SFTP.
    min_rate: float = 1024.0
    #: Settings of the provider that errors name.
    settings = Settings()

    @property
    def url(self) -> Url:
        """The URL of the store. Its text hides secrets; `Url.reveal` returns the full text."""
        return self._url

    @url.setter
    def url(self, url: str) -> None:
        self._url, self._printable_parts = Url(url), None

    @property
    def address(self) -> str:
        """URL of the server to which requests are sent; '' if it is that of the store's URL.

        For example, S3_ENDPOINT_URL may name it. Once the server has answered, mds waits longer
        for it.
        """
        return ""

    @property
    def endpoint(self) -> str:
        """The address, by which equal URLs differ; '' for the usual server of a scheme."""
        if self.local_path is not None:
            return ""
        address = self.address.rstrip("/")
        host = f".{urlsplit(address).hostname}"
        return "" if host.endswith(_USUAL_HOSTS) else address

    @abstractmethod
    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the bytes of an object from ``start`` to before ``end`` (None: to its end).

        Raises NotFoundError before the first chunk if there is no such object, CorruptError if it
        is too short for the range, and TransientError if bytes stop arriving.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Return the size and version of an object. Raises NotFoundError."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the objects whose keys start with ``prefix``, at any depth and in any order."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object. A missing one is no error."""

    @abstractmethod
    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Upload the next ``size`` bytes of ``file``, so that all of them are stored or none."""

    def get(self, key: str) -> bytes:
        """Return the whole object."""
        return b"".join(self.stream(key))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes from ``start`` to before ``end``, or raise CorruptError."""
        return b"".join(self.stream(key, start, end))

    def get_file(
        self, key: str, path: str, size: int | None = None, on_bytes: OnBytes | None = None
    ) -> ObjectInfo:
        """Download a whole object to ``path``, a temporary name that the caller renames later.

        Args:
            key: Key of the object.
            path: File to write.
            size: Expected size in bytes; another size raises CorruptError. If it is given, large
                objects are downloaded in parts over several connections.
            on_bytes: Function that is called with the bytes in order, piece by piece, such as to
                compute a digest: as they arrive, or read back from the file after parts.

        Raises NoSpaceError when the disk is full.
        """
        with translate_write_errors(path), open_target(path) as file:
            if size is not None and size >= 2 * self.part_size and self.part_connections > 1:
                info = _get_parts(self, key, file.fileno(), size)
            else:
                # Some stores check the digest of a whole object, but not of a range. So a faster
                # range is requested only if the caller checks the bytes itself, with `on_bytes`.
                end = size if on_bytes is not None and self.asks_for_ranges else None
                with self.stream(key, 0, end) as body:
                    return _write_body(self, body, file.fileno(), size, on_bytes)
        if on_bytes is not None:
            read_back(path, on_bytes)
        return info

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Upload ``data`` as an object, in place of an older one; all of it is stored or nothing.

        Return the object's size and version, as the store then describes it.
        """
        self._write(key, io.BytesIO(data), len(data))
        return self._verify(key, len(data))

    def put_file(self, key: str, path: str) -> ObjectInfo:
        """Upload a file as an object; returns and guarantees the same as `put`."""
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._write(key, file, size)
        return self._verify(key, size)

    def pinned_url(self) -> Url:
        """Return a URL that keeps naming the present content, if the provider has versions."""
        return self.url

    def list_uploads(self) -> Iterator[Upload]:
        """List multipart uploads that did not end, if the store keeps them until removed."""
        return iter(())

    def abort_upload(self, upload: Upload) -> None:
        """Abort a multipart upload. One that does not exist is fine."""
        raise StoreError(f"{self!r} has no multipart uploads to abort: {upload}.", url=self.url)

    def url_of(self, key: str) -> str:
        """Return the URL of an object without passwords and signatures, for messages."""
        if not _PLAIN_KEY(key):
            return printable(redact(join(self.url, key)))
        # It is called for every request, so the text around a plain key is computed once, such as
        # ("s3://bucket/train/", "") from "s3://bucket/train/key".
        if self._printable_parts is None:
            text = printable(redact(join(self.url.reveal(), "key")))
            before, _, behind = text.rpartition("key")
            self._printable_parts = (before, behind)
        return key.join(self._printable_parts)  # the key between both parts

    def renew(self) -> bool:
        """Drop clients and their credentials; return whether the next request reads new ones.

        Called when a store refuses the credentials, which may have expired: the environment, a
        file or a service of the machine may have newer ones.
        """
        return False

    def close(self) -> None:  # noqa: B027 - most stores have nothing to close
        """Close the store. Most do nothing: all stores of a process share its connections."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def _verify(self, key: str, size: int) -> ObjectInfo:
        """Return the store's facts about an object that was just uploaded.

        Raises TransientError if its size is not ``size`` bytes.
        """
        # Some stores report an upload as done and leave an empty object; one more request per shard
        # is a low price. (-1: the store does not know the size.)
        info = self.head(key)
        if info.size not in (size, -1):
            raise TransientError(
                f"put {self.url_of(key)}: {size} bytes were sent, but the store has {info.size}",
                url=self.url_of(key),
                verb="put",
            )
        return info

    def _unchanged(self, before: ObjectInfo, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield chunks; raise ReplacedError if the object changed before the last one.

        For stores that read an object by name in several requests without a version.
        """
        yield from chunks
        now = self.head(before.key)
        if not is_same_object(before, now):
            raise replaced_error(self.url_of(before.key), before, now)

    def _check_range(self, info: ObjectInfo, start: int, end: int | None) -> None:
        """Raise CorruptError if bytes ``start`` to ``end`` (None: the end) exceed the object."""
        if info.size >= 0 and (start > info.size or (end is not None and end > info.size)):
            upto = "the end" if end is None else end
            raise CorruptError(
                f"get {self.url_of(info.key)}: bytes {start} to {upto} were requested, but the "
                f"object has {info.size} bytes",
                url=self.url_of(info.key),
                verb="get",
            )


def _write_body(
    store: Store, body: Body, file: int, size: int | None, on_bytes: OnBytes | None
) -> ObjectInfo:
    """Write a whole object to the descriptor ``file`` and return its size and version.

    ``size`` and ``on_bytes`` are those of `Store.get_file`.
    """
    _check_size(store, body, size)
    written = 0
    for chunk in body:
        write_at(file, chunk, written)
        written += len(chunk)
        if on_bytes is not None:
            on_bytes(chunk)
    if size is not None and written != size:
        raise _wrong_size_error(store, body.info.key, written, size)
    return dataclasses.replace(body.info, size=written)


def _get_parts(store: Store, key: str, file: int, size: int) -> ObjectInfo:
    """Download an object of ``size`` bytes to the descriptor ``file``, several parts at a time.

    Return its size and version. All parts must be of one version, or ReplacedError is raised.
    """
    step = store.part_size
    stop = new_event()  # set when a part has failed, so that the others end early
    infos: list[ObjectInfo] = []  # one of each answer, all of which must be of the same version

    def download_part(start: int) -> None:
        """Download the bytes from ``start`` on, one part, and write them at ``start`` of the file.

        Raises ReplacedError if the answer has another version than the first answer of any part.
        """
        with store.stream(key, start, min(start + step, size)) as body:
            _check_size(store, body, size)
            infos.append(body.info)
            if not is_same_object(infos[0], body.info):
                raise replaced_error(store.url_of(key), infos[0], body.info)
            for chunk in body:
                write_at(file, chunk, start)
                start += len(chunk)
                if stop.is_set():
                    break

    part_count = -(-size // step)  # rounded up
    workers = min(store.part_connections, part_count)
    with ThreadPoolExecutor(workers, thread_name_prefix="mds-part") as pool:
        futures = [pool.submit(download_part, start) for start in range(0, size, step)]
        try:
            finished, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in finished:
                future.result()  # raises the error of a failed part
        finally:
            # After a failure do not start the parts that are still queued.
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
    return infos[0]


def _check_size(store: Store, body: Body, size: int | None) -> None:
    """Raise CorruptError if the object is known to have another size than ``size``."""
    if size is not None and body.info.size not in (size, -1):
        raise _wrong_size_error(store, body.info.key, body.info.size, size)


def _wrong_size_error(store: Store, key: str, size: int, expected_size: int) -> CorruptError:
    """Return the error for an object of ``size`` bytes instead of ``expected_size``."""
    url = store.url_of(key)
    return CorruptError(
        f"get {url}: it has {size} bytes, {expected_size} were expected", url=url, verb="get"
    )


# ----------------------------------------------------------------------------------- slow transfers
# The timeout of a socket only notices silence: a server that sends a byte a second keeps a transfer
# alive for days. So providers measure the rate. Time in which the reader is busy and requests
# nothing does not count.


@dataclass(frozen=True, slots=True)
class LeastRate:
    """The least bytes per second, on average over a number of seconds; 0 allows any rate."""

    bytes_per_second: float
    seconds: float


class Pace:
    """Check of the rate of a transfer: bytes received per second of waiting for them.

    The rate is checked, and measured anew, whenever the reads since the last check have waited for
    ``least_rate.seconds`` in all. ``url`` is the URL in errors.
    """

    def __init__(self, least_rate: LeastRate, url: str) -> None:
        self._least_rate, self._url = least_rate, url
        self._spent, self._received = 0.0, 0

    def note(self, seconds: float, count: int) -> None:
        """Add the time and the bytes of one read. Raises StalledError if the rate is too low."""
        self._spent += seconds
        self._received += count
        least_rate = self._least_rate
        if self._spent >= least_rate.seconds:
            is_over = count == 0  # the last read of a transfer returns no bytes
            if self._received < least_rate.bytes_per_second * self._spent and not is_over:
                raise StalledError(
                    f"get {self._url}: only {self._received} bytes arrived in {self._spent:.0f} s, "
                    f"fewer than {least_rate.bytes_per_second:g} a second "
                    "(storage option min_rate)",
                    url=self._url,
                    verb="get",
                )
            self._spent, self._received = 0.0, 0


# ------------------------------------------------------------------------------------------ options
# Every provider declares its options as a frozen dataclass. Frozen values are hashable, so that two
# streams with the same options share one client of the process.


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """Options that every provider takes.

    Attributes:
        part_size: Bytes of a part; objects of two parts and more are downloaded in parts.
        part_connections: Largest number of parts of an object that are downloaded at a time.
        concurrency: Largest number of simultaneous requests of this store.
        hedge: Seconds after which a slow range is requested a second time; 0 for never.
        compare_versions: Whether all parts of an object must have one version (etag, ...); False
            if servers disagree about it.
        min_rate: Bytes per second, on average over the timeout; a slower transfer has stalled.
    """

    part_size: int = 16 << 20
    part_connections: int = 4
    concurrency: int = 64
    hedge: float = 0.0
    compare_versions: bool = True
    min_rate: float = 1024.0

    def __post_init__(self) -> None:
        """Raise ConfigError for values out of range."""
        if self.min_rate < 0:
            raise ConfigError(f"min_rate={self.min_rate} (bytes per second) must not be negative.")
        if self.part_size < 1 or self.part_connections < 1 or self.concurrency < 1:
            raise ConfigError(
                f"part_size={self.part_size}, part_connections={self.part_connections} and "
                f"concurrency={self.concurrency} must be at least 1."
            )


def split_options(options: Mapping[str, Any] | None) -> tuple[CommonOptions, dict[str, Any]]:
    """Return the options that every provider takes, and a dict of all others."""
    provider_options = dict(options or {})
    common_names = provider_options.keys() & set(COMMON_NAMES)
    common_options = {name: provider_options.pop(name) for name in common_names}
    return CommonOptions(**_typed(CommonOptions, common_options)), provider_options


def unused_settings(url: str, options: Mapping[str, Any] | None) -> list[str]:
    """Return the names of options without effect on a store: of a path, all but `COMMON_NAMES`."""
    return [name for name in options or {} if name not in COMMON_NAMES] if is_local(url) else []


def settings_for(url: str, options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return those options that have an effect on the store at a URL or path; None without any."""
    unused = unused_settings(url, options)
    return {n: value for n, value in (options or {}).items() if n not in unused} or None


def parse_options(kind: type[T], options: Mapping[str, Any] | None, scheme: str) -> T:
    """Return ``options`` as an instance of ``kind``, the dataclass of a provider's options.

    A number or bool may be given as a text, as on a command line. Raises ConfigError, which names
    the ``scheme`` of the URL, for an unknown option, and for a text that is no number or bool.
    """
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in options or {}:
        if name not in names:
            from mds._arguments import did_you_mean
            from mds.storage._spellings import remedy_for

            hint = remedy_for(scheme, name) or did_you_mean(name, names)
            raise ConfigError(
                f"{scheme}:// URLs take no storage option {name!r}.{hint} They take "
                f"{', '.join(names)} and {', '.join(COMMON_NAMES)}."
            )
    return kind(**_typed(kind, options or {}))


_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _typed(kind: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with texts such as "true" and "16" as the types that the fields have."""
    if not options:
        return {}
    # Such as "bool | str | None": annotations are texts here.
    types = {field.name: str(field.type).split(" | ") for field in dataclasses.fields(kind)}
    typed = dict(options)
    for name, value in options.items():
        if not isinstance(value, str):
            continue
        type_names = types.get(name, ["str"])
        try:
            if "bool" in type_names and value.lower() in _BOOLS:
                typed[name] = _BOOLS[value.lower()]
            elif "str" not in type_names and "int" in type_names:
                typed[name] = int(value)
            elif "str" not in type_names and "float" in type_names:
                typed[name] = float(value)
            elif type_names[0] == "bool" and "str" not in type_names:
                raise ValueError  # noqa: TRY301 - as int() and float() do
        except ValueError:
            expected = "true or false" if type_names[0] == "bool" else "a number"
            raise ConfigError(f"storage option {name}={value!r} must be {expected}.") from None
    return typed


COMMON_NAMES = [field.name for field in dataclasses.fields(CommonOptions)]


def check_endpoint(endpoint: str | None, option: str) -> str | None:
    """Return the URL of a server without spaces around it; None for none.

    Raises ConfigError for a URL without a scheme. ``option`` is the storage option in this error.
    """
    if endpoint is None or scheme_of(endpoint.strip()) in ("http", "https"):
        return endpoint and endpoint.strip()
    address = redact(endpoint.strip()).rpartition("://")[2]
    raise ConfigError(
        f"storage option {option}: {redact(endpoint)!r} must begin with http:// or https://. Write "
        f"https://{address}, or http://{address} for a server without TLS."
    )


def find_file(option: str, path: str | None) -> str | None:
    """Return the path of a file of the user, with its ``~`` expanded; None for none.

    Raises ConfigError if it does not exist: the error of a store would be taken for one about its
    objects. ``option`` is the storage option with the path, or whose default has it.
    """
    path = path and os.path.expanduser(path)
    if path and not os.path.exists(path):
        raise ConfigError(
            f"there is no file {path!r}: correct the storage option {option}, or the environment "
            "variable in place of it."
        )
    return path


def env(name: str) -> str | None:
    """Return an environment variable, or None if it is unset or empty."""
    return os.environ.get(name) or None
