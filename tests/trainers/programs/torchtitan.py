"""A tiny Llama trained by the Trainer of torchtitan, on one rank of gloo."""

import os

import datasets
import harness
import numpy as np
import torch
from torch.distributed.fsdp import FSDPModule

# Without an accelerator torchtitan takes CUDA. This makes it take the processor.
torch._utils._get_available_device_type = lambda: "cpu"

from torchtitan.components import metrics  # noqa: E402
from torchtitan.components.checkpoint import CheckpointManager  # noqa: E402
from torchtitan.components.loss import CrossEntropyLoss  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.config import TrainingConfig  # noqa: E402
from torchtitan.distributed import utils as distributed_utils  # noqa: E402
from torchtitan.hf_datasets import DatasetConfig, text_datasets  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3 import config_registry  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

from mds import LocalDataset, MDSWriter  # noqa: E402
from mds.integrations.torchtitan import DataLoader  # noqa: E402


class Memory(metrics.DeviceMemoryMonitor):
    """Memory of a processor, which torch does not count."""

    def __init__(self):
        self.device_name = "cpu"

    def get_peak_stats(self):
        return metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)

    def reset_peak_stats(self):
        """Do nothing."""


metrics.build_device_memory_monitor = Memory
# It takes numbers of devices and a function of a later torch; the timeouts do not matter here.
distributed_utils.set_pg_timeouts = lambda **options: None


class Tokens(BaseTokenizer):
    """Tokenizer whose texts are lists of tokens."""

    class Config(BaseTokenizer.Config):
        __slots__ = ()

    def __init__(self, config, *, tokenizer_path):
        super().__init__()

    def encode(self, text, **options):
        return text

    def decode(self, tokens, **options):
        return tokens

    def get_vocab_size(self):
        return harness.VOCABULARY


class RecordingTrainer(Trainer):
    """Trainer that writes down its batches, and edits the order."""

    settings: dict

    def forward_backward_step(self, *, input_dict, labels, global_valid_tokens):
        harness.record(
            self.settings,
            self.step,
            {
                "input_ids": input_dict["input"],
                "labels": labels,
                "position_ids": input_dict["positions"],
            },
        )
        return super().forward_backward_step(
            input_dict=input_dict, labels=labels, global_valid_tokens=global_valid_tokens
        )

    def train_step(self, data_iterator):
        super().train_step(data_iterator)
        harness.change(self.settings, getattr(self.dataloader, "dataset", None), self.step)


def prepare(settings):
    """Write each document as a block of the length of a pack and one token more."""
    for name in harness.STREAMS:
        place = os.path.join(settings["shards"], name)
        if not os.path.exists(f"{place}-blocks"):
            with MDSWriter(f"{place}-blocks", {"tokens": "ndarray:uint16"}) as out:
                for sample in LocalDataset(place):
                    out.write({"tokens": np.resize(sample["tokens"], harness.CAPACITY + 1)})


def _arguments_of(settings):
    arguments = harness.arguments_of(settings)
    if not settings["packing"]:
        place = os.path.join(settings["shards"], "{}-blocks")
        arguments["streams"] = {name: place.format(name) for name in harness.STREAMS}
    return arguments


def main(settings):
    """Train from the beginning or from a checkpoint."""
    config = config_registry.llama3_debugmodel()
    layers = config.model_spec.model.layers = config.model_spec.model.layers[:1]
    # FlexAttention has no gradients on a processor.
    layers[0].attention.inner_attention = ScaledDotProductAttention.Config()
    config.dump_folder = settings["out"]
    config.loss = CrossEntropyLoss.Config()
    config.tokenizer = Tokens.Config()
    config.activation_checkpoint = None
    config.parallelism.spmd_backend = "partial_dtensor"
    size = settings["batch_size"] * settings["microbatches"] * settings["ranks"]
    config.training = TrainingConfig(
        local_batch_size=settings["batch_size"],
        global_batch_size=size,
        seq_len=harness.CAPACITY,
        steps=settings["steps"],
        disable_cuda_graphs=True,
    )
    config.checkpoint = CheckpointManager.Config(
        enable=True,
        interval=settings["save_every"],
        load_step=settings["checkpoint"] or -1,
        keep_latest_k=0,
    )
    if settings["loader"] == "own":
        text_datasets.DATASETS["tokens"] = DatasetConfig(
            path="",
            loader=lambda path: datasets.Dataset.from_dict(
                {"text": harness.tokens_of_documents(settings)}
            ),
            sample_processor=lambda sample: sample["text"],
        )
        config.dataloader = text_datasets.HuggingFaceTextDataLoader.Config(
            dataset="tokens", num_workers=settings["workers"]
        )
    else:
        config.dataloader = DataLoader.Config(
            arguments=_arguments_of(settings),
            num_workers=settings["workers"],
            global_batch_size=size,
        )
    trainer = RecordingTrainer(config)
    trainer.settings = settings
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()
