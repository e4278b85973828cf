"""Batches of a StreamingDataset for OLMo-core, with exact resume on another number of ranks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mds._dataset.streaming import StreamingDataset
from mds.errors import need
from mds.integrations._olmo_rows import OlmoRows, finish_batch
from mds.integrations._token_rows import row_arguments

try:
    from olmo_core.data import DataCollator, TokenizerConfig
    from olmo_core.data.data_loader import DataLoaderConfig
    from olmo_core.distributed.parallel import get_dp_process_group
    from olmo_core.distributed.utils import get_fs_local_rank, get_rank, get_world_size
except ImportError as error:
    raise need("ai2-olmo-core==3.0.0", None, "mds.integrations.olmo_core and its loader") from error

from mds.integrations._epoch_loader import EpochLoader

__all__ = ["MDSDataLoader", "MDSDataLoaderConfig"]

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
      it is the one that `Packing` finds. The column of a `Packing` takes precedence.
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


class MDSDataLoader(EpochLoader):
    """Loader of OLMo-core that reads the StreamingDataset in its attribute ``dataset``.

    Each batch is a rank's part of a step of the optimizer. An epoch ends with its last full step.

    - ``config`` (MDSDataLoaderConfig): Settings.
    - ``dp_rank`` (int, default 0): Data-parallel rank.
    - ``dp_world_size`` (int, default 1): Number of data-parallel ranks.

    Raises ConfigError for settings that contradict each other, and at the first batch for samples
    of another length; StateError for a state of another loader or dataset.
    """

    Config = MDSDataLoaderConfig

    def __init__(
        self, config: MDSDataLoaderConfig, dp_rank: int = 0, dp_world_size: int = 1
    ) -> None:
        tokenizer, length = config.tokenizer, config.sequence_length
        dataset = StreamingDataset(
            config.path,
            topology=(dp_rank, dp_world_size),
            remainder="mask",
            **row_arguments(config, _FIXED, length, "sequence_length"),
        )
        self._rows = OlmoRows(config, dataset.packing)
        super().__init__(
            dataset,
            length,
            {"num_workers": config.num_workers, "collate_fn": self._rows},
            # Evaluators use it, and this loader only its settings.
            collator=DataCollator(tokenizer.pad_token_id, vocab_size=tokenizer.padded_vocab_size()),
            work_dir=tempfile.gettempdir(),  # nothing is written there
            global_batch_size=config.global_batch_size,
            dp_world_size=dp_world_size,
            dp_rank=dp_rank,
            fs_local_rank=get_fs_local_rank(),
        )

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        """Return the batches of this rank of what remains of the epoch."""
        return map(finish_batch, super()._iter_batches())

    def get_mock_batch(self) -> dict[str, Any]:
        """Return a batch of random tokens, in two documents each if the dataset has packs."""
        return self._rows.random_batch(self.dataset.batch_size or 1, seed=self.dp_rank)
