"""The incumbent's ``base.dataloader``: our loader, counting by ``_get_batch_size`` if asked to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mds.compat.overrides import Overridable
from mds.errors import ConfigError
from mds.loader.dataloader import StreamingDataLoader as Loader


class StreamingDataLoader(Overridable, Loader):
    """As `mds.StreamingDataLoader`.

    The samples of a batch are counted where it is made. A subclass that overrides
    ``_get_batch_size`` counts by that instead.
    """

    _is_strict = False
    _live = ("__iter__", "state_dict", "load_state_dict")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def _get_batch_size(self, batch: Any) -> int:
        """The samples of a batch, by its first value. Raises ConfigError for an empty one."""
        if hasattr(batch, "shape") or hasattr(batch, "dtype"):
            return len(batch)
        if hasattr(batch, "values"):
            values = list(batch.values())
            if not values:
                raise ConfigError("the batch is empty: it has no values to count.")
            return len(values[0])
        return len(batch[0])

    def __iter__(self) -> Any:
        batches: Iterator[Any] = super().__iter__()
        return self._recounted(batches) if self._counts_itself else batches

    @property
    def _counts_itself(self) -> bool:
        return type(self)._get_batch_size is not StreamingDataLoader._get_batch_size  # noqa: SLF001 - its own

    def _recounted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches, counted by the subclass."""
        count = 0
        for batch in batches:
            count += self._get_batch_size(batch)
            self.num_samples_yielded = count
            yield batch
