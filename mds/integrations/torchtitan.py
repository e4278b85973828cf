"""Batches of a StreamingDataset for torchtitan, with exact resume on another number of ranks."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from mds._dataset.run import run_of
from mds._dataset.streaming import StreamingDataset
from mds._loader.dataloader import StreamingDataLoader
from mds.errors import ConfigError, StateError, need
from mds.integrations._token_rows import TokenRows, ignore_padding, row_arguments

try:
    import tyro
    from torchtitan.components.dataloader import BaseDataLoader
except ImportError as error:
    raise need("torchtitan==0.3.0", None, "mds.integrations.torchtitan and its loader") from error

__all__ = ["DataLoader"]

# Arguments of the dataset that this module sets.
_FIXED = {
    "batch_size": "it is training.local_batch_size",
    "topology": "it follows from the parallelism of torchtitan",
    "remainder": "it is 'mask', so that each sample comes once in batches of one size",
}


class DataLoader(BaseDataLoader):  # type: ignore[misc] # no types of torchtitan are checked
    """Loader of torchtitan that reads a StreamingDataset.

    Its ``Config`` is the ``dataloader`` of a ``Trainer.Config`` or ``Validator.Config``:

    - ``dataset_path`` (str | None, default None): Path or URL of the data.
    - ``arguments`` (dict, default {}): Other arguments of the StreamingDataset, such as
      ``shuffle``, ``packing``, ``streams`` or ``schedule``.
    - ``column`` (str | None, default None): Column of the tokens. None is ``tokens``; for packs,
      it is the one that `Packing` finds. The column of a `Packing` takes precedence.
    - ``num_workers`` (int, default 0): Number of workers that make batches.
    - ``global_batch_size`` (int, default -1, samples): ``training.global_batch_size``; -1 is one
      batch of each rank. A schedule in steps needs another value.
    - ``infinite`` (bool, default True): Whether another epoch follows the last one.

    With packing, a pack has ``training.seq_len`` tokens. Without, samples are blocks of ``seq_len``
    tokens or one more. A column ``labels`` has a label for each token, not shifted; without it, the
    tokens are the labels. The attribute ``dataset`` is the StreamingDataset.

    Raises ConfigError for settings that contradict each other, and at the first batch for samples
    of another length; StateError for a state of another loader or dataset.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc] # as above
        """Settings of the loader, which the class describes."""

        arguments: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
        column: str | None = None
        num_workers: int = 0
        global_batch_size: int = -1
        infinite: bool = True

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        tokenizer: Any = None,  # noqa: ARG002 - samples are tokens already
        snapshot_every_n_steps: int | None = None,
    ) -> None:
        if config.dataset:
            raise ConfigError(f"dataset={config.dataset!r} has no effect: give dataset_path.")
        setting, column = "training.seq_len", config.column
        batch, size = dp_world_size * local_batch_size, config.global_batch_size
        steps, rest = divmod(batch if size == -1 else size, batch)
        # torchtitan saves after so many batches, which have to be whole steps.
        if steps < 1 or rest or (snapshot_every_n_steps or 0) % steps:
            raise ConfigError(
                f"global_batch_size={size} of the dataloader: give the value of "
                f"training.global_batch_size, a multiple of {batch} ({dp_world_size} data-parallel "
                f"ranks with batches of {local_batch_size})."
            )
        self.dataset = StreamingDataset(
            config.dataset_path,
            batch_size=local_batch_size,
            topology=(dp_rank, dp_world_size),
            remainder="mask",
            **row_arguments(config, _FIXED, seq_len, setting),
        )
        run = run_of(self.dataset).order.schedule
        if size == -1 and run is not None and run.schedule.unit == "steps":
            raise ConfigError(
                "global_batch_size=-1 of the dataloader: its schedule counts steps, but torchtitan "
                "does not tell a dataloader their size. Give the value of "
                f"training.global_batch_size, or {batch} if that is -1."
            )
        rows = _TokensAndPositions(self.dataset.packing, column, seq_len, setting)
        self._loader = StreamingDataLoader(
            self.dataset, num_workers=config.num_workers, microbatches=steps, collate_fn=rows
        )
        self._infinite = config.infinite
        self._iteration: Generator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Return inputs and labels after the last step, also after that of an earlier iteration."""
        self.close()
        self._loader.load_state_dict(self._loader.state_dict())
        self._iteration = self._iterate()
        return self._iteration

    def close(self) -> None:
        """End the last iteration and its workers. The state stays."""
        if self._iteration is not None:
            self._iteration.close()

    def _iterate(self) -> Generator[Any]:
        loader: Any = self._loader
        if self._infinite:
            batches = loader._batches_of_epochs()  # noqa: SLF001 - of this library
        else:
            batches = loader._batches_of_epoch(may_be_over=True, may_stop=True)  # noqa: SLF001
        for batch in batches:
            ignore_padding(batch)
            inputs = {"input": batch["input_ids"], "positions": batch["position_ids"]}
            yield inputs, batch["labels"]

    def state_dict(self) -> dict[str, Any]:
        """Return the position of all ranks after the last step."""
        state = self._loader.state_dict()
        return state if self._infinite else {**state, "finished": False}  # no epoch follows

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state. An empty one changes nothing, as in torchtitan's own loader."""
        if "world_size" in state_dict:
            raise StateError(
                "this state is of a loader of torchtitan, whose order is another one. To begin the "
                "data anew, set checkpoint.exclude_from_loading=['dataloader']."
            )
        if state_dict:
            self._loader.load_state_dict(state_dict)


class _TokensAndPositions(TokenRows):
    """Rows with the positions of their tokens, int64 of shape (samples, seq_len)."""

    pack_columns = frozenset({"position_ids"})

    def apply(self, columns: dict[str, Any], keys: Any) -> dict[str, Any]:
        """Return the rows of a batch."""
        rows = super().apply(columns, keys)
        if "position_ids" not in rows:
            rows["position_ids"] = np.indices(rows["labels"].shape, np.int64)[1]
        return rows
