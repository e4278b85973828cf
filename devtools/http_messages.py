"""HTTP messages as bytes, for the proxy: heads, bodies, and bodies with a fault."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal[
    "drop",
    "status",
    "cut",
    "reset",
    "stall",
    "slow",
    "damage",
    "short",
    "long",
    "whole",
    "shifted",
]
_PIECE = 1 << 18


class _Fault(Protocol):
    @property
    def kind(self) -> Kind: ...
    @property
    def after(self) -> int: ...
    @property
    def rate(self) -> float: ...


@dataclass(slots=True)
class Head:
    """The first line of a message in three words, and its headers as they came."""

    first: list[str]
    headers: list[tuple[str, str]]

    @classmethod
    def read(cls, reader: Reader) -> Head | None:
        """Return the next head; None at the end of the connection. Interim answers are skipped."""
        while True:
            lines = reader.head().decode("latin-1").split("\r\n")
            if len(lines) < 2:
                return None
            pairs = [line.partition(":") for line in lines[1:] if line]
            head = cls(lines[0].split(" ", 2), [(name, value.strip()) for name, _, value in pairs])
            if not (head.first[0].startswith("HTTP/") and head.first[1].startswith("1")):
                return head

    def get(self, name: str) -> str:
        """Return the value of a header; '' when there is none."""
        return next((value for key, value in self.headers if key.lower() == name), "")

    def take(self, name: str) -> str:
        """Return the value of a header, which is removed."""
        value = self.get(name)
        self.headers = [(key, other) for key, other in self.headers if key.lower() != name]
        return value

    def add(self, name: str, value: str) -> None:
        """Append a header."""
        self.headers.append((name, value))

    def encode(self) -> bytes:
        """Return the bytes of the head."""
        lines = [" ".join(self.first), *(f"{key}: {value}" for key, value in self.headers)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class Reader:
    """Reader that cuts the bytes of a connection into heads and bodies."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""

    def head(self) -> bytes:
        """Return the bytes up to an empty line; b'' at the end of the connection."""
        return self._until(b"\r\n\r\n")[:-4]

    def body(self, head: Head, method: bytes) -> Iterator[bytes]:
        """Yield the raw body of a head, less if the connection ends; ``method`` is the request's.

        For a request itself ``method`` is empty.
        """
        is_answer = head.first[0].startswith("HTTP/")
        if method == b"HEAD" or (is_answer and head.first[1] in ("204", "304")):
            return
        if head.get("transfer-encoding").lower() == "chunked":
            yield from self._chunks()
            return
        length = head.get("content-length")
        if not length and not is_answer:
            return
        remaining = int(length) if length else None
        while remaining is None or remaining > 0:
            piece = self._receive(_PIECE if remaining is None else min(_PIECE, remaining))
            if not piece:
                return
            if remaining is not None:
                remaining -= len(piece)
            yield piece

    def _chunks(self) -> Iterator[bytes]:
        while line := self._until(b"\r\n"):
            yield line
            size = int(line.split(b";")[0], 16)
            remaining = size + 2  # and the line end after the chunk
            if size == 0:
                yield self._until(b"\r\n")
                return
            while remaining > 0:
                piece = self._receive(min(_PIECE, remaining))
                if not piece:
                    return
                remaining -= len(piece)
                yield piece

    def _receive(self, max_bytes: int) -> bytes:
        if self._buffer:
            piece, self._buffer = self._buffer[:max_bytes], self._buffer[max_bytes:]
            return piece
        return self._connection.recv(max_bytes)

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            received = self._connection.recv(_PIECE)
            if not received:
                return b""
            self._buffer += received
        end = self._buffer.index(mark) + len(mark)
        head, self._buffer = self._buffer[:end], self._buffer[end:]
        return head


def pump(
    client: socket.socket,
    answer: Head,
    body: Iterator[bytes],
    fault: _Fault | None,
    rate: float,
    ends: socket.socket,
) -> tuple[int, bool]:
    """Send an answer with its fault; return the sent bytes of the body, and whether it is complete.

    ``ends`` becomes readable when the proxy ends; a stalled answer waits for that.
    """
    kind = fault.kind if fault else None
    after = fault.after if fault else 0
    announced = answer.get("content-length")
    # The body is read by what the server announced, whatever is announced to the client.
    answer = Head(answer.first, list(answer.headers))
    if kind in ("short", "long") and announced:
        answer.take("content-length")
        size = min(after, int(announced)) if kind == "short" else int(announced) + 64
        answer.add("Content-Length", str(size))
    client.sendall(answer.encode())
    sent_bytes = 0
    for expected in body:
        piece = expected
        if kind in ("cut", "reset", "stall", "short"):
            piece = expected[: max(0, after - sent_bytes)]
        elif kind == "damage" and sent_bytes <= after < sent_bytes + len(expected):
            offset = after - sent_bytes
            piece = expected[:offset] + bytes([expected[offset] ^ 0xFF]) + expected[offset + 1 :]
        piece_rate = fault.rate if fault and kind == "slow" and sent_bytes >= after else rate
        _send(client, piece, piece_rate)
        sent_bytes += len(piece)
        if len(piece) < len(expected):
            return sent_bytes, _end(client, kind, ends)
    if kind in ("cut", "reset", "stall"):
        return sent_bytes, _end(client, kind, ends)
    if kind == "long":
        client.sendall(b"x" * 64)
    return sent_bytes, answer.get("connection").lower() != "close"


def _send(client: socket.socket, piece: bytes, rate: float) -> None:
    if not rate:
        client.sendall(piece)
        return
    step = max(1, min(16384, int(rate / 10)))  # steady, and not large pieces with long pauses
    for offset in range(0, len(piece), step):
        part = piece[offset : offset + step]
        client.sendall(part)
        threading.Event().wait(len(part) / rate)


def _end(client: socket.socket, kind: Kind | None, ends: socket.socket) -> bool:
    if kind == "stall":
        # Until the client gives up or the proxy ends.
        select.select([client, ends], [], [])
    elif kind == "reset":
        # Closing with data unsent and no patience is a reset on the wire.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False
