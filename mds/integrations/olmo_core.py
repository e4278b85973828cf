"""Batches of a StreamingDataset for OLMo-core, with exact resume on another number of ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from mds._dataset.streaming import StreamingDataset
from mds.errors import ConfigError, StateError, need
from mds.integrations._epoch_loader import EpochLoader
from mds.integrations._token_rows import document_lengths, row_arguments, rows_of, token_column

try:
    from olmo_core.data import DataCollator, TextDataLoaderBase, TokenizerConfig
    from olmo_core.data.data_loader import DataLoaderConfig
    from olmo_core.distributed.parallel import get_dp_process_group
    from olmo_core.distributed.utils import get_fs_local_rank, get_rank, get_world_size
except ImportError as error:
    raise need("ai2-olmo-core==3.0.0", None, "mds.integrations.olmo_core and its loader") from error

__all__ = ["MDSDataLoader", "MDSDataLoaderConfig"]

_LENGTH = "sequence_length"  # name of the setting in messages
# Arguments of the dataset that this module sets.
_FIXED = {
    "batch_size": "it follows from global_batch_size",
    "topology": "it follows from the data-parallel process group",
    "remainder": "OLMo-core needs full batches",
}


@dataclass
class MDSDataLoaderConfig(DataLoaderConfig):  # type: ignore[misc] # no types
    """Settings of a loader of OLMo-core that reads a StreamingDataset.

    - ``sequence_length`` (int, tokens): Length of each sequence.
    - ``global_batch_size`` (int, tokens): Size of a step of the optimizer on all ranks.
    - ``tokenizer`` (TokenizerConfig): Settings of the tokenizer that made the data.
    - ``path`` (str | None, default None): Path or URL of the data.
    - ``arguments`` (dict, default {}): Other arguments of the StreamingDataset, such as
      ``shuffle``, ``packing``, ``streams`` or ``schedule``.
    - ``column`` (str | None, default None): Column of the tokens. None is ``tokens``; for packs,
      it is the one that `Packing` finds.
    - ``num_workers`` (int, default 0): Number of workers that make batches.
    - ``generate_doc_lengths`` (bool, default True): Whether batches of packs have ``doc_lens`` and
      ``max_doc_lens``, so that documents do not attend to each other.

    With packing, a pack has ``sequence_length`` tokens. Without, samples are blocks of so many
    tokens or one more. A column ``labels`` has a label for each token, not shifted; without it, the
    tokens are the labels.
    """

    sequence_length: int
    global_batch_size: int
    tokenizer: TokenizerConfig
    path: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    column: str | None = None
    num_workers: int = 0
    generate_doc_lengths: bool = True

    def build(self, *, mesh: Any = None, dp_process_group: Any = None) -> MDSDataLoader:
        """Return the loader of this rank.

        - ``mesh`` (DeviceMesh | None, default None): World mesh, as in OLMo-core's own configs.
        - ``dp_process_group`` (ProcessGroup | None, default None): Data-parallel ranks, which are
          all ranks without both arguments.

        Raises ConfigError for settings that contradict each other.
        """
        if dp_process_group is None and mesh is not None:
            dp_process_group = get_dp_process_group(mesh)
        return MDSDataLoader(self, get_rank(dp_process_group), get_world_size(dp_process_group))


DataLoaderConfig.register("mds")(MDSDataLoaderConfig)  # no decorator, which hides it from the docs


class MDSDataLoader(TextDataLoaderBase):  # type: ignore[misc] # no types
    """Loader of OLMo-core that reads the StreamingDataset in its attribute ``dataset``.

    Each batch is a rank's part of a step of the optimizer. An epoch ends with its last full step.

    - ``config`` (MDSDataLoaderConfig): Settings.
    - ``dp_rank`` (int, default 0): Data-parallel rank.
    - ``dp_world_size`` (int, default 1): Number of data-parallel ranks.

    Raises ConfigError for settings that contradict each other, and at the first batch for samples
    of another length; StateError for a state of another loader or dataset.
    """

    Config = MDSDataLoaderConfig
    _epoch: int | None

    def __init__(
        self, config: MDSDataLoaderConfig, dp_rank: int = 0, dp_world_size: int = 1
    ) -> None:
        tokenizer = config.tokenizer
        super().__init__(
            # Evaluators use it, and this loader only its settings.
            collator=DataCollator(tokenizer.pad_token_id, vocab_size=tokenizer.padded_vocab_size()),
            work_dir=tempfile.gettempdir(),  # nothing is written there
            global_batch_size=config.global_batch_size,
            dp_world_size=dp_world_size,
            dp_rank=dp_rank,
            fs_local_rank=get_fs_local_rank(),
        )
        self._config, self._length = config, config.sequence_length
        self.dataset = StreamingDataset(
            config.path,
            topology=(dp_rank, dp_world_size),
            remainder="mask",
            **row_arguments(config.arguments, _FIXED, self._length, _LENGTH, config.column),
        )
        self._loader = EpochLoader(self.dataset, self._batch_size(), config.num_workers)

    def _batch_size(self) -> int:
        """Return the number of sequences of a batch. Raises ConfigError if it is not whole."""
        size, least = self.global_batch_size, self._length * self.dp_world_size
        if size < least or size % least:
            raise ConfigError(
                f"global_batch_size={size} counts tokens: give a multiple of {least} "
                f"({self.dp_world_size} data-parallel ranks with sequences of {self._length} "
                "tokens)."
            )
        batch_size: int = size // least
        return batch_size

    @property
    def global_batch_size(self) -> int:
        """Tokens of a step on all ranks, which BatchSizeSchedulerCallback changes between steps."""
        return int(self._global_batch_size)

    @global_batch_size.setter
    def global_batch_size(self, size: int) -> None:
        TextDataLoaderBase.global_batch_size.fset(self, size)
        self._loader.set_batch_size(self._batch_size())

    @property
    def total_batches(self) -> int:
        """Number of steps of the current epoch."""
        return self.batches_in_epoch(self._epoch or 1)

    def batches_in_epoch(self, epoch: int) -> int:
        """Return the number of steps of an epoch, from 1."""
        return self._loader.count_steps(epoch - 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all ranks after the last batch, which a step has used."""
        return {**self._loader.state_dict(), "tokens_processed": self.tokens_processed}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state. Raises StateError for one of another loader or dataset."""
        if "dataset_fingerprint" in state_dict or "source_fingerprints" in state_dict:
            raise StateError(
                "this state is of a loader of OLMo-core, whose order is another one. To begin the "
                "data anew, choose a new save_folder, and set load_path to the checkpoint and "
                "load_trainer_state=False."
            )
        state = dict(state_dict)
        tokens = state.pop("tokens_processed", None)
        self._loader.load_state_dict(state)
        if tokens is None:  # a state of a StreamingDataLoader
            tokens = 0 if state["finished"] else state["sample_in_epoch"] * self._length
        self.tokens_processed, self.batches_processed = tokens, tokens // self.global_batch_size

    def reshuffle(self, epoch: int | None = None, **kwargs: Any) -> None:
        """Prepare an epoch, from 1, or what remains of it. Raises ConfigError inside another."""
        del kwargs
        epoch = (self._epoch or 0) + 1 if epoch is None else epoch
        self._loader.begin(epoch - 1, is_inside=self.tokens_processed > 0)
        self._epoch = epoch

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        """Return the batches of this rank of what remains of the epoch."""
        return map(self._inputs_of, self._loader.batches(is_inside=self.tokens_processed > 0))

    def _inputs_of(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch with the names of OLMo-core. Its labels are shifted already."""
        packing = self.dataset.packing
        tokens, labels = rows_of(batch, packing, self._config.column, self._length, _LENGTH)
        least, most = map(int, tokens.aminmax())
        if least < 0 or most >= self.collator.vocab_size:
            raise ConfigError(
                f"samples have tokens from {least} to {most}, but the tokenizer has "
                f"{self.collator.vocab_size}. Give the config of the one that made the data."
            )
        inputs: dict[str, Any] = {"input_ids": tokens, "labels": labels}
        if packing is not None:
            documents = batch["document_ids"]
            if self.collator.pad_token_id:  # packs are padded with 0
                tokens.masked_fill_(documents < 0, self.collator.pad_token_id)
            if self._config.generate_doc_lengths:
                lengths = document_lengths(documents)
                inputs |= {"doc_lens": lengths, "max_doc_lens": lengths.amax(1).tolist()}
        return inputs

    def get_mock_batch(self) -> dict[str, Any]:
        """Return a batch of random tokens, in two documents each if the dataset has packs."""
        shape = self.rank_batch_size // self._length, self._length
        random = torch.Generator().manual_seed(self.dp_rank)
        tokens = torch.randint(self._config.tokenizer.vocab_size, shape, generator=random)
        column = token_column(self._config.column, self.dataset.packing)
        documents = (torch.arange(shape[1]) >= shape[1] // 2).long().expand(shape)
        mask = torch.ones(shape[0], dtype=torch.bool)
        return self._inputs_of(
            {column: tokens, "labels": tokens, "document_ids": documents, "mask": mask}
        )
