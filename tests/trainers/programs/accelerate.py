"""A tiny model trained by a loop with Accelerate, on one rank of gloo."""

import os

import batches
import harness
import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy

from mds import StreamingDataLoader


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
    count = settings["microbatches"]
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=count)
    embedding = torch.nn.Embedding(harness.VOCABULARY, 8)
    model = torch.nn.Sequential(embedding, torch.nn.Linear(8, harness.VOCABULARY))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    dataset = harness.dataset_of(settings, "shifted", batch_size=settings["batch_size"])
    collate = {} if settings["packing"] else {"collate_fn": batches.pad}
    loader = StreamingDataLoader(
        dataset, microbatches=count, num_workers=settings["workers"], **collate
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(loader)
    step = settings["checkpoint"] or 0
    if step:
        accelerator.load_state(os.path.join(settings["out"], str(step)))
        accelerator.step = 0  # it counts batches, of which a step may have had another number
    while step < settings["steps"]:
        step = train_epoch(settings, accelerator, model, optimizer, loader, step)
    accelerator.end_training()
