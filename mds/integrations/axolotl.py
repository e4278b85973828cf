"""A plugin of axolotl that trains on StreamingDatasets, with exact resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mds._dataset.streaming import StreamingDataset
from mds.errors import ConfigError, need
from mds.plan._packing import Packing

try:
    from axolotl.common.datasets import TrainDatasetMeta
    from axolotl.core.trainers import AxolotlMambaTrainer, AxolotlTrainer
    from axolotl.integrations.base import BasePlugin
    from axolotl.utils.import_helper import get_cls_from_module_str
    from pydantic import BaseModel, ConfigDict
except ImportError as error:
    raise need("axolotl", None, "mds.integrations.axolotl and its plugin") from error

from mds.integrations.transformers import StreamingTrainer

__all__ = ["MDSPlugin"]

_NO_DATASET = "mds"  # axolotl requires a dataset in its configuration; the plugin loads others
#: Options of axolotl that would choose, pack, shuffle or divide samples -> what to do instead.
_REFUSED = {
    "test_datasets": "Write the evaluation dataset under mds: eval:.",
    "val_set_size": "Write the evaluation dataset under mds: eval:.",
    "pretraining_dataset": "The datasets under mds: stream already.",
    "streaming": "The datasets under mds: stream already.",
    "sample_packing": "Write packing: with a number of tokens under mds: train:.",
    "eval_sample_packing": "Write packing: with a number of tokens under mds: eval:.",
    "curriculum_sampling": "Write shuffle: false under mds: train: for the stored order.",
    "group_by_length": "Write packing: with a number of tokens under mds: train:.",
    "dataset_shard_num": "Write the samples of this run to a dataset of their own.",
    "dataset_exact_deduplication": "Remove duplicates before you write the dataset.",
    **dict.fromkeys(("rl", "reward_model", "process_reward_model"), "Train on tokens only."),
}
#: Arguments of a loader that are no arguments of a dataset -> options of axolotl.
_OF_LOADER = {
    "num_workers": "dataloader_num_workers",
    "prefetch_factor": "dataloader_prefetch_factor",
    "pin_memory": "dataloader_pin_memory",
    "drop_last": "dataloader_drop_last",
    "microbatches": "gradient_accumulation_steps",
}


class _Datasets(BaseModel):  # type: ignore[misc] # no types are checked
    """Arguments of StreamingDataset for training and evaluation."""

    model_config = ConfigDict(extra="forbid")

    train: dict[str, Any]
    eval: dict[str, Any] | None = None


class Arguments(BaseModel):  # type: ignore[misc] # no types are checked
    """Keys that the plugin adds to a configuration of axolotl."""

    mds: _Datasets


class MDSPlugin(BasePlugin):  # type: ignore[misc] # no types are checked
    """Plugin of axolotl whose datasets are StreamingDatasets.

    Name it under ``plugins:``, and write the arguments of StreamingDataset under ``mds:``::

        plugins:
          - mds.integrations.axolotl.MDSPlugin
        mds:
          train: {remote: s3://bucket/tokens, shuffle: true, packing: 4096}
          eval: {remote: s3://bucket/validation, packing: 4096}

    Training goes on at the position of the checkpoint that axolotl resumes from, on any number of
    ranks and workers with the same global batch. ``packing`` is a number of tokens, or the
    arguments of Packing.

    Raises ConfigError for options of axolotl that choose, pack, shuffle or divide samples.
    """

    def register(self, cfg: Any) -> None:
        """Check the configuration, as it is in the file."""
        if not cfg.get("mds"):
            raise ConfigError(
                "mds.integrations.axolotl.MDSPlugin: the configuration has no datasets. Write "
                "mds: train: with the arguments of StreamingDataset."
            )
        # With Ray, each worker registers the plugin again.
        if any(entry["path"] != _NO_DATASET for entry in cfg.get("datasets") or []):
            raise ConfigError(
                "datasets: of axolotl has no effect beside mds.integrations.axolotl.MDSPlugin. "
                "Leave it out, and write the arguments of StreamingDataset under mds: train:."
            )
        for option, advice in _REFUSED.items():
            if cfg.get(option):
                raise ConfigError(
                    f"{option}: of axolotl does not work with StreamingDatasets. {advice}"
                )
        for option in ("context_parallel_size", "tensor_parallel_size"):
            if (cfg.get(option) or 1) > 1:
                raise ConfigError(
                    f"{option}: {cfg[option]} of axolotl does not work with StreamingDatasets, "
                    "whose ranks all get other samples. Leave it out."
                )
        cfg["datasets"] = [{"path": _NO_DATASET}]

    def get_input_args(self) -> str:
        """Return the name of the class of the keys that the plugin adds."""
        return f"{__name__}.Arguments"

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> Any:  # noqa: ARG002
        """Return the datasets of the configuration; ``axolotl preprocess`` has nothing to do."""
        evaluation = cfg.mds.eval
        return TrainDatasetMeta(
            train_dataset=_open_dataset(cfg.mds.train),
            eval_dataset=_open_dataset({"remainder": "mask", **evaluation}) if evaluation else None,
        )

    def get_trainer_cls(self, cfg: Any) -> Any:
        """Return axolotl's trainer with StreamingDatasets."""
        base = AxolotlMambaTrainer if cfg.model_config_type == "mamba" else AxolotlTrainer
        if cfg.trainer_cls:
            base = get_cls_from_module_str(cfg.trainer_cls)
        return type(f"Streaming{base.__name__}", (StreamingTrainer, base), {})

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:  # noqa: ARG002
        """Check that no other plugin has chosen the trainer."""
        if not isinstance(trainer, StreamingTrainer):
            raise ConfigError(
                f"another plugin chose the trainer {type(trainer).__name__}, which does not resume "
                "a StreamingDataset. Write mds.integrations.axolotl.MDSPlugin first in plugins:, "
                "or leave the other plugin out."
            )


def _open_dataset(arguments: Mapping[str, Any]) -> StreamingDataset:
    """Return the dataset of arguments in YAML."""
    options = arguments.to_dict() if hasattr(arguments, "to_dict") else dict(arguments)
    for name in _OF_LOADER.keys() & options:
        raise ConfigError(
            f"{name}: under mds: is a setting of axolotl's loader. Leave it out, and write "
            f"{_OF_LOADER[name]}: beside mds:."
        )
    if isinstance(options.get("packing"), Mapping):
        options["packing"] = Packing(**options["packing"])
    dataset = StreamingDataset(**options)
    return dataset if dataset.packing is not None else dataset.map(_make_features)


def _make_features(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample with the attention mask and labels that axolotl's collator expects."""
    name = "input_ids" if "input_ids" in sample else "tokens"
    if name not in sample:
        raise ConfigError(
            f"no column 'tokens' or 'input_ids', only {', '.join(map(repr, sample)) or 'none'}. To "
            "convert texts, use mds-convert --tokenizer."
        )
    tokens = sample["input_ids"] = sample.pop(name)
    return {"attention_mask": np.ones(len(tokens), np.int64), "labels": tokens, **sample}
