"""Bodies of HTTP answers that come in chunks, as Amazon sends listings: put together, and checked.

Only whole ones of a bounded size are wanted, so nothing is given before the last chunk is here.
"""

from __future__ import annotations

from collections.abc import Callable

_END = b"\r\n"
#: Longer lines between chunks are none.
_LINE = 4096


def read_chunks(first: bytes, receive: Callable[[], bytes], most: int) -> tuple[bytes, bytes]:
    """The body that begins with ``first``, and what came behind it.

    ``receive`` gives more bytes, and none at the end. Raises ConnectionError for a body that ends
    too early, has more than ``most`` bytes or is not in chunks.
    """
    held, pieces, total = bytearray(first), [], 0

    def have(count: int) -> None:
        while len(held) < count:
            more = receive()
            if not more:
                raise ConnectionError("the connection ended before the last chunk of the answer")
            held.extend(more)

    def line() -> bytes:
        while (end := held.find(_END)) < 0:
            if len(held) > _LINE:
                raise ConnectionError("the answer is not in chunks, though it says so")
            have(len(held) + 1)
        found = bytes(held[:end])
        del held[: end + len(_END)]
        return found

    while size := _size(line()):
        total += size
        if total > most:
            raise ConnectionError(f"the answer has more than {most} bytes")
        have(size + len(_END))
        if held[size : size + len(_END)] != _END:
            raise ConnectionError("a chunk of the answer has another length than it says")
        pieces.append(bytes(held[:size]))
        del held[: size + len(_END)]
    while line():  # headers behind the last chunk
        continue
    return b"".join(pieces), bytes(held)


def _size(line: bytes) -> int:
    said = line.partition(b";")[0].strip()
    if not said.isalnum() or len(said) > 8:
        raise ConnectionError(f"the length of a chunk of the answer is none: {line[:80]!r}")
    try:
        return int(said, 16)
    except ValueError as error:
        raise ConnectionError(f"the length of a chunk is none: {line[:80]!r}") from error
