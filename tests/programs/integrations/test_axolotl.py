"""The plugin of axolotl on one rank: which position a training begins at, and what it refuses."""

import json
import os

import numpy as np
import pytest
import yaml

from mds import MDSWriter
from mds.errors import ConfigError, FunctionError
from tests.trainers.axolotl_options import OPTIONS

REASON = "axolotl is not installed: pip install axolotl"
os.environ["AXOLOTL_DO_NOT_TRACK"] = "1"  # before axolotl is imported
pytest.importorskip("axolotl", reason=REASON)

import torch  # noqa: E402 - as below
import transformers  # noqa: E402 - as below
from axolotl.cli.args import TrainerCliArgs  # noqa: E402 - it may be missing
from axolotl.cli.config import load_cfg  # noqa: E402 - as above
from axolotl.cli.train import do_train  # noqa: E402 - as above
from axolotl.integrations.base import BasePlugin, PluginManager  # noqa: E402 - as above
from tokenizers import Tokenizer  # noqa: E402 - as above
from tokenizers.models import WordLevel  # noqa: E402 - as above

from mds.integrations._model_inputs import ModelInputs, SampleCollator  # noqa: E402 - as above
from mds.integrations._model_loader import ModelLoader  # noqa: E402 - as above
from mds.integrations.axolotl import _open_dataset  # noqa: E402 - as above

pytestmark = pytest.mark.filterwarnings("default")  # those of other libraries are no errors here

DOCUMENTS = 40
PLUGIN = "mds.integrations.axolotl.MDSPlugin"


class Recorder(BasePlugin):
    """Plugin that keeps the trainer and the inputs of its model."""

    def post_trainer_create(self, cfg, trainer):
        self.trainer, self.training, self.evaluation = trainer, [], []

        def write_down(module, args, inputs):
            inputs = {name: value.tolist() for name, value in inputs.items() if name in NAMES}
            (self.training if module.training else self.evaluation).append(inputs)

        trainer.model.register_forward_pre_hook(write_down, with_kwargs=True)


NAMES = ("input_ids", "labels", "attention_mask", "position_ids")


class OtherTrainer(BasePlugin):
    """Plugin that chooses a trainer."""

    def get_trainer_cls(self, cfg):
        from axolotl.core.trainers import AxolotlTrainer

        return AxolotlTrainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Documents of 3 tokens, which are all the number of the document and 2, and a model."""
    out = tmp_path_factory.mktemp("documents")
    with MDSWriter(str(out / "data"), {"tokens": "ndarray:uint16"}, lengths="tokens") as writer:
        for number in range(DOCUMENTS):
            writer.write({"tokens": np.full(3, number + 2, np.uint16)})
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, max_position_embeddings=64, bos_token_id=0, eos_token_id=0,
        pad_token_id=1,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(out / "model")
    words = Tokenizer(WordLevel({f"w{n}": n for n in range(64)}, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="w0", eos_token="w0", pad_token="w1"
    ).save_pretrained(out / "model")
    return out


@pytest.fixture
def train(folder, tmp_path):
    """Train as ``axolotl train`` does, and return the plugin that has seen the batches."""

    def run(out="out", packing=None, data=None, plugins=(PLUGIN,), **options):
        config = {
            **OPTIONS,
            "base_model": str(folder / "model"),
            "plugins": [*plugins, f"{__name__}.Recorder"],
            "mds": {
                "train": {"remote": str(folder / "data"), "shuffle": True, "packing": packing},
                **(data or {}),
            },
            "output_dir": str(tmp_path / out),
            "sequence_len": 8,
            "micro_batch_size": 2,
            "gradient_accumulation_steps": 1,
            "max_steps": 6,
            "save_steps": 2,
            "logging_steps": 1,
            **options,
        }
        file = tmp_path / "config.yml"
        file.write_text(yaml.safe_dump(config))
        manager = PluginManager.get_instance()
        manager.plugins.clear()
        do_train(load_cfg(str(file)), TrainerCliArgs())
        return manager.plugins[f"{__name__}.Recorder"]

    return run


@pytest.mark.parametrize("packing", [None, 8, {"capacity": 8, "window": 4}])
def test_a_run_begins_at_the_checkpoint_that_it_is_given(train, packing, tmp_path):
    """Also at the newest one of its folder; without one, at the beginning."""
    whole = train(packing=packing).training
    assert len(whole) == 6
    assert len({json.dumps(inputs) for inputs in whole}) == 6
    checkpoint = str(tmp_path / "out" / "checkpoint-2")
    assert train("new", packing, resume_from_checkpoint=checkpoint).training == whole[2:]
    longer = train("longer", packing, max_steps=8).training
    assert longer[:6] == whole
    resumed = train(packing=packing, max_steps=8, auto_resume_from_checkpoints=True)
    assert resumed.training == longer[6:]


def test_documents_have_labels_and_padding(train):
    """As the datasets of axolotl have them."""
    (inputs,) = train(max_steps=1).training
    for row in range(2):
        number = inputs["input_ids"][row][0]
        size = len(inputs["input_ids"][row])
        assert size == 64  # axolotl pads to a multiple of it
        assert inputs["input_ids"][row] == [number] * 3 + [1] * (size - 3)
        assert inputs["labels"][row] == [number] * 3 + [-100] * (size - 3)
        assert inputs["attention_mask"][row] == [1] * 3 + [0] * (size - 3)


def test_a_flattened_evaluation_has_the_losses_of_its_documents(folder):
    """With ``batch_flattening: true``, also in batches with padding on two ranks."""
    model = transformers.LlamaForCausalLM.from_pretrained(folder / "model").eval()
    model.config.use_cache = False  # as the Trainer does, so that documents are kept apart
    total, count = 0.0, 0
    for rank in range(2):
        dataset = _open_dataset(
            {"remote": str(folder / "data"), "remainder": "mask", "topology": (rank, 2)}
        ).select(range(13))
        flatten = SampleCollator(transformers.DataCollatorWithFlattening(return_tensors="pt"))
        for batch in ModelLoader(dataset, flatten, ModelInputs(model, ["labels"]), 2, 3):
            assert len(batch["input_ids"]) == 1
            labels = int((batch["labels"] != -100).sum())
            if labels:
                total += float(model(**batch).loss) * labels
                count += labels
    documents = torch.arange(2, 15)[:, None].expand(13, 3)
    assert count == 13 * 2  # the first token of each document has no loss
    assert total / count == pytest.approx(float(model(documents, labels=documents).loss))


def test_rows_whose_samples_cannot_be_told_apart_are_refused():
    batch = {"labels": torch.ones(1, 4), "position_ids": torch.arange(4)[None]}
    batch["mask"] = torch.tensor([True, False])
    with pytest.raises(ConfigError, match=r"1 row with 1 document of 2 samples"):
        ModelInputs(torch.nn.Identity(), ["labels"])(batch)


def test_packs_keep_documents_apart(train):
    (inputs,) = train(packing=8, max_steps=1).training
    size = len(inputs["input_ids"][0])
    assert inputs["position_ids"] == [[0, 1, 2] * (size // 3)]
    assert inputs["labels"][0][::3] == [-100] * (size // 3)


def test_evaluation_counts_each_document_once(train, folder):
    data = {"eval": {"remote": str(folder / "data")}}
    seen = train(data=data, max_steps=2, eval_steps=2)
    labels = [row[0] for inputs in seen.evaluation for row in inputs["labels"]]
    rounds = 2  # axolotl evaluates before the first step too
    assert sorted(labels) == sorted([*range(2, DOCUMENTS + 2)] * rounds)
    assert any("eval_loss" in log for log in seen.trainer.state.log_history)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_packing": True}, "Write packing: with a number of tokens under mds: train:"),
        ({"val_set_size": 0.1}, "Write the evaluation dataset under mds: eval:"),
        ({"curriculum_sampling": True}, "Write shuffle: false under mds: train:"),
        ({"group_by_length": True}, "group_by_length: of axolotl does not work"),
        ({"dataset_shard_num": 2, "dataset_shard_idx": 0}, "dataset_shard_num: of axolotl"),
        ({"dataset_exact_deduplication": True}, "Remove duplicates before you write"),
        ({"rl": "dpo"}, "Train on tokens only"),
        ({"datasets": [{"path": "a"}]}, "datasets: of axolotl has no effect"),
        ({"context_parallel_size": 2}, "context_parallel_size: 2 of axolotl does not work"),
        ({"mds": None}, "the configuration has no datasets"),
        ({"data": {"train": {"num_workers": 2}}}, "write dataloader_num_workers: beside mds:"),
        ({"data": {"eval": {"drop_last": True}}}, "write dataloader_drop_last: beside mds:"),
    ],
)
def test_options_that_choose_or_divide_samples_are_refused(train, options, message):
    with pytest.raises(ConfigError, match=message):
        train(**options)


def test_samples_without_tokens_are_refused(train, tmp_path):
    with MDSWriter(str(tmp_path / "text"), {"text": "str"}) as writer:
        for _ in range(4):
            writer.write({"text": "a"})
    with pytest.raises(FunctionError, match="no column 'tokens' or 'input_ids', only 'text'"):
        train(data={"train": {"remote": str(tmp_path / "text")}})


def test_a_worker_of_ray_registers_the_plugin_again(train):
    """With the configuration that the driver has checked and completed."""
    train(max_steps=1)
    manager = PluginManager.get_instance()
    assert manager.cfg.datasets
    manager.plugins[PLUGIN].register(manager.cfg)


def test_a_wrong_key_is_refused(train):
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        train(data={"evaluate": {}})


def test_the_trainer_of_another_plugin_is_refused(train):
    other = f"{__name__}.OtherTrainer"
    with pytest.raises(ConfigError, match=r"another plugin chose the trainer AxolotlTrainer"):
        train(plugins=[other, PLUGIN])
    assert train(plugins=[PLUGIN, other], max_steps=1).training
