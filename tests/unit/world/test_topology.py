"""Who am I: every launcher's way of saying it, and the caller's own."""

import re

import pytest

from mds.errors import ConfigError
from mds.world import World, find_ranks

NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NPROCS",
    "SLURM_STEP_ID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALNRANKS",
    "MPI_LOCALRANKID",
    "PMIX_RANK",
)


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_a_single_process_is_a_world_of_one():
    """Without a launcher there is one rank on one node."""
    assert find_ranks()[:3] == (0, 1, 1)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"},
        {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4(x2)"},
        {
            "OMPI_COMM_WORLD_RANK": "5",
            "OMPI_COMM_WORLD_SIZE": "8",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        },
        {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "1"},
        {
            "MV2_COMM_WORLD_RANK": "5",
            "MV2_COMM_WORLD_SIZE": "8",
            "MV2_COMM_WORLD_LOCAL_SIZE": "4",
        },
    ],
    ids=["torchrun", "slurm", "openmpi", "mpich", "mvapich"],
)
def test_each_launcher_is_understood(monkeypatch, variables):
    """Rank 5 of 8, four on a node, in three dialects."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    ranks = find_ranks()
    assert ranks[:3] == (5, 8, 4)
    world = ranks.world(workers=2, worker=1)
    assert (world.node, world.rank_of_node, world.worker_of_rank) == (1, 1, 1)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 is set and RANK is not"),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, "WORLD_SIZE=4 is set and RANK is not"),
        ({"WORLD_SIZE": "4", "RANK": ""}, "WORLD_SIZE=4 is set and RANK is not"),
        ({"RANK": "1"}, "RANK=1 is set and WORLD_SIZE is not"),
        ({"SLURM_PROCID": "2"}, "SLURM_PROCID=2 is set and SLURM_N"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "without SLURM_STEP_ID"),
        ({"SLURM_PROCID": "0", "SLURM_NPROCS": "4"}, "without SLURM_STEP_ID"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_SIZE=4 is set and OMPI_COMM_WORLD_RANK"),
        ({"OMPI_COMM_WORLD_RANK": "3"}, "OMPI_COMM_WORLD_RANK=3 is set and"),
        ({"PMI_SIZE": "4"}, "PMI_SIZE=4 is set and PMI_RANK is not"),
        ({"PMI_RANK": "2"}, "PMI_RANK=2 is set and PMI_SIZE is not"),
    ],
)
def test_half_an_environment_is_refused(monkeypatch, variables, message):
    """A rank without a world and a world without a rank are errors that name the variables."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message) as error:
        find_ranks()
    assert find_ranks((0, 1))[:3] == (0, 1, 1)
    unset = re.search(r"unset ([A-Z_]+)(?: and ([A-Z_]+))?", str(error.value))
    for name in filter(None, unset.groups()):
        monkeypatch.delenv(name, raising=False)
    assert find_ranks()[:3] == (0, 1, 1)


@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_NTASKS": "4"},
        {"SLURM_NTASKS": "4", "SLURM_NPROCS": "4"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "4294967290"},
    ],
    ids=["shell", "both names", "interactive step"],
)
def test_a_shell_of_an_allocation_reads_all_samples(monkeypatch, caplog, variables):
    """A process that srun did not start is the only one of its job, and a warning says so."""
    monkeypatch.setattr("mds.world._warned", set())
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert find_ranks()[:3] == (0, 1, 1)
    assert find_ranks()[:3] == (0, 1, 1)
    warnings = [text for text in caplog.messages if "srun did not start this process" in text]
    assert len(warnings) == 1
    assert warnings[0].startswith("SLURM_NTASKS=4 is set")


@pytest.mark.parametrize("rank", [0, 3])
def test_a_task_of_a_step_is_a_rank(monkeypatch, rank):
    """Task 0 of a step is rank 0, also where the number of tasks has its older name."""
    for name, value in (("PROCID", rank), ("NPROCS", 4), ("STEP_ID", 0)):
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    assert find_ranks()[:3] == (rank, 4, 4)


def test_open_mpi_comes_before_slurm(monkeypatch):
    """Processes of mpirun inherit the variables of the SLURM step or script that called it."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "8")
    assert find_ranks()[:2] == (3, 8)


def test_mpich_comes_before_slurm_unless_srun_set_both(monkeypatch):
    """With ``srun --mpi=pmi2``, SLURM tells how many ranks share a node, and PMI does not."""
    slurm = {"PROCID": "5", "NTASKS": "8", "NTASKS_PER_NODE": "4", "STEP_ID": "0"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("PMI_RANK", "5")
    monkeypatch.setenv("PMI_SIZE", "8")
    assert find_ranks() == (5, 8, 4, "SLURM")
    # mpirun of MPICH starts a task of SLURM on each of two nodes.
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("MPI_LOCALNRANKS", "4")
    assert find_ranks() == (5, 8, 4, "MPI")


def test_a_rank_without_a_number_of_ranks_gives_one_warning(monkeypatch, caplog):
    """It names the variables that were seen."""
    monkeypatch.setattr("mds.world._warned", set())
    monkeypatch.setenv("PMIX_RANK", "3")
    monkeypatch.setenv("MPI_LOCALRANKID", "1")
    for _ in range(2):
        assert find_ranks()[:3] == (0, 1, 1)
    (line,) = caplog.messages
    assert line.startswith("PMIX_RANK=3 and MPI_LOCALRANKID=1 is set, but mds does not know")
    assert find_ranks((3, 4))[:2] == (3, 4)


def test_empty_variables_are_not_set(monkeypatch):
    """A variable without text says nothing."""
    for name in NAMES:
        monkeypatch.setenv(name, "")
    assert find_ranks()[:3] == (0, 1, 1)


def test_the_getters_of_the_door_have_the_defaults_of_the_incumbent(monkeypatch):
    """Rank 0 is the default of `get_rank`, whatever the number of ranks."""
    from mds.compat import _ranks as ranks

    monkeypatch.setenv("WORLD_SIZE", "4")
    assert (ranks.get_rank(), ranks.get_world_size(), ranks.get_local_rank()) == (0, 4, 0)


def test_what_the_caller_says_wins(monkeypatch):
    """An explicit World, pair or function comes before the environment."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert find_ranks(World(2, 4, 1, 6))[:3] == (6, 8, 4)
    assert find_ranks((3, 4))[:2] == (3, 4)
    assert find_ranks(lambda: (0, 4))[:2] == (0, 4)


def test_contradictions_are_refused(monkeypatch):
    """The error says which launcher said what."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="torchrun sets 3 ranks with 2 on each node"):
        find_ranks()
    with pytest.raises(ConfigError, match="got str"):
        find_ranks("all of them")
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ConfigError, match="WORLD_SIZE must be a number, got 'many'"):
        find_ranks()
