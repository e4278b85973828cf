"""What the programs of trainers that derive from the Trainer of transformers have in common."""

import os

import harness
import torch
import transformers


class Edits(transformers.TrainerCallback):
    """Edits of the order during the training."""

    def __init__(self, settings, dataset):
        self.settings, self.dataset = settings, dataset

    def on_step_end(self, args, state, control, **objects):
        harness.change(self.settings, self.dataset, state.global_step)


def options_of(settings):
    """Return the TrainingArguments of a case."""
    return {
        "output_dir": settings["out"],
        "max_steps": settings["steps"],
        "save_steps": settings["save_every"],
        "per_device_train_batch_size": settings["batch_size"],
        "gradient_accumulation_steps": settings["microbatches"],
        "dataloader_num_workers": settings["workers"],
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "disable_tqdm": True,
        "logging_steps": 1,
    }


def checkpoint_of(settings):
    """Return the folder of the checkpoint to resume from, or None."""
    step = settings["checkpoint"]
    return None if step is None else os.path.join(settings["out"], f"checkpoint-{step}")


def watch(settings, trainer):
    """Write down the batches of the model of a trainer, and edit the order of its dataset."""

    def write_down(module, args, inputs):
        harness.record(settings, trainer.state.global_step + 1, inputs)

    trainer.model.register_forward_pre_hook(write_down, with_kwargs=True)
    trainer.add_callback(Edits(settings, trainer.train_dataset))


def train(settings, trainer):
    """Train from the beginning or from a checkpoint."""
    watch(settings, trainer)
    trainer.train(resume_from_checkpoint=checkpoint_of(settings))
    torch.distributed.destroy_process_group()
