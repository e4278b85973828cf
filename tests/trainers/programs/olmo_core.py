"""A tiny transformer trained by the Trainer of OLMo-core, on one rank of gloo."""

import os

import harness
import numpy as np
import torch
from olmo_core.data import (
    NumpyDataLoaderConfig,
    NumpyFSLDatasetConfig,
    NumpyPackedFSLDatasetConfig,
    TokenizerConfig,
)
from olmo_core.data.types import NumpyDatasetDType
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.nn.attention import backend
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import Duration, TrainerConfig, prepare_training_environment
from olmo_core.train.callbacks import Callback, CheckpointerCallback
from olmo_core.train.common import LoadStrategy
from olmo_core.train.train_module import TransformerTrainModule
from olmo_core.train.train_module.transformer import TransformerDataParallelConfig

from mds import LocalDataset, MDSWriter
from mds.integrations.olmo_core import MDSDataLoaderConfig

EOS, PAD = 1, 0
TOKENIZER = TokenizerConfig(vocab_size=harness.VOCABULARY, eos_token_id=EOS, pad_token_id=PAD)


class Attention(backend.TorchAttentionBackend):
    """Attention of torch that keeps documents apart; only those for GPUs do so in OLMo-core."""

    def forward(self, qkv, cu_doc_lens=None, max_doc_len=None, **options):
        if cu_doc_lens is None:
            return super().forward(qkv, **options)
        query, key, value = (x.flatten(0, 1).transpose(0, 1) for x in qkv)  # (heads, tokens, size)
        sizes = cu_doc_lens.diff().tolist()
        parts = zip(*(x.split(sizes, 1) for x in (query, key, value)), strict=True)
        outputs = [
            torch.nn.functional.scaled_dot_product_attention(*part, is_causal=True)
            for part in parts
        ]
        return torch.cat(outputs, 1).transpose(0, 1).contiguous().view(qkv[0].shape)


backend.TorchAttentionBackend = Attention


class Module(TransformerTrainModule):
    """TrainModule that writes down what the model gets, except in the dry run."""

    settings: dict
    is_dry = True

    def train_batch(self, batch, dry_run=False):
        self.is_dry = dry_run
        super().train_batch(batch, dry_run=dry_run)

    def model_forward(self, input_ids, labels=None, **options):
        if not self.is_dry:
            inputs = without_ends(input_ids, labels)
            if "doc_lens" in options:
                inputs["position_ids"] = positions(options["doc_lens"])
            harness.record(self.settings, self.trainer.global_step, inputs)
        return super().model_forward(input_ids, labels=labels, **options)


def without_ends(tokens, labels):
    """Return inputs in which the tokens between documents, for the own loader, have no effect."""
    is_end = tokens == EOS
    labels = labels.masked_fill(is_end | (labels == EOS), -100)
    return {"input_ids": tokens.where(~is_end, tokens.roll(1, 1)), "labels": labels}


def positions(lengths):
    """Return the place of each token in its document, of shape (rows, tokens)."""
    rows = [[*map(torch.arange, row.tolist())] for row in lengths]
    return torch.stack([torch.cat(row) for row in rows])


class Edits(Callback):
    """Edits of the order during the training."""

    settings = None

    def post_train_batch(self):
        dataset = getattr(self.trainer.data_loader, "dataset", None)
        harness.change(self.settings, dataset, self.step)


def prepare(settings):
    """Write each document as a block of the length of a pack, and all for the own loader."""
    everything = {"blocks": [], "documents": []}
    for name in harness.STREAMS:
        place = os.path.join(settings["shards"], name)
        documents = [sample["tokens"] for sample in LocalDataset(place)]
        blocks = [np.resize(document, harness.CAPACITY) for document in documents]
        everything["blocks"] += blocks
        everything["documents"] += [np.append(tokens, np.uint16(EOS)) for tokens in documents]
        if not os.path.exists(f"{place}-blocks"):
            with MDSWriter(f"{place}-blocks", {"tokens": "ndarray:uint16"}) as out:
                for block in blocks:
                    out.write({"tokens": block})
    for name, arrays in everything.items():
        np.concatenate(arrays).astype(np.uint16).tofile(own_file(settings, name))


def own_file(settings, name):
    return os.path.join(settings["shards"], f"{name}.bin")


def loader_of(settings, size, group):
    """Return the loader of mds or that of OLMo-core."""
    common = {"global_batch_size": size, "num_workers": settings["workers"]}
    if settings["loader"] == "own":
        name = "documents" if settings["packing"] else "blocks"
        arguments = {
            "paths": [own_file(settings, name)],
            "sequence_length": harness.CAPACITY,
            "tokenizer": TOKENIZER,
            "dtype": NumpyDatasetDType.uint16,
            "work_dir": os.path.join(settings["shards"], "work"),
        }
        if settings["packing"]:
            dataset = NumpyPackedFSLDatasetConfig(generate_doc_lengths=True, **arguments)
        else:
            dataset = NumpyFSLDatasetConfig(**arguments)
        config = NumpyDataLoaderConfig(seed=0, work_dir=arguments["work_dir"], **common)
        return config.build(dataset.build(), dp_process_group=group)
    arguments = harness.arguments_of(settings)
    if not settings["packing"]:
        place = os.path.join(settings["shards"], "{}-blocks")
        arguments["streams"] = {name: place.format(name) for name in harness.STREAMS}
    config = MDSDataLoaderConfig(
        arguments=arguments, sequence_length=harness.CAPACITY, tokenizer=TOKENIZER, **common
    )
    return config.build(dp_process_group=group)


def main(settings):
    """Train from the beginning or from a checkpoint."""
    os.environ["FS_LOCAL_RANK"] = os.environ["RANK"]  # all ranks have one file system
    prepare_training_environment(seed=0, backend="gloo")
    length, size = harness.CAPACITY, settings["batch_size"] * harness.CAPACITY
    model = TransformerConfig.llama_like(
        d_model=16, vocab_size=TOKENIZER.padded_vocab_size(), n_layers=1, n_heads=2
    ).build(init_device="cpu")
    module = Module(
        model,
        AdamWConfig(lr=1e-3),
        rank_microbatch_size=size,
        max_sequence_length=length,
        dp_config=TransformerDataParallelConfig(name=DataParallelType.ddp),
        device=torch.device("cpu"),
    )
    module.settings = settings
    size *= settings["microbatches"] * settings["ranks"]
    edits = Edits()
    edits.settings = settings
    trainer = TrainerConfig(
        save_folder=settings["out"],
        work_dir=settings["out"],
        max_duration=Duration.steps(settings["steps"]),
        load_strategy=LoadStrategy.always if settings["checkpoint"] else LoadStrategy.never,
        callbacks={
            "checkpointer": CheckpointerCallback(
                save_interval=settings["save_every"], save_async=False, max_checkpoints=None
            ),
            "edits": edits,
        },
    ).build(module, loader_of(settings, size, module.dp_process_group))
    trainer.fit()
    torch.distributed.destroy_process_group()
