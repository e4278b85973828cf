"""Batches as messages: what comes out is what went in, few messages, and none of them late."""

import pytest

from tests.unit.loader.worker_batches_helpers import sent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "lengths"),
    [
        ({}, [1, 2, 4, 8, 8, 8, 8, 1, 0]),
        ({"seconds": [0.1]}, [1] * 40 + [0]),
        ({"seconds": [0.005]}, [1, *[1] * 39, 0]),
        ({"seconds": [0.002]}, [1, 2, 4, 8, 8, 8, 8, 1, 0]),
        ({"size": 1 << 20}, [1, 2, *[3] * 12, 1, 0]),
        ({"size": 5 << 20}, [1] * 40 + [0]),
    ],
)
def test_small_batches_travel_together_and_slow_ones_alone(how, lengths):
    """The first comes at once; none waits long for others; a message has a few megabytes."""
    messages, batches = sent(40, **how)
    assert [len(message.items) for message in messages] == lengths
    assert batches == [*range(40)]
