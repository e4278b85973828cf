"""An SFTP server over a folder, in threads of this process, for tests.

paramiko implements the protocol; this file implements its operations on the folder.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

USER, PASSWORD = "anna", "se:cr@t"


@dataclass(frozen=True, slots=True)
class SftpServer:
    """Port, login and key of the server, and the line of known_hosts with its host key."""

    port: int
    user: str
    password: str
    key: str  # path of a private key that is accepted, too
    known_hosts: str


@contextmanager
def sftp_server(folder: str, read_seconds: float = 0.0) -> Iterator[SftpServer]:
    """Serve a folder as the root of the file system; each read takes ``read_seconds`` longer."""
    import paramiko

    host_key = paramiko.ECDSAKey.generate()
    user_key = paramiko.ECDSAKey.generate()
    key_path = os.path.join(folder, "..", "sftp-user-key")
    user_key.write_private_key_file(key_path)
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    port = listener.getsockname()[1]
    transports: list[Any] = []
    interface = _interface(folder, read_seconds)
    login = _login(user_key)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # the listener was closed: the end
            transport = paramiko.Transport(connection)
            transports.append(transport)
            transport.add_server_key(host_key)
            transport.set_subsystem_handler("sftp", paramiko.SFTPServer, interface)
            with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
                transport.start_server(event=threading.Event(), server=login())

    thread = threading.Thread(target=accept, name="mds-sftp-server", daemon=True)
    thread.start()
    line = f"[127.0.0.1]:{port} {host_key.get_name()} {host_key.get_base64()}\n"
    try:
        yield SftpServer(port, USER, PASSWORD, key_path, line)
    finally:
        # Shutting down wakes the thread that waits in accept; closing alone does not.
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for transport in transports:
            transport.close()
        thread.join(10)


def _login(user_key: Any) -> Any:
    import paramiko

    class Login(paramiko.ServerInterface):  # type: ignore[misc]
        def check_auth_password(self, username: str, password: str) -> int:
            good = (username, password) == (USER, PASSWORD)
            return int(paramiko.AUTH_SUCCESSFUL if good else paramiko.AUTH_FAILED)

        def check_auth_publickey(self, username: str, key: Any) -> int:
            good = username == USER and key == user_key
            return int(paramiko.AUTH_SUCCESSFUL if good else paramiko.AUTH_FAILED)

        def get_allowed_auths(self, username: str) -> str:
            del username
            return "password,publickey"

        def check_channel_request(self, kind: str, chanid: int) -> int:
            del kind, chanid
            return int(paramiko.OPEN_SUCCEEDED)

    return Login


def _handle(read_seconds: float) -> Any:
    import paramiko

    class Handle(paramiko.SFTPHandle):  # type: ignore[misc]
        """Reads and writes at the offsets that the protocol gives."""

        def __init__(self, file: int, flags: int) -> None:
            super().__init__(flags)
            self.file = file

        def read(self, offset: int, length: int) -> Any:
            threading.Event().wait(read_seconds)
            return os.pread(self.file, length, offset)

        def write(self, offset: int, data: bytes) -> int:
            os.pwrite(self.file, data, offset)
            return int(paramiko.SFTP_OK)

        def stat(self) -> Any:
            return paramiko.SFTPAttributes.from_stat(os.fstat(self.file))

        def close(self) -> None:
            os.close(self.file)

    return Handle


def _interface(folder: str, read_seconds: float) -> Any:
    import paramiko

    handle = _handle(read_seconds)

    class Files(paramiko.SFTPServerInterface):  # type: ignore[misc]
        def _real(self, path: str) -> str:
            return os.path.join(folder, self.canonicalize(path).lstrip("/"))

        def _do(self, act: Callable[..., Any], *arguments: Any) -> Any:
            try:
                result = act(*arguments)
            except OSError as error:
                return paramiko.SFTPServer.convert_errno(error.errno or 0)
            return paramiko.SFTP_OK if result is None else result

        def list_folder(self, path: str) -> Any:
            real = self._real(path)

            def act() -> Any:
                entries = []
                for entry in os.scandir(real):
                    item = paramiko.SFTPAttributes.from_stat(entry.stat())
                    item.filename = entry.name
                    entries.append(item)
                return entries

            return self._do(act)

        def stat(self, path: str) -> Any:
            return self._do(lambda: paramiko.SFTPAttributes.from_stat(os.stat(self._real(path))))

        lstat = stat

        def open(self, path: str, flags: int, attr: Any) -> Any:
            del attr
            return self._do(lambda: handle(os.open(self._real(path), flags, 0o644), flags))

        def remove(self, path: str) -> Any:
            return self._do(os.unlink, self._real(path))

        def posix_rename(self, oldpath: str, newpath: str) -> Any:
            return self._do(os.rename, self._real(oldpath), self._real(newpath))

        def mkdir(self, path: str, attr: Any) -> Any:
            del attr
            return self._do(os.mkdir, self._real(path))

    return Files
