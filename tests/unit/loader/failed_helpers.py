"""Helpers of the tests of failed, in this folder and in tests/programs/loader."""

import pytest

from mds.errors import MdsError

HOWS = {
    "here": {},
    "threads": {"num_workers": 2, "worker_type": "threads"},
    "processes": {"num_workers": 2, "worker_type": "processes"},
}


class Fault:
    """A function that raises for one sample, in the process where it is armed."""

    armed = True

    def __call__(self, sample):
        if Fault.armed and sample["id"] == 57:
            raise ValueError("sample 57")
        return sample

    def of_columns(self, columns):
        if Fault.armed and 57 in list(columns["id"]):
            raise ValueError("sample 57")
        return columns


@pytest.fixture(autouse=True)
def _armed(monkeypatch):
    monkeypatch.setattr(Fault, "armed", True)


def ids(batches):
    """Return the ids of batches."""
    return [int(number) for batch in batches for number in batch["id"]]


def drain(iterator):
    """Return the ids of an iterator, and the first three errors that it raises."""
    seen, errors = [], []
    while len(errors) < 3:
        try:
            seen += ids([next(iterator)])
        except (MdsError, ValueError) as error:
            errors.append(str(error))
    return seen, errors
