"""Order settings of a run in one frozen value, with the defaults that depend on the world."""

from __future__ import annotations

import dataclasses
import numbers
import warnings
from typing import TYPE_CHECKING, Any

from mds.arguments import did_you_mean, plain_fields
from mds.errors import ConfigError, PlanError, StateError, UnknownNameError
from mds.plan.state import MAX_CANONICAL_NODES, VERSION, Position, ResumePoint, parse_state
from mds.shuffle import algos, find_shuffle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mds.plan.packing import Packing
    from mds.shuffle import Shuffle
    from mds.world import World

PARTITION_ALGOS = ("orig", "relaxed")
BATCHING_METHODS = ("random", "stratified", "per_stream", "device_per_stream")
SAMPLING_METHODS = ("balanced", "fixed")


@dataclasses.dataclass(frozen=True, slots=True)
class OrderSpec:
    """Settings that decide the order, apart from data, world and epoch; checked when made.

    ``exact``: every chosen sample exactly once over all ranks, nothing repeated to even them out;
    "mask": as many full batches on every rank besides, with padding that is masked.
    ``skip_empty_streams``: a stream that gives no samples takes no part; otherwise the methods
    that build batches by stream refuse it, as the incumbent does.
    ``packing``: packs of samples are dealt instead of samples; ``batch_size`` counts them.
    Raises ConfigError for numbers that make no sense, UnknownNameError for unknown methods.
    """

    batch_size: int | None = None
    shuffle: bool = False
    shuffle_algo: str = "py1e"
    shuffle_seed: int = 9176
    shuffle_block_size: int | None = None
    num_canonical_nodes: int | None = None
    partition_algo: str = "relaxed"
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    batching_method: str = "random"
    exact: bool | str = False
    skip_empty_streams: bool = False
    packing: Packing | None = None

    def __post_init__(self) -> None:
        plain_fields(self)
        for setting, name, names in (
            ("batching_method", self.batching_method, BATCHING_METHODS),
            ("sampling_method", self.sampling_method, SAMPLING_METHODS),
            ("partition_algo", self.partition_algo, PARTITION_ALGOS),
        ):
            check_name(setting, name, names)
        if self.shuffle:
            find_shuffle(self.shuffle_algo)
        if self.sampling_granularity <= 0:
            raise ConfigError(
                f"sampling_granularity {self.sampling_granularity} must be at least 1."
            )
        if self.num_canonical_nodes and self.num_canonical_nodes > MAX_CANONICAL_NODES:
            raise ConfigError(
                f"num_canonical_nodes {self.num_canonical_nodes} must be at most "
                f"{MAX_CANONICAL_NODES}."
            )
        if self.shuffle_seed < 0:
            raise ConfigError(f"shuffle_seed {self.shuffle_seed} must not be negative.")
        if self.exact not in {True, False, "mask"}:
            raise ConfigError(f"exact is True, False or 'mask', got {self.exact!r}.")
        if self.packing is not None:
            self._check_packing(self.packing)
        if self.exact and self.batching_method != "random":
            raise PlanError(
                f"exact=True and batching_method {self.batching_method!r}: batches by stream leave "
                "out what does not fill one. Use batching_method 'random'."
            )

    def _check_packing(self, packing: Packing) -> None:
        from mds.plan.packing import Packing

        if not isinstance(packing, Packing):
            raise ConfigError(f"packing is a Packing or None, got {packing!r}.")
        if self.batching_method != "random":
            raise PlanError(
                f"packing and batching_method {self.batching_method!r}: a pack has documents of "
                "all streams. Use batching_method 'random', with the share of each stream."
            )

    @property
    def algorithm(self) -> type[Shuffle] | None:
        """Shuffle of that name, also when it is off; None for an unknown one that is off."""
        registered = algos.get(self.shuffle_algo)
        return (
            find_shuffle(self.shuffle_algo) if registered is None and self.shuffle else registered
        )

    @property
    def is_random_access(self) -> bool:
        """Whether the order is computed position by position."""
        algorithm = self.algorithm
        return self.shuffle and algorithm is not None and algorithm.is_random_access

    def batch(self) -> int:
        """Return the batch size. Raises ConfigError when there is none or it is below one."""
        size: Any = self.batch_size
        if isinstance(size, bool) or not isinstance(size, numbers.Integral):
            raise ConfigError(
                f"batch_size {size!r}: the order depends on it, so it must be given as an integer, "
                "as in StreamingDataset(..., batch_size=32)."
            )
        if size < 1:
            raise ConfigError(f"batch_size {size} must be at least 1.")
        return int(size)

    def canonical_nodes(self, nodes: int) -> int:
        """Return the canonical nodes of a run that begins on so many physical nodes."""
        if self.num_canonical_nodes:
            return int(self.num_canonical_nodes)
        return nodes * (self.algorithm.canonical_nodes_per_node if self.algorithm else 1)

    def block_size(self, canonical_nodes: int) -> int:
        """Return the samples of a shuffle block."""
        if self.shuffle_block_size is not None:
            return int(self.shuffle_block_size)
        return max(4_000_000 // max(canonical_nodes, 1), 1 << 18)

    def facts(self, block_size: int, ranks: int, nodes: int) -> dict[str, Any]:
        """Return the settings that a resumed run must have, as plain JSON."""
        facts: dict[str, Any] = {"shuffle": self.shuffle}
        if self.shuffle:
            facts |= {"shuffle_algo": self.shuffle_algo, "shuffle_block_size": block_size}
        facts |= {
            "sampling_method": self.sampling_method,
            "sampling_granularity": self.sampling_granularity,
            "batching_method": self.batching_method,
            "exact": bool(self.exact),
        }
        # Batches by stream have another content in every size; dealt samples have not.
        if self.batching_method != "random":
            facts["global_batch_size"] = self.batch() * ranks * nodes
        if self.packing is not None:
            facts |= self.packing.facts()
        if self.batching_method == "device_per_stream":
            facts |= {"batch_size": self.batch(), "ranks_per_node": ranks}
        return facts

    def resume_point(
        self,
        world: World,
        epoch: int,
        resume: Mapping[str, Any] | ResumePoint | None = None,
        initial_physical_nodes: int | None = None,
    ) -> ResumePoint:
        """Return the beginning of ``epoch``, or ``resume`` unless it is of an earlier epoch.

        ``world``: after replication. Raises StateError for a state of this library that is of an
        earlier epoch.
        """
        if epoch < 0:
            raise ConfigError(f"epoch {epoch} must not be negative.")
        if resume is not None:
            state = parse_state(resume)
            position, first = state.position, max(state.position.epoch, 0)
            # A state of this library from before the first epoch asks for the first one.
            if (first if state.is_ours else position.epoch) >= epoch:
                point = state.at(position._replace(epoch=first))
                if state.num_canonical_nodes is not None:
                    return point
                return self._with_settings(point, world)
            text = (
                f"the state is of epoch {position.epoch} and epoch {epoch} was asked for: ask for "
                f"epoch {position.epoch} to go on from the state"
            )
            if state.is_ours:
                raise StateError(f"{text}.")
            if position.epoch >= 0:
                warnings.warn(f"{text}; nothing of it is used.", stacklevel=3)
        unit = "samples" if self.packing is None else "packs"
        start = ResumePoint(Position(epoch, 0, unit), initial_physical_nodes=initial_physical_nodes)
        return self._with_settings(start, world)

    def _with_settings(self, start: ResumePoint, world: World) -> ResumePoint:
        """Return a point of a run without a state, with the settings of this order."""
        return dataclasses.replace(
            start,
            num_canonical_nodes=self.canonical_nodes(world.num_nodes),
            shuffle_seed=self.shuffle_seed,
            version=VERSION,
        )


def check_name(kind: str, name: str, names: Sequence[str]) -> None:
    """Refuse a name that is not among ``names`` (UnknownNameError)."""
    if name not in names:
        raise UnknownNameError(
            f"no {kind} {name!r}: choose one of {', '.join(names)}.{did_you_mean(name, names)}"
        )
