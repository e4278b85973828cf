"""A tiny Llama trained by the Trainer of transformers, on one rank of gloo."""

import datasets
import harness
import hugging_face
import llama
import torch
import transformers

from mds.integrations.transformers import StreamingTrainer


def main(settings):
    """Train from the beginning or from a checkpoint."""
    torch.manual_seed(0)
    if settings["loader"] == "own":
        tokens = harness.tokens_of_documents(settings)
        cls, dataset = transformers.Trainer, datasets.Dataset.from_dict({"input_ids": tokens})
    else:
        cls, dataset = StreamingTrainer, harness.dataset_of(settings)
    trainer = cls(
        transformers.LlamaForCausalLM(llama.config()),
        transformers.TrainingArguments(**hugging_face.options_of(settings)),
        transformers.DataCollatorForLanguageModeling(llama.tokenizer(), mlm=False),
        train_dataset=dataset,
    )
    hugging_face.train(settings, trainer)
