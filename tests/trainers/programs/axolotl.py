"""A tiny Llama trained by ``axolotl train``, on one rank of gloo."""

import json
import os

os.environ["AXOLOTL_DO_NOT_TRACK"] = "1"  # before axolotl is imported
os.environ["ACCELERATE_USE_CPU"] = "true"  # as accelerate launch --cpu

import harness
import hugging_face
import llama
import torch
import transformers
import yaml
from axolotl.cli.args import TrainerCliArgs
from axolotl.cli.config import load_cfg
from axolotl.cli.train import do_train
from axolotl.integrations.base import BasePlugin
from axolotl_options import OPTIONS

SETTINGS = {}
# With several ranks, transformers 5.16 loads the optimizer to the device of its rank. On a
# processor, this is cpu:0, which torch.load() does not know.
torch.serialization.register_package(
    0, lambda storage: None, lambda storage, device: storage if device == "cpu:0" else None
)


class Recorder(BasePlugin):
    """Plugin that writes down the batches of the model, and edits the order."""

    def get_training_args(self, cfg):
        return {"use_cpu": True}

    def post_trainer_create(self, cfg, trainer):
        hugging_face.watch(SETTINGS, trainer)


def prepare(settings):
    """Write the model, the tokenizer, and the documents for the loader of axolotl."""
    folder = os.path.join(settings["shards"], "model")
    if os.path.exists(folder):
        return
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(llama.config()).save_pretrained(folder)
    llama.tokenizer(bos_token="w0").save_pretrained(folder)
    with open(os.path.join(settings["shards"], "own.jsonl"), "w", encoding="utf-8") as file:
        for tokens in harness.tokens_of_documents(settings):
            row = {"input_ids": tokens, "attention_mask": [1] * len(tokens), "labels": tokens}
            file.write(json.dumps(row) + "\n")


def data_of(settings):
    """Return the part of the configuration that says what to train on."""
    if settings["loader"] == "own":
        return {
            "datasets": [
                {
                    "path": os.path.join(settings["shards"], "own.jsonl"),
                    "ds_type": "json",
                    "type": None,
                }
            ],
            "dataset_prepared_path": os.path.join(settings["out"], "prepared"),
            "dataset_num_proc": 1,
            "plugins": ["trainer_program.Recorder"],
        }
    arguments = harness.arguments_of(settings)
    if settings["packing"]:
        packing = arguments["packing"]
        arguments["packing"] = {"capacity": packing.capacity, "window": packing.window}
    if settings["schedule"]:
        arguments["schedule"] = harness.SHARES
    return {
        "mds": {"train": arguments},
        "plugins": ["mds.integrations.axolotl.MDSPlugin", "trainer_program.Recorder"],
    }


def main(settings):
    """Train from the beginning or from a checkpoint."""
    SETTINGS.update(settings)
    folder = os.path.join(settings["shards"], "model")
    config = {
        **OPTIONS,
        "base_model": folder,
        "tokenizer_config": folder,
        "output_dir": settings["out"],
        "resume_from_checkpoint": hugging_face.checkpoint_of(settings),
        "sequence_len": harness.CAPACITY,
        "micro_batch_size": settings["batch_size"],
        "gradient_accumulation_steps": settings["microbatches"],
        "dataloader_num_workers": settings["workers"],
        "max_steps": settings["steps"],
        "save_steps": settings["save_every"],
        "save_total_limit": 100,
        "seed": 1,  # without it, axolotl shuffles its datasets anew in each run
        **data_of(settings),
    }
    file = os.path.join(settings["out"], f"{os.environ['RANK']}.yml")
    with open(file, "w", encoding="utf-8") as out:
        yaml.safe_dump(config, out)
    cfg = load_cfg(file)
    cfg.device_map = {"": "cpu"}  # axolotl takes the accelerator with the number of the rank
    do_train(cfg, TrainerCliArgs())
