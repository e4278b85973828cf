"""Which files a URL means: a folder, one file, or a pattern.

``*``, ``?`` and ``[...]`` stay inside a folder, ``**/`` is any number of folders; ``{00..12}`` and
``{a,b}`` are spelled out, so that a store which cannot list (plain HTTP) can be read by them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Iterator

from mds.errors import ConfigError
from mds.storage.url import Url, is_local, local_path, reveal, scheme_of

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
#: Names that one pattern may be spelled out to.
_MOST_NAMES = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class FilePlace:
    """A folder, and patterns for keys below it; without any every file there.

    ``literal``: a key that is meant as it is written, and before patterns that were made of it.
    """

    root: Url
    patterns: tuple[str, ...] = ()
    literal: str = ""

    @property
    def names(self) -> tuple[str, ...] | None:
        """The keys, where no pattern has a wildcard; None where the folder must be listed."""
        if self.literal and not self.patterns:
            return (self.literal,)
        if not self.patterns or any(map(_has_wildcard, self.patterns)):
            return None
        return tuple(dict.fromkeys(self.patterns))

    @property
    def prefix(self) -> str:
        """Common beginning of all keys, which saves a part of the listing."""
        if not self.patterns:
            return self.literal
        heads = [re.split(r"[*?\[]", each, maxsplit=1)[0] for each in self.patterns]
        first, last = min(heads, default=""), max(heads, default="")
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
        return "".join(letter for letter, _ in pairs)

    def takes(self, key: str) -> bool:
        """Whether a key below the root is meant."""
        if not self.patterns:
            return key == self.literal or not self.literal
        return any(_matcher(each).match(key) for each in self.patterns)


def parse_place(location: str, endings: tuple[str, ...] = ()) -> FilePlace:
    """Parse the place of a URL; one that ends with one of ``endings`` is a file.

    Raises ConfigError for braces that do not close or that mean too many names.
    """
    url = reveal(location)
    if is_local(url):
        url = local_path(url)
        if os.path.isfile(url):
            return _file(url)
        if os.path.isdir(url) or not has_pattern(url):
            is_file = not os.path.isdir(url) and url.lower().endswith(endings or ("\0",))
            return _file(url) if is_file else FilePlace(Url(url))
    head, tail = _split(url)
    if not tail:
        is_file = bool(endings) and url.rstrip("/").lower().endswith(endings)
        return _file(url) if is_file else FilePlace(Url(url))
    return FilePlace(Url(head), tuple(_expanded(tail)), tail)


def has_pattern(url: str) -> bool:
    """Whether a URL or path has a wildcard or braces behind its first part."""
    return bool(_split(reveal(url))[1])


def _split(url: str) -> tuple[str, str]:
    """Split a URL before its first part with a wildcard."""
    start = url.index("://") + 3 if scheme_of(url) and "://" in url else 0
    if scheme_of(url) in ("http", "https") and "?" in url:
        url = url[: url.index("?")]  # there it begins a query
    wildcard = re.search(r"[*?\[{]", url[start:])
    if wildcard is None:
        return url, ""
    slash = url.rfind("/", 0, start + wildcard.start())
    if slash < start:
        if start:
            raise ConfigError(f"{Url(url)!r}: the bucket or host has a wildcard; name it.")
        return ".", url
    return url[:slash] or "/", url[slash + 1 :]


def _file(url: str) -> FilePlace:
    folder, _, name = url.rstrip("/").rpartition("/")
    return FilePlace(Url(folder or ("/" if url.startswith("/") else ".")), literal=name)


def _has_wildcard(pattern: str) -> bool:
    return bool(re.search(r"[*?\[]", pattern))


def _expanded(pattern: str) -> list[str]:
    """Spell out the braces of a pattern."""
    parts = _BRACES.split(pattern)
    if any("{" in part or "}" in part for part in parts):
        raise ConfigError(f"{pattern!r}: the braces do not close, or are inside each other.")
    choices = [
        [part] if index % 2 == 0 else list(_choices(part)) for index, part in enumerate(parts)
    ]
    count = 1
    for each in choices:
        count *= len(each)
    if count > _MOST_NAMES:
        raise ConfigError(f"{pattern!r} means {count:,} names; at most {_MOST_NAMES:,} will do.")
    return ["".join(each) for each in itertools.product(*choices)]


def _choices(text: str) -> Iterator[str]:
    bounds = _RANGE.fullmatch(text)
    if bounds is None:
        yield from text.split(",")
        return
    first, last = bounds.groups()
    if int(last) < int(first):
        raise ConfigError(f"{{{text}}}: give a smaller number and a larger one behind it.")
    count = int(last) - int(first) + 1
    if count > _MOST_NAMES:
        raise ConfigError(f"{{{text}}} means {count:,} names; at most {_MOST_NAMES:,} will do.")
    for number in range(int(first), int(last) + 1):
        yield f"{number:0{len(first)}}"


@functools.lru_cache(maxsize=256)
def _matcher(pattern: str) -> re.Pattern[str]:
    return re.compile(_regex(pattern))


def _regex(pattern: str) -> str:
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
            inside = pattern[index + 1 : end].replace("\\", "\\\\")
            inside = "^" + inside[1:] if inside.startswith("!") else inside.replace("^", "\\^", 1)
            out, index = f"{out}[{inside}]", end + 1
        else:
            out, index = out + re.escape(letter), index + 1
    return f"(?:{out})\\Z"
