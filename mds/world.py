"""The place of a process among the nodes, ranks and workers of a run, and memory of a rank.

A `World` is made of four numbers. They come from the variables RANK, WORLD_SIZE and
LOCAL_WORLD_SIZE, which launchers set, and inside a worker process from torch. Processes exchange
nothing, and no process group is needed. `World.replicate` returns the world that the sample order
uses if neighbouring ranks get the same samples (tensor or sequence parallelism).

`RankFile` is memory that the processes of a rank share.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from mds._process.fork_safe import new_lock
from mds._process.mmaps import open_nameless
from mds._redaction import get_logger
from mds._words import plural
from mds.errors import ConfigError

MAX_RANKS = 1 << 18  # as many nodes as an order may have


class World:
    """Place of a worker in a run: its node, its rank, and its number among the workers of the rank.

    Workers and ranks are counted from 0 over all nodes: first the workers of rank 0, then those of
    rank 1, and so on. Without a DataLoader the process itself counts as the one worker of its rank.

    Args:
        num_nodes: Number of nodes.
        ranks_per_node: Ranks (processes of the training) on each node.
        workers_per_rank: DataLoader workers of each rank, at least 1.
        worker: Number of this worker among the workers of all nodes.

    Attributes:
        num_ranks, num_workers: Ranks and workers of all nodes.
        workers_per_node: Workers of all ranks of a node.
        node, rank: Number of this worker's node, and of its rank among all ranks.
        rank_of_node: Number of its rank among the ranks of its node.
        worker_of_node, worker_of_rank: Number of this worker within its node and within its rank.

    Raises ConfigError for sizes below one and for a worker outside the world.

    >>> World(num_nodes=2, ranks_per_node=8, workers_per_rank=4, worker=37).rank_of_node
    1
    """

    __slots__ = (
        "node",
        "num_nodes",
        "num_ranks",
        "num_workers",
        "rank",
        "rank_of_node",
        "ranks_per_node",
        "worker",
        "worker_of_node",
        "worker_of_rank",
        "workers_per_node",
        "workers_per_rank",
    )

    def __init__(
        self, num_nodes: int, ranks_per_node: int, workers_per_rank: int, worker: int
    ) -> None:
        for name, value in (
            ("nodes", num_nodes),
            ("ranks per node", ranks_per_node),
            ("workers per rank", workers_per_rank),
        ):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}.")
        self.num_nodes = num_nodes
        self.ranks_per_node = ranks_per_node
        self.workers_per_rank = workers_per_rank
        self.workers_per_node = ranks_per_node * workers_per_rank
        self.num_ranks = num_nodes * ranks_per_node
        self.num_workers = num_nodes * self.workers_per_node
        if not 0 <= worker < self.num_workers:
            raise ConfigError(
                f"worker {worker} is outside a world of {plural(self.num_workers, 'worker')}; "
                "workers count "
                "from 0."
            )
        self.worker = worker
        self.node, self.worker_of_node = divmod(worker, self.workers_per_node)
        self.rank, self.worker_of_rank = divmod(worker, workers_per_rank)
        self.rank_of_node = self.rank % ranks_per_node

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> World:
        """Return the world of this process, from the environment and torch's worker info.

        A variable that is not set has its value for a single process: rank 0 of 1.

        Args:
            environ: Environment variables; None for those of this process.

        Raises ConfigError when the variables contradict each other.
        """
        variables = os.environ if environ is None else environ
        rank = _parse_variable(variables, "RANK", 0)
        ranks = _parse_variable(variables, "WORLD_SIZE", 1)
        local_ranks = _parse_variable(variables, "LOCAL_WORLD_SIZE", 1)
        if local_ranks < 1 or ranks < 1 or ranks % local_ranks or not 0 <= rank < ranks:
            raise ConfigError(
                f"RANK={rank}, WORLD_SIZE={ranks} and LOCAL_WORLD_SIZE={local_ranks} do not "
                "describe a world: WORLD_SIZE must be a multiple of LOCAL_WORLD_SIZE and above "
                "RANK. Set all three, as torchrun does."
            )
        worker, workers = worker_place()
        return cls(ranks // local_ranks, local_ranks, workers, rank * workers + worker)

    def detect_workers(self) -> World:
        """Return this world with the workers that torch reports to this process.

        Nodes and ranks stay as they are. Outside of a DataLoader worker the rank has one worker.
        """
        worker, workers = worker_place()
        return World(self.num_nodes, self.ranks_per_node, workers, self.rank * workers + worker)

    def replicate(self, replication: int) -> World:
        """Return the world in which each group of ``replication`` neighbouring ranks is one rank.

        With 16 ranks on 2 nodes, 2 neighbours each make 8 ranks: one node of 8. The number of ranks
        on a node stays the same if it divides the number of groups; otherwise all groups count as
        ranks of one node. Raises ConfigError when ``replication`` does not divide the ranks.
        """
        if replication < 1 or self.num_ranks % replication:
            raise ConfigError(
                f"replication {replication} does not divide {plural(self.num_ranks, 'rank')}. "
                "Choose a "
                "divisor of the number of ranks."
            )
        ranks = self.num_ranks // replication
        per_node = self.ranks_per_node if ranks % self.ranks_per_node == 0 else ranks
        worker = self.rank // replication * self.workers_per_rank + self.worker_of_rank
        return World(ranks // per_node, per_node, self.workers_per_rank, worker)

    def copy(self) -> World:
        """Return an equal world."""
        return World(self.num_nodes, self.ranks_per_node, self.workers_per_rank, self.worker)

    def to_json(self) -> dict[str, int | bool]:
        """Return all attributes and flags by name, as plain JSON."""
        return {name: getattr(self, name) for name in (*self.__slots__, *_FLAGS)}

    @property
    def is_leader(self) -> bool:
        """Whether this is the first worker of all."""
        return self.worker == 0

    @property
    def is_local_leader(self) -> bool:
        """Whether this is the first worker of its node."""
        return self.worker_of_node == 0

    @property
    def is_multinode(self) -> bool:
        """Whether there is more than one node."""
        return self.num_nodes > 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, World) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return (
            f"World(num_nodes={self.num_nodes}, ranks_per_node={self.ranks_per_node}, "
            f"workers_per_rank={self.workers_per_rank}, worker={self.worker})"
        )

    def __reduce__(self) -> tuple[type[World], tuple[int, int, int, int]]:
        return World, self._key()

    def _key(self) -> tuple[int, int, int, int]:
        return self.num_nodes, self.ranks_per_node, self.workers_per_rank, self.worker


_FLAGS = ("is_leader", "is_local_leader", "is_multinode")


def _parse_variable(environ: Mapping[str, str], name: str, default: int) -> int:
    """Return the number in an environment variable, or the default if it is not set or empty."""
    text = environ.get(name) or str(default)
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"the environment variable {name} must be a number, got {text!r}."
        ) from None


if TYPE_CHECKING:
    Topology = World | Callable[[], Any] | Any

__all__ = [
    "World",
]


class Ranks(NamedTuple):
    """Place of this process in a job, before workers and replication.

    Attributes:
        rank: Number of this process among all processes that train, from 0.
        world_size: Number of these processes on all nodes.
        local_world_size: Number of these processes on each node.
        source: Name of the source of the numbers, for messages, such as "SLURM".
    """

    rank: int
    world_size: int
    local_world_size: int
    source: str

    def world(self, workers: int = 1, worker: int = 0) -> World:
        """Return the `World` of a DataLoader worker of this rank.

        ``workers`` is the number of workers of each rank, ``worker`` this one's number from 0.
        """
        nodes = self.world_size // self.local_world_size
        return World(nodes, self.local_world_size, workers, self.rank * workers + worker)


# Variables of each launcher: rank, world size, ranks on this node. Those of MPI come before those
# of SLURM, which its processes inherit from the step or script that called mpirun.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),  # Intel MPI and MPICH
    ("SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
)
# Variables of other launchers with a rank; which of theirs has the number of ranks is not known.
_OTHER_RANKS = (
    "PMIX_RANK",
    "MPI_LOCALRANKID",
    "PALS_RANKID",
    "FLUX_TASK_RANK",
    "JSM_NAMESPACE_RANK",
    "ALPS_APP_PE",
    "LOCAL_RANK",
)
# SLURM counts the steps that srun starts from 0. Batch scripts, shells of an allocation and
# external containers have step numbers from this one on.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
SINGLE = "single process"  # source of the ranks of a process that nothing is known of
_WAY_OUT = "For a single process, unset {size} or pass topology=(0, 1)."
_warned: set[str] = set()

log = get_logger("mds.world")


def find_ranks(topology: Topology | None = None, *, has_defaults: bool = False) -> Ranks:
    """Return the rank of this process and the number of ranks.

    Args:
        topology: World, torch.distributed process group (its ranks are the data-parallel ranks),
            data-parallel dimensions of a DeviceMesh such as ``mesh['dp']``, pair (rank, world
            size), or a function without arguments that returns one of these. None takes the ranks
            of torch.distributed if it is initialized, and else the variables of the launcher.
        has_defaults: Whether a variable of the launcher that is not set has a default, as in
            mosaicml-streaming: rank 0, one rank.

    Raises ConfigError when the numbers contradict each other or are incomplete.
    """
    while callable(topology) and not isinstance(topology, World):
        topology = topology()
    if topology is None:
        return _check_ranks(_detect_ranks(os.environ, has_defaults))
    if isinstance(topology, World):
        return _check_ranks(
            Ranks(topology.rank, topology.num_ranks, topology.ranks_per_node, "topology=")
        )
    if isinstance(topology, tuple):
        rank, size = topology
        return _check_ranks(_with_local_size(int(rank), int(size), "topology="))
    if hasattr(topology, "get_local_rank"):  # a DeviceMesh
        return _check_ranks(_ranks_of_mesh(topology))
    if hasattr(topology, "rank") and hasattr(topology, "size"):  # a process group
        return _check_ranks(_with_local_size(topology.rank(), topology.size(), "process group"))
    raise ConfigError(
        f"topology= takes a World, a process group, a DeviceMesh dimension, (rank, world size) or "
        f"a function that gives one of these; got {type(topology).__name__}."
    )


# Names of dimensions of a DeviceMesh whose ranks need the same samples.
_SAME_DATA = frozenset(
    {"tp", "cp", "pp", "sp", "ep", "etp", "mp", "tensor", "context", "pipeline", "pipe"}
    | {"sequence", "expert", "model"}
)


def _ranks_of_mesh(mesh: Any) -> Ranks:
    """Return the rank in a DeviceMesh, all of whose dimensions are data-parallel.

    Raises ConfigError for a mesh with other dimensions, and for a process that is not in it.
    """
    names = mesh.mesh_dim_names
    wrong = [name for name in names or () if name in _SAME_DATA]
    if wrong or (names is None and mesh.ndim > 1):
        right = [name for name in names or () if name not in _SAME_DATA] or ["dp"]
        dimensions = ", ".join(map(repr, names)) if names else f"{mesh.ndim} unnamed ones"
        raise ConfigError(
            f"topology= is a DeviceMesh with dimensions {dimensions}. Give only the data-parallel "
            f"dimensions, such as topology=mesh[{', '.join(map(repr, right))}]."
        )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise ConfigError(
            f"topology= is a DeviceMesh of {plural(mesh.size(), 'rank')}, and this process, rank "
            f"{mesh.get_rank()}, is not one of them. Create the dataset in ranks of the mesh only."
        )
    rank = 0
    for index, size in zip(coordinate, mesh.shape, strict=True):
        rank = rank * size + index
    ranks = _with_local_size(rank, mesh.size(), "DeviceMesh")
    local, groups = _local_size(), _groups_of_mesh(mesh)
    if local and groups is not None:
        ranks = ranks._replace(local_world_size=_ranks_of_machine(groups, local))
    return ranks


def _groups_of_mesh(mesh: Any) -> list[list[int]] | None:
    """Return the global ranks of each data-parallel group, in the order of the mesh.

    With the dimensions dp and tp of size 2, mesh["dp"] has the groups [0, 2] and [1, 3]. It is None
    if this version of torch does not tell, as before 2.9 for a flattened dimension.
    """
    if hasattr(mesh, "_layout") and hasattr(mesh, "_rank_map"):
        table = mesh._layout.remap_to_tensor(mesh._rank_map)  # noqa: SLF001 - no public way
        return table.reshape(-1, mesh.size()).tolist()  # type: ignore[no-any-return]
    resources = vars(sys.modules["torch.distributed.device_mesh"])["_mesh_resources"]
    root = resources.get_root_mesh(mesh)
    if root is mesh:
        return [mesh.mesh.flatten().tolist()]
    names = root.mesh_dim_names
    if not {*mesh.mesh_dim_names} <= {*names}:
        return None
    ours = [names.index(name) for name in mesh.mesh_dim_names]
    others = [number for number in range(root.ndim) if number not in ours]
    table = root.mesh.permute(*others, *ours)
    return table.reshape(-1, mesh.size()).tolist()  # type: ignore[no-any-return]


def _ranks_of_machine(groups: list[list[int]], local: int) -> int:
    """Return how many consecutive data-parallel ranks share a machine.

    It is the smallest divisor of their number for which no machine has ranks of two blocks of so
    many. Several machines may have the same block. All processes return the same number.

    Args:
        groups: Global ranks of each data-parallel group.
        local: Processes of a machine, which has consecutive global ranks.
    """
    machines: dict[int, set[int]] = {}
    for group in groups:
        for number, rank in enumerate(group):
            machines.setdefault(rank // local, set()).add(number)
    size = len(groups[0])
    bounds = [(min(numbers), max(numbers)) for numbers in machines.values()]
    return next(
        block
        for block in range(1, size + 1)
        if size % block == 0 and all(low // block == high // block for low, high in bounds)
    )


def worker_place() -> tuple[int, int]:
    """Return (number of this DataLoader worker, number of workers); (0, 1) outside of workers."""
    info = _worker_info()
    return (info.id, info.num_workers) if info is not None else (0, 1)


def worker_group() -> int:
    """Return a number that the workers of one DataLoader iterator share; -1 outside of workers.

    Each iterator has another number, so it tells the workers of two iterators apart.
    """
    info = _worker_info()
    # torch seeds worker i with a random number of its iterator plus i.
    return info.seed - info.id if info is not None else -1


def in_worker() -> bool:
    """Whether this process is a worker of a torch DataLoader."""
    return _worker_info() is not None


def _worker_info() -> Any:
    """Return torch's WorkerInfo in a DataLoader worker, else None."""
    # A process that has not imported torch is no worker, and need not import it to know.
    data = sys.modules.get("torch.utils.data")
    return data.get_worker_info() if data is not None else None


def _detect_ranks(env: Mapping[str, str], has_defaults: bool) -> Ranks:
    """Return the ranks of torch.distributed or of the first launcher that set its variables.

    Without either, the process is the only rank.

    Args:
        env: Environment variables.
        has_defaults: Whether a missing rank is 0 and a missing number of ranks 1. Otherwise an
            incomplete pair raises ConfigError.
    """
    distributed = _initialized_distributed()
    if distributed is not None:
        rank, size = distributed.get_rank(), distributed.get_world_size()
        return _with_local_size(rank, size, "torch.distributed")
    for source, rank_name, size_name, local_name in _LAUNCHERS:
        rank = _env_int(env, rank_name)
        size = _env_int(env, size_name)
        if source == "SLURM":
            if size is None:
                size_name = "SLURM_NPROCS"  # noqa: PLW2901 - its other name
                size = _env_int(env, size_name)
            rank, size = _slurm_task(env, rank, size, size_name)
        if rank is None and size is None:
            continue
        if source == "MPI" and _is_of_slurm(env, rank, size):
            continue
        if not has_defaults:
            _check_complete(rank_name, size_name, rank, size)
        size = 1 if size is None else size
        local = _env_int(env, local_name)
        if local is None:
            # LOCAL_WORLD_SIZE defaults to 1, as in `World.detect`. Ranks of other launchers are
            # taken to be on one node.
            local = 1 if source == "torchrun" else size
        return Ranks(rank or 0, size, local, source)
    _warn_of_other_ranks(env)
    return Ranks(0, 1, 1, SINGLE)


def _is_of_slurm(env: Mapping[str, str], rank: int | None, size: int | None) -> bool:
    """Whether srun set the variables of MPI too, as with ``--mpi=pmi2``: its own tell more."""
    names = ("SLURM_NTASKS", "SLURM_NPROCS")
    return _env_int(env, "SLURM_PROCID") == rank and size in {_env_int(env, each) for each in names}


def _warn_of_other_ranks(env: Mapping[str, str]) -> None:
    """Warn once of variables that hold a rank, if nothing tells the number of ranks."""
    names = [name for name in _OTHER_RANKS if env.get(name)]
    if names and names[0] not in _warned:
        _warned.add(names[0])
        log.warning(
            "%s is set, but mds does not know the number of ranks, so this process reads all "
            "samples. For a job of several processes, set RANK and WORLD_SIZE, create the dataset "
            "after init_process_group(), or pass topology=.",
            " and ".join(f"{name}={env[name]}" for name in names),
        )


def has_late_ranks(ranks: Ranks | None) -> bool:
    """Whether a process that was taken for the only rank has a process group of several by now."""
    distributed = _initialized_distributed()
    if ranks is None or ranks.source != SINGLE or distributed is None:
        return False
    return bool(distributed.get_world_size() > 1)


def warn_of_late_ranks(name: str) -> None:
    """Warn once that a dataset took this process for the only rank; ``name``: its class."""
    if "late" not in _warned and not worker_place()[0]:
        _warned.add("late")
        log.warning(
            "torch.distributed was initialized after this %s was created, which took the process "
            "for the only rank, so every rank reads all samples. Create the dataset after "
            "init_process_group().",
            name,
        )


def _slurm_task(
    env: Mapping[str, str], rank: int | None, size: int | None, size_name: str
) -> tuple[int | None, int | None]:
    """Return rank and number of tasks if srun started this process; else None for both.

    Other processes have some of the variables too: a shell of an allocation has a number of tasks
    and no rank, and a batch script has rank 0.

    Args:
        env: Environment variables.
        rank: Value of SLURM_PROCID, None if it is not set.
        size: Number of tasks, None if it is not set.
        size_name: Variable that ``size`` comes from.

    Raises ConfigError for rank 0 of several tasks without SLURM_STEP_ID: it may be a batch script,
    or the first task of a step in a container that did not get the variable.
    """
    step = _env_int(env, "SLURM_STEP_ID")
    # Whether this is a batch script or a shell, whose step numbers are not those of srun.
    is_special = step is not None and step >= _FIRST_SPECIAL_STEP
    is_task = rank is not None and not is_special and (rank > 0 or step is not None)
    if size is None or size == 1 or is_task:
        return rank, size
    if rank is not None and step is None:
        names = "SLURM_NTASKS and SLURM_NPROCS"
        raise ConfigError(
            f"SLURM_PROCID=0 and {size_name}={size} are set without SLURM_STEP_ID, as in a batch "
            "script, so srun did not start this process. Start one process for each task with "
            f"srun, and pass SLURM_STEP_ID to containers. {_WAY_OUT.format(size=names)}"
        )
    if size_name not in _warned:
        _warned.add(size_name)
        log.warning(
            "%s=%s is set, but srun did not start this process, so it reads all samples. For a "
            "job of several processes, start them with srun or torchrun.",
            size_name,
            size,
        )
    return None, None


def _check_complete(rank_name: str, size_name: str, rank: int | None, size: int | None) -> None:
    """Raise ConfigError if only one of the rank and the number of ranks is set.

    A single rank, or rank 0, needs no other variable.

    Args:
        rank_name, size_name: Names of the variables of the launcher.
        rank, size: Their values, None for a variable that is not set.
    """
    if rank is None and size is not None and size != 1:
        raise ConfigError(
            f"{size_name}={size} is set and {rank_name} is not, so this process does not know "
            f"which part of the data to read. Set {rank_name}, or create the dataset after "
            f"torch's process group is initialized. {_WAY_OUT.format(size=size_name)}"
        )
    if size is None and rank:
        raise ConfigError(
            f"{rank_name}={rank} is set and {size_name} is not. Set {size_name} to the number of "
            f"processes, or unset {rank_name}."
        )


def _with_local_size(rank: int, size: int, source: str) -> Ranks:
    """Return ranks, with the number of ranks on a node by the launcher's variable.

    If the launcher started more processes, neighbours are taken to be one rank, as with tensor
    parallelism: 16 processes on 2 nodes of 8 make 8 ranks, 4 on each node. Without such a variable,
    or if it does not divide ``size``, all ranks are on one node.
    """
    local, processes = _local_size(), _process_count()
    if local and processes is not None and processes > size and processes % size == 0:
        local = max(local // (processes // size), 1)
    return Ranks(rank, size, local if local and size % local == 0 else size, source)


def _local_size() -> int | None:
    """Return the processes of a node by the launcher's variable, or None without one."""
    values = (_env_int(os.environ, local_name) for *_, local_name in _LAUNCHERS)
    return next((value for value in values if value is not None), None)


def _initialized_distributed() -> Any:
    """Return torch.distributed if it has a process group, or None. Never imports torch."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _process_count() -> int | None:
    """Return the number of processes that the launcher started, or None if it is unknown."""
    distributed = _initialized_distributed()
    if distributed is not None:
        return int(distributed.get_world_size())
    values = (_env_int(os.environ, size_name) for _, _, size_name, _ in _LAUNCHERS)
    return next((value for value in values if value is not None), None)


def _env_int(env: Mapping[str, str], name: str) -> int | None:
    """Return the number that a variable begins with, or None if it is not set or empty.

    SLURM writes "4(x2)" for two nodes of four tasks, of which this is 4. Raises ConfigError for a
    value that does not begin with a number.
    """
    text = env.get(name)
    if not text:
        return None
    digits = text.split("(")[0].strip()
    if not (digits.isascii() and digits.isdecimal()):
        raise ConfigError(f"the environment variable {name} must be a number, got {text!r}.")
    return int(digits)


def _check_ranks(ranks: Ranks) -> Ranks:
    """Return the same ranks. Raises ConfigError if their numbers contradict each other."""
    rank, size, local, source = ranks
    if size > MAX_RANKS:
        raise ConfigError(f"{source} sets {plural(size, 'rank')}; at most {MAX_RANKS} are allowed.")
    if size < 1 or local < 1 or size % local:
        raise ConfigError(
            f"{source} sets {plural(size, 'rank')} with {local} on each node, but the first must "
            "be a "
            "multiple of the second. Describe the ranks with topology=."
        )
    if not 0 <= rank < size:
        raise ConfigError(
            f"{source} sets rank {rank} of {plural(size, 'rank')}; ranks count from 0."
        )
    return ranks


# Classes of accelerate and transformers that deal samples out to ranks, which a dataset does too.
_SHARDING = frozenset({"IterableDatasetShard", "DataLoaderDispatcher"})
# The class of accelerate that skips batches.
_SKIPPING = "SkipDataLoader"
# Callers that are looked at. A forked worker process has the frames of its parent as callers too.
_MAX_FRAMES = 64


def refuse_second_sharding(ranks: int, *, has_loader: bool) -> None:
    """Raise ConfigError if a trainer divides the samples again, or reads past the loader of mds.

    Call this function when an iteration begins: it looks for classes of trainers among the methods
    that called it. Classes are compared by name, so that accelerate and transformers are not
    imported.

    Args:
        ranks: Number of ranks that the dataset deals its samples to.
        has_loader: Whether a StreamingDataLoader reads the dataset. Then Accelerate may not skip
            batches: it reads the dataset with a loader of torch, without masks, and the position of
            the StreamingDataLoader does not change.
    """
    frame = sys._getframe(1) if ranks > 1 or has_loader else None  # noqa: SLF001 - once an epoch
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        # Reading f_locals keeps all locals of a frame until its function returns: with Python 3.12
        # and older, batches and iterators of the user too. So it is read in few modules.
        is_suspect = _SKIPPING in frame.f_globals or not _SHARDING.isdisjoint(frame.f_globals)
        name = type(frame.f_locals.get("self")).__name__ if is_suspect else ""
        if name in _SHARDING and ranks > 1:
            raise ConfigError(
                f"{name} divides the samples among ranks, but the dataset has already divided "
                f"them among {plural(ranks, 'rank')}: most samples would never be seen. Override "
                "get_train_dataloader() to return StreamingDataLoader(dataset, ...). Or pass "
                "topology=(0, 1) to the dataset, so that it gives every rank all samples."
            )
        if name == _SKIPPING and has_loader:
            raise ConfigError(
                "skip_first_batches() replaces the StreamingDataLoader with a loader of torch, so "
                "later checkpoints would have a wrong position. Leave it out, and resume with "
                "loader.load_state_dict(state)."
            )
        frame = frame.f_back


# ---------------------------------------------------------------------- memory of a rank


class RankFile:
    """Memory that a process shares with its DataLoader workers: a file without a name.

    A DataLoader gives every worker a copy of the dataset, and changes of the copy are not visible
    in the main process. So state that a rank shares is in such a file, which forked workers inherit
    and spawned ones receive. A file without a name cannot be left behind and cannot collide with
    another. The class that owns a `RankFile` decides what the file contains.

    Args:
        name: Name of the file that /proc shows; it need not be unique.

    Attributes:
        descriptor: Open descriptor of the file; -1 once it is closed.
    """

    def __init__(self, name: str) -> None:
        self.descriptor = open_nameless(name)
        self._thread_lock = new_lock()
        # After unpickling: (id of the process that unpickled this object, `owner` in the pickle).
        # None for an object that was not unpickled.
        self._unpickled: tuple[int, int] | None = None

    @property
    def owner(self) -> int:
        """Id of the rank's main process: the parent of a worker, else this process.

        Ranks that were forked from one process share the file; this id distinguishes them.
        """
        if not in_worker():
            return os.getpid()
        # A spawned worker takes the id from the pickle, because the parent of a worker of the
        # forkserver is the server.
        unpickling_process, pickled_owner = self._unpickled or (-1, -1)
        if unpickling_process == os.getpid():
            return pickled_owner
        # A forked worker; `_unpickled`, if any, is inherited from its parent.
        return os.getppid()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold a lock on the file, against other threads and processes, while the block runs."""
        import fcntl

        with self._thread_lock:
            # The lock on the file belongs to the process, so it does not exclude other threads of
            # the process. It is released when the process ends, even if it is killed.
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    @staticmethod
    def is_handed_on() -> bool:
        """Whether this thread is pickling an object for a child process that it starts.

        Only then can a pickle hand the descriptor of the file on. Another pickle is a plain copy.
        """
        from multiprocessing import context

        return context.get_spawning_popen() is not None

    def __getstate__(self) -> dict[str, Any]:
        from multiprocessing import reduction

        return {"descriptor": reduction.DupFd(self.descriptor), "owner": self.owner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.descriptor = state["descriptor"].detach()
        self._thread_lock = new_lock()
        self._unpickled = (os.getpid(), state["owner"])

    def close(self) -> None:
        """Close the file. Closing twice is fine."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        # When the interpreter is exiting, the kernel closes the file, and `os` may be cleared. So
        # may `sys`, which is why its function is bound as a default.
        if getattr(self, "descriptor", -1) >= 0 and not is_exiting():
            self.close()
