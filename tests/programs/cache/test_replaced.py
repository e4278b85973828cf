"""Processes agree about the version of an object that is replaced while they read it."""

from __future__ import annotations

import subprocess

import pytest
from cache_tools import payload
from sharing import finish, start

from devtools.httpserver import http_server
from mds.errors import ReplacedError
from tests.unit.cache.test_replaced import SIZE, one_by_one, opened, plain, publish_anew


@pytest.mark.slow
@pytest.mark.parametrize("row", [8, None])
def test_processes_agree_about_the_object(tmp_path, folder, row):
    """What one process read ranges of, another refuses when it is replaced, rows and whole."""
    remote = plain(tmp_path)
    with http_server(remote) as url:
        other = start("ranges", url, folder, 0, 3, 5, stdin=subprocess.PIPE)
        assert other.stdout.readline() == b"[3, 5]\n"
        publish_anew(remote, tmp_path, salt=7000)
        with opened(url, folder) as cache, pytest.raises(ReplacedError, match=r"version.*start"):
            one_by_one(cache, [8]) if row else cache.hold(0)
        finish(other)
        # A new start reads what is there now.
        with opened(url, folder) as cache:
            assert cache.samples(0, [8])[0]["b"] == payload(7008, SIZE)
