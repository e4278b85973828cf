"""A tiny model trained by Lightning, on one rank of gloo."""

import os
import random

import batches
import harness
import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy

from mds import StreamingDataLoader
from mds.integrations.lightning import StreamingCallback


class Model(lightning.LightningModule):
    """An embedding and a linear layer, whose loss takes labels that are shifted."""

    def __init__(self, settings):
        super().__init__()
        self.settings = settings
        self.embedding = torch.nn.Embedding(harness.VOCABULARY, 8)
        self.output = torch.nn.Linear(8, harness.VOCABULARY)

    def training_step(self, batch, number):
        harness.record(self.settings, self.global_step + 1, batch)
        logits = self.output(self.embedding(batch["input_ids"]))
        return cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Edits(lightning.Callback):
    """Edits of the order during the training."""

    def __init__(self, settings, dataset):
        self.settings, self.dataset, self.step = settings, dataset, 0

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step != self.step:
            self.step = trainer.global_step
            harness.change(self.settings, self.dataset, self.step)


def main(settings):
    """Train from the beginning or from a checkpoint."""
    lightning.seed_everything(random.Random(0).randrange(100), verbose=False)
    batch_size, workers = settings["batch_size"], settings["workers"]
    dataset = None
    if settings["loader"] == "own":
        loader = torch.utils.data.DataLoader(
            batches.OwnDocuments(settings),
            batch_size,
            shuffle=True,
            num_workers=workers,
            collate_fn=batches.pad,
        )
    else:
        dataset = harness.dataset_of(settings, "shifted", batch_size=batch_size)
        collate = {} if settings["packing"] else {"collate_fn": batches.pad}
        loader = StreamingDataLoader(
            dataset, microbatches=settings["microbatches"], num_workers=workers, **collate
        )
    model = Model(settings)
    if settings["packing"]:
        model.on_before_batch_transfer = lambda batch, number: batches.rows(batch)
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=settings["ranks"],
        max_steps=settings["steps"],
        accumulate_grad_batches=settings["microbatches"],
        callbacks=[
            Edits(settings, dataset),
            StreamingCallback(),
            ModelCheckpoint(
                settings["out"],
                filename="{step}",
                save_top_k=-1,
                every_n_train_steps=settings["save_every"],
            ),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    checkpoint = settings["checkpoint"]
    if checkpoint is not None:
        checkpoint = os.path.join(settings["out"], f"step={checkpoint}.ckpt")
    trainer.fit(model, loader, ckpt_path=checkpoint)
