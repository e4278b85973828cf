"""When a store is tried again and when it is believed, without a network."""

import os
import random
import uuid

import pytest

from mds.errors import (
    ConfigError,
    CorruptError,
    DeniedError,
    NotFoundError,
    StalledError,
    StoreError,
    TransientError,
)
from mds.storage import Body, ObjectInfo, RetryPolicy, open_store
from mds.storage._memory import MemoryStore
from mds.storage._retry import Retrying
from mds.storage._translate import network_failure, translate_errors
from mds.storage._wrappers import Limited
from mds.testing._store_contract import Flaky, noise

SWIFT = {"first_wait": 0.0, "longest_wait": 0.0}


def troubled(*errors, **policy):
    """A retrying store over one that fails as told, and that one."""
    memory = MemoryStore(f"memory://{uuid.uuid4()}")
    memory.put("x", b"content")
    inner = Flaky(memory, errors)
    policy = RetryPolicy(**{"attempts": 3, "within": 0, **SWIFT, **policy})
    return Retrying(inner, policy), inner


def test_what_passes_is_tried_again():
    """As often as the policy says, and no wait is made longer than needed."""
    store, inner = troubled(TransientError("1"), StalledError("2"))
    assert store.get("x") == b"content"
    assert inner.operations == 3


def test_a_wait_draws_nothing_from_the_generator_of_the_program():
    """Who seeded `random` draws the same numbers, whether the network failed or not."""
    before = random.getstate()
    store, inner = troubled(TransientError("1"), TransientError("2"), first_wait=0.001)
    assert store.get("x") == b"content"
    assert inner.operations == 3
    assert random.getstate() == before


@pytest.mark.parametrize("kind", [NotFoundError, DeniedError, CorruptError, StoreError])
def test_what_stays_is_not_tried_again(kind):
    """Only what another try may mend is tried again."""
    store, inner = troubled(kind("no"))
    with pytest.raises(kind):
        store.get("x")
    assert inner.operations == 1


def test_the_attempts_are_a_floor_under_the_deadline():
    """At least so many tries, however short the deadline; more as long as it lasts."""
    errors = [TransientError(str(n)) for n in range(50)]
    store, inner = troubled(*errors, attempts=3, within=0)
    with pytest.raises(TransientError, match="Given up after 3 tries"):
        store.head("x")
    assert inner.operations == 3
    store, inner = troubled(*errors, attempts=3, within=3600)
    assert store.head("x").size == 7
    assert inner.operations == 51


def test_an_upload_starts_from_its_beginning_at_each_try(tmp_path):
    """Also when the failed try had read some of the file."""
    store, _ = troubled(TransientError("1"), TransientError("2"))
    (tmp_path / "file").write_bytes(b"0123456789")
    store.put_file("up", str(tmp_path / "file"))
    assert store.get("up") == b"0123456789"


def test_an_upload_that_arrived_is_not_sent_again_because_the_check_failed():
    """The check of its size has tries of its own."""
    store, inner = troubled(None, TransientError("head"), TransientError("head"))
    assert inner.operations == 0
    store.put("up", b"1")
    assert inner.operations == 4


def test_an_upload_that_lost_bytes_is_an_error():
    """A store that says done and has another size is not believed."""

    class Short(MemoryStore):
        def _write(self, key, file, size):
            super()._write(key, file, max(0, size - 1))

    with pytest.raises(TransientError, match="5 bytes were sent, but the store has 4"):
        Short("memory://short").put("x", b"12345")


def test_a_listing_that_breaks_goes_on_without_repeating():
    """Every object once, whichever page broke."""
    inner = MemoryStore(f"memory://{uuid.uuid4()}")
    for number in range(9):
        inner.put(f"{number}", b"")
    errors = [None, None, TransientError("page"), None, None, None, TransientError("page")]
    store = Retrying(Flaky(inner, errors), RetryPolicy(2, 0, **SWIFT))
    assert sorted(info.key for info in store.list()) == [str(n) for n in range(9)]


def test_a_negative_policy_is_refused():
    """Numbers that make no sense are refused where they are given."""
    with pytest.raises(ConfigError):
        RetryPolicy(attempts=-1)


@pytest.mark.parametrize(("pieces", "words"), [((b"ab",), "2 of 3"), ((b"ab", b"cd"), "4 of 3")])
def test_a_body_is_exactly_as_long_as_it_says(pieces, words):
    """One that ends early or goes on raises instead of ending."""
    body = Body(ObjectInfo("x", 3), iter(pieces), 3, url="here")
    with pytest.raises(TransientError, match=words):
        list(body)


def test_a_body_gives_its_connection_back_once():
    """At its end or when it is closed, and only once."""
    closed = []
    body = Body(ObjectInfo("x", 1), iter((b"a",)), 1, close=lambda: closed.append(1))
    assert list(body) == [b"a"]
    body.close()
    assert closed == [1]


def test_a_forgotten_body_gives_its_slot_back():
    """Somebody who drops a body half read does not block the others for ever."""
    inner = MemoryStore("memory://slots")
    inner.put("x", noise(3 << 20))
    store = Limited(inner, 1)
    body = store.stream("x")
    next(body)
    del body
    assert len(store.get("x")) == 3 << 20


def test_errors_of_the_network_are_found_wherever_they_hide():
    """SDKs wrap them in causes, in contexts, in arguments."""
    reset = ConnectionResetError(104, "Connection reset by peer")
    wrapped = Exception("outer")
    wrapped.__cause__ = Exception("middle", reset)
    assert network_failure(wrapped).kind is TransientError
    assert network_failure(Exception(TimeoutError("slow"))).kind is StalledError
    assert network_failure(Exception("nothing of the kind")) is None


def test_an_error_that_nobody_knows_is_told_with_its_cause():
    """It names verb and URL, keeps the cause, and is not tried again."""
    with (
        pytest.raises(StoreError, match=r"get s3://b/k: RuntimeError: odd\.") as caught,
        translate_errors("get", "s3://b/k"),
    ):
        raise RuntimeError("odd")
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert not isinstance(caught.value, TransientError)


def test_a_local_folder_is_read_with_retries_too(tmp_path, monkeypatch):
    """Network file systems hiccup: a stale handle is tried again."""
    store = open_store(str(tmp_path), retry=RetryPolicy(3, 0, **SWIFT))
    store.put("x", b"1")
    calls = []
    real = os.stat

    def stat(path, *rest, **more):
        if str(path).endswith("x") and not calls:
            calls.append(path)
            raise OSError(116, "Stale file handle")
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "stat", stat)
    assert store.head("x").size == 1
    assert len(calls) == 1
