"""How often the ledgers of all folders are looked at."""

import pytest

from mds._cache import concurrency
from mds._cache.concurrency import Paced


class Clock:
    """A clock of the thread and of the machine, which only calls of `look` advance."""

    def __init__(self, durations):
        self.now, self.calls = 100.0, 0
        self._durations = iter(durations)

    def thread_time(self):
        """Return the time."""
        return self.now

    monotonic = thread_time

    def look(self):
        """Take as long as the next duration says, and return how often this was called."""
        self.now += next(self._durations)
        self.calls += 1
        return self.calls


@pytest.fixture
def clock(request, monkeypatch):
    """Return a clock whose looks take the durations that the test is parametrized with."""
    clock = Clock(request.param)
    monkeypatch.setattr(concurrency, "time", clock)
    return clock


@pytest.mark.parametrize("clock", [[0.0001, 0.05, 0.0001, 0.05, 0.0001]], indirect=True)
def test_one_slow_look_is_a_hiccup(clock):
    """A result that is out of date would cost more than a look: shards that are fetched again."""
    paced = Paced()
    assert [paced.get(clock.look) for _ in range(5)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("clock", [[0.008, 0.004, 0.004]], indirect=True)
def test_looks_that_are_slow_take_a_hundredth_of_the_time(clock):
    """From the second one: it is not repeated for 100 times the shorter of the two."""
    paced = Paced()
    assert [paced.get(clock.look) for _ in range(4)] == [1, 2, 2, 2]
    clock.now += 0.399
    assert paced.get(clock.look) == 2
    clock.now += 0.002
    assert paced.get(clock.look) == 3


@pytest.mark.parametrize("clock", [[0.008] * 4], indirect=True)
def test_forget_looks_again(clock):
    """At the next call, however slow the looks were."""
    paced = Paced()
    assert [paced.get(clock.look) for _ in range(3)] == [1, 2, 2]
    paced.forget()
    assert paced.get(clock.look) == 3
