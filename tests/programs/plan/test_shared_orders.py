"""Large orders: produced in windows, or kept in a file that the processes of a node share."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import tracemalloc

import numpy as np
import ordertools
import pytest
from ordertools import DRAWN, joined, make_plan, uneven

from mds._cache import order_files as cached
from mds._cache.order_files import OrderFile, file_size, prepare, share_order
from mds.shuffle import SequentialShuffle
from mds.storage._locks import open_locks

SHARDS = uneven(120, 90_000)
ORDER = {
    "small_order": 0,
    "shuffle": True,
    "batch_size": 5,
    "shuffle_block_size": 9_000,
    "epoch": 3,
}
WORKERS = [(0, 0, 0), (1, 0, 1), (2, 1, 0)]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    cached._ahead.join(60)


def plan_of(algo="py1e", world=(3, 2, 2), **order):
    return make_plan(SHARDS, world, **ORDER | {"shuffle_algo": algo, **order})


def want_of(plan, places=WORKERS):
    """What the same plan gives when every process holds the whole order."""
    plan.small_order = 1 << 40
    return [joined(plan.blocks(*place)) for place in places]


def files_in(folder):
    return sorted(name for name in os.listdir(folder) if name.endswith(".ids"))


@pytest.mark.parametrize("algo", DRAWN)
@pytest.mark.parametrize("canonical", [1, 3, 12])
def test_windows_on_the_way_give_what_whole_arrays_give(algo, canonical):
    """A worker that produces its own order, from any start, for any number of canonical nodes."""
    plan = plan_of(algo, num_canonical_nodes=canonical)
    want = want_of(plan_of(algo, num_canonical_nodes=canonical))
    for place, ids in zip(WORKERS, want, strict=True):
        assert np.array_equal(joined(plan.blocks(*place)), ids)
        assert np.array_equal(joined(plan.blocks(*place, start=4_321)), ids[4_321:])


def test_readers_of_one_plan_do_not_disturb_each_other():
    """Two workers of one process may read the same plan in turns, and an audit in between."""
    plan = plan_of()
    want = want_of(plan_of())
    readers = [plan.blocks(*place) for place in WORKERS]
    found = [[] for _ in WORKERS]
    for _ in range(3):
        for blocks, reader in zip(found, readers, strict=True):
            blocks.extend(next(reader, np.zeros(0, np.int64)) for _ in range(2))
        plan.batch(0)
    for blocks, reader, ids in zip(found, readers, want, strict=True):
        assert np.array_equal(joined([*blocks, *reader]), ids)


@pytest.mark.parametrize("algo", sorted({*DRAWN} - {"naive"}))
def test_a_worker_needs_memory_for_blocks_only(algo, monkeypatch):
    """Reading the whole slice of a worker takes no more for four times the samples."""
    monkeypatch.setattr(SequentialShuffle, "keep", 0)

    def peak(shards):
        order = ORDER | {"shuffle_algo": algo, "num_canonical_nodes": 2}
        plan = make_plan(np.full(shards, 1_000), (1, 1, 2), **order)
        tracemalloc.start()
        for _ in plan.blocks(0, 0, 1):
            pass
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    small, large = peak(800), peak(3_200)
    # The list of shards grows, by some hundred bytes a shard.
    assert large < small + 2_400 * 500 + 500_000


@pytest.mark.parametrize("algo", ["py1e", "py1s", "naive"])
@pytest.mark.parametrize("canonical", [1, 3, 6])
def test_a_file_gives_the_same_ids(algo, canonical, tmp_path):
    """To every worker of every node, each node with a folder of its own."""
    order = {"algo": algo, "num_canonical_nodes": canonical}
    want = want_of(plan_of(**order))
    for place, ids in zip(WORKERS, want, strict=True):
        plan = plan_of(**order)
        plan.world.node = place[0]
        folder = tmp_path / str(place[0])
        share_order(plan, str(folder))
        assert np.array_equal(joined(plan.blocks(*place, start=777)), ids[777:])
        cached._ahead.join(60)
        kept = 90_000 if canonical % 3 else 30_000
        sizes = {os.stat(folder / name).st_size for name in files_in(folder)}
        # 90,000 samples need 4 bytes each; a node keeps the share that it reads.
        assert sizes == {file_size(4 * kept)}


def test_the_next_epoch_is_prepared_and_a_restart_finds_it(monkeypatch, tmp_path):
    """After an epoch has begun there are two files, and neither is computed again."""
    plan = share_order(plan_of(), str(tmp_path))
    next(plan.blocks(0, 0, 0))
    cached._ahead.join(60)
    assert [name.split("-")[2] for name in files_in(tmp_path)] == ["000003", "000004"]
    monkeypatch.setattr(OrderFile, "compute", lambda self: pytest.fail("computed again"))
    want = want_of(plan.following(), WORKERS[:1])
    following = share_order(plan.following(), str(tmp_path))
    monkeypatch.setattr(cached._ahead, "begin", lambda *args: None)
    assert np.array_equal(joined(following.blocks(*WORKERS[0])), want[0])


@pytest.mark.parametrize(
    "change",
    [
        {"shuffle_seed": 1},
        {"epoch": 5},
        {"num_canonical_nodes": 6},
        {"shuffle_block_size": 8_000},
        {"algo": "py1s"},
    ],
)
def test_everything_that_the_order_depends_on_is_in_the_name(change, tmp_path):
    """Another parameter, another file; the same, the same."""
    before = prepare(plan_of(), str(tmp_path))
    assert prepare(plan_of(), str(tmp_path)) == before
    assert prepare(plan_of(**change), str(tmp_path)) != before


def test_resampled_orders_are_kept_as_sample_ids(tmp_path):
    """Also without a shuffle, when samples had to be listed."""
    streams = [{"shards": SHARDS, "repeat": 1.5}, {"shards": [500] * 20, "repeat": 0.3}]
    for order in (
        {"shuffle": False},
        {"batching_method": "per_stream"},
        {"sampling_method": "fixed"},
    ):
        plan = make_plan(streams, (1, 2, 2), **ORDER | order)
        want = want_of(make_plan(streams, (1, 2, 2), **ORDER | order), [(0, 1, 1)])
        share_order(plan, str(tmp_path))
        assert np.array_equal(joined(plan.blocks(0, 1, 1)), want[0])
        cached._ahead.join(60)


def test_orders_that_cost_nothing_need_no_file(tmp_path):
    """Neither the seekable shuffle nor one that is off writes anything."""
    for order in ({"shuffle_algo": "seekable"}, {"shuffle": False}):
        plan = share_order(make_plan(SHARDS, (1, 1, 1), **ORDER | order), str(tmp_path / "none"))
        assert joined(plan.blocks(0, 0, 0)).size
    assert not (tmp_path / "none").exists()


def _read_slice(folder, worker, counter):
    compute = OrderFile.compute

    def counted(self):
        with open(counter, "a", encoding="utf-8") as file:
            file.write(f"{self.path}\n")
        compute(self)

    OrderFile.compute = counted
    plan = share_order(plan_of(world=(1, 1, 4)), folder)
    ids = joined(plan.blocks(0, 0, worker))
    cached._ahead.join(60)
    return ids


def test_processes_of_a_node_compute_an_epoch_once(tmp_path):
    """Four workers at once: one computes, three wait for its lock, all get their slices."""
    counter = str(tmp_path / "computed")
    with multiprocessing.get_context("fork").Pool(4) as pool:
        jobs = [(str(tmp_path / "orders"), worker, counter) for worker in range(4)]
        found = pool.starmap(_read_slice, jobs, chunksize=1)
    want = want_of(plan_of(world=(1, 1, 4)), [(0, 0, w) for w in range(4)])
    for ids, expected in zip(found, want, strict=True):
        assert np.array_equal(ids, expected)
    with open(counter, encoding="utf-8") as file:
        computed = file.read().splitlines()
    assert len(computed) == len(set(computed)) == 2


def test_a_killed_process_leaves_nothing_in_the_way(tmp_path):
    """Killed while it computed, it held a lock and a temporary file: the next one just computes."""
    program = (
        "import os, signal, sys; sys.path[:0] = sys.argv[2:]\n"
        "from test_shared_orders import *\n"
        "from mds.plan._stream_orders import SequentialOrder\n"
        "generate = SequentialOrder.generate\n"
        "def killed(self, nodes, keep=0):\n"
        "    yield next(generate(self, nodes))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "SequentialOrder.generate = killed\n"
        "prepare(plan_of(), sys.argv[1])\n"
    )
    folders = [os.path.dirname(path) for path in (__file__, ordertools.__file__)]
    done = subprocess.run([sys.executable, "-c", program, tmp_path, *folders], check=False)
    assert done.returncode == -9
    left = [name for name in os.listdir(tmp_path) if name.endswith(".mds-part")]
    assert len(left) == 1
    # Long after, so that it cannot belong to a process of another container.
    os.utime(tmp_path / left[0], (0, 0))
    plan = share_order(plan_of(), str(tmp_path))
    want = want_of(plan_of())
    assert np.array_equal(joined(plan.blocks(*WORKERS[0])), want[0])
    assert left[0] not in os.listdir(tmp_path)


def test_a_file_of_the_wrong_size_is_computed_again(tmp_path):
    """It was cut short."""
    (path,) = prepare(plan_of(), str(tmp_path))
    os.truncate(path, 100)
    plan = share_order(plan_of(), str(tmp_path))
    want = want_of(plan_of())
    assert np.array_equal(joined(plan.blocks(*WORKERS[0])), want[0])


def test_only_old_files_of_our_naming_are_removed(tmp_path):
    """Earlier epochs go, others stay up to a number, and what is not ours stays for ever."""
    for name in ("notes.txt", "order-of-magnitude.ids", ".order-secret"):
        (tmp_path / name).write_text("mine")
    paths = [prepare(plan_of(epoch=epoch), str(tmp_path))[0] for epoch in range(6)]
    assert [os.path.exists(path) for path in paths] == [False] * 3 + [True] * 3
    for seed in range(10):
        prepare(plan_of(shuffle_seed=seed), str(tmp_path))
    assert len(files_in(tmp_path)) == cached._MAX_ORDER_FILES + 1
    assert {"notes.txt", "order-of-magnitude.ids", ".order-secret"} < set(os.listdir(tmp_path))


def test_a_folder_that_cannot_be_used_costs_time_and_a_warning(tmp_path):
    """The order is the same, produced by every process for itself."""
    (tmp_path / "file").write_text("no folder")
    want = want_of(plan_of())
    plan = share_order(plan_of(), str(tmp_path / "file" / "orders"))
    with pytest.warns(UserWarning, match="cannot be stored in .*every process computes it"):
        assert np.array_equal(joined(plan.blocks(*WORKERS[0])), want[0])


def test_an_audit_may_ask_for_another_node(tmp_path):
    """What this node's file does not hold is computed."""
    plan = share_order(plan_of(), str(tmp_path))
    want = want_of(plan_of())
    assert np.array_equal(joined(plan.blocks(*WORKERS[2])), want[2])
    sample = int(want[1][1_000])
    assert (1_000 // 5 * 2 + 1) in {place.step for place in plan.locate(sample)}


def test_a_lock_that_somebody_holds_is_left_to_them(tmp_path):
    """Preparing ahead never waits."""
    plan = plan_of()
    file = OrderFile(plan.orders[0], plan.nodes_read(0), str(tmp_path))
    lock = open_locks(str(tmp_path / "lock"))
    lock.try_lock(file._lock)
    file.try_ensure()
    assert not file.is_there
    lock.close()
    file.try_ensure()
    assert file.is_there


def test_a_plan_travels_to_another_process(tmp_path):
    """Pickled, it leaves what is mapped behind and goes on by itself."""
    plan = share_order(plan_of(), str(tmp_path))
    want = joined(plan.blocks(*WORKERS[0]))
    copy = pickle.loads(pickle.dumps(plan))
    assert np.array_equal(joined(copy.blocks(*WORKERS[0])), want)
