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

    def training_step(self, batch, number):
        self.packs.append(batch["tokens"].tolist())
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


@pytest.mark.parametrize(
    ("end", "limit", "after_epoch"),
    [
        ({"max_epochs": 3}, None, False),
        ({"max_epochs": 3}, 5, False),
        ({"max_steps": 25}, None, False),
        ({"max_steps": 25}, 5, False),
        ({"max_steps": 25}, None, True),
    ],
)
def test_a_checkpoint_of_the_last_batch_begins_the_next_epoch(tmp_path, end, limit, after_epoch):
    """None of the epochs is lost, though Lightning may save before the epoch is over."""
    with MDSWriter(str(tmp_path / "data"), {"tokens": "int"}) as writer:
        for number in range(40):
            writer.write({"tokens": number})

    def train(checkpoint=None, **options):
        dataset = StreamingDataset(str(tmp_path / "data"), batch_size=4, shuffle=True)
        model, loader = Model(), StreamingDataLoader(dataset)
        fit(loader, model, str(tmp_path), checkpoint, limit_train_batches=limit, **end, **options)
        return model.packs

    last = limit or 10
    every = {"every_n_epochs": 1} if after_epoch else {"every_n_train_steps": last}
    saved = lightning.pytorch.callbacks.ModelCheckpoint(
        str(tmp_path), "{step}", save_top_k=-1, save_on_train_epoch_end=after_epoch, **every
    )
    whole = train(callbacks=[saved])
    assert train(str(tmp_path / f"step={last}.ckpt")) == whole[last:]
