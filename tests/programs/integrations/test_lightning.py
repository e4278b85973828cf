"""StreamingCallback on one rank: epochs of packs, which differ in length, and micro-batches."""

import numpy as np
import pytest
import torch

from mds import MDSWriter, Packing, StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError
from tests.skip_reasons import not_installed

lightning = pytest.importorskip("lightning", reason=not_installed("lightning"))

from mds.integrations.lightning import StreamingCallback  # noqa: E402 - lightning may be missing

pytestmark = pytest.mark.filterwarnings("default")  # those of Lightning are no errors here


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = str(tmp_path_factory.mktemp("documents") / "data")
    rng = np.random.default_rng(1)
    with MDSWriter(out, {"tokens": "ndarray:uint16"}, lengths="tokens") as writer:
        for number in range(240):
            size = int(rng.integers(3, 40))
            writer.write({"tokens": np.full(size, number, np.uint16)})
    return out


class Model(lightning.LightningModule):
    """A number, and the packs that it was trained on."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.packs = []
        self.epochs = []

    def training_step(self, batch, number):
        self.packs.append(batch["tokens"].tolist())
        self.epochs.append(self.trainer.current_epoch)
        return self.weight * len(batch["tokens"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(loader, model, out, checkpoint=None, callbacks=(), **options):
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=bool(callbacks), default_root_dir=out,
        callbacks=[StreamingCallback(), *callbacks], **options,
    )  # fmt: skip
    trainer.fit(model, loader, ckpt_path=checkpoint, weights_only=False)
    return trainer


def make_loader(folder, **options):
    packing = Packing(64, window=8)
    return StreamingDataLoader(
        StreamingDataset(folder, batch_size=1, shuffle=True, packing=packing), **options
    )


def test_epochs_of_packs_are_read_to_their_end(folder, tmp_path):
    loader = make_loader(folder)
    epochs = [[batch["tokens"].tolist() for batch in loader] for _ in range(4)]
    assert len({len(epoch) for epoch in epochs}) > 1
    model = Model()
    fit(make_loader(folder), model, str(tmp_path), max_epochs=4)
    assert model.packs == [pack for epoch in epochs for pack in epoch]


def test_another_number_of_batches_in_a_step_is_refused(folder, tmp_path):
    with pytest.raises(ConfigError, match="microbatches=1, but Lightning has accumulate_grad_b"):
        fit(make_loader(folder), Model(), str(tmp_path), accumulate_grad_batches=2, max_steps=1)


@pytest.fixture
def numbers(tmp_path):
    """Return a function that makes a loader of 10 batches of 4 numbers."""
    with MDSWriter(str(tmp_path / "data"), {"tokens": "int"}) as writer:
        for number in range(40):
            writer.write({"tokens": number})

    def make():
        dataset = StreamingDataset(str(tmp_path / "data"), batch_size=4, shuffle=True)
        return StreamingDataLoader(dataset)

    return make


def save_each(out, *, after_epoch, last):
    """Return a callback that saves a checkpoint of the last batch of each epoch."""
    every = {"every_n_epochs": 1} if after_epoch else {"every_n_train_steps": last}
    return lightning.pytorch.callbacks.ModelCheckpoint(
        str(out), "{step}", save_top_k=-1, save_on_train_epoch_end=after_epoch, **every
    )


@pytest.mark.parametrize("after_epoch", [False, True])
@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("end", [{"max_epochs": 3}, {"max_steps": 25}])
def test_a_checkpoint_of_the_last_batch_begins_the_next_epoch(
    tmp_path, numbers, end, limit, after_epoch
):
    """None of the epochs is lost or repeated, saved before the epoch is over or after."""

    def train(checkpoint=None, **options):
        model = Model()
        fit(
            numbers(), model, str(tmp_path), checkpoint, limit_train_batches=limit, **end, **options
        )
        return model

    last = limit or 10
    whole = train(callbacks=[save_each(tmp_path, after_epoch=after_epoch, last=last)])
    resumed = train(str(tmp_path / f"step={last}.ckpt"))
    assert resumed.packs == whole.packs[last:]
    assert resumed.epochs == whole.epochs[last:]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"max_epochs": 2}, {"max_epochs": 4}),
        ({"max_steps": 20}, {"max_steps": 40}),
        ({"max_steps": 25}, {"max_steps": 40}),  # the end lies within an epoch
        ({"max_epochs": 2}, {"max_steps": 40}),
    ],
)
def test_a_training_that_is_over_goes_on(tmp_path, numbers, first, then):
    model, whole, resumed = Model(), Model(), Model()
    trainer = fit(numbers(), model, str(tmp_path), **first)
    trainer.save_checkpoint(tmp_path / "over.ckpt")
    fit(numbers(), resumed, str(tmp_path), str(tmp_path / "over.ckpt"), **then)
    fit(numbers(), whole, str(tmp_path), **then)
    assert model.packs + resumed.packs == whole.packs


def test_the_same_trainer_trains_more_epochs(tmp_path, numbers):
    model, whole, loader = Model(), Model(), numbers()
    trainer = fit(loader, model, str(tmp_path), max_epochs=2)
    trainer.fit_loop.max_epochs = 4
    trainer.fit(model, loader)
    fit(numbers(), whole, str(tmp_path), max_epochs=4)
    assert model.packs == whole.packs


def test_overfit_batches_repeats_its_batches(tmp_path, numbers):
    model = Model()
    fit(numbers(), model, str(tmp_path), max_epochs=3, overfit_batches=2)
    assert model.packs == 3 * model.packs[:2]


def test_loaders_that_are_combined_go_on_together(tmp_path, numbers):
    """Each at its own position."""

    class Pair(Model):
        def training_step(self, batch, number):
            self.packs.append([batch[name]["tokens"].tolist() for name in "ab"])
            return self.weight * 1

    def train(checkpoint=None, **options):
        model = Pair()
        fit({name: numbers() for name in "ab"}, model, str(tmp_path), checkpoint, max_epochs=3,
            **options)  # fmt: skip
        return model.packs

    whole = train(callbacks=[save_each(tmp_path, after_epoch=True, last=10)])
    assert train(str(tmp_path / "step=20.ckpt")) == whole[20:]
