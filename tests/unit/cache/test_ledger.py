"""The ledger of a cache folder: slots of processes, failed openings, and other indexes."""

from __future__ import annotations

import os
import shutil

import pytest
from cache_tools import write

from mds._cache.folder import CacheFolder
from mds._cache.index_copy import fetch_index
from mds._cache.ledger import Ledger
from mds._cache.ledger_file import ABSENT, MANAGED
from mds._cache.source import Source
from mds.errors import CacheError


@pytest.fixture
def cache_folder(tmp_path):
    remote = write(tmp_path / "remote", samples=40)
    cache_folder = str(tmp_path / "cache")
    return CacheFolder(Source(fetch_index(remote, cache_folder), remote, cache_folder), 0, 0)


def open_ledger(cache_folder, **options):
    ledger = Ledger(cache_folder.control, len(cache_folder), cache_folder.fingerprint(), **options)
    ledger.open()
    return ledger


def test_a_second_process_sees_what_the_first_noted(cache_folder):
    """The file is one for all."""
    one, two = open_ledger(cache_folder), open_ledger(cache_folder)
    one.commit(0, MANAGED, 123, 7)
    assert (two.entries["state"][0], two.entries["size"][0]) == (MANAGED, 123)
    assert two.slot != one.slot
    assert len(two.processes()) == 2
    one.close()
    two.close()
    one.close()


def test_a_deleted_folder_is_opened_anew_and_own_reservations_live_on(cache_folder):
    """Whoever deletes the cache_folder does not lift the limit of those who write."""
    ledger = open_ledger(cache_folder)
    with ledger.change():
        ledger.reserve(1, 500)
    ledger.commit(0, MANAGED, 123, 7)
    shutil.rmtree(cache_folder.control)
    with ledger.change() as entries:
        assert entries["state"][0] == ABSENT
        assert entries["size"][1] == 500
    ledger.close()


def test_another_index_starts_another_ledger_that_knows_the_former(cache_folder):
    """What was ours stays recognisable."""
    one = open_ledger(cache_folder)
    with one.change():
        one.set_identity(2, 77, 88)
    one.commit(2, MANAGED, 10, 99)
    one.close()
    two = Ledger(cache_folder.control, len(cache_folder) + 1, b"another")
    two.open()
    assert two.is_new
    assert two.former["name"].tolist() == [77]
    assert two.former["stamp"].tolist() == [99]
    two.close()


def test_after_a_restart_of_the_machine_nothing_counts_as_checked(cache_folder, monkeypatch):
    """A power cut can leave files of the right size without their content."""
    one = open_ledger(cache_folder)
    with one.change():
        one.set_identity(0, 77, 88)
    one.commit(0, MANAGED, 10, 1, is_checked=True)
    one.close()
    monkeypatch.setattr("mds._cache.ledger_file.boot", lambda: b"another!")
    two = open_ledger(cache_folder)
    assert two.former["stamp"].tolist() == [1]
    assert not two.former["is_checked"].any()
    assert not two.entries["is_checked"].any()
    two.close()


def test_a_stuck_owner_of_the_lock_is_an_error_that_names_processes(cache_folder):
    """Nobody waits for ever."""
    one, two = open_ledger(cache_folder), open_ledger(cache_folder, lock_timeout=0.05)
    with one.change(), pytest.raises(CacheError, match="another thread of this"), two.change():
        pass
    one.close()
    two.close()


def test_a_ledger_whose_opening_failed_opens_when_it_is_next_used(cache_folder):
    """The lock was stuck; later it is not."""
    one = open_ledger(cache_folder)
    two = Ledger(one.control, one.shards, one.fingerprint, lock_timeout=0.05)
    with one.change(), pytest.raises(CacheError, match="another thread of this process"):
        two.open()
    assert "closed" in repr(two)
    with two.change() as entries:
        assert len(entries) == one.shards
    assert two.slot != one.slot
    one.close()
    two.close()


def test_a_pin_after_a_failed_opening_raises_its_reason(cache_folder):
    """While a file is where the cache folder was, every pin says so; afterwards it works again."""
    ledger = open_ledger(cache_folder)
    root = os.path.dirname(ledger.control)
    os.rename(root, f"{root}.old")
    with open(root, "w"):
        pass
    with pytest.raises(CacheError, match="is a file"):
        ledger.refresh()
    with pytest.raises(CacheError, match="is a file"):
        ledger.pin(0)
    os.remove(root)
    assert ledger.pin(0)


def test_slots_are_used_again(cache_folder):
    """Opening and forgetting without closing does not use a folder up."""
    for _ in range(600):
        open_ledger(cache_folder)
    ledger = open_ledger(cache_folder)
    ledger.close()
