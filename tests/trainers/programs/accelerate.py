"""A tiny model trained by a loop with Accelerate, on one rank of gloo."""

import itertools
import os

import batches
import harness
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.nn.functional import cross_entropy

from mds import StreamingDataLoader


def loader_of(settings):
    """Return the loader of mds, or torch's own, which Accelerate divides among the ranks."""
    collate = {} if settings["packing"] else {"collate_fn": batches.pad}
    options = {"num_workers": settings["workers"], **collate}
    if settings["loader"] == "own":
        dataset = batches.OwnDocuments(settings)
        return torch.utils.data.DataLoader(dataset, settings["batch_size"], shuffle=True, **options)
    dataset = harness.dataset_of(settings, "shifted", batch_size=settings["batch_size"])
    return StreamingDataLoader(dataset, microbatches=settings["microbatches"], **options)


def epochs(settings, accelerator, loader):
    """Yield the loader of each epoch; the first one begins at the checkpoint."""
    if settings["loader"] == "mds":
        yield from itertools.repeat(loader)
    fetched = (settings["checkpoint"] or 0) * settings["microbatches"]
    first, batches_to_skip = divmod(fetched, len(loader))
    loader.set_epoch(first)
    yield accelerator.skip_first_batches(loader, batches_to_skip)
    for epoch in itertools.count(first + 1):
        loader.set_epoch(epoch)
        yield loader


def train_epoch(settings, accelerator, model, optimizer, loader, step):
    """Train to the end of an epoch or of the training; return the last step."""
    for batch in loader:
        with accelerator.accumulate(model):
            inputs = batches.rows(batch) if settings["packing"] else batch
            harness.record(settings, step + 1, inputs)
            logits = model(inputs["input_ids"]).flatten(0, 1)
            accelerator.backward(cross_entropy(logits, inputs["labels"].flatten()))
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            harness.change(settings, loader.dataset, step)
            if step % settings["save_every"] == 0:
                accelerator.save_state(os.path.join(settings["out"], str(step)))
            if step == settings["steps"]:
                break
    return step


def main(settings):
    """Train from the beginning or from a checkpoint."""
    torch.manual_seed(0)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=settings["microbatches"],
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0),
    )
    embedding = torch.nn.Embedding(harness.VOCABULARY, 8)
    model = torch.nn.Sequential(embedding, torch.nn.Linear(8, harness.VOCABULARY))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader_of(settings))
    if settings["loader"] == "mds":
        accelerator.register_for_checkpointing(loader)
    step = settings["checkpoint"] or 0
    if step:
        accelerator.load_state(os.path.join(settings["out"], str(step)))
        accelerator.step = 0  # it counts batches, of which a step may have had another number
    for epoch_loader in epochs(settings, accelerator, loader):
        step = train_epoch(settings, accelerator, model, optimizer, epoch_loader, step)
        if step == settings["steps"]:
            break
    accelerator.end_training()
