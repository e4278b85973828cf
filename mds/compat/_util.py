"""Functions that users call: `streaming.base.util`, with the merging of indexes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from mds._redaction import get_logger
from mds._units import parse_bytes, parse_count
from mds.errors import ConfigError, NotFoundError
from mds.storage._retry import jitter

F = TypeVar("F", bound=Callable[..., Any])
log = get_logger("mds.compat")

# ---------------------------------------------------------------------- numbers and lists


def bytes_to_int(bytes_str: int | str) -> int:
    """Return a number of bytes from a number or a text such as "64mb"; units are powers of 1024."""
    return parse_bytes(bytes_str)


def number_abbrev_to_int(abbrev_str: int | str) -> int:
    """Return a number of samples from a number or a text such as "100k" or "2b"."""
    return parse_count(abbrev_str)


def get_list_arg(text: str) -> list[str]:
    """Return the parts of a text between commas, such as ["a", "b"] for "a,b"; [] for ""."""
    return text.split(",") if text else []


# ---------------------------------------------------------------------- waiting


def clean_stale_shared_memory() -> None:
    """Do nothing: mds leaves no shared memory behind that could be cleaned up."""


def get_import_exception_message(package_name: str, extra_deps: str) -> str:
    """Return a message about a missing package; ``extra_deps``: extra of mds that installs it."""
    return f'the package {package_name} is not installed: pip install "mds-streaming[{extra_deps}]"'


def wait_for_file_to_exist(
    filename: str, poll_interval: float, timeout: float, err_msg: str
) -> None:
    """Wait until a file exists.

    - ``filename`` (str): path of the file.
    - ``poll_interval`` (float, seconds): time between two looks.
    - ``timeout`` (float, seconds): longest wait.
    - ``err_msg`` (str): message of the error after the longest wait.

    Raises RuntimeError if the file does not exist after ``timeout``.
    """
    import tenacity

    wait = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda exists: not exists),
        wait=tenacity.wait_fixed(poll_interval),
        stop=tenacity.stop_after_delay(timeout),
    )
    try:
        wait(os.path.exists, filename)
    except tenacity.RetryError:
        raise RuntimeError(f"{err_msg} ({filename} does not exist after {timeout} s)") from None


def retry(
    exc_class: Any = Exception,
    clean_up_fn: Callable[[], None] | None = None,
    num_attempts: int = 3,
    initial_backoff: float = 1.0,
    max_jitter: float = 0.5,
) -> Any:
    """Return a decorator that calls a function again after an error.

    - ``exc_class`` (type | tuple[type, ...], default Exception): errors after which to try again.
    - ``clean_up_fn`` (Callable | None, default None): function to call before each further try.
    - ``num_attempts`` (int, default 3): tries altogether.
    - ``initial_backoff`` (float, default 1, seconds): wait before the second try; it doubles for
      each further one.
    - ``max_jitter`` (float, default 0.5, seconds): most that is added to a wait at random.

    The decorated function raises the last error. ``@retry`` without arguments works too.
    """
    import tenacity

    if not isinstance(exc_class, (type, tuple)):  # @retry without arguments
        return retry()(exc_class)
    if num_attempts < 1:
        raise ValueError(f"num_attempts must be at least 1, got {num_attempts}.")

    def clean_up(_: object) -> None:
        if clean_up_fn is not None:
            clean_up_fn()

    backoff = tenacity.wait_exponential(multiplier=initial_backoff)

    def decorate(function: F) -> F:
        """Return ``function`` with retries, which wait longer each time (see `retry`)."""
        retrying = tenacity.retry(
            retry=tenacity.retry_if_exception_type(exc_class),
            stop=tenacity.stop_after_attempt(num_attempts),
            wait=lambda state: backoff(state) + jitter(max_jitter),
            before_sleep=clean_up,
            reraise=True,
        )(function)
        return cast("F", retrying)

    return decorate


# ---------------------------------------------------------------------- merging of indexes


class MissingIndexError(NotFoundError, RuntimeError):
    """Index that a list names and that does not exist."""


class MergeCallError(ConfigError, IndexError):
    """Call of `merge_index` that names nothing to merge."""


def merge_index(*args: Any, **kwargs: Any) -> None:
    """Merge several indexes into one, which names the shards of all.

    Either ``merge_index(index_file_urls, out, keep_local=True, download_timeout=60)``, for the
    indexes of a list, or ``merge_index(out, keep_local=True, download_timeout=60)``, for all
    indexes below ``out``.

    - ``index_file_urls`` (list[str | tuple[str, str]]): URLs or paths of indexes.
    - ``out`` (str | tuple[str, str]): folder, URL or (folder, URL) of the merged index.
    - ``keep_local`` (bool, default True): whether the merged index stays in the folder.
    - ``download_timeout`` (int, default 60, seconds): longest wait for one request.

    Raises ConfigError (a ValueError), and MissingIndexError (a RuntimeError) for a listed index
    that does not exist. Merges nothing, with a line in the log, if there are no indexes.
    """
    # Tell the two forms apart. The second positional argument is ``out`` in the first form, and
    # ``keep_local``, a bool, in the second.
    has_out = "out" in kwargs or (len(args) > 1 and not isinstance(args[1], bool))
    if "index_file_urls" in kwargs or (args and not isinstance(args[0], (str, int)) and has_out):
        _merge_index_from_list(*args, **kwargs)
    elif args and isinstance(args[0], (str, os.PathLike, tuple)):
        _merge_index_from_root(*args, **kwargs)
    elif "out" in kwargs and not args:
        _merge_index_from_root(**kwargs)
    elif not args:
        raise MergeCallError("merge_index needs the folder or the URL to merge in.")
    else:
        raise ConfigError(f"merge_index takes a list of indexes or a place, got {args[0]!r}.")


def _merge_index_from_list(
    index_file_urls: Sequence[str | tuple[str, str]],
    out: str | tuple[str, str],
    keep_local: bool = True,
    download_timeout: int = 60,
) -> None:
    """Merge the indexes of a list; see `merge_index`."""
    from mds.writers import merge_index as native_merge_index

    if not index_file_urls or not out:
        log.warning("no index was merged: none was named.")
        return
    try:
        native_merge_index([*index_file_urls], out, keep_local, download_timeout)
    except NotFoundError as error:
        raise MissingIndexError(str(error), url=error.url, verb=error.verb) from error


def _merge_index_from_root(
    out: str | tuple[str, str], keep_local: bool = True, download_timeout: int = 60
) -> None:
    """Merge all indexes below a place; see `merge_index`."""
    from mds.writers import merge_index as native_merge_index

    try:
        native_merge_index(out, keep_local, download_timeout)
    except NotFoundError as error:
        log.warning("no index was merged: %s", error)


def _not_merged_index(index_file_path: str, out: str) -> bool:
    """Whether an index is below ``out`` and not the merged index in ``out`` itself."""
    folder = os.path.dirname(index_file_path)
    return folder.rstrip("/") != out.rstrip("/")


def _format_remote_index_files(remote: str, files: Sequence[str]) -> list[str]:
    """Return the URLs of the indexes among the keys of a bucket.

    ``remote``: a URL in the bucket; ``files``: keys, also of files that are no indexes.
    """
    scheme, colon, after_scheme = remote.partition("://")
    if remote.startswith("dbfs:"):
        root = "dbfs:/"
    elif colon:
        root = f"{scheme}://{after_scheme.partition('/')[0]}/"
    else:
        root = ""
    keys = [name for name in files if name.rpartition("/")[2] == "index.json"]
    return [root + name.lstrip("/") if root else name for name in keys]
