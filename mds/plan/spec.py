"""The order parameters of a run, checked once, with the defaults that depend on the world."""

from __future__ import annotations

import dataclasses
import numbers

from mds.errors import ConfigError, UnknownNameError

BATCHING = ("random", "stratified", "per_stream", "device_per_stream")
SAMPLING = ("balanced", "fixed")


@dataclasses.dataclass(frozen=True, slots=True)
class OrderSpec:
    """What decides the order, apart from the data, the world and the epoch.

    Raises ConfigError for numbers that make no sense, UnknownNameError for unknown methods.
    """

    batch_size: int | None
    shuffle: bool = False
    shuffle_algo: str = "py1e"
    shuffle_seed: int = 9176
    shuffle_block_size: int | None = None
    num_canonical_nodes: int | None = None
    partition_algo: str = "relaxed"
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    batching_method: str = "random"
    exact: bool = False

    def __post_init__(self) -> None:
        for what, name, names in (
            ("batching_method", self.batching_method, BATCHING),
            ("sampling_method", self.sampling_method, SAMPLING),
        ):
            if name not in names:
                raise UnknownNameError(f"no {what} {name!r}: choose one of {', '.join(names)}.")
        if self.sampling_granularity <= 0:
            raise ConfigError(
                f"sampling_granularity {self.sampling_granularity} must be at least 1."
            )
        if self.shuffle_seed < 0:
            raise ConfigError(f"shuffle_seed {self.shuffle_seed} must not be negative.")

    def batch(self) -> int:
        """The batch size. Raises ConfigError when there is none or it is below one."""
        size = self.batch_size
        if not isinstance(size, numbers.Integral) or isinstance(size, bool):
            raise ConfigError(
                f"batch_size {size!r}: the order depends on it, so it must be given as an integer."
            )
        if size < 1:
            raise ConfigError(f"batch_size {size} must be at least 1.")
        return int(size)

    def canonical_nodes(self, nodes: int) -> int:
        """The number of canonical nodes when the run begins on so many physical nodes."""
        if self.num_canonical_nodes:
            return self.num_canonical_nodes
        return nodes * (64 if self.shuffle_algo in {"py1s", "py2s"} else 1)

    def block_size(self, canonical_nodes: int) -> int:
        """Samples of a shuffle block."""
        if self.shuffle_block_size is not None:
            return self.shuffle_block_size
        return max(4_000_000 // max(canonical_nodes, 1), 1 << 18)
