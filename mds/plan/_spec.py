"""Settings of an order in one frozen value, with the defaults that depend on the world."""

from __future__ import annotations

import dataclasses
import numbers
import warnings
from typing import TYPE_CHECKING, Any, get_args

from mds._arguments import did_you_mean, plain_fields
from mds._words import BatchingMethod, PartitionAlgo, Remainder, SamplingMethod
from mds.errors import ConfigError, PlanError, StateError, UnknownNameError
from mds.plan._state import MAX_CANONICAL_NODES, VERSION, Position, ResumePoint, parse_state
from mds.shuffle._registry import algos, find_shuffle

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mds.plan._packing import Packing
    from mds.shuffle import Shuffle
    from mds.world import World

PARTITION_ALGOS = get_args(PartitionAlgo)
BATCHING_METHODS = get_args(BatchingMethod)
SAMPLING_METHODS = get_args(SamplingMethod)
REMAINDERS = get_args(Remainder)


@dataclasses.dataclass(frozen=True, slots=True)
class OrderSpec:
    """Settings that decide an order, apart from data, world and epoch.

    Most are the arguments of a dataset with the same names.

    Attributes:
        batch_size: Samples, or packs, of a batch of one rank; None if not given.
        shuffle: Whether samples are shuffled.
        shuffle_algo: Name of the shuffle, such as "py1e".
        shuffle_seed: Seed of all random choices.
        shuffle_block_size: Samples of a shuffle block; None for the default of `block_size`.
        num_canonical_nodes: Number of canonical nodes; None or 0 for the default of
            `canonical_nodes`.
        partition_algo: Name of the partition over ranks, "orig" or "relaxed".
        sampling_method: "balanced" to draw samples anew in each epoch, or "fixed".
        sampling_granularity: Consecutive samples that are drawn together.
        batching_method: How batches are made of streams, one of ``BATCHING_METHODS``.
        remainder: What the last batches of ranks have if the samples do not fill them: "repeat"
            repeats some samples, so that all ranks get equally many. With "short" and "mask" every
            chosen sample comes once over all ranks: with "short" some ranks get fewer, with "mask"
            all get equally many full batches, with padding that is masked.
        skip_empty_streams: Whether a stream that gives no samples is ignored. Otherwise methods
            that build batches by stream refuse it, as mosaicml-streaming does.
        packing: Settings of packs, which are then dealt instead of samples. A number of tokens
            becomes a Packing.
        microbatches: Batches of one rank in a step of the optimizer. They are consecutive parts of
            what one batch of all their samples would be, so the order does not depend on them.

    Raises ConfigError for numbers out of range, and UnknownNameError for unknown methods.
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
    remainder: str = "repeat"
    skip_empty_streams: bool = False
    packing: Packing | None = None
    microbatches: int = 1

    def __post_init__(self) -> None:
        plain_fields(self)
        for setting, name, names in (
            ("batching_method", self.batching_method, BATCHING_METHODS),
            ("sampling_method", self.sampling_method, SAMPLING_METHODS),
            ("partition_algo", self.partition_algo, PARTITION_ALGOS),
            ("remainder", self.remainder, REMAINDERS),
        ):
            check_name(setting, name, names)
        if self.shuffle:
            find_shuffle(self.shuffle_algo)
        if self.sampling_granularity <= 0:
            raise ConfigError(
                f"sampling_granularity must be at least 1, got {self.sampling_granularity}."
            )
        if self.num_canonical_nodes and self.num_canonical_nodes > MAX_CANONICAL_NODES:
            raise ConfigError(
                f"num_canonical_nodes must be at most {MAX_CANONICAL_NODES}, got "
                f"{self.num_canonical_nodes}."
            )
        if self.microbatches < 1:
            raise ConfigError(f"microbatches must be at least 1, got {self.microbatches}.")
        if self.shuffle_seed < 0:
            raise ConfigError(f"shuffle_seed must not be negative, got {self.shuffle_seed}.")
        if self.packing is not None:
            self._check_packing()
        if self.is_exact and self.batching_method != "random":
            raise PlanError(
                f"remainder={self.remainder!r} does not work with batching_method "
                f"{self.batching_method!r}, which drops samples that do not fill a batch. Use "
                "batching_method 'random'."
            )

    def _check_packing(self) -> None:
        """Make a Packing of a number of tokens, and check that packs can have these settings.

        Raises ConfigError for any other value, and PlanError for a method without packs.
        """
        from mds.plan._packing import packing_of

        object.__setattr__(self, "packing", packing_of(self.packing))
        if self.batching_method != "random":
            raise PlanError(
                f"packing does not work with batching_method {self.batching_method!r}, because a "
                "pack has documents of all streams. Use batching_method 'random' and give each "
                "stream its share."
            )

    @property
    def is_exact(self) -> bool:
        """Whether every chosen sample comes exactly once over all ranks."""
        return self.remainder != "repeat"

    @property
    def algorithm(self) -> type[Shuffle] | None:
        """Class of the shuffle, also if shuffling is off: it decides the canonical nodes.

        If shuffling is off, it is None for a name that is not registered. If shuffling is on, such
        a name is searched in entry points, and an unknown one raises UnknownNameError.
        """
        registered = algos.get(self.shuffle_algo)
        if registered is None and self.shuffle:
            return find_shuffle(self.shuffle_algo)
        return registered

    @property
    def is_random_access(self) -> bool:
        """Whether any position of the order can be computed alone."""
        algorithm = self.algorithm
        return self.shuffle and algorithm is not None and algorithm.is_random_access

    def batch(self) -> int:
        """Return the samples of a rank in a step: the batch size times ``microbatches``.

        Raises ConfigError if the batch size was not given or is below one.
        """
        size: Any = self.batch_size
        if isinstance(size, bool) or not isinstance(size, numbers.Integral):
            raise ConfigError(
                f"batch_size must be an integer, got {size!r}: the order depends on it. Write "
                "StreamingDataset(..., batch_size=32)."
            )
        if size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {size}.")
        return int(size) * self.microbatches

    def canonical_nodes(self, nodes: int) -> int:
        """Return the number of canonical nodes of a run that begins on ``nodes`` physical nodes.

        It is the setting, or a number for each physical node that the shuffle's class has.
        """
        if self.num_canonical_nodes:
            return int(self.num_canonical_nodes)
        return nodes * (self.algorithm.canonical_nodes_per_node if self.algorithm else 1)

    def block_size(self, canonical_nodes: int) -> int:
        """Return the samples of a shuffle block.

        By default these are max(4,000,000 / ``canonical_nodes``, 262,144).
        """
        if self.shuffle_block_size is not None:
            return int(self.shuffle_block_size)
        return max(4_000_000 // max(canonical_nodes, 1), 1 << 18)

    def facts(self, block_size: int, ranks: int, nodes: int) -> dict[str, Any]:
        """Return the settings that a resumed run must have too, as plain JSON.

        Args:
            block_size: Samples of a shuffle block.
            ranks: Ranks of a node.
            nodes: Number of nodes.
        """
        facts: dict[str, Any] = {"shuffle": self.shuffle}
        if self.shuffle:
            facts |= {"shuffle_algo": self.shuffle_algo, "shuffle_block_size": block_size}
        facts |= {
            "sampling_method": self.sampling_method,
            "sampling_granularity": self.sampling_granularity,
            "batching_method": self.batching_method,
            "exact": self.is_exact,
        }
        # With "random", samples are dealt to ranks one by one, so their order is the same with any
        # batch size. Batches by stream depend on it.
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
        """Return the position and settings with which the order of an epoch begins.

        Args:
            world: World, in which ranks that replicate the samples of each other count as one.
            epoch: Epoch that is planned.
            resume: State to continue from. If it is of a later epoch, that epoch is planned.
            initial_physical_nodes: Nodes with which the run began, if known.

        Raises StateError for a state of this library that is of an earlier epoch. Such a state of
        mosaicml-streaming is ignored with a warning.
        """
        if epoch < 0:
            raise ConfigError(f"epoch must not be negative, got {epoch}.")
        if resume is not None:
            state = parse_state(resume)
            position = state.position
            # A state from before the first epoch has epoch -1. In one of this library it stands
            # for epoch 0; one of mosaicml-streaming is not used then.
            first_epoch = max(position.epoch, 0)
            if (first_epoch if state.is_ours else position.epoch) >= epoch:
                point = state.at(position._replace(epoch=first_epoch))
                if state.num_canonical_nodes is not None:
                    return point
                return self._with_settings(point, world)
            text = (
                f"the state belongs to epoch {position.epoch}, but epoch {epoch} was requested. "
                f"Request epoch {position.epoch} to resume from the state"
            )
            if state.is_ours:
                raise StateError(f"{text}.")
            if position.epoch >= 0:
                warnings.warn(f"{text}; the state is not used.", stacklevel=3)
        unit = "samples" if self.packing is None else "packs"
        start = ResumePoint(Position(epoch, 0, unit), initial_physical_nodes=initial_physical_nodes)
        return self._with_settings(start, world)

    def _with_settings(self, start: ResumePoint, world: World) -> ResumePoint:
        """Return a resume point with the settings of this order, for a run without a state.

        Args:
            start: Resume point without settings.
            world: World in which the run begins.
        """
        return dataclasses.replace(
            start,
            num_canonical_nodes=self.canonical_nodes(world.num_nodes),
            shuffle_seed=self.shuffle_seed,
            version=VERSION,
        )


def check_name(kind: str, name: str, names: Sequence[str]) -> None:
    """Raise UnknownNameError for a name that is not among ``names``.

    ``kind`` says in the message what is named, such as "batching_method".
    """
    if name not in names:
        raise UnknownNameError(
            f"no {kind} {name!r}: choose one of {', '.join(names)}.{did_you_mean(name, names)}"
        )
