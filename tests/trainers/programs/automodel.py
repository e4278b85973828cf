"""A tiny Llama trained by the recipe of NeMo Automodel, on one rank of gloo."""

import pathlib
import shutil

import harness
import llama
import torch
import transformers
from nemo_automodel.components.config.loader import ConfigNode
from nemo_automodel.components.datasets import utils
from nemo_automodel.recipes.llm import train_ft
from torch.nn.parallel import DistributedDataParallel

from mds.integrations.automodel import Dataset

# The recipe asks CUDA for its memory, and has no device without it.
torch.cuda.reset_peak_memory_stats = lambda: None


def build_model(config, *parts, **settings):
    """Return a model on the processor; that of Automodel takes CUDA."""
    torch.manual_seed(0)
    return DistributedDataParallel(config.instantiate())


train_ft.build_model = build_model


class Recipe(train_ft.TrainFinetuneRecipeForNextTokenPrediction):
    """Recipe that writes down its batches, and edits the order."""

    settings: dict

    def _run_train_optim_step(self, batches, max_grad_norm=None):
        step = self.step_scheduler.step + 1
        for batch in batches:
            inputs = {name: batch.get(name) for name in ("input_ids", "labels", "position_ids")}
            if inputs["position_ids"] is None:
                inputs["attention_mask"] = batch["attention_mask"]
            harness.record(self.settings, step, inputs)
        result = super()._run_train_optim_step(batches, max_grad_norm)
        harness.change(self.settings, getattr(self.dataloader.dataset, "dataset", None), step)
        return result


def model():
    """Return the model of the configuration."""
    return transformers.LlamaForCausalLM(llama.config(attn_implementation="sdpa"))


class Documents(torch.utils.data.Dataset):
    """Documents as Automodel's own datasets give them."""

    def __init__(self, tokens):
        self.tokens = tokens

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, number):
        tokens = self.tokens[number]
        return {
            "input_ids": tokens,
            "labels": [*tokens[1:], -100],
            "attention_mask": [1] * len(tokens),
        }


def prepare(settings):
    """Copy the states of a checkpoint for ranks that it lacks, as the guide says."""
    if settings["checkpoint"] is None:
        return
    folder = _checkpoint(settings)
    for place in ("dataloader/dataloader_dp_rank_{}.pt", "rng/rng_global_rank_{}.pt"):
        for rank in range(settings["ranks"]):
            if not (folder / place.format(rank)).exists():
                shutil.copy(folder / place.format(0), folder / place.format(rank))


def _checkpoint(settings):
    """Return the folder of the checkpoint to resume from."""
    (folder,) = pathlib.Path(settings["out"]).glob(f"epoch_*_step_{settings['checkpoint'] - 1}")
    return folder


def main(settings):
    """Train from the beginning or from a checkpoint."""
    size = settings["batch_size"] * settings["microbatches"] * settings["ranks"]
    is_own = settings["loader"] == "own"
    dataset = {"_target_": Dataset, "global_batch_size": size, "num_workers": settings["workers"]}
    loader = {"collate_fn": utils.default_collater}
    if is_own:
        dataset = {"_target_": Documents, "tokens": harness.tokens_of_documents(settings)}
        loader["num_workers"] = settings["workers"]
    else:
        dataset |= harness.arguments_of(settings)
        if settings["packing"]:
            loader["collate_fn"] = utils.neat_packed_collater
    config = {
        "dist_env": {"backend": "gloo"},
        "distributed": {"strategy": "ddp"},
        "model": {"_target_": model},
        "dataset": dataset,
        "dataloader": loader,
        "loss_fn": {"_target_": "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy"},
        "optimizer": {"_target_": "torch.optim.AdamW", "lr": 1e-4},
        "step_scheduler": {
            "global_batch_size": size,
            "local_batch_size": settings["batch_size"],
            "max_steps": settings["steps"],
            "num_epochs": 100,
            "ckpt_every_steps": settings["save_every"],
        },
        "checkpoint": {
            "enabled": True,
            "checkpoint_dir": settings["out"],
            "model_save_format": "torch_save",
            "save_consolidated": False,
        },
    }
    if settings["checkpoint"] is not None:
        config["checkpoint"]["restore_from"] = str(_checkpoint(settings))
    recipe = Recipe(ConfigNode(config))
    recipe.settings = settings
    recipe.setup()
    recipe.run_train_validation_loop()
