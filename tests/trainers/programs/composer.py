"""A tiny model trained by the Trainer of Composer, on one rank of gloo."""

import dataclasses
import os

import batches
import harness
import torch
from composer import Callback, ComposerModel, Trainer
from composer.utils import dist
from torch.nn.functional import cross_entropy

from mds import StreamingDataLoader, StreamingDataset


class Model(ComposerModel):
    """An embedding and a linear layer, whose loss takes labels that are shifted."""

    def __init__(self, settings):
        super().__init__()
        self.settings = settings
        self.embedding = torch.nn.Embedding(harness.VOCABULARY, 8)
        self.output = torch.nn.Linear(8, harness.VOCABULARY)

    def forward(self, batch):
        names = {**batch, "input_ids": batch["tokens"]} if "tokens" in batch else batch
        harness.record(self.settings, self.step, names)
        return self.output(self.embedding(names["input_ids"]))

    def loss(self, outputs, batch):
        return cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())


class Steps(Callback):
    """Number of the step for the model, and edits of the order."""

    def __init__(self, settings, dataset):
        self.settings, self.dataset = settings, dataset

    def batch_start(self, state, logger):
        state.model.module.step = int(state.timestamp.batch) + 1

    def batch_end(self, state, logger):
        harness.change(self.settings, self.dataset, int(state.timestamp.batch))


def loader_of(settings):
    """Return the loader of mds, or torch's own with the sampler of Composer."""
    # Composer divides the batch of a rank into micro-batches.
    batch_size = settings["batch_size"] * settings["microbatches"]
    options = {"num_workers": settings["workers"]}
    if not settings["packing"]:
        options["collate_fn"] = batches.pad
    if settings["loader"] == "own":
        dataset = batches.OwnDocuments(settings)
        options["sampler"] = dist.get_sampler(dataset, shuffle=True)
        return torch.utils.data.DataLoader(dataset, batch_size, **options)
    arguments = harness.arguments_of(settings, "shifted")
    if settings["packing"]:  # rows, which Composer can divide
        arguments["packing"] = dataclasses.replace(arguments["packing"], layout="dense")
    return StreamingDataLoader(StreamingDataset(**arguments, batch_size=batch_size), **options)


def main(settings):
    """Train from the beginning or from a checkpoint."""
    os.environ["NODE_RANK"] = "0"  # as composer's launcher
    loader, model = loader_of(settings), Model(settings)
    checkpoint = settings["checkpoint"]
    if checkpoint is not None:
        checkpoint = os.path.join(settings["out"], f"ba{checkpoint}.pt")
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.SGD(model.parameters(), lr=1e-3),
        train_dataloader=loader,
        max_duration=f"{settings['steps']}ba",
        device="cpu",
        device_train_microbatch_size=settings["batch_size"],
        callbacks=[Steps(settings, loader.dataset)],
        seed=0,
        save_folder=settings["out"],
        save_filename="ba{batch}.pt",
        save_interval=f"{settings['save_every']}ba",
        load_path=checkpoint,
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
