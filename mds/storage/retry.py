"""Tries again what another try may mend, and only that.

A transfer that broke goes on where it stopped, on the same version of the object; what has come
is not asked for again. The policy counts tries that brought nothing: a connection may break as
often as it likes while bytes keep coming. Waiting between tries doubles from a quarter of a
second up to 20 s, with jitter, or lasts as long as the store asks for.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from mds.errors import ConfigError, CorruptError, StoreError, TransientError
from mds.storage.base import Body, ObjectInfo, Store, Watch
from mds.storage.process import abandon
from mds.storage.wrappers import Wrapper

if TYPE_CHECKING:
    import tenacity

T = TypeVar("T")
log = logging.getLogger("mds.storage")

# A connection that breaks this often more than it brings blocks of this size is given up: a
# server that sends a byte and hangs up would otherwise be believed for ever.
_PROGRESS = 1 << 16
_BREAKS = 20


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to believe in a store that fails.

    ``attempts`` of 0 or 1 mean one try and no other. From 2 on there are at least so many, and
    more until ``within`` seconds have passed without progress. ``notify(url, attempt, error)`` is
    called before each further try; it should be a function of a module, so that stores pickle.
    """

    attempts: int = 2
    within: float = 300.0
    first_wait: float = 0.25
    longest_wait: float = 20.0
    notify: Callable[[str, int, str], object] | None = None

    def __post_init__(self) -> None:
        if self.attempts < 0 or self.within < 0:
            raise ConfigError(
                f"attempts={self.attempts} and within={self.within} make no retry policy: neither "
                f"may be negative."
            )


class Retrying(Wrapper):
    """A store whose verbs are tried again after a TransientError, as a policy says."""

    def __init__(self, inner: Store, policy: RetryPolicy | None = None) -> None:
        super().__init__(inner)
        self.policy = policy or RetryPolicy()

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """The bytes in chunks, going on by range after a break."""
        transfer = _Transfer(self.inner, self.policy, key, start, end)
        return Body(
            transfer.info,
            transfer.chunks(),
            transfer.length,
            url=transfer.url,
            close=transfer.close,
        )

    def get_file(
        self, key: str, path: str, size: int | None = None, watch: Watch | None = None
    ) -> ObjectInfo:
        """The whole object to ``path``."""
        if self.local_path is None:
            return super().get_file(key, path, size, watch)
        return self._run(key, lambda: self.inner.get_file(key, path, size, watch))

    def head(self, key: str) -> ObjectInfo:
        """Size and version."""
        return self._run(key, lambda: self.inner.head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Every object below a prefix; after a break the listing starts anew, repeating none."""
        given: set[str] = set()
        items: Iterator[ObjectInfo] | None = None

        def following() -> ObjectInfo | None:
            nonlocal items
            items = items or self.inner.list(prefix)
            try:
                found = next((info for info in items if info.key not in given), None)
            except TransientError:
                items = None
                raise
            return found

        while (info := self._run(prefix, following)) is not None:
            given.add(info.key)
            yield info

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._run(key, lambda: self.inner.delete(key))

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        start = file.tell()

        def write() -> None:
            file.seek(start)
            super(Retrying, self)._write(key, file, size)

        self._run(key, write)

    def _run(self, key: str, act: Callable[[], T]) -> T:
        try:
            return act()
        except TransientError as error:
            return try_again(self.policy, self.url_of(key), act, error)


class _Transfer:
    """One object or range on its way, over as many connections as it takes."""

    def __init__(
        self, store: Store, policy: RetryPolicy, key: str, start: int, end: int | None
    ) -> None:
        self._store, self._policy, self._key = store, policy, key
        self._at, self._end = start, end
        self._breaks = 0
        self._came = 0
        self.url = store.url_of(key)
        self._process = os.getpid()
        try:
            body = store.stream(key, start, end)
        except TransientError as error:
            body = try_again(policy, self.url, lambda: store.stream(key, start, end), error)
        self._body: Body | None = body
        self.info, self.length = body.info, body.length
        if end is None and body.length is not None:
            self._end = start + body.length

    def chunks(self) -> Iterator[bytes]:
        """What comes, in order, each byte once."""
        while (chunk := self._next()) is not None:
            self._at += len(chunk)
            self._came += len(chunk)
            yield chunk

    def close(self) -> None:
        """Let the connection go."""
        body, self._body = self._body, None
        if body is None:
            return
        if self._process == os.getpid():
            body.close()
        else:
            abandon(body)

    def _next(self) -> bytes | None:
        if self._process != os.getpid():
            # A connection belongs to the process that opened it; a forked child takes its own.
            self.close()
            self._process = os.getpid()
            return self._reopened()
        assert self._body is not None
        try:
            return next(self._body, None)
        except TransientError as error:
            self.close()
            self._breaks += 1
            if self._breaks > _BREAKS + self._came // _PROGRESS:
                raise
            return try_again(self._policy, self.url, self._reopened, error)

    def _reopened(self) -> bytes | None:
        if self._end is not None and self._at >= self._end:
            return None
        body = self._store.stream(self._key, self._at, self._end)
        if body.info.version != self.info.version:
            body.close()
            raise CorruptError(
                f"get {self.url}: the object changed while it was read, after {self._at} bytes",
                url=self.url,
                verb="get",
            )
        try:
            chunk = next(body, None)
        except BaseException:
            body.close()
            raise
        self._body = body
        return chunk


def try_again(policy: RetryPolicy, url: str, act: Callable[[], T], first: TransientError) -> T:
    """What ``act`` returns in one of the further tries after ``first``; or the last error.

    The error of the last try says how many there were and how long they took.
    """
    if policy.attempts <= 1:
        raise first
    # tenacity loads asyncio: only those whose store fails pay for it.
    import tenacity

    failures: list[TransientError] = [first]

    def attempt() -> T:
        # The first try was made outside; the loop still counts it and waits after it.
        if failures:
            raise failures.pop()
        return act()

    started = time.monotonic()
    loop = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(TransientError),
        stop=tenacity.stop_all(
            tenacity.stop_after_attempt(policy.attempts), tenacity.stop_before_delay(policy.within)
        ),
        wait=_wait(policy),
        before_sleep=_tell(policy, url),
        reraise=True,
    )
    try:
        return loop(attempt)
    except StoreError as error:
        error.tries = int(loop.statistics.get("attempt_number", 1))
        error.seconds = time.monotonic() - started + first.seconds
        facts = f"{error.tries} tries, {error.seconds:.1f} s"
        error.args = (f"{str(error).rstrip('.')}. Given up after {facts}.",)
        raise


def _wait(policy: RetryPolicy) -> Callable[[tenacity.RetryCallState], float]:
    """Seconds to wait: exponential with jitter, but not sooner than the store asked for."""
    from tenacity import wait_exponential, wait_random

    doubling = wait_exponential(policy.first_wait, policy.longest_wait)
    backoff = doubling + wait_random(0, policy.first_wait)

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after if isinstance(error, TransientError) else 0.0
        return max(float(backoff(state)), min(asked, 4 * policy.longest_wait))

    return wait


def _tell(policy: RetryPolicy, url: str) -> Callable[[tenacity.RetryCallState], None]:
    """Log each failure, the first one so that everybody sees it, and tell the policy's ear."""

    def tell(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        level = logging.WARNING if state.attempt_number == 1 else logging.INFO
        log.log(level, "%s Trying again in %.1f s.", error, state.upcoming_sleep)
        if policy.notify is not None:
            policy.notify(url, state.attempt_number, str(error))

    return tell
