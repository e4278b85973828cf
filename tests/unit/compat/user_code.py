"""Classes and functions of users that several tests need, also in spawned workers."""

import numpy as np

import mds.compat.streaming  # noqa: F401 - spawned workers import this file by itself

from streaming import Stream  # isort: skip


def reversed_work(dataset, world, epoch, sample_in_epoch):
    """A batching method of a user's own: all samples backwards, dealt to the workers."""
    count = dataset.num_samples - sample_in_epoch
    ids = np.arange(count)[::-1] if epoch % 2 == 0 else np.arange(count)
    assert dataset.num_canonical_nodes > 0
    assert dataset.shuffle_block_size > 0
    shape = (-1, world.workers_per_rank, world.num_nodes, world.ranks_per_node, dataset.batch_size)
    return ids.reshape(shape).transpose(2, 3, 1, 0, 4)


class Unscrambles(Stream):
    """Decrypts what it has downloaded."""

    def _decompress_shard_part(self, zip_info, zip_filename, raw_filename, compression):
        with open(zip_filename, "rb") as file:
            data = bytes(byte ^ 0x55 for byte in file.read())
        with open(zip_filename, "wb") as file:
            file.write(data)
        super()._decompress_shard_part(zip_info, zip_filename, raw_filename, compression)


class Negative:
    """Encoding without a base class, which decodes a number as its negative."""

    def encode(self, obj):
        return bytes([obj])

    def decode(self, data):
        return -data[0]
