"""Any SSH server: sftp://user:password@host:port/absolute/folder, through paramiko.

Keys come from the options, COMPOSER_SFTP_KEY_FILE, ~/.ssh or an agent. The server's key must be
known: from COMPOSER_SFTP_KNOWN_HOSTS_FILE or ~/.ssh/known_hosts. SSH answers the requests of a
connection one after another. So each transfer takes its own connection from a small pool of the
process, and requests many pieces before the first one arrives.

`Store` (_base.py) describes the verbs. `classify` tells `translate_errors` which StoreError an
exception of paramiko becomes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from mds._process.fork_safe import new_semaphore, per_process
from mds.errors import (
    ConfigError,
    StoreError,
    TransientError,
    UnauthenticatedError,
    UnreachableError,
    need,
)
from mds.storage._base import (
    CHUNK,
    Body,
    LeastRate,
    ObjectInfo,
    Pace,
    Settings,
    Store,
    check_key,
    env,
    find_file,
    parse_options,
    replaced_error,
)
from mds.storage._files import temporary_path
from mds.storage._translate import Failure, translate_chunks, translate_errors
from mds.storage._url import parse_url, redact

# OpenSSH refuses more than ten connections that are not logged in yet (MaxStartups).
_CONNECTIONS = 8
# Bytes requested ahead. A transfer that stops early still receives as many.
_WINDOW = 2 << 20


@dataclass(frozen=True, slots=True)
class SftpOptions:
    """Login, and keys of servers.

    Attributes:
        username: User (default: the one in the URL).
        password: Password (default: the one in the URL).
        key_file: Private key (default: COMPOSER_SFTP_KEY_FILE, else ~/.ssh or an agent).
        known_hosts_file: Keys of servers (default: COMPOSER_SFTP_KNOWN_HOSTS_FILE), besides
            ~/.ssh/known_hosts.
        accept_unknown_host: Whether to trust a server with an unknown key; for tests.
    """

    username: str | None = None
    password: str | None = field(default=None, repr=False)
    key_file: str | None = None
    known_hosts_file: str | None = None
    accept_unknown_host: bool = False


class SftpStore(Store):
    """Files below a folder of a server.

    Args:
        url: URL ``sftp://user:password@host:port/absolute/folder``.
        options: Fields of `SftpOptions`.
        timeout: Seconds without a byte after which a request has stalled.
    """

    settings = Settings(
        credentials="Write sftp://user:password@host/, or set COMPOSER_SFTP_KEY_FILE."
    )

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        place = parse_url(url)
        if not place.hostname:
            raise ConfigError(f"{redact(url)!r} names no host.")
        settings = parse_options(SftpOptions, options, "sftp")
        self.url = url
        self._address = (place.hostname, place.port or 22)
        self._root = f"/{place.path}"
        self._timeout = timeout
        self._options = replace(
            settings,
            username=settings.username or place.user,
            password=settings.password or place.password,
            key_file=find_file("key_file", settings.key_file or env("COMPOSER_SFTP_KEY_FILE")),
            known_hosts_file=find_file(
                "known_hosts_file",
                settings.known_hosts_file or env("COMPOSER_SFTP_KNOWN_HOSTS_FILE"),
            ),
        )

    @property
    def address(self) -> str:
        """Scheme, host and port of the server."""
        return f"sftp://{self._address[0]}:{self._address[1]}"

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the file, or its bytes from ``start`` to before ``end``.

        The body has a connection of the pool for itself, until it ends or is closed.
        """
        safe_url = self.url_of(key)
        pool = self._pool()
        with translate_errors("get", safe_url, classify):
            connection = pool.take()
            try:
                connection.file = file = connection.sftp.open(self._path(key), "rb")
                info = _info(key, file.stat())
            except BaseException:
                pool.drop(connection)
                raise
        try:
            self._check_range(info, start, end)
        except StoreError:
            pool.drop(connection)
            raise
        stop = info.size if end is None else end
        connection.sftp.sock.pace = Pace(LeastRate(self.min_rate, self._timeout), safe_url)
        chunks = translate_chunks(_pieces(file, start, stop), safe_url, classify)
        chunks = _unchanged(file, info, chunks, safe_url)
        body = Body(info, chunks, max(0, stop - start), url=safe_url)
        # A finalizer runs once: at the end, or when the body is dropped before it.
        body.on_close(weakref.finalize(body, _finish, pool, connection))
        return body

    def head(self, key: str) -> ObjectInfo:
        """Return the size, and the time of change as the version."""
        with translate_errors("head", self.url_of(key), classify), self._pool().use() as sftp:
            state = sftp.stat(self._path(key))
            if stat.S_ISDIR(state.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return _info(key, state)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the files below a prefix, folder by folder."""
        folders = [prefix.rpartition("/")[0]]
        while folders:
            folder = folders.pop()
            with (
                translate_errors("list", self.url_of(folder), classify),
                self._pool().use() as sftp,
            ):
                try:
                    entries = sftp.listdir_attr(self._path(folder))
                except FileNotFoundError:
                    continue
            for entry in entries:
                name = f"{folder}/{entry.filename}" if folder else entry.filename
                if stat.S_ISDIR(entry.st_mode):
                    folders.append(name)
                elif name.startswith(prefix):
                    yield _info(name, entry)

    def delete(self, key: str) -> None:
        """Remove the file; a missing one is no error."""
        with (
            translate_errors("delete", self.url_of(key), classify),
            self._pool().use() as sftp,
            contextlib.suppress(FileNotFoundError),
        ):
            sftp.remove(self._path(key))

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Write a temporary file and rename it; see `Store._write`."""
        path = self._path(key)
        with translate_errors("put", self.url_of(key), classify), self._pool().use() as sftp:
            _make_folders(sftp, posixpath.dirname(path))
            temporary = temporary_path(path)
            try:
                sftp.putfo(file, temporary, file_size=size)
                sftp.posix_rename(temporary, path)
            except BaseException:
                # The connection may be broken, too; the first error says more.
                with contextlib.suppress(Exception):
                    sftp.remove(temporary)
                raise

    def _path(self, key: str) -> str:
        return posixpath.join(self._root, check_key(key)) if key else self._root

    def _pool(self) -> _Pool:
        """Return this process's connections to the server with these options."""
        return per_process(
            (SftpStore, self._address, self._options, self._timeout),
            lambda: _Pool(self._address, self._options, self._timeout),
        )


class _Connection:
    """A connection while one user has it: the next user of the same one gets a new object.

    Attributes:
        client: paramiko's SSHClient.
        sftp: paramiko's SFTPClient.
        file: Open file of a transfer, else None.
        busy: Whether it is still in use: neither given back to the pool nor dropped.
    """

    def __init__(self, client: Any, sftp: Any) -> None:
        self.client = client
        self.sftp = sftp
        self.file: Any = None
        self.busy = True


class _Pool:
    """The connections of a process to a server, of which each has one user at a time.

    An idle connection is used before a new one is opened. At most `_CONNECTIONS` are in use.

    Args:
        address: Host and port.
        options: Login and keys.
        timeout: Seconds after which a connection or a request has stalled.
    """

    def __init__(self, address: tuple[str, int], options: SftpOptions, timeout: float) -> None:
        self._address, self._options, self._timeout = address, options, timeout
        self._process = os.getpid()
        self._idle: list[tuple[Any, Any]] = []  # SSHClient and SFTPClient of each
        # Connections in use are kept here too: if a forked child collected one, paramiko would
        # close the session that the parent still uses.
        self._used: set[_Connection] = set()
        self._slots = new_semaphore(_CONNECTIONS)

    def take(self) -> _Connection:
        """Take a connection, and wait if all are in use. Call `give_back` or `drop` afterwards."""
        self._slots.acquire()
        try:
            connection = self._idle_one() or self._connect()
        except BaseException:
            self._slots.release()
            raise
        self._used.add(connection)
        return connection

    def give_back(self, connection: _Connection) -> None:
        """End the use of a connection without pending answers, and keep it for the next user."""
        if self._end_use(connection):
            self._idle.append((connection.client, connection.sftp))
            self._slots.release()

    def drop(self, connection: _Connection) -> None:
        """End the use of a connection in an unknown state, and close it.

        After `give_back` or `drop` this does nothing.
        """
        if self._end_use(connection):
            self._slots.release()
            connection.client.close()

    @contextmanager
    def use(self) -> Iterator[Any]:
        """Yield the SFTPClient of a connection, which is given back at the end of the block.

        After an error other than FileNotFoundError the connection is dropped, since an answer may
        be pending on it.
        """
        connection = self.take()
        try:
            yield connection.sftp
        except FileNotFoundError:
            self.give_back(connection)
            raise
        except BaseException:
            self.drop(connection)
            raise
        self.give_back(connection)

    def is_ours(self) -> bool:
        """Whether this is the process that made the connections."""
        return self._process == os.getpid()

    def _end_use(self, connection: _Connection) -> bool:
        """Mark a connection as no longer in use; return whether the caller may give it away.

        Return False after an earlier end of its use, and in a forked child: the connection belongs
        to the parent.
        """
        was_used = connection.busy and self.is_ours()
        if was_used:
            connection.busy = False
            self._used.discard(connection)
        return was_used

    def _idle_one(self) -> _Connection | None:
        """Return an idle connection that is still open, or None; close the broken ones."""
        while True:
            try:
                client, sftp = self._idle.pop()
            except IndexError:
                return None
            if client.get_transport().is_active():
                return _Connection(client, sftp)
            client.close()

    def _connect(self) -> _Connection:
        """Open a connection and log in. Raises MissingDependencyError and paramiko's errors."""
        try:
            import paramiko
        except ImportError as error:
            raise need("paramiko", "sftp", "sftp:// URLs") from error
        options = self._options
        client = paramiko.SSHClient()
        client.load_system_host_keys()
        if options.known_hosts_file:
            client.load_host_keys(options.known_hosts_file)
        policy = paramiko.AutoAddPolicy if options.accept_unknown_host else paramiko.RejectPolicy
        client.set_missing_host_key_policy(policy)
        try:
            client.connect(
                *self._address,
                username=options.username,
                password=options.password,
                key_filename=options.key_file,
                # Keys and agents would be tried before a password that the caller gave.
                look_for_keys=options.password is None,
                allow_agent=options.password is None,
                timeout=self._timeout,
                banner_timeout=self._timeout,
                auth_timeout=self._timeout,
                channel_timeout=self._timeout,
            )
            sftp = client.open_sftp()
            sftp.get_channel().settimeout(self._timeout)
            sftp.sock = _PacedChannel(sftp.sock)  # paramiko receives all answers through it
        except BaseException:
            client.close()
            raise
        return _Connection(client, sftp)


class _PacedChannel:
    """A channel of paramiko whose bytes must arrive at a least rate while a file is read.

    Outside of a transfer ``pace`` is None: other answers are too short for a rate. It takes the
    place of ``channel``, and all other attributes are those of ``channel``.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.pace: Pace | None = None
        #: Whether an error interrupted an answer, so that the connection cannot be used again.
        self.is_cut = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def recv(self, count: int) -> bytes:
        """Return the bytes that arrived, up to the given number."""
        started = time.monotonic()
        try:
            data: bytes = self._channel.recv(count)
            if self.pace is not None:
                self.pace.note(time.monotonic() - started, len(data))
        except BaseException:
            self.is_cut = True
            raise
        return data


def _pieces(file: Any, start: int, stop: int) -> Iterator[bytes]:
    """Yield the bytes of an open file from ``start`` to before ``stop``.

    All pieces of the next `_WINDOW` bytes, each of up to `CHUNK` bytes, are requested together.
    """
    for window in range(start, stop, _WINDOW):
        until = min(window + _WINDOW, stop)
        ranges = [(offset, min(CHUNK, until - offset)) for offset in range(window, until, CHUNK)]
        for piece in file.readv(ranges):
            yield bytes(piece)


def _unchanged(file: Any, before: ObjectInfo, chunks: Iterator[bytes], url: str) -> Iterator[bytes]:
    """Yield the chunks. Raises ReplacedError if the file was written to meanwhile.

    ``before`` are the facts about the open file at the beginning.
    """
    yield from chunks
    with translate_errors("get", url, classify):
        now = _info(before.key, file.stat())
    if now.version != before.version:
        raise replaced_error(url, before, now)


def _finish(pool: _Pool, connection: _Connection) -> None:
    """End a transfer: receive the pieces that were requested, then give the connection back.

    The connection is dropped if that fails, or if an answer was interrupted before. A forked child
    does nothing, because the connection belongs to its parent.
    """
    if not pool.is_ours():
        return
    channel = connection.sftp.sock
    try:
        if not channel.is_cut:
            # Waits for pending pieces. paramiko hides errors of this request, so look at `is_cut`.
            connection.file.close()
    except (OSError, EOFError):
        channel.is_cut = True
    if channel.is_cut:
        pool.drop(connection)
    else:
        channel.pace = None
        pool.give_back(connection)


def _make_folders(sftp: Any, folder: str) -> None:
    """Create a folder and its parents unless they exist; ``sftp`` is paramiko's SFTPClient."""
    try:
        sftp.stat(folder)
    except FileNotFoundError:
        _make_folders(sftp, posixpath.dirname(folder))
        with contextlib.suppress(OSError):  # another writer may have made it
            sftp.mkdir(folder)


def _info(key: str, state: Any) -> ObjectInfo:
    return ObjectInfo(key, int(state.st_size), f"{state.st_mtime:x}-{state.st_size:x}")


def classify(error: Exception) -> Failure | None:
    """Return the failure that an exception of paramiko means; None for other exceptions."""
    import paramiko

    if isinstance(error, paramiko.BadHostKeyException) or "not found in known_hosts" in str(error):
        return Failure(
            UnauthenticatedError,
            f"{error}. Put the server's key into the file that COMPOSER_SFTP_KNOWN_HOSTS_FILE or "
            f"the storage option known_hosts_file names",
        )
    # paramiko gives these two no class of their own.
    has_no_key = str(error).startswith(("No authentication methods", "not a valid"))
    if isinstance(error, paramiko.AuthenticationException) or has_no_key:
        return Failure(UnauthenticatedError, f"{type(error).__name__}: {error}")
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        return Failure(UnreachableError, str(error))
    if isinstance(error, (paramiko.SSHException, paramiko.SFTPError, EOFError)):
        return Failure(TransientError, f"{type(error).__name__}: {error}")
    if isinstance(error, OSError) and error.errno is None:
        if str(error) in ("", "Socket is closed"):
            return Failure(TransientError, "the connection is closed")
        # paramiko gives no errno for the general status of the protocol, 'Failure'.
        return Failure(StoreError, f"the server says {str(error)!r}")
    return None
