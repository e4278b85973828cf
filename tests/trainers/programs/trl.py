"""A tiny model trained by the SFTTrainer of TRL, on one rank of gloo."""

import os

import datasets
import harness
import llama
import torch
import transformers
from trl import SFTConfig, SFTTrainer

from mds.integrations.transformers import StreamingTrainer


class Trainer(StreamingTrainer, SFTTrainer):
    """SFTTrainer whose datasets may be StreamingDatasets."""


class Edits(transformers.TrainerCallback):
    """Edits of the order during the training."""

    def __init__(self, settings, dataset):
        self.settings, self.dataset = settings, dataset

    def on_step_end(self, args, state, control, **objects):
        harness.change(self.settings, self.dataset, state.global_step)


def main(settings):
    """Train from the beginning or from a checkpoint."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(llama.config())
    is_own = settings["loader"] == "own"
    arguments = SFTConfig(
        output_dir=settings["out"],
        max_steps=settings["steps"],
        save_steps=settings["save_every"],
        per_device_train_batch_size=settings["batch_size"],
        gradient_accumulation_steps=settings["microbatches"],
        dataloader_num_workers=settings["workers"],
        packing=is_own and settings["packing"],
        max_length=harness.CAPACITY,
        use_cpu=True,
        bf16=False,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
    )
    if is_own:
        tokens = harness.tokens_of_documents(settings)
        cls, dataset = SFTTrainer, datasets.Dataset.from_dict({"input_ids": tokens})
    else:
        cls, dataset = Trainer, harness.dataset_of(settings)
    trainer = cls(model, arguments, train_dataset=dataset, processing_class=llama.tokenizer())
    trainer.add_callback(Edits(settings, dataset))

    def write_down(module, args, inputs):
        harness.record(settings, trainer.state.global_step + 1, inputs)

    model.register_forward_pre_hook(write_down, with_kwargs=True)
    checkpoint = settings["checkpoint"]
    if checkpoint is not None:
        checkpoint = os.path.join(settings["out"], f"checkpoint-{checkpoint}")
    trainer.train(resume_from_checkpoint=checkpoint)
    torch.distributed.destroy_process_group()
