"""The incumbent's ``base.util``: helpers that its users call."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from mds.storage.retry import jitter
from mds.units import parse_bytes, parse_count

F = TypeVar("F", bound=Callable[..., Any])


def bytes_to_int(bytes_str: int | str) -> int:
    """Bytes, from a number or a text such as "64mb"."""
    return parse_bytes(bytes_str)


def number_abbrev_to_int(abbrev_str: int | str) -> int:
    """Samples, from a number or a text such as "100k"."""
    return parse_count(abbrev_str)


def get_list_arg(text: str) -> list[str]:
    """The parts of a text between commas; none for an empty text."""
    return text.split(",") if text else []


def clean_stale_shared_memory() -> None:
    """Do nothing, safely: there is no shared memory to clean, whatever else runs on this node."""


def get_import_exception_message(package_name: str, extra_deps: str) -> str:
    """The message for a missing optional package."""
    return f'the package {package_name} is not installed: pip install "mds-streaming[{extra_deps}]"'


def wait_for_file_to_exist(
    filename: str, poll_interval: float, timeout: float, err_msg: str
) -> None:
    """Return when there is a file of that name; RuntimeError(err_msg) after ``timeout`` seconds."""
    import tenacity

    wait = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda found: not found),
        wait=tenacity.wait_fixed(poll_interval),
        stop=tenacity.stop_after_delay(timeout),
    )
    try:
        wait(os.path.exists, filename)
    except tenacity.RetryError:
        raise RuntimeError(f"{err_msg} ({filename} is not there after {timeout} s)") from None


def retry(
    exc_class: Any = Exception,
    clean_up_fn: Callable[[], None] | None = None,
    num_attempts: int = 3,
    initial_backoff: float = 1.0,
    max_jitter: float = 0.5,
) -> Any:
    """A decorator that tries a function again after errors of a class, or of several in a tuple.

    ``@retry`` alone takes the defaults. The wait doubles from ``initial_backoff`` seconds, with up
    to ``max_jitter`` on top; ``clean_up_fn`` runs before each further try. The last error is
    raised.
    """
    import tenacity

    if not isinstance(exc_class, (type, tuple)):  # used as @retry without parentheses
        return retry()(exc_class)
    if num_attempts < 1:
        raise ValueError(f"num_attempts must be at least 1, got {num_attempts}.")

    def clean_up(_: object) -> None:
        if clean_up_fn is not None:
            clean_up_fn()

    backoff = tenacity.wait_exponential(multiplier=initial_backoff)

    def wrap(function: F) -> F:
        tried = tenacity.retry(
            retry=tenacity.retry_if_exception_type(exc_class),
            stop=tenacity.stop_after_attempt(num_attempts),
            wait=lambda state: backoff(state) + jitter(max_jitter),
            before_sleep=clean_up,
            reraise=True,
        )(function)
        return cast("F", tried)

    return wrap
