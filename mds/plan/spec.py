"""The order parameters of a run, checked once, with the defaults that depend on the world."""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any

from mds.errors import ConfigError, PlanError, UnknownNameError

BATCHING = ("random", "stratified", "per_stream", "device_per_stream")
SAMPLING = ("balanced", "fixed")


@dataclasses.dataclass(frozen=True, slots=True)
class OrderSpec:
    """What decides the order, apart from the data, the world and the epoch.

    ``exact``: every chosen sample exactly once over all ranks, nothing repeated to even them out.
    ``skip_empty_streams``: a stream that gives no samples takes no part; otherwise the methods
    that build batches by stream refuse it, as the incumbent does.
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
    skip_empty_streams: bool = False

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
        if self.exact and self.batching_method != "random":
            raise PlanError(
                f"exact=True and batching_method {self.batching_method!r}: batches by stream leave "
                "out what does not fill one. Use batching_method 'random'."
            )

    @property
    def is_seekable(self) -> bool:
        """Whether the order is computed place by place."""
        return self.shuffle and self.shuffle_algo == "seekable"

    def batch(self) -> int:
        """The batch size. Raises ConfigError when there is none or it is below one."""
        size: Any = self.batch_size
        if isinstance(size, bool) or not isinstance(size, numbers.Integral):
            raise ConfigError(
                f"batch_size {size!r}: the order depends on it, so it must be given as an integer."
            )
        if size < 1:
            raise ConfigError(f"batch_size {size} must be at least 1.")
        return int(size)

    def canonical_nodes(self, nodes: int) -> int:
        """The number of canonical nodes when the run begins on so many physical nodes."""
        if self.num_canonical_nodes:
            return int(self.num_canonical_nodes)
        return nodes * (64 if self.shuffle_algo in {"py1s", "py2s"} else 1)

    def block_size(self, canonical_nodes: int) -> int:
        """Samples of a shuffle block."""
        if self.shuffle_block_size is not None:
            return int(self.shuffle_block_size)
        return max(4_000_000 // max(canonical_nodes, 1), 1 << 18)

    def facts(self, block_size: int, ranks: int, nodes: int) -> dict[str, Any]:
        """What a state must agree with, apart from what it sets itself; plain JSON."""
        found: dict[str, Any] = {"shuffle": self.shuffle}
        if self.shuffle:
            found |= {"shuffle_algo": self.shuffle_algo, "shuffle_block_size": block_size}
        found |= {
            "sampling_method": self.sampling_method,
            "sampling_granularity": self.sampling_granularity,
            "batching_method": self.batching_method,
            "exact": self.exact,
        }
        # Batches by stream have another content in every size; dealt samples have not.
        if self.batching_method != "random":
            found["global_batch_size"] = self.batch() * ranks * nodes
        if self.batching_method == "device_per_stream":
            found |= {"batch_size": self.batch(), "ranks_per_node": ranks}
        return found
