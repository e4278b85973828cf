"""A tiny model trained by the SFTTrainer of TRL, on one rank of gloo."""

import datasets
import harness
import hugging_face
import llama
import torch
import transformers
from trl import SFTConfig, SFTTrainer

from mds.integrations.transformers import StreamingTrainer


class Trainer(StreamingTrainer, SFTTrainer):
    """SFTTrainer whose datasets may be StreamingDatasets."""


def main(settings):
    """Train from the beginning or from a checkpoint."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(llama.config())
    is_own = settings["loader"] == "own"
    arguments = SFTConfig(
        **hugging_face.options_of(settings),
        packing=is_own and settings["packing"],
        max_length=harness.CAPACITY,
    )
    if is_own:
        tokens = harness.tokens_of_documents(settings)
        cls, dataset = SFTTrainer, datasets.Dataset.from_dict({"input_ids": tokens})
    else:
        cls, dataset = Trainer, harness.dataset_of(settings)
    trainer = cls(model, arguments, train_dataset=dataset, processing_class=llama.tokenizer())
    hugging_face.train(settings, trainer)
