"""Helpers of the tests of wrapping, in this folder and in tests/programs/loader."""

from torch.utils.data import (
    Dataset,
    IterableDataset,
)


class Transformed(Dataset):
    """The usual way to add a transform in torch."""

    def __init__(self, dataset, length=None):
        self.dataset, self._length = dataset, length

    def __len__(self):
        return self._length or len(self.dataset)

    def __getitem__(self, at):
        return {"id": self.dataset[at]["id"] + 1000}


class Piped(IterableDataset):
    """A wrapper that iterates what it wraps."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        for sample in self.dataset:
            yield {"id": sample["id"] + 1000}
