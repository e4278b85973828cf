"""Redaction of errors and log lines: secrets are masked, control characters are escaped.

Terminals and logs also show untrusted text: answers of servers, file names, samples. An escape
sequence in it could rewrite the screen or forge a log line, and the text of a foreign exception may
contain a signed URL. So all errors and log lines of this library are redacted here. Text without
anything to hide costs one scan of its characters.

Secrets are recognised by their position (a login or a query in a URL, a value after a name such as
``password``) and by their value: a password that the library was given is masked in all later text
("remembered"). The mask is ``***``.
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
_SHORTEST = 6  # characters; masking a shorter secret would damage ordinary words
_MAX_SECRETS = 1000

# Known secrets with increasing numbers, so that the oldest is dropped first and the newest number
# shows whether a secret was added.
_secrets: dict[str, int] = {}
_numbers = itertools.count(1)
# The pattern of all known secrets, and the number of the newest secret in it; see `_known_pattern`.
_pattern: tuple[int, re.Pattern[str] | None] = (0, None)

# The tokens of a language model are no secrets: tokens, tokenizer, num_tokens, eos_token_id. Those
# of an account are: access_tokens.
_TELLING = (
    "secret|password|passwd|token(?!s|i|[-_](?:id|type))|"
    "(?:access|api|auth|refresh|security|session)[-_]?tokens|signature|credential|authorization|"
    "account[-_]?key|api[-_]?key"
)
_TELLING_NAME = re.compile(
    rf"(?i){_TELLING}|^key$|[-_]key$|^sig$|^auth|[-_]auth|cookie|^sas|connection_string"
)
# Words that begin the sentence after the name of an error, and are no secrets.
_SENTENCE = (
    "the|this|that|your|you|an?|no|not|it|its|there|missing|invalid|unable|cannot|could|failed|"
    "access|request|signature|token|please|provided|expired|server"
)
_IN_TEXT = [
    # Also with one slash, which is what pathlib.Path makes of a URL.
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://?)[^\s'\"<>/]*@"), rf"\1{MASK}@"),
    # A whole query, for any of its values may be the signature.
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
# Every match of a pattern above has one of these characters; paths seldom have one.
_MAY_MATTER = re.compile(r"[@?=:\s]")


def printable(text: str) -> str:
    r"""Return the text with control characters escaped.

    >>> printable("name\x1b[2J\n")
    'name\\x1b[2J\\n'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def is_telling(name: str) -> bool:
    """Whether the name of an option or a header, such as "api_key", means a secret value."""
    return _TELLING_NAME.search(name) is not None


def remember_secret(secret: object) -> None:
    """Mask a secret in every later text, also in its usual encodings.

    Values that are not text or have fewer than `_SHORTEST` characters are ignored.
    """
    if not isinstance(secret, str) or len(secret) < _SHORTEST:
        return
    if not secret.split():  # only white space
        return
    encoded = base64.b64encode(secret.encode("utf-8", "surrogateescape")).decode()
    # The last word of "Bearer TOKEN" is the token.
    for form in (secret, quote(secret, safe=""), quote_plus(secret), encoded, secret.split()[-1]):
        if form not in _secrets and len(form) >= _SHORTEST:
            _secrets[form] = next(_numbers)
    # Forget the oldest. (None: another thread may have removed it.)
    while len(_secrets) > _MAX_SECRETS:
        _secrets.pop(next(iter(_secrets)), None)


def remember_secrets(options: Mapping[str, Any] | None) -> None:
    """Remember the values of all options whose names mean secrets, also in nested mappings."""
    for name, value in (options or {}).items():
        if isinstance(value, Mapping):
            remember_secrets(value)
        elif is_telling(str(name)):
            remember_secret(value)


def mask_secrets(text: str) -> str:
    """Return a text with all remembered secrets masked."""
    pattern = _known_pattern()
    return pattern.sub(MASK, text) if pattern is not None else text


def mask_foreign(text: str) -> str:
    """Return a text of foreign code with remembered and probable secrets masked.

    >>> mask_foreign("no answer from https://me:pw@host/x?X-Amz-Signature=1f: Bearer abcdefgh")
    'no answer from https://***@host/x?... Bearer ***'
    """
    text = mask_secrets(text)
    if _MAY_MATTER.search(text) is None:
        return text
    for pattern, mask in _IN_TEXT:
        text = pattern.sub(mask, text)
    return text


def safe(text: str) -> str:
    """Return a text with remembered secrets masked and control characters escaped."""
    return printable(mask_secrets(text))


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a name, with one filter that redacts the arguments of its lines."""
    logger = logging.getLogger(name)
    if not any(isinstance(log_filter, _SafeLines) for log_filter in logger.filters):
        logger.addFilter(_SafeLines())
    return logger


class _SafeLines(logging.Filter):
    """Log filter that redacts the arguments of a line; its format string is trusted."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the arguments of a record in place, and return True so that it is logged.

        Numbers are left as they are, for formats such as %d.
        """
        if isinstance(record.args, tuple):
            record.args = tuple(
                value if isinstance(value, (int, float)) else safe(str(value))
                for value in record.args
            )
        return True


def _known_pattern() -> re.Pattern[str] | None:
    r"""Return one pattern for all remembered secrets, or None without any.

    It is compiled again only after a secret was added. For the secrets "abc-def" and "s3cret!" it
    is ``(?<!\w)abc\-def(?!\w)|(?<!\w)s3cret!``.
    """
    global _pattern  # noqa: PLW0603 - one pattern a process, replaced whole
    secrets = dict(_secrets)  # a copy, because other threads may add some
    newest = max(secrets.values(), default=0)
    newest_in_pattern, pattern = _pattern
    if newest != newest_in_pattern:
        # Longer secrets come first, because the first one that matches is masked.
        forms = [
            f"{_no_letter('?<!', form[0])}{re.escape(form)}{_no_letter('?!', form[-1])}"
            for form in sorted(secrets, key=len, reverse=True)
        ]
        pattern = re.compile("|".join(forms)) if forms else None
        _pattern = (newest, pattern)
    return pattern


def _no_letter(look: str, char: str) -> str:
    """Return a pattern that matches where a secret does not continue as a longer word.

    The password "secret" is thus not masked in the name ``secret_key``.

    Args:
        look: "?<!" to look at the character before the secret, "?!" for the one behind it.
        char: First or last character of the secret. If it is no letter, digit or '_', the secret
            ends at it in any case, and '' is returned.
    """
    return rf"({look}\w)" if re.match(r"\w", char) else ""
