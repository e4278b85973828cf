"""How honest inputs become hostile ones: names, numbers, bytes, JSON and answers of a server."""

from __future__ import annotations

import copy
import random
import struct
from typing import Any

from server import Answer

NAMES = [
    *("../notes/notes.txt", "../../.ssh/id", "../train.py", "../../../../../../etc/passwd", ".."),
    *("mine.txt", "mine/too.txt", "mine", "his-link", "his-link/x", "../link/id", "a/../../x"),
    *(".mds/index.mds", ".mds/ledger", ".mds/lock", ".mds/origin.json", ".mds", ".MDS/ledger"),
    *("index.json", "INDEX.JSON", "x/index.json", ".id.4194303-0123456789ab.mds-part", "", "/"),
    *(
        "a//b",
        "./a",
        "a/.",
        "a/",
        "C:\\x",
        "C:x",
        "\\\\h\\s",
        "%2e%2e%2f.ssh",
        "..%2fx",
        "?a",
        "#a",
    ),
    *("a?b=c", "a#b", "a%00b", "x" * 255, "x" * 256, "y/" * 600 + "z", "\u65e5" * 90, "~/.ssh/id"),
    *("a\0b", "a\nb", "a\x1b]0;t\x07", "\ud800", "\u202egpj", ".md\u017f/ledger", "\uff0e\uff0e/x"),
    *(
        "-rf",
        "$HOME",
        "`id`",
        "{}",
        "%s",
        "a" * 200 + "/" + "b" * 200,
        "con",
        "nul.txt",
        ".",
        "...",
    ),
]
PIECES = [
    *("../", "./", "/", "//", "\\", "\0", "\n", "\x1b[2J", ".mds/", ".mds-part", "%2e", "\u200d"),
    *(
        "\ud800",
        "\x7f",
        "\u2028",
        "C:",
        "index.json",
        " ",
        ".",
        "..",
        "\u0301",
        "x" * 250,
        "?",
        "#",
    ),
]
NUMBERS: list[Any] = [
    *(
        0,
        1,
        -1,
        2,
        3,
        255,
        2**16,
        2**31 - 1,
        2**31,
        2**32 - 1,
        2**32,
        2**36,
        2**53,
        2**63 - 1,
        2**63,
    ),
    *(2**64, 10**30, -(2**31), -(2**63), 10**400, 1.5, -0.0, 1e308, float("inf"), float("nan")),
    *(True, False, None, "7", "", [], {}, [7], "9" * 5000, -7, 7, 100, 101),
]
WORDS = [0, 1, 2, 7, 0x7F, 0xFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 4096]
DIGITS = ["-1", "0", "1", "9" * 30, "9" * 5000, "0x10", "1_0", "+5", " 7", "\u0667", "", "1e3", "*"]


def name(rng: random.Random) -> str:
    """A name that a stranger might try."""
    told = rng.choice(NAMES)
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        at = rng.randrange(len(told) + 1)
        told = told[:at] + rng.choice(PIECES) + told[at:]
    return told.upper() if rng.random() < 0.05 else told


def damage(rng: random.Random, data: bytes, *, most: int = 4) -> bytes:
    """Bits flipped, words replaced, pieces cut, doubled, zeroed or inserted."""
    out = bytearray(data)
    for _ in range(rng.randint(1, most)):
        if not out:
            return bytes(out)
        # The beginning of a file is where counts and offsets are.
        at = rng.randrange(min(len(out), rng.choice((16, 64, 256, 1 << 30))))
        how = rng.randrange(8)
        if how == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            del out[at:]
        elif how == 2:
            del out[at : at + rng.randint(1, 64)]
        elif how == 3:
            out[at:at] = out[at : at + rng.randint(1, 64)]
        elif how == 4:
            out[at : at + rng.choice((1, 8, 64, 4096))] = bytes(rng.choice((1, 8, 64)))
        elif how == 5:
            size, kind = rng.choice(((4, "<I"), (8, "<Q")))
            at -= at % size
            out[at : at + size] = struct.pack(kind, rng.choice(WORDS) % (1 << 8 * size))
        elif how == 6:
            out[at : at + 8] = rng.randbytes(8)
        else:
            out[at:at] = rng.choice((b"0", b"-", b'"', b"{", b"[" * 50, b"\0" * 40, b"9" * 5000))
    return bytes(out)


def value(rng: random.Random) -> Any:
    """A value in the place of another."""
    return copy.copy(rng.choice(NUMBERS)) if rng.random() < 0.75 else name(rng)


def change(rng: random.Random, told: Any, *, most: int = 2) -> Any:
    """A JSON value in which some leaves, keys or branches are others."""
    told = copy.deepcopy(told)
    for _ in range(rng.randint(1, most)):
        places = list(_places(told))
        if not places:
            return value(rng)
        holder, key = rng.choice(places)
        how = rng.random()
        if how < 0.7:
            holder[key] = value(rng)
        elif how < 0.8:
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
        elif how < 0.9:
            holder[name(rng)] = holder[key]
        else:
            holder[key] = [copy.deepcopy(holder[key])]
    return told


def _places(told: Any) -> Any:
    if isinstance(told, dict):
        for key in list(told):
            yield told, key
            yield from _places(told[key])
    elif isinstance(told, list):
        for key in range(len(told)):
            yield told, key
            yield from _places(told[key])


def lie(rng: random.Random, answer: Answer) -> None:
    """One answer of a server, made worse."""
    how = rng.randrange(16)
    body, length = answer.body, str(len(answer.body))
    if how == 0:
        answer.set("Content-Length", rng.choice([*DIGITS, str(len(body) + 7), str(len(body) // 2)]))
    elif how == 1:
        answer.set("Content-Length", None)
    elif how == 2:
        first, last, total = (rng.choice([*DIGITS, length]) for _ in range(3))
        answer.set("Content-Range", f"bytes {first}-{last}/{total}")
    elif how == 3:
        answer.set(
            "ETag", rng.choice(['"\x1b]0;t\x07"', "", '"' + "e" * 60_000 + '"', "W/x", "\xff"])
        )
    elif how == 4:
        answer.status = rng.choice(
            [200, 204, 206, 304, 400, 401, 403, 404, 409, 410, 416, 418, 429]
        )
    elif how == 5:
        answer.status = rng.choice(
            [500, 502, 503, 504, 507, 599, 999, 100, 102, "abc", -1, "9" * 50]
        )
        answer.set("Retry-After", rng.choice([*DIGITS, "Wed, 21 Oct 2099 07:28:00 GMT"]))
    elif how == 6:
        answer.status = rng.choice([300, 301, 302, 303, 307, 308])
        target = [
            "/" + answer.path,
            "file:///etc/passwd",
            "http://127.0.0.1:9/",
            "http://[",
            "//",
            "",
        ]
        answer.set(
            "Location", rng.choice([*target, "gopher://x", "\x1b[2J", "http://127.0.0.1:99999/"])
        )
    elif how == 7:
        answer.reason = rng.choice(["\x1b[2J\x1b]0;t\x07", "", "x" * 70_000, "\u202e", "a\rb"])
        answer.status = rng.choice([answer.status, 403, 500])
    elif how == 8:
        answer.body = damage(rng, body)
    elif how == 9:
        answer.body = damage(rng, body)
        answer.set("Content-Length", str(len(answer.body)))
    elif how == 10:
        answer.body = body[: rng.randrange(len(body) + 1)]
    elif how == 11:
        answer.body = body + rng.randbytes(rng.choice((1, 100, 100_000)))
        if rng.random() < 0.5:
            answer.set("Content-Length", str(len(answer.body)))
    elif how == 12:
        answer.set("Transfer-Encoding", "chunked")
        size = rng.choice(["-1", "f" * 30, "zz", "", "5;x=y", f"{len(body):x}", "0"])
        answer.body = f"{size}\r\n".encode() + body + rng.choice([b"\r\n0\r\n\r\n", b"", b"\r\n"])
        if rng.random() < 0.5:
            answer.set("Content-Length", None)
    elif how == 13:
        answer.set("Content-Encoding", rng.choice(["gzip", "br", "deflate", "\x1b", "zstd"]))
    elif how == 14:
        answer.headers += [(f"X-{i}", "y") for i in range(rng.choice((99, 101, 300)))]
    else:
        raws = [b"", b"HTTP/9.9 200 OK\r\n\r\n", b"SSH-2.0-x\r\n", b"\0" * 100, b"HTTP/1.1", body]
        answer.raw = rng.choice([*raws, b"HTTP/1.1 200 OK\r\n" + b"a" * 70_000])
