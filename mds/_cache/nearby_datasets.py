"""Hints in the error for a URL without an index: datasets below it, above it and beside it.

They cost at most ten requests, each tried once, and only where an error is raised anyway: a page of
a listing of each place, or, in a store that lists folder by folder or not at all, an index in
folders with usual names.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mds._arguments import did_you_mean
from mds._shardfile.layout import INDEX_NAME
from mds.errors import MdsError, NotFoundError, StoreError
from mds.storage._url import Url, is_local, parse_url, redact

if TYPE_CHECKING:
    from mds.storage._retry import Retrying

_LISTED = 1000  # objects of a listing: a page of most stores
_USUAL_SPLITS = ("train", "val", "validation", "test")


def describe_nearby(url: str, options: Mapping[str, Any] | None, timeout: float) -> str:
    """Return a sentence about datasets near a URL without an index, or ''.

    Args:
        url: URL of the place where no index is.
        options: Options of its store.
        timeout: Seconds without a byte after which a request fails.
    """
    if is_local(url):
        return ""
    place = Url(url).rstrip("/")
    if place.reveal().endswith(f"/{INDEX_NAME}"):
        folder = Url(place.reveal().rpartition("/")[0])
        return f" Give the folder of the dataset: {redact(folder)!r}."
    if parse_url(place).query:
        return ""  # a signature is for one object
    store = _open(place, options, timeout)
    if store is None:
        return ""
    try:
        names = _datasets_in(store)
    except NotFoundError:
        return " The bucket, container or repository does not exist: correct its name in the URL."
    except StoreError:  # such as credentials that may not list
        names = []
    if names:
        return _describe_below(redact(place), names)
    return _describe_above(place, options, timeout)


def _describe_below(url: str, names: Sequence[str]) -> str:
    """Return a sentence about the datasets at ``names`` below a URL."""
    shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    if all(name.isdecimal() for name in names):
        return (
            f" There are datasets in {shown}. If they are parts of one dataset, join them: "
            f"mds.merge_index({url!r})."
        )
    direct = [name for name in names if "/" not in name]
    remedy = f"give split={direct[0]!r}" if direct else f"give remote={f'{url}/{names[0]}'!r}"
    return f" There are datasets in {shown}: {remedy}."


def _describe_above(place: Url, options: Mapping[str, Any] | None, timeout: float) -> str:
    """Return a sentence about the dataset above a URL, or one of a similar name beside it."""
    above, _, name = place.reveal().rpartition("/")
    if not parse_url(place).path:
        return ""
    store = _open(Url(above), options, timeout)
    if store is None:
        return ""
    with contextlib.suppress(StoreError):
        store.head(INDEX_NAME)
        return f" There is a dataset in {redact(above)!r}: give this as remote=."
    with contextlib.suppress(StoreError):
        beside = [each for each in _datasets_in(store) if "/" not in each]
        if beside:
            shown = ", ".join(beside[:5]) + (", ..." if len(beside) > 5 else "")
            return did_you_mean(name, beside) or f" There are datasets beside it: {shown}."
    return ""


def _datasets_in(store: Retrying) -> list[str]:
    """Return the folders below a store that have an index, among the first objects.

    Raises NotFoundError if the bucket does not exist, and other StoreErrors if it cannot be listed.
    """
    if not store.lists_pages:
        return [name for name in _USUAL_SPLITS if _exists(store, f"{name}/{INDEX_NAME}")]
    keys = [info.key for info in itertools.islice(store.list(), _LISTED)]
    return sorted(key.rpartition("/")[0] for key in keys if key.endswith(f"/{INDEX_NAME}"))


def _exists(store: Retrying, key: str) -> bool:
    """Whether a store has an object; False after an error."""
    try:
        store.head(key)
    except StoreError:
        return False
    return True


def _open(url: Url, options: Mapping[str, Any] | None, timeout: float) -> Retrying | None:
    """Return the store at a URL, which tries each request once; None if there can be none."""
    from mds.storage import RetryPolicy, open_store

    try:
        return open_store(url, options=options, retry=RetryPolicy(attempts=1), timeout=timeout)
    except MdsError:
        return None
