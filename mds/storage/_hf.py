"""Repositories of the Hugging Face Hub: hf://datasets/org/name/folder.

``hf://datasets/org/name@revision/folder`` reads another revision than main. Files are read by
plain HTTP with ranges: the hub answers with the address of the bytes, which is valid for a while
and kept. Writing and deleting go through huggingface_hub; every write is a commit. If the hub
limits requests, all processes wait (`_RequestGate`). The token is the option, HF_TOKEN, or the one
that `hf auth login` saved. With HF_HUB_OFFLINE set every read raises StoreError at once.

Two addresses belong to a file: its ``target`` on the hub, and the address of its bytes, to which
the hub redirects (`_Source`), often on a content delivery network (CDN). The CDN takes no token.

`Store` (_base.py) describes the verbs. `classify` tells `translate_errors` which StoreError an
exception becomes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from mds._process.fork_safe import forget, new_event, new_lock, per_process
from mds._redaction import get_logger
from mds.errors import (
    ConfigError,
    DeniedError,
    NotFoundError,
    StoreError,
    TransientError,
    need,
)
from mds.storage._base import (
    Body,
    ObjectInfo,
    Settings,
    Store,
    check_endpoint,
    check_key,
    env,
    parse_options,
)
from mds.storage._control_files import private_temporary_folder
from mds.storage._http import (
    HttpClient,
    StatusError,
    by_status,
    check_redirect,
    empty_body,
    parse_size,
)
from mds.storage._locks import open_locks
from mds.storage._translate import Failure, network_failure, status_failure, translate_errors
from mds.storage._url import Url, parse_url, redact
from mds.storage._waiting import waiting
from mds.storage._wrappers import has_answered, server_of

_REPOSITORIES = {"datasets": "dataset", "models": "model", "spaces": "space"}
# Seconds for which an address of bytes is kept; the hub signs it for an hour.
_GOOD_FOR = 600.0
_REMEMBERED = 1 << 14  # most addresses that are kept
_COMMIT = re.compile(r"[0-9a-f]{40}")
_HUB = "https://huggingface.co"
_TRUE = {"1", "ON", "YES", "TRUE"}  # as huggingface_hub reads its variables
_NEXT = re.compile(r'<([^>]+)>; *rel="next"')


@dataclass(frozen=True, slots=True)
class HfOptions:
    """Options of the hub.

    Attributes:
        token: Access token (default: HF_TOKEN, else the one of `hf auth login`).
        endpoint: URL of another hub (default: HF_ENDPOINT).
        revision: Branch, tag or commit to read (default: the one in the URL, else "main").
    """

    token: str | None = field(default=None, repr=False)
    endpoint: str | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class _Source:
    """The address of a file's bytes, with its size and version.

    Attributes:
        url: Address, often on a CDN.
        info: Size and version of the file.
        until: Time by `time.monotonic` until which the address is used.
        own: Whether the address is on the hub itself, which needs the token.
    """

    url: str
    info: ObjectInfo
    until: float
    own: bool


#: Resolved addresses of files, by hub. Plain data, so a forked worker can use its parent's.
_addresses: dict[HfOptions, dict[str, _Source]] = {}


class HfStore(Store):
    """Files below a folder of a repository.

    Args:
        url: URL ``hf://datasets/org/name@revision/folder``; "models" and "spaces" are the other
            kinds of repositories, and without a kind it is a model.
        options: Fields of `HfOptions`.
        timeout: Seconds without a byte after which a request has stalled.
    """

    lists_pages = True
    settings = Settings("the storage option endpoint= (HF_ENDPOINT)", credentials="Set HF_TOKEN.")

    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        place = parse_url(url)
        settings = parse_options(HfOptions, options, "hf")
        # parse_url takes '@' before the first slash for a login; hf:// has none there.
        parts = [part for part in f"{place.host}/{place.path}".split("/") if part]
        if parts[:1] == ["buckets"]:
            raise ConfigError(
                f"{redact(url)!r}: mds does not read storage buckets of the Hub yet. Copy the "
                "files to a dataset repository, hf://datasets/org/name, or to a local folder."
            )
        kind = parts.pop(0) if parts and parts[0] in _REPOSITORIES else "models"
        if len(parts) < 2:
            raise ConfigError(
                f"{redact(url)!r} names no repository. Write hf://datasets/org/name/folder."
            )
        name, _, revision = parts[1].partition("@")
        self.url = url
        self._kind = kind
        self._repository = f"{parts[0]}/{name}"
        # A commit in the URL, which `pinned_url` returns, precedes the option.
        pinned_revision = revision if _COMMIT.fullmatch(revision) else ""
        self._revision = pinned_revision or settings.revision or revision or "main"
        self._prefix = "/".join(parts[2:]) + "/" if parts[2:] else ""
        self._options = replace(
            settings,
            token=settings.token or env("HF_TOKEN"),
            endpoint=str(
                check_endpoint(settings.endpoint or env("HF_ENDPOINT"), "endpoint") or _HUB
            ).rstrip("/"),
        )
        self._http = HttpClient(timeout)
        self._gate = _RequestGate(str(redact(self._options.endpoint or "")))

    @property
    def address(self) -> str:
        """URL of the hub."""
        return self._options.endpoint or ""

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Stream the file, or its bytes from ``start`` to before ``end``."""
        safe_url = self.url_of(key)
        source = self._locate("get", key)
        if end is not None and end <= start:  # HTTP has no empty range
            return empty_body(source.info, safe_url)
        headers = self._headers() if source.own else {}

        def ask() -> Body:
            """Request the bytes at the address; called again if the hub asks to wait."""
            return self._http.stream(
                source.url,
                key,
                start,
                end,
                safe_url=safe_url,
                min_rate=self.min_rate,
                headers=headers,
            )

        try:
            body = self._gate.run(ask) if source.own else ask()
        except (DeniedError, NotFoundError):
            # A kept address may have expired, so ask the hub for a new one. On the hub itself no
            # address expires.
            if self._addresses().pop(self._target(key), None) is None or source.own:
                raise
            source = self._locate("get", key)
            body = self._http.stream(
                source.url, key, start, end, safe_url=safe_url, min_rate=self.min_rate
            )
        # The CDN answers with another etag; the Hub's etag is the version.
        body.info = replace(body.info, version=source.info.version, revision="")
        return body

    def head(self, key: str) -> ObjectInfo:
        """Return the size and the digest, by a new request to the hub."""
        self._addresses().pop(self._target(key), None)
        return self._locate("head", key).info

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List the files below a prefix."""
        folder = quote((self._prefix + prefix).rpartition("/")[0])
        url: str | None = f"{self._api('tree')}/{folder}".rstrip("/") + "?recursive=true"
        self._check_online("list", prefix)
        with translate_errors("list", self.url_of(prefix), classify):
            while url is not None:
                try:
                    headers, entries = self._call(url)
                except StatusError as error:
                    if error.headers.get("x-error-code") == "EntryNotFound":
                        return  # no such folder, so no files
                    raise
                for entry in entries:
                    name = str(entry["path"])[len(self._prefix) :]
                    if entry["type"] == "file" and name.startswith(prefix):
                        version = (entry.get("lfs") or entry)["oid"]
                        yield ObjectInfo(name, int(entry["size"]), str(version))
                following = _NEXT.search(headers.get("link", ""))
                url = urljoin(url, following[1]) if following else None

    def pinned_url(self) -> Url:
        """Return the URL with the present commit in place of its branch or tag; one request.

        All processes that open the returned URL see the same files, even if the branch moves on.
        """
        if _COMMIT.fullmatch(self._revision):
            return self.url
        self._check_online("head", "")
        with translate_errors("head", self.url_of(""), classify):
            _, revision = self._call(self._api("revision"))
            commit = str(revision["sha"])
        place = f"{self._kind}/{self._repository}@{commit}/{self._prefix}"
        return Url(f"hf://{place}".rstrip("/"))

    def renew(self) -> bool:
        """Reread the token of `hf auth login` at the next request; a given one stays."""
        forget((HfStore, "token"))
        return self._options.token is None

    def delete(self, key: str) -> None:
        """Remove the file, in a commit; a missing one is no error."""
        with translate_errors("delete", self.url_of(key), classify):
            hub = self._hub()
            from huggingface_hub.errors import EntryNotFoundError

            try:
                hub.delete_file(
                    self._name(key),
                    self._repository,
                    revision=self._revision,
                    repo_type=_REPOSITORIES[self._kind],
                )
            except EntryNotFoundError:
                return

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Upload a file as a commit; see `Store._write`."""
        del size
        with translate_errors("put", self.url_of(key), classify):
            if not has_answered(server_of(self)):
                # huggingface_hub retries by itself, for longer than a mistake should take.
                with contextlib.suppress(StatusError):
                    self._call(self._api("revision"))
            self._hub().upload_file(
                path_or_fileobj=file,
                path_in_repo=self._name(key),
                repo_id=self._repository,
                revision=self._revision,
                repo_type=_REPOSITORIES[self._kind],
                commit_message=f"Add {os.path.basename(self._name(key))}",
            )

    def _locate(self, verb: str, key: str) -> _Source:
        """Return the address of a file's bytes: the kept one, or a new one from the hub.

        If several threads need the address of a file, one asks the hub and the others wait for it.
        ``verb`` is for errors.
        """
        self._check_online(verb, key)
        target, sources = self._target(key), self._addresses()
        # By target: the locks of the files whose addresses threads are looking up right now. The
        # last line removes a lock; a thread that waits for it holds its own reference.
        locks: dict[str, threading.Lock] = per_process((HfStore, "locks", self._options), dict)
        lock = locks.setdefault(target, new_lock())
        try:
            with lock:
                source = sources.get(target)
                if source is not None and source.until > time.monotonic():
                    return source
                with translate_errors(verb, self.url_of(key), classify):
                    source = self._resolve(key, target)
                if len(sources) >= _REMEMBERED:
                    sources.clear()
                sources[target] = source
                return source
        finally:
            locks.pop(target, None)

    def _resolve(self, key: str, target: str) -> _Source:
        """Follow redirects from ``target``, the hub's URL of a file, to the address of its bytes.

        The size and the version come from the headers ``x-linked-...`` of the hub's last answer,
        which describe the file, else from the usual ones.
        """
        url = target
        for _ in range(5):
            headers = {**self._headers(), "Accept-Encoding": "identity"}
            response = self._gate.run(
                functools.partial(self._http.request, "HEAD", url, headers=headers, redirect=False)
            )
            response.close()
            facts = response.headers
            version = (facts.get("x-linked-etag") or facts.get("etag") or "").removeprefix("W/")
            size = facts.get("x-linked-size") or facts.get("content-length") or ""
            info = ObjectInfo(key, parse_size(size, self.url_of(key)), version.strip('"'))
            if response.status < 300:
                return _Source(url, info, time.monotonic() + _GOOD_FOR, own=True)
            following = urljoin(url, facts.get("location", ""))
            check_redirect(response.status, url, following)
            is_elsewhere = urlsplit(following)[:2] != urlsplit(url)[:2]  # scheme or host differ
            if is_elsewhere:
                return _Source(following, info, time.monotonic() + _GOOD_FOR, own=False)
            url = following  # a renamed repository; the token still goes to the hub
        raise StatusError(508, "the redirects of the Hub form a loop", {})

    def _check_online(self, verb: str, key: str) -> None:
        """Raise StoreError if HF_HUB_OFFLINE forbids requests to the hub."""
        if (env("HF_HUB_OFFLINE") or "").upper() in _TRUE:
            url = self.url_of(key)
            raise StoreError(
                f"{verb} {url}: HF_HUB_OFFLINE is set, so mds sends no request to the Hub. Unset "
                "it, or read a dataset whose files are all in the cache.",
                url=url,
                verb=verb,
            )

    def _call(self, url: str) -> tuple[Mapping[str, str], Any]:
        """Ask the Hub, and return the headers and the parsed JSON of its answer."""
        headers, body = self._gate.run(lambda: self._http.call("GET", url, headers=self._headers()))
        return headers, json.loads(body)

    def _api(self, verb: str) -> str:
        """Return the URL of the hub's JSON interface for a verb: "tree" or "revision"."""
        revision = quote(self._revision, safe="")
        return f"{self._options.endpoint}/api/{self._kind}/{self._repository}/{verb}/{revision}"

    def _addresses(self) -> dict[str, _Source]:
        """Return the addresses that this process keeps, by `_target`, for these options."""
        return _addresses.setdefault(self._options, {})

    def _headers(self) -> dict[str, str]:
        """Return the header with the token, if there is one."""
        token = self._options.token or per_process((HfStore, "token"), _saved_token)
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _target(self, key: str) -> str:
        """Return the hub's URL of a file, which redirects to the bytes."""
        kind = "" if self._kind == "models" else f"{self._kind}/"
        revision, name = quote(self._revision, safe=""), quote(self._name(key))
        return f"{self._options.endpoint}/{kind}{self._repository}/resolve/{revision}/{name}"

    def _name(self, key: str) -> str:
        return self._prefix + check_key(key) if key else self._prefix.rstrip("/")

    def _hub(self) -> Any:
        """Return this process's client of huggingface_hub."""
        options = self._options
        return per_process((HfStore, options), lambda: _make_hub(options))


def _make_hub(options: HfOptions) -> Any:
    """Return the client of huggingface_hub, for writing. Raises MissingDependencyError."""
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise need("huggingface_hub", "hf", "Writing hf:// URLs") from error
    return HfApi(endpoint=options.endpoint, token=options.token)


def _saved_token() -> str | None:
    """Return the token that `hf auth login` saved, or None."""
    try:
        from huggingface_hub import get_token
    except ImportError:
        return None  # public repositories are read without the package and without a token
    token: str | None = get_token()
    return token


def classify(error: Exception) -> Failure | None:
    """Return the failure for an exception of huggingface_hub or an answer of the hub.

    Return None for other exceptions.
    """
    answer: Any = getattr(error, "response", None)
    status = getattr(answer, "status_code", None)
    if isinstance(status, int):
        message = str(getattr(error, "server_message", None) or "")
        return status_failure(status, message, answer.headers.get("retry-after"))
    if type(error).__module__.startswith("httpx"):
        network = network_failure(error)
        kind = network.kind if network else TransientError
        return Failure(kind, f"{type(error).__name__}: {error}")
    return by_status(error)


T = TypeVar("T")

log = get_logger("mds.storage")

_TOO_MANY = 429
#: Seconds to wait if the server does not say how many, and the most to wait at a time.
_DEFAULT_WAIT, _LONGEST_WAIT = 10.0, 900.0
#: Seconds after which a request fails like any other.
_GATE_TIMEOUT = 3600.0
#: Seconds until the limit is reset, in the Hub's header ``ratelimit: "api";r=0;t=57``.
_RESETS = re.compile(r"\bt=(\d+)")


class _RequestGate:
    """A gate before a server that limits requests: after an answer 429, all processes wait.

    The modification time of a small file is the time at which the gate opens again, so that all
    processes of this user know it. The first process that finds the gate closed takes the lock of
    the file and waits for this time; the others wait for the lock. A request through an open gate
    costs one `stat`, about a microsecond. ``server`` is the URL of the server.
    """

    def __init__(self, server: str) -> None:
        self.server = server
        name = hashlib.blake2s(server.encode(), digest_size=8).hexdigest()
        self._path = os.path.join(private_temporary_folder(), f"gate-{name}")

    def run(self, ask: Callable[[], T]) -> T:
        """Call ``ask``, which sends a request, and return its value.

        Whenever the server answers 429, wait as long as it says and call ``ask`` again. After
        `_GATE_TIMEOUT` the error of ``ask`` is raised.
        """
        deadline = time.monotonic() + _GATE_TIMEOUT
        while True:
            if self._closed_seconds() > 0:
                self._wait()
            try:
                return ask()
            except Exception as error:
                answer = _find_answer_429(error)
                if answer is None or time.monotonic() > deadline:
                    raise
                self._close(_parse_wait(answer.headers))

    def _closed_seconds(self) -> float:
        """Return the seconds for which the gate stays closed; 0 or less if it is open."""
        try:
            return min(os.stat(self._path).st_mtime - time.time(), _LONGEST_WAIT)
        except FileNotFoundError:
            return 0.0

    def _close(self, seconds: float) -> None:
        """Keep the gate closed for ``seconds`` from now, or longer if another process said so."""
        with open(self._path, "ab"):  # creates a missing file, which stays empty
            until = time.time() + max(seconds, self._closed_seconds())
            os.utime(self._path, (until, until))

    def _wait(self) -> None:
        """Wait until the gate is open.

        The process that gets the lock sleeps until then, and logs it; the others wait for the lock.
        """
        lock = open_locks(f"{self._path}.lock")
        try:
            with waiting("the end of the request limit of", self.server):
                lock.wait_lock(0)
                while (seconds := self._closed_seconds()) > 0:
                    log.warning(
                        "%s: too many requests (429). Continuing in %.1f s.", self.server, seconds
                    )
                    new_event().wait(seconds)
        finally:
            lock.close()


def _find_answer_429(error: BaseException) -> StatusError | None:
    """Return ``error`` or its cause if it is an answer 429 (too many requests), else None.

    `HttpClient.stream` has translated the answer, which is the cause then.
    """
    for answer in (error, error.__cause__):
        if isinstance(answer, StatusError) and answer.status == _TOO_MANY:
            return answer
    return None


def _parse_wait(headers: Mapping[str, str]) -> float:
    """Return the seconds to wait from the headers of an answer 429.

    They are in ``retry-after: 57``, or in the part t of ``ratelimit: "api";r=0;t=57``.
    """
    seconds = str(headers.get("retry-after") or "").strip()
    if seconds.isdecimal():
        return float(seconds)
    resets = _RESETS.search(str(headers.get("ratelimit") or ""))
    return float(resets[1]) if resets else _DEFAULT_WAIT
