"""Helpers of the tests of sieve, in this folder and in tests/programs/dataset."""


def even(sample):
    """A filter that spawned workers can unpickle."""
    return sample["id"] % 2 == 0


def few(sample):
    """Keeps 2 of 100."""
    return sample["id"] in (17, 60)
