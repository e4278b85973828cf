"""Text that is fit to be shown: secrets are masked, control characters are escaped.

Terminals and logs also show text of strangers: answers of servers, names of files, samples. An
escape sequence in it could rewrite the screen or forge a line of the log, and the text of a foreign
exception may hold a signed URL. Every error of the library and every line that it logs passes here.
Text without anything to hide costs one scan of its characters.

Secrets are recognized by their place (a login or a query in a URL, a value after a telling name)
and by their value: a text that was once given as a password is masked wherever it appears later.
"""

from __future__ import annotations

import base64
import itertools
import logging
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, quote_plus

MASK = "***"
_SHORTEST = 6  # characters; a shorter one would mask pieces of ordinary words
_MOST = 1000

# Values count up, so that the oldest secret is dropped first.
_secrets: dict[str, int] = {}
_counter = itertools.count(1)
_pattern: tuple[int, re.Pattern[str] | None] = (0, None)

_TELLING = (
    "secret|password|passwd|token|signature|credential|authorization|account[-_]?key|api[-_]?key"
)
_TELLING_NAME = re.compile(
    rf"(?i){_TELLING}|^key$|[-_]key$|^sig$|^auth|[-_]auth|cookie|^sas|connection_string"
)
#: Words that begin the sentence behind the name of an error, and are no secrets.
_SENTENCE = (
    "the|this|that|your|you|an?|no|not|it|its|there|missing|invalid|unable|cannot|could|failed|"
    "access|request|signature|token|please|provided|expired|server"
)
_IN_TEXT = [
    # Also with one slash, as pathlib.Path leaves of a URL.
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://?)[^\s'\"<>/]*@"), rf"\1{MASK}@"),
    # A query with values: as a whole, for any of them may be the signature.
    (re.compile(r"(?<=[\w/.%~-])\?[\w.%~-]+=[^\s'\"<>)]*"), "?..."),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {MASK}"),
    # Not the first word of a sentence: "SignatureDoesNotMatch: The request signature ...".
    (
        re.compile(
            rf"(?i)\b([\w-]*(?:{_TELLING})[\w-]*['\"]?\s*[=:]\s*['\"]?)"
            rf"(?!(?<!['\"])(?:{_SENTENCE})\s+[a-z])[^\s'\",;&)}}]+"
        ),
        rf"\1{MASK}",
    ),
]


def printable(text: str) -> str:
    r"""Return the text with control characters escaped.

    >>> printable("name\x1b[2J\n")
    'name\\x1b[2J\\n'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def is_telling(name: str) -> bool:
    """Whether the name of an option or a header says that its value is a secret."""
    return _TELLING_NAME.search(name) is not None


def remember_secret(secret: object) -> None:
    """Mask a secret in every later text, also in its usual encodings."""
    if not isinstance(secret, str) or len(secret) < _SHORTEST:
        return
    if not secret.split():
        return
    encoded = base64.b64encode(secret.encode("utf-8", "surrogateescape")).decode()
    for form in (secret, quote(secret, safe=""), quote_plus(secret), encoded, secret.split()[-1]):
        if form not in _secrets and len(form) >= _SHORTEST:
            _secrets[form] = next(_counter)
    while len(_secrets) > _MOST:
        _secrets.pop(next(iter(_secrets)), None)


def remember_secrets(options: Mapping[str, Any] | None) -> None:
    """Remember the values of those options whose names tell that they are secrets."""
    for name, value in (options or {}).items():
        if isinstance(value, Mapping):
            remember_secrets(value)
        elif is_telling(str(name)):
            remember_secret(value)


def mask_secrets(text: str) -> str:
    """Return the text without the secrets that this process was given."""
    pattern = _known()
    return pattern.sub(MASK, text) if pattern is not None else text


def mask_foreign(text: str) -> str:
    """Return a foreign text without known secrets and without parts that look like secrets.

    >>> mask_foreign("no answer from https://me:pw@host/x?X-Amz-Signature=1f: Bearer abcdefgh")
    'no answer from https://***@host/x?... Bearer ***'
    """
    text = mask_secrets(text)
    for pattern, mask in _IN_TEXT:
        text = pattern.sub(mask, text)
    return text


def safe(text: str) -> str:
    """Return the text without secrets and control characters."""
    return printable(mask_secrets(text))


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a name, which hides secrets and escapes control characters."""
    logger = logging.getLogger(name)
    if not any(isinstance(each, _SafeLines) for each in logger.filters):
        logger.addFilter(_SafeLines())
    return logger


class _SafeLines(logging.Filter):
    """Makes the arguments of a line safe; its text is ours."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the arguments of a record, and return True so that it is logged."""
        if isinstance(record.args, tuple):
            record.args = tuple(
                each if isinstance(each, (int, float)) else safe(str(each)) for each in record.args
            )
        return True


def _known() -> re.Pattern[str] | None:
    """Return one pattern for all secrets, compiled again after a secret was added."""
    global _pattern  # noqa: PLW0603 - one pattern a process, replaced whole
    secrets = dict(_secrets)
    state = max(secrets.values(), default=0)
    if state != _pattern[0]:
        # Not inside a longer word: 'secret' may be a password, and `secret_key` is a name.
        forms = [
            rf"{_edge(each[0], '<!')}{re.escape(each)}{_edge(each[-1], '!')}"
            for each in sorted(secrets, key=len, reverse=True)
        ]
        _pattern = (state, re.compile("|".join(forms)) if forms else None)
    return _pattern[1]


def _edge(char: str, look: str) -> str:
    return rf"(?{look}\w)" if re.match(r"\w", char) else ""
