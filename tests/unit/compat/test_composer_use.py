"""What a trainer of Composer's kind does with a dataloader, line by line.

The real one is run by the tests of frameworks, where it is installed.
"""

import json

import numpy as np
import pytest
import torch
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
from torch.utils.data import DataLoader, IterableDataset


class Trainer:
    """Replica of the calls: duck-typed, without importing any streaming package."""

    def __init__(self, dataloader):
        assert isinstance(dataloader, DataLoader)
        assert dataloader._iterator is None
        self.dataloader, self.dataset = dataloader, dataloader.dataset
        assert isinstance(self.dataset, IterableDataset)  # so that no DistributedSampler is asked
        self.samples_per_epoch = len(self.dataset)
        self.batch_size = dataloader.batch_size
        self.max_seq_len = getattr(self.dataset, "max_seq_len", None)
        self.seen_in_epoch, self.spin = 0, 0
        self.trained = []

    def fit(self, batches):
        iterator = iter(self.dataloader)
        for _ in range(self.spin):  # skipped when the dataset could load its state
            next(iterator)
        for _ in range(batches):
            batch = next(iterator, None)
            if batch is None:
                return
            self.seen_in_epoch += len(batch["n"])
            self.trained += batch["n"].tolist()

    def save(self):
        assert hasattr(self.dataset, "state_dict")
        state = {"train": self.dataset.state_dict(self.seen_in_epoch, True), "eval": {}}
        return json.dumps({"dataset_state": state, "sample_in_epoch": self.seen_in_epoch})

    def load(self, checkpoint):
        saved = json.loads(checkpoint)
        self.seen_in_epoch = saved["sample_in_epoch"]
        if hasattr(self.dataset, "load_state_dict"):
            self.dataset.load_state_dict(saved["dataset_state"]["train"])
        else:
            self.spin = self.seen_in_epoch // self.batch_size


@pytest.mark.parametrize("loader", [DataLoader, StreamingDataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_trainer_saves_and_goes_on(numbers, loader, workers):
    """A checkpoint in the middle of an epoch: the second run trains on exactly what is left."""

    def make():
        dataset = StreamingDataset(local=numbers, batch_size=8, shuffle=True)
        return Trainer(loader(dataset, batch_size=8, num_workers=workers))

    whole, first, second = make(), make(), make()
    assert (first.samples_per_epoch, first.batch_size) == (200, 8)
    whole.fit(1000)
    first.fit(11)
    second.load(first.save())
    second.fit(1000)
    assert first.trained == whole.trained[:88]
    assert second.trained == whole.trained[88:]
    assert second.seen_in_epoch == 200


@pytest.mark.parametrize("workers", [0, 2])
def test_the_second_epoch_follows(numbers, workers):
    """After a resumed epoch the next one is the one that an uninterrupted run would see."""

    def make():
        dataset = StreamingDataset(local=numbers, batch_size=8, shuffle=True)
        return DataLoader(dataset, batch_size=8, num_workers=workers)

    whole, resumed = make(), make()
    epochs = [torch.cat([b["n"] for b in whole]).tolist() for _ in range(2)]
    resumed.dataset.load_state_dict(whole.dataset.state_dict(0, True) | {"epoch": 0})
    assert [torch.cat([b["n"] for b in resumed]).tolist() for _ in range(2)] == epochs


@pytest.mark.parametrize("workers", [0, 2])
def test_no_epoch_is_repeated_after_a_checkpoint_at_its_end(numbers, workers):
    """Composer then saves 0 samples, before the next epoch begins."""

    def make():
        dataset = StreamingDataset(local=numbers, batch_size=8, shuffle=True)
        return StreamingDataLoader(dataset, batch_size=8, num_workers=workers)

    whole, resumed, epochs, states = make(), make(), [], []
    for _ in range(3):
        epochs.append(torch.cat([batch["n"] for batch in whole]).tolist())
        states.append(whole.dataset.state_dict(0, True))
    resumed.dataset.load_state_dict(json.loads(json.dumps(states[0])))
    assert resumed.dataset.state_dict(0, True) == states[0]
    for epoch, state in zip(epochs[1:], states[1:], strict=True):
        assert torch.cat([batch["n"] for batch in resumed]).tolist() == epoch
        assert resumed.dataset.state_dict(0, True) == state


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("packing", [None, 8])
def test_the_dataset_knows_the_position_of_its_loader(tmp_path, packing, workers):
    """Without a number; with packs, which a number of samples cannot count, also with one."""
    with MDSWriter(out=str(tmp_path), columns={"tokens": "ndarray:int32"}) as writer:
        for size in range(40):
            writer.write({"tokens": np.arange(size % 7 + 1, dtype=np.int32)})
    dataset = StreamingDataset(local=str(tmp_path), batch_size=2, packing=packing)
    loader = StreamingDataLoader(dataset, batch_size=2, num_workers=workers)
    for number, _ in enumerate(loader, 1):
        expected = {**loader.state_dict(), "order_hash": ""}
        assert expected["sample_in_epoch"] == 2 * number
        assert dataset.state_dict() == dataset.state_dict(2 * number, True) == expected
    assert dataset.state_dict() == {**loader.state_dict(), "order_hash": ""}
