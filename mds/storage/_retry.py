"""Retries of transient failures, such as a broken connection or an overloaded server.

A broken transfer continues at the byte where it stopped, on the same version of the object. The
policy counts only tries without progress: a connection may break any number of times while bytes
keep arriving. The wait between tries doubles from a quarter of a second to 20 s, with jitter, or is
as long as the store requests.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import itertools
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from mds._process.fork_safe import abandon
from mds._process.stopwatch import TIMES
from mds._redaction import get_logger
from mds.errors import (
    ConfigError,
    NotFoundError,
    StoreError,
    TransientError,
    UnauthenticatedError,
    UnreachableError,
)
from mds.storage._base import Body, ObjectInfo, OnBytes, Store, is_same_object, replaced_error
from mds.storage._remedies import (
    Remedy,
    find_remedy,
    hint_while_waiting,
    is_closed,
    unless_said,
)
from mds.storage._url import Url
from mds.storage._waiting import waiting
from mds.storage._wrappers import (
    Wrapper,
    answered_servers,
    has_answered,
    mark_answered,
    server_of,
)

if TYPE_CHECKING:
    import tenacity

T = TypeVar("T")
log = get_logger("mds.storage")

# A transfer fails after `_BREAKS` breaks, and one more for each `_PROGRESS` bytes received.
# Otherwise a server that sends a byte and closes the connection would be retried forever.
_PROGRESS = 1 << 16
_BREAKS = 20
# Objects of a listing that are requested at a time: a page of most stores.
_LISTED = 1000
_MENDABLE = (TransientError, UnauthenticatedError)  # a retry may succeed
# An unknown name, or TLS on one side only, is a mistake of the user if the server never answered.
_MISTAKE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number and the duration of retries of a failed request.

    Args:
        attempts: Least number of tries (default 2); 0 and 1 mean no retry.
        within: Seconds without progress until which retries continue (default 300).
        first_wait: Seconds before the first retry (default 0.25); later waits double.
        longest_wait: Longest wait between two tries, in seconds (default 20).
        notify: Function ``notify(url, attempt, error)`` that is called before each retry (default
            None). It must be a function of a module for the store to pickle.
        unreachable_within: Seconds in all for a host that does not resolve or refuses connections,
            instead of ``attempts`` and ``within``. `open_store` sets it to its timeout.

    All tries end after 15 s if the name of the host does not exist, or if either the client or the
    server speaks TLS and the other does not. If a request to the server has succeeded in this
    process or in the one that started it, this limit does not hold.

    >>> RetryPolicy(attempts=5, within=60).longest_wait
    20.0
    """

    attempts: int = 2
    within: float = 300.0
    first_wait: float = 0.25
    longest_wait: float = 20.0
    notify: Callable[[str, int, str], object] | None = None
    unreachable_within: float = 60.0

    def __post_init__(self) -> None:
        """Raise ConfigError for negative values."""
        if self.attempts < 0 or self.within < 0:
            raise ConfigError(
                f"attempts={self.attempts} and within={self.within} of a retry policy must not be "
                f"negative."
            )


class Clock:
    """The time of retries: `now` reads it, and `sleep` waits. Tests inject another."""

    def now(self) -> float:
        """Return the time in seconds, from any zero."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        from tenacity.nap import sleep

        sleep(seconds)


class Retrying(Wrapper):
    """A store that retries the verbs of ``inner`` after a TransientError, as ``policy`` says.

    After an UnauthenticatedError it tries once more with fresh credentials.
    """

    def __init__(self, inner: Store, policy: RetryPolicy | None = None) -> None:
        super().__init__(inner)
        self.policy = policy or RetryPolicy()
        self.clock = Clock()
        # Whether a request of this store has succeeded, so that `_remedies` knows its server.
        self._has_answered = False

    def __getstate__(self) -> dict[str, object]:
        """Return the attributes, and the servers that have answered this process."""
        return {**self.__dict__, "answered_servers": answered_servers()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the attributes, and mark the servers in this process."""
        mark_answered(state.pop("answered_servers"))
        self.__dict__.update(state)

    def with_policy(self, policy: RetryPolicy) -> Retrying:
        """Return a store with the same connections and another policy.

        Only ``unreachable_within`` of ``policy`` is not used: the value of this store is kept.
        """
        other = copy.copy(self)
        other.policy = replace(policy, unreachable_within=self.policy.unreachable_within)
        return other

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the bytes in chunks; continue with a range request after a break."""
        url, started = self.url_of(key), TIMES.clock()
        with self._explaining("the response to get", url) as wait:
            try:
                body = self.inner.stream(key, start, end)
            except _MENDABLE as error:
                body = recover(self, url, lambda: self.inner.stream(key, start, end), error, wait)
        self._note_answer()
        transfer = _Transfer(self, key, start, end, body)
        transfer_body = Body(
            body.info, transfer.chunks(), body.length, url=url, close=transfer.close
        )
        transfer_body.on_close(TIMES.answered(started))
        return transfer_body

    def head(self, key: str) -> ObjectInfo:
        """Return size and version."""
        return self._run("head", key, lambda: self.inner.head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List objects below a prefix, each once; after a failure the listing is repeated."""
        listed_keys: set[str] = set()
        items: Iterator[ObjectInfo] | None = None

        def list_next() -> builtins.list[ObjectInfo]:
            """Return up to `_LISTED` objects whose keys are not in ``listed_keys``; [] at the end.

            It is retried after an error. Objects that arrived before an error are returned first.
            """
            nonlocal items
            items = items or self.inner.list(prefix)
            objects: builtins.list[ObjectInfo] = []
            try:
                objects.extend(
                    itertools.islice((i for i in items if i.key not in listed_keys), _LISTED)
                )
            except _MENDABLE:
                items = None  # list again from the beginning
                if not objects:
                    raise
            return objects

        while infos := self._run("list", prefix, list_next):
            listed_keys.update(info.key for info in infos)
            yield from infos

    def pinned_url(self) -> Url:
        """Return a URL that keeps naming the present content."""
        # Most stores send no request for it, so it does not show that the server answers.
        return self._try("head", self.url_of(""), self.inner.pinned_url)

    def delete(self, key: str) -> None:
        """Delete an object."""
        self._run("delete", key, lambda: self.inner.delete(key))

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Upload an object, with retries; see `Store._write`."""
        start = file.tell()

        def write() -> None:
            file.seek(start)  # a failed try may have read a part of the file
            super(Retrying, self)._write(key, file, size)

        self._run("put", key, write)

    def _run(self, verb: str, key: str, act: Callable[[], T]) -> T:
        """Call ``act`` with retries and return its value; ``verb`` and ``key`` are for logs."""
        result = self._try(verb, self.url_of(key), act)
        self._note_answer()
        return result

    def _try(self, operation: str, url: str, act: Callable[[], T]) -> T:
        """Call ``act`` with retries and return its value. Errors name the remedy."""
        with self._explaining(operation, url) as wait:
            try:
                return act()
            except _MENDABLE as error:
                first = error
            # Not in the block above: `first` would become the context of all later errors.
            return recover(self, url, act, first, wait)

    @contextlib.contextmanager
    def _explaining(self, operation: str, url: str) -> Iterator[waiting]:
        """Wait for an operation on a URL, and add the remedy to its errors."""
        with waiting(operation, url) as wait:
            if not self._has_answered:
                wait.hint = hint_while_waiting(self)
            try:
                yield wait
            except StoreError as error:
                if remedy := find_remedy(error, self).text:
                    error.args = (f"{error}{remedy}",)
                if not self._has_answered and not isinstance(error, NotFoundError):
                    # The clients of SDKs keep settings of the environment, which the user corrects
                    # now, such as in a notebook.
                    self.renew()
                raise

    def _note_answer(self) -> None:
        """Remember that the server has answered."""
        if not self._has_answered:
            self._has_answered = True
            mark_answered([server_of(self)])

    def limit_after(self, error: StoreError | None, remedy: Remedy) -> float | None:
        """Return the seconds for all tries after an error; None: ``attempts`` and ``within``."""
        is_reachable = not isinstance(error, UnreachableError)
        limit = None if is_reachable else self.policy.unreachable_within
        if remedy.is_mistake and not self._has_answered and not has_answered(server_of(self)):
            return min(_MISTAKE_SECONDS, limit or _MISTAKE_SECONDS)
        return limit


class RetryingFiles(Retrying):
    """A `Retrying` store on a mounted disk.

    Whole files are copied by ``inner``, which can let the kernel copy, and not through `stream`.
    """

    def get_file(
        self, key: str, path: str, size: int | None = None, on_bytes: OnBytes | None = None
    ) -> ObjectInfo:
        """Copy the whole object to ``path``."""
        return self._run("get", key, lambda: self.inner.get_file(key, path, size, on_bytes))


class _Transfer:
    """The transfer of one object or range, over several connections if they break.

    Args:
        retrying: Store whose policy is used.
        key: Key of the object.
        start: First byte of the range.
        end: End of the range, exclusive; None for the end of the object.
        body: Answer to the first request.
    """

    def __init__(
        self, retrying: Retrying, key: str, start: int, end: int | None, body: Body
    ) -> None:
        self._retrying, self._key = retrying, key
        self._position, self._end = start, end
        self._breaks = 0  # broken connections
        self._received = 0  # bytes over all connections
        self.url = retrying.url_of(key)
        self._process = os.getpid()
        self._body: Body | None = body
        self._info = body.info
        if end is None and body.length is not None:
            self._end = start + body.length

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in order, each once."""
        while (chunk := self._next()) is not None:
            self._position += len(chunk)
            self._received += len(chunk)
            yield chunk

    def close(self) -> None:
        """Close the connection."""
        body, self._body = self._body, None
        if body is None:
            return
        if self._process == os.getpid():
            body.close()
        else:  # the connection belongs to the parent, which still uses it
            abandon(body)

    def _next(self) -> bytes | None:
        """Return the next chunk, from a new connection after a break; None at the end."""
        if self._process != os.getpid():
            # A connection belongs to the process that opened it; a forked child opens its own.
            self.close()
            self._process = os.getpid()
            return _renewed(self._retrying, self._reopened)
        assert self._body is not None
        with waiting("the next bytes of", self.url) as wait:
            try:
                return next(self._body, None)
            except TransientError as error:
                self.close()
                self._breaks += 1
                # Many breaks are fine if bytes arrive in between; see `_BREAKS`.
                if self._breaks > _BREAKS + self._received // _PROGRESS:
                    raise
                return recover(self._retrying, self.url, self._reopened, error, wait)

    def _reopened(self) -> bytes | None:
        """Request the remaining bytes and return their first chunk; None if none remain.

        Raises ReplacedError if the object is another one now.
        """
        if self._end is not None and self._position >= self._end:
            return None
        body = self._retrying.inner.stream(self._key, self._position, self._end)
        if not is_same_object(self._info, body.info):
            body.close()
            raise replaced_error(self.url, self._info, body.info)
        try:
            chunk = next(body, None)
        except BaseException:
            body.close()
            raise
        self._body = body
        return chunk


def recover(store: Retrying, url: str, act: Callable[[], T], error: StoreError, wait: waiting) -> T:
    """Call ``act`` again after ``error``, one of `_MENDABLE`, and return its value.

    ``url`` and ``wait`` are for log lines about the wait. Raises the error of the last try.
    """
    if isinstance(error, UnauthenticatedError):
        try:
            return _renew(store, act, error)
        except TransientError as other:
            error = other
    assert isinstance(error, TransientError)
    return try_again(store, url, lambda: _renewed(store, act), error, wait)


def _renewed(store: Store, act: Callable[[], T]) -> T:
    """Call ``act`` and return its value; if credentials are refused, retry with fresh ones."""
    try:
        return act()
    except UnauthenticatedError as error:
        return _renew(store, act, error)


def _renew(store: Store, act: Callable[[], T], error: UnauthenticatedError) -> T:
    """Call ``act`` with new credentials and return its value, or raise ``error`` if there are none.

    Session tokens expire during a run. New ones are in a file or served by the machine, but a
    client that has old ones does not look there again.
    """
    if not store.renew():
        raise error
    log.info("%s refused the credentials. mds reads them again.", store.url)
    return act()


def try_again(
    store: Retrying,
    url: str,
    act: Callable[[], T],
    first: TransientError,
    wait: waiting,
) -> T:
    """Retry ``act`` and return its value, or raise the error of the last try.

    This error says how many tries there were and how long they took.

    Args:
        store: Store whose policy and clock are used.
        url: URL for the ``notify`` of the policy.
        act: Function to call.
        first: Error of the first try, which the caller made.
        wait: Wait whose log lines describe the failures.
    """
    if store.policy.attempts <= 1:
        raise first
    # Imported here because it loads asyncio, which only programs with a failing store need.
    import tenacity

    failures: list[TransientError] = [first]

    def attempt() -> T:
        """Call ``act``, except the first time."""
        # The first call raises the error of the caller's try, so that tenacity counts this try and
        # waits after it.
        if failures:
            raise failures.pop()
        return act()

    limits = _Limits(store, url, wait, store.clock.now() - first.seconds)
    loop = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(TransientError),
        stop=limits.stop,
        wait=_wait(store.policy),
        before_sleep=limits.log_failure,
        sleep=store.clock.sleep,
        reraise=True,
    )
    try:
        return loop(attempt)
    except StoreError as error:
        error.tries = int(loop.statistics.get("attempt_number", 1))
        error.seconds = limits.spent()
        tries = "1 try" if error.tries == 1 else f"{error.tries} tries"
        facts = f"{tries}, {error.seconds:.1f} s"
        error.args = (f"{str(error).rstrip('.')}. Given up after {facts}.",)
        raise


class _Limits:
    """The limits of the tries of one request; `stop` and `log_failure` are hooks of tenacity.

    Args:
        store: Store whose policy and clock are used.
        url: URL for the ``notify`` of the policy.
        wait: Wait whose note describes the failures.
        started: Time of the clock at which the first try began.
    """

    def __init__(self, store: Retrying, url: str, wait: waiting, started: float) -> None:
        self._store, self._url, self._wait, self._started = store, url, wait, started
        self._symptom = ""  # of the last failure
        self._remedy = Remedy("")  # after the last failure
        self._seconds: float | None = None  # for all tries, after the last failure

    def spent(self) -> float:
        """Return the seconds since the first try began."""
        return self._store.clock.now() - self._started

    def stop(self, state: tenacity.RetryCallState) -> bool:
        """Whether to give up after the failure in ``state``, without another wait."""
        error, policy = _error_of(state), self._store.policy
        if error is not None:
            if is_closed(error):  # a server of another kind does not always close in the same way
                error.symptom = error.symptom or self._symptom
            self._symptom = error.symptom
            self._remedy = find_remedy(error, self._store)
        self._seconds = self._store.limit_after(error, self._remedy)
        spent = self.spent() + state.upcoming_sleep  # at the end of the next wait
        if self._seconds is not None:
            return spent >= self._seconds
        return state.attempt_number >= policy.attempts and spent >= policy.within

    def log_failure(self, state: tenacity.RetryCallState) -> None:
        """Log the failure in ``state``: the first one as a warning, later ones as information.

        The remedy is logged once for each server.
        """
        error, policy = _error_of(state), self._store.policy
        limit = f"at least {policy.attempts} tries and {policy.within:.0f} s"
        log.log(
            logging.WARNING if state.attempt_number == 1 else logging.INFO,
            "%s%s Trying again in %.1f s, for %s in all.",
            error,
            unless_said(server_of(self._store), self._remedy.text),
            state.upcoming_sleep,
            limit if self._seconds is None else f"{self._seconds:.0f} s",
        )
        self._wait.note = f"try {state.attempt_number} failed: {error}"
        if policy.notify is not None:
            policy.notify(self._url, state.attempt_number, str(error))


def _error_of(state: tenacity.RetryCallState) -> StoreError | None:
    """Return the error of the last try."""
    error = state.outcome.exception() if state.outcome else None
    return error if isinstance(error, StoreError) else None


def jitter(longest: float) -> float:
    """Return random seconds from 0 to ``longest``, so that processes do not retry in step.

    They come from the system's generator. So retries do not change the numbers that a program
    draws from a seeded `random`, and forked processes wait for different times.
    """
    return random.SystemRandom().uniform(0, longest)


def _wait(policy: RetryPolicy) -> Callable[[tenacity.RetryCallState], float]:
    """Return tenacity's ``wait`` hook: exponential, with jitter, or what the store requests."""
    from tenacity import wait_exponential

    doubling = wait_exponential(policy.first_wait, policy.longest_wait)

    def wait(state: tenacity.RetryCallState) -> float:
        """Return the seconds to wait after the failure in ``state``."""
        error = _error_of(state)
        requested_wait = error.retry_after if isinstance(error, TransientError) else 0.0
        return max(
            doubling(state) + jitter(policy.first_wait),
            min(requested_wait, 4 * policy.longest_wait),
        )

    return wait
