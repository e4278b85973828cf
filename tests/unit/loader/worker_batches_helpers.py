"""Helpers of the tests of worker batches, in this folder and in tests/programs/loader."""

import itertools
import pickle

import torch

from mds._iteration.rows import BatchInfo
from mds._loader.messages import BatchIterator
from mds._loader.worker_batches import MessageSender


class Clock:
    """A clock that goes on while batches are made, and stands still otherwise."""

    def __init__(self, seconds):
        self.seconds = itertools.cycle(seconds)
        self.now = 0.0

    def __call__(self):
        return self.now

    def make(self, batch):
        self.now += next(self.seconds)
        return batch


def sent(count, *, size=100, seconds=(0.0,), pool=None):
    """Messages of so many batches, and the batches as the trainer sees them."""
    clock = Clock(seconds)
    batches = (
        (BatchInfo(1, (0, 0)), clock.make(torch.full((size,), i % 256).byte()))
        for i in range(count)
    )
    sender = MessageSender(0, pool, clock)
    messages = [pickle.loads(pickle.dumps(m)) for m in sender.send(batches)]
    return messages, [int(batch[-1]) for _, batch in BatchIterator(messages, 1)]
