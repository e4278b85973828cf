"""Contract test suite of stores, to inherit; all built-in providers pass it.

    class TestMine(StoreContract):
        @pytest.fixture
        def store(self, tmp_path):
            return open_store(f"mine://{tmp_path}")

The fixture ``store`` gives an empty store; nothing here needs more than that and ``tmp_path``.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pathlib
import pickle
import random
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO

from mds.errors import ConfigError, CorruptError, NotFoundError, StoreError
from mds.storage import Body, ObjectInfo, Store
from mds.storage._base import is_same_object
from mds.storage._wrappers import Wrapper


def noise(size: int, seed: int = 0) -> bytes:
    """Return ``size`` random bytes, so that bytes from a wrong place are noticed."""
    return random.Random(seed).randbytes(size)


class StoreContract:
    """Tests that every store must pass.

    Inherit it, name the class ``Test...`` and add a fixture ``store`` that returns an empty store.

    For example::

        from mds.testing import StoreContract

        class TestShelf(StoreContract):
            @pytest.fixture
            def store(self, tmp_path):
                return open_store(f"shelf://{tmp_path}")
    """

    def test_what_was_put_is_got(self, store: Store) -> None:
        """Objects of any size come back byte by byte, empty ones too."""
        for size in (0, 1, 1000, 3 << 20):
            store.put(f"size-{size}", noise(size))
            assert store.get(f"size-{size}") == noise(size)

    def test_put_replaces(self, store: Store) -> None:
        """An object that was written twice has the bytes of the second write."""
        store.put("same", noise(5000, 1))
        store.put("same", noise(70, 2))
        assert store.get("same") == noise(70, 2)

    def test_files_go_and_come(self, store: Store, tmp_path: pathlib.Path) -> None:
        """A file that is put is got as a file, whether or not its size is known beforehand."""
        for size in (0, 12345, (5 << 20) + 7):
            (tmp_path / "out").write_bytes(noise(size))
            store.put_file("folder/file", str(tmp_path / "out"))
            for expected_size in (None, size):
                info = store.get_file("folder/file", str(tmp_path / "in"), expected_size)
                assert info.size == size
                assert (tmp_path / "in").read_bytes() == noise(size)

    def test_large_files_come_in_parts(self, store: Store, tmp_path: pathlib.Path) -> None:
        """A file that is fetched in parts, of which the last is shorter, has the object's bytes."""
        store.part_size = 1 << 19
        data = noise((3 << 20) + 11)
        store.put("large", data)
        store.get_file("large", str(tmp_path / "in"), len(data))
        assert (tmp_path / "in").read_bytes() == data

    def test_ranges(self, store: Store) -> None:
        """A range has exactly its bytes: at the start, inside, at the end, and if empty."""
        data = noise(100_000)
        store.put("ranged", data)
        spots = (0, 1, 499, 65_536, 99_999, 100_000)
        for start, end in itertools.combinations_with_replacement(spots, 2):
            assert store.get_range("ranged", start, end) == data[start:end]
        assert b"".join(store.stream("ranged", 99_000)) == data[99_000:]

    def test_a_range_past_the_end_is_an_error(self, store: Store) -> None:
        """A range that ends or begins behind the end of the object is a CorruptError."""
        store.put("short", noise(100))
        store.put("empty", b"")
        _raises(CorruptError, lambda: store.get_range("short", 50, 101), "short")
        _raises(CorruptError, lambda: store.get_range("short", 150, 200), "short")
        _raises(CorruptError, lambda: store.get_range("empty", 0, 1), "empty")

    def test_what_is_missing_is_not_found(self, store: Store, tmp_path: pathlib.Path) -> None:
        """Every method that reads raises NotFoundError, which names the missing object."""
        store.put("there", b"x")
        path = str(tmp_path / "in")
        for act in (
            lambda: store.get("nowhere"),
            lambda: store.stream("nowhere"),
            lambda: store.get_range("nowhere", 1, 2),
            lambda: store.get_range("nowhere", 1, 1),
            lambda: store.head("nowhere"),
            lambda: store.get_file("nowhere", path),
            lambda: store.get_file("far/away/nowhere", path, 100),
        ):
            error = _raises(NotFoundError, act, "nowhere")
            assert isinstance(error, FileNotFoundError)

    def test_another_size_than_expected_is_an_error(
        self, store: Store, tmp_path: pathlib.Path
    ) -> None:
        """Fetching an object as a file of another size is an error, shorter or longer."""
        store.part_size = 1 << 16
        for size in (0, 1000, 500_000):
            store.put("sized", noise(size))
            for wrong_size in (size + 1, size + 200_000, max(0, size - 1)):
                if wrong_size != size:
                    path = str(tmp_path / "in")
                    _raises(CorruptError, partial(store.get_file, "sized", path, wrong_size))

    def test_head_tells_size_and_version(self, store: Store) -> None:
        """``head`` returns the size of an object, and another version after a change.

        A store without versions returns ''.
        """
        store.put("known", noise(77, 1))
        first = store.head("known")
        assert first.size == 77
        with store.stream("known") as body:
            assert body.info.version in ("", first.version)
        store.put("known", noise(79, 2))
        second = store.head("known")
        assert second.size == 79
        assert first.version != second.version or not first.version

    def test_a_range_of_a_replaced_object_is_refused(
        self, store: Store, tmp_path: pathlib.Path
    ) -> None:
        """A file is never made of parts of two objects.

        Every answer to a request has the size and version of the object (``body.info``), so that
        `is_same_object` notices a replacement between the requests of two parts.
        """
        size = 300_000
        store.put("swapped", noise(size, 1))
        with store.stream("swapped", 0, 10) as body:
            before = body.info
        assert before.size in (-1, size)  # -1: unknown
        store.put("swapped", noise(size + 1, 2))
        with store.stream("swapped", 10, 20) as body:
            assert not is_same_object(before, body.info)
        store.put("swapped", noise(size, 3))
        # The object is replaced after the first part of it was requested.
        meanwhile = _Meanwhile(store, lambda: store.put("swapped", noise(size - 1, 4)))
        meanwhile.part_size = 1 << 16
        path = str(tmp_path / "in")
        _raises(CorruptError, lambda: meanwhile.get_file("swapped", path, size))

    def test_lists(self, store: Store) -> None:
        """``list`` yields every object at any depth with its size, or those with a prefix."""
        if not store.can_list:
            _raises(StoreError, lambda: list(store.list()), "list")
            return
        assert list(store.list()) == []
        sizes = {"index.json": 5, "a/0.mds": 1, "a/1.mds": 2, "a/b/2.mds": 0, "ab/3.mds": 4}
        for key, size in sizes.items():
            store.put(key, noise(size))
        assert {info.key: info.size for info in store.list()} == sizes
        assert {info.key for info in store.list("a/")} == {"a/0.mds", "a/1.mds", "a/b/2.mds"}
        assert {info.key for info in store.list("a/b")} == {"a/b/2.mds"}
        assert {info.version for info in store.list("index")} <= {
            "",
            store.head("index.json").version,
        }
        assert list(store.list("none/")) == []

    def test_delete(self, store: Store) -> None:
        """A deleted object is gone; deleting one that does not exist is no error."""
        store.put("gone", b"x")
        store.delete("gone")
        _raises(NotFoundError, lambda: store.get("gone"))
        store.delete("gone")

    def test_stopping_early(self, store: Store) -> None:
        """A transfer that is given up leaves the store in order for the next."""
        data = noise(2 << 20)
        store.put("left", data)
        for _ in range(10):
            with store.stream("left") as body:
                assert data.startswith(next(body))
        assert store.get("left") == data

    def test_unusual_names(self, store: Store) -> None:
        """Names may have spaces, punctuation and letters of other scripts."""
        names = ["with space.mds", "plus+and&sign", "per%20cent", "ünï/日本.mds", "a.b/c..d/#1"]
        for number, name in enumerate(names):
            store.put(name, noise(50, number))
        for number, name in enumerate(names):
            assert store.get(name) == noise(50, number)
            assert store.head(name).size == 50
        if store.can_list:
            assert {info.key for info in store.list()} == set(names)

    def test_names_stay_inside(self, store: Store) -> None:
        """A name cannot leave the store's folder."""
        for name in ("../outside", "a/../../outside", "/etc/passwd"):
            _raises(ConfigError, partial(store.get, name))
            _raises(ConfigError, partial(store.put, name, b"x"))

    def test_many_threads(self, store: Store) -> None:
        """Many threads read through one store, each its own bytes."""
        data = noise(1 << 20)
        store.put("shared", data)

        def read(number: int) -> bool:
            start = number * 4099
            return store.get_range("shared", start, start + 30_000) == data[start : start + 30_000]

        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(read, range(100)))

    def test_a_fork_after_use(self, store: Store) -> None:
        """After a fork, children and parent read the right bytes through the used store.

        A transfer that was half read before the fork continues in all of them.
        """
        data = [noise(200_000, number) for number in range(3)]
        for number, content in enumerate(data):
            store.put(f"fork-{number}", content)
        half_read = store.stream("fork-0", 0, 150_000)
        answers: Any = multiprocessing.get_context("fork").SimpleQueue()
        with warnings.catch_warnings():
            # The very thing under test: a fork while other threads may live.
            warnings.simplefilter("ignore", DeprecationWarning)
            children = [
                multiprocessing.get_context("fork").Process(
                    target=_read_as_child, args=(store, half_read, data, number, answers)
                )
                for number in (1, 2)
            ]
            for child in children:
                child.start()
        for _ in range(20):
            assert store.get("fork-0") == data[0]
        assert b"".join(half_read) == data[0][:150_000]
        for child in children:
            child.join(60)
            assert child.exitcode == 0
        assert sorted(answers.get() for _ in children) == [(1, 0), (2, 0)]

    def test_pickles(self, store: Store) -> None:
        """The pickle of a used store is small, without connections, and its copy works."""
        store.put("sent", b"bytes")
        pickled = pickle.dumps(store)
        assert len(pickled) < 4000
        assert pickle.loads(pickled).get("sent") == b"bytes"

    def test_a_file_that_cannot_be_read_puts_nothing(
        self, store: Store, tmp_path: pathlib.Path
    ) -> None:
        """A failed put leaves no object."""
        _raises(OSError, lambda: store.put_file("never", str(tmp_path / "missing")))
        _raises(NotFoundError, lambda: store.head("never"))


class _Meanwhile(Wrapper):
    """A store that calls a function once, after the first request of a transfer is answered."""

    def __init__(self, inner: Store, action: Callable[[], object]) -> None:
        super().__init__(inner)
        self._pending_actions: list[Callable[[], object]] = [action]
        self._lock = threading.Lock()

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Return the bytes in chunks; call the function after the first request."""
        # Parts are requested by several threads; under the lock only one of them calls it.
        with self._lock:
            body = super().stream(key, start, end)
            for action in self._pending_actions:
                action()
            self._pending_actions.clear()
        return body


def _raises(kind: type[BaseException], act: Callable[[], object], *names: str) -> BaseException:
    """Return the error that a call raises, without pytest.

    Args:
        kind: Expected class of the error; other errors are raised again.
        act: The call.
        names: Texts that the message must contain.
    """
    caught: BaseException | None = None
    result: object = None
    try:
        result = act()
    except kind as error:
        caught = error
    assert caught is not None, f"expected {kind.__name__}, got {result!r}"
    for name in names:
        assert name in str(caught), f"{caught!r} does not name {name}"
    if isinstance(caught, StoreError):
        assert caught.url
        assert caught.verb
    return caught


def _read_as_child(
    store: Store, half_read: Any, data: list[bytes], number: int, answers: Any
) -> None:
    """Read in a forked child, put (number, count of wrong reads) into ``answers``, and exit.

    Args:
        store: Store that the parent used before the fork.
        half_read: Body of a transfer that the parent began.
        data: Contents of the objects ``fork-0``, ``fork-1`` and so on.
        number: Number of the object to read.
        answers: Queue that the parent reads.
    """
    wrong = 0
    for _ in range(20):
        wrong += store.get(f"fork-{number}") != data[number]
    # The child continues a transfer of its parent on a new connection.
    wrong += b"".join(half_read) != data[0][:150_000]
    answers.put((number, wrong))
    # No exit handlers: the parent's fixtures are not the child's to end.
    os._exit(0)


class Slow(Wrapper):
    """A store that waits before every operation.

    Args:
        inner: Store that does the operations.
        seconds: Length of the wait.
    """

    def __init__(self, inner: Store, seconds: float) -> None:
        super().__init__(inner)
        self.seconds = seconds
        self.local_path = None  # so that its files are not read in place

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Return the bytes in chunks after a delay."""
        self._think()
        return super().stream(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        """Return size and version after a delay."""
        self._think()
        return super().head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List every object below a prefix after a delay."""
        self._think()
        return super().list(prefix)

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Write an object after a delay."""
        self._think()
        super()._write(key, file, size)

    def _think(self) -> None:
        """Wait as long as an operation of a slow store takes."""
        threading.Event().wait(self.seconds)


class Flaky(Wrapper):
    """A store whose operations raise the errors of a list, one each.

    Args:
        inner: Store that does the operations.
        errors: Error of the first operation, of the second, and so on; None for no error.

    Attributes:
        operations: Number of operations so far: streams, heads, uploads, and listed objects.
    """

    def __init__(self, inner: Store, errors: Iterable[Exception | None] = ()) -> None:
        super().__init__(inner)
        self.errors = list(errors)
        self.operations = 0
        self.local_path = None

    def stream(self, key: str, start: int = 0, end: int | None = None) -> Body:
        """Return the bytes in chunks, or raise the next error."""
        self._trouble()
        return super().stream(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        """Return size and version, or raise the next error."""
        self._trouble()
        return super().head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List every object below a prefix; each may raise the next error."""
        for info in super().list(prefix):
            self._trouble()
            yield info

    def _write(self, key: str, file: BinaryIO, size: int) -> None:
        """Write an object, or raise the next error after some bytes of the file were read."""
        # Read 3 bytes (or fewer, at the end of the file) and go back to where they began.
        file.seek(-len(file.read(3)), os.SEEK_CUR)
        self._trouble()
        super()._write(key, file, size)

    def _trouble(self) -> None:
        """Count an operation, and raise its error if it has one."""
        self.operations += 1
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
