"""Helpers of the tests of iterators, in this folder and in tests/programs/dataset."""

import itertools

from mds import StreamingDataset


class OwnItems(StreamingDataset):
    def __getitem__(self, at):
        return {"id": super().__getitem__(at)["id"]}


class OwnGetItem(StreamingDataset):
    def get_item(self, sample_id, retry=7):
        return {"id": super().get_item(sample_id, retry)["id"]}


class OwnIter(StreamingDataset):
    def __iter__(self):
        yield from super().__iter__()


KINDS = [StreamingDataset, OwnItems, OwnGetItem, OwnIter]


SETTINGS = {"batch_size": 4, "shuffle": True}


def ids(samples, count=None):
    return [int(sample["id"]) for sample in itertools.islice(samples, count)]
