"""Helpers of the tests of failed iterations, in this folder and in tests/programs/loader."""

import pytest
import torch

WORKERS = {
    "no workers": {},
    "threads": {"num_workers": 2, "worker_type": "threads"},
    "processes": {"num_workers": 2, "worker_type": "processes"},
    "persistent": {"num_workers": 2, "worker_type": "processes", "persistent_workers": True},
}


class Bad(Exception):
    """What a function of the caller's raises."""


@pytest.fixture
def fails(tmp_path):
    """A function of a number that raises for sample 57 until it is called with ``repair``."""
    armed = tmp_path / "armed"
    armed.touch()

    def look(number, *, repair=False):
        if repair:
            armed.unlink()
        elif number == 57 and armed.exists():
            raise Bad("sample 57")

    return look


def checked(fails):
    """A function for `map` that fails."""

    def look(sample):
        fails(int(sample["id"]))
        return sample

    return look


def collate(samples):
    """The numbers of samples."""
    return {"id": torch.tensor([int(sample["id"]) for sample in samples])}


def numbers(batches):
    """The numbers of the samples of batches."""
    return [number for batch in batches for number in batch["id"].tolist()]


def take_until_error(iterator):
    """What comes before the error, and the error without the frames that keep the iteration."""
    found = []
    try:
        found.extend(iterator)
    except Exception as error:  # noqa: BLE001 - compared by the test
        return found, error.with_traceback(None)
    raise AssertionError("no error")
