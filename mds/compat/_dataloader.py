"""StreamingDataLoader whose subclasses may count samples: `streaming.base.dataloader`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mds._loader.checks import LOADER_RULES
from mds._loader.dataloader import StreamingDataLoader as NativeStreamingDataLoader
from mds.compat._overrides import Overridable
from mds.compat._stream import refuse_texts
from mds.errors import ConfigError


class StreamingDataLoader(Overridable, NativeStreamingDataLoader):
    """Loader of the batches of a StreamingDataset; see `mds.StreamingDataLoader`.

    mds counts the samples of a batch where it makes the batch. If a subclass overrides
    ``_get_batch_size``, that method counts them instead.
    """

    _is_strict = False
    #: Methods that code may set on the class; see `mds.compat._overrides`.
    _live = ("__iter__", "state_dict", "load_state_dict")

    # Defined so that help() shows the parameters of 0.13.
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        numbers = {name: kwargs.get(name) for name in ("batch_size", "num_workers")}
        refuse_texts("StreamingDataLoader", numbers, LOADER_RULES)
        super().__init__(*args, **kwargs)

    def _get_batch_size(self, batch: Any) -> int:
        """Return the samples of a batch: the length of the first value of a dict, or of the batch.

        Raises ConfigError for an empty dict.
        """
        if hasattr(batch, "shape") or hasattr(batch, "dtype"):
            return len(batch)
        if hasattr(batch, "values"):
            values = list(batch.values())
            if not values:
                raise ConfigError("the batch is empty: it has no values to count.")
            return len(values[0])
        return len(batch[0])

    def __iter__(self) -> Any:
        """Begin an epoch, and return an iterator over its batches."""
        batches: Iterator[Any] = super().__iter__()
        is_overridden = type(self)._get_batch_size is not StreamingDataLoader._get_batch_size  # noqa: SLF001
        return self._yield_counted(batches) if is_overridden else batches

    def _yield_counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches, and count their samples by `_get_batch_size`."""
        samples = 0
        for batch in batches:
            samples += self._get_batch_size(batch)
            self.num_samples_yielded = samples
            yield batch
