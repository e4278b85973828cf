"""Helpers of the tests of threads, in this folder and in tests/programs/loader."""

import threading

import pytest


@pytest.fixture
def running():
    """A function that lists the worker threads that are alive since the test began."""
    others = {*threading.enumerate()}
    return lambda: [
        thread
        for thread in threading.enumerate()
        if thread.name.startswith("mds-loader") and thread not in others
    ]
