"""No lock survives a fork in the wrong state: locks come from one helper, held or not."""

import ast
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[3] / "mds"

# Made by the standard library as they are; a forked child never uses these.
NOT_FROM_THE_HELPER = {
    ("_process/fork_safe.py", "threading"): "the helper",
    ("writers/_engines.py", "queue.SimpleQueue"): "idle workers; a child has no engine",
    ("writers/_engines.py", "ThreadPoolExecutor"): "of a conversion, which does not fork",
    ("writers/_pipeline.py", "ThreadPoolExecutor"): "of a writer, which belongs to one process",
    ("storage/_waiting.py", "os.register_at_fork"): "ends a thread before the fork",
    ("storage/_wrappers.py", "queue.SimpleQueue"): "of one request, which ends where it began",
}
LOCKS = {
    "threading.Lock",
    "threading.RLock",
    "threading.Condition",
    "threading.Event",
    "threading.Semaphore",
    "threading.BoundedSemaphore",
    "threading.Barrier",
    "queue.Queue",
    "queue.LifoQueue",
    "queue.PriorityQueue",
    "queue.SimpleQueue",
    "ThreadPoolExecutor",
    "futures.ThreadPoolExecutor",
    "cached_property",
    "functools.cached_property",
    "os.register_at_fork",
}


def _locks_made(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ours = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mds.")
        for alias in node.names
    }
    # Threads of one `with` block end where they began.
    of_a_block = {
        id(item.context_expr)
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        for item in node.items
    }
    for node in ast.walk(tree):
        if id(node) in of_a_block:
            continue
        called = node.func if isinstance(node, ast.Call) else node
        if isinstance(called, (ast.Name, ast.Attribute)):
            name = ast.unparse(called)
            is_decorator = name.endswith("cached_property")
            if name in LOCKS - ours and (isinstance(node, ast.Call) or is_decorator):
                yield name
        if isinstance(node, ast.ImportFrom) and node.module in ("threading", "queue"):
            yield f"from {node.module}"


FILES = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if "testing" not in path.relative_to(PACKAGE).parts
]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_locks_are_made_by_the_helper(path):
    """Locks are made, and forks watched, through `mds._process.fork_safe` alone."""
    name = path.relative_to(PACKAGE).as_posix()
    if name == "_process/fork_safe.py":
        return
    made = [lock for lock in _locks_made(path) if (name, lock) not in NOT_FROM_THE_HELPER]
    assert not made, (
        f"{name} makes {made}; take new_lock() and the like from mds._process.fork_safe"
    )


def _run(code, *arguments):
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-c",
            code,
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


HOLD = '''
import os, signal, sys, threading, time, traceback
from mds._process import fork_safe

def take(lock):
    """Take a lock of any kind (of a semaphore, every free place); gives its release, or None."""
    if hasattr(lock, "_value"):
        places = 0
        while lock.acquire(blocking=False): places += 1
        return lambda: lock.release(places) if places else None
    lock = lock if hasattr(lock, "acquire") else lock._cond
    return lock.release if lock.acquire(blocking=False) else None

def take_all(locks):
    """Take all locks or none: to wait for one and hold others would stop a thread that has both."""
    releases = []
    for lock in locks:
        releases.append(take(lock))
        if releases[-1] is None:
            for release in releases[:-1]: release()
            return None
    return releases

def fork_while_held(locks, work, seconds=500):
    """Fork while another thread holds the locks; the child does ``work`` in that time or dies."""
    held, done = threading.Event(), threading.Event()
    def hold():
        while (releases := take_all(locks)) is None: time.sleep(0.001)
        held.set()
        done.wait()
        for release in releases: release()
    threading.Thread(target=hold, daemon=True).start()
    assert held.wait(60), "a lock could not be taken"
    child = os.fork()
    if not child:
        signal.alarm(seconds)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    done.set()  # so that threads go on: what they fetch is locked against other processes
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, f"the child ended with {status}"
'''


def test_every_kind_is_free_in_a_child():
    """A lock of each kind that another thread holds at a fork can be taken in the child."""
    _run(
        HOLD
        + """
kinds = [fork_safe.new_lock(), fork_safe.new_rlock(), fork_safe.new_condition(),
         fork_safe.new_event(), fork_safe.new_semaphore(3)]
kinds[3].set()
def work():
    for lock in kinds[:3]:
        with lock: pass
    assert kinds[3].is_set() and kinds[3].wait(1)
    with kinds[2]: kinds[2].notify_all()
    for _ in range(3): assert kinds[4].acquire(timeout=1)
    assert not kinds[4].acquire(blocking=False)
fork_while_held(kinds, work)
"""
    )


def test_a_thread_may_fork_inside_its_own_reentrant_lock():
    """The thread that forks keeps the reentrant locks and conditions that it holds itself."""
    _run(
        HOLD
        + """
lock, condition = fork_safe.new_rlock(), fork_safe.new_condition()
with lock, condition:
    child = os.fork()
assert not lock._is_owned() and not condition._is_owned()
if not child: os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    )


def test_a_lock_that_is_dropped_is_forgotten():
    """The helper keeps no lock alive: a program may make any number of them."""
    _run(
        HOLD
        + """
before = len(list(fork_safe._locks))
for _ in range(1000): fork_safe.new_condition()
assert len(list(fork_safe._locks)) == before
"""
    )


def test_a_fork_waits_for_imports_of_other_threads(tmp_path):
    """A child can import a module that a thread of its parent was importing."""
    (tmp_path / "slow_module.py").write_text(
        "import __main__, time\n__main__.has_begun.set()\ntime.sleep(0.3)\nvalue = 5\n"
    )
    _run(
        """
import importlib, os, signal, sys, threading
from mds._cache.concurrency import Pool

sys.path.insert(0, sys.argv[1])
has_begun = threading.Event()
pool = Pool(1, "mds-test")
module = pool.submit(importlib.import_module, "slow_module")
assert has_begun.wait(60)
child = os.fork()
if not child:
    signal.alarm(60)
    import slow_module
    import colorsys  # not imported before: the child may begin imports
    os._exit(slow_module.value)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
assert module.result(60).value == 5
pool.submit(importlib.import_module, "colorsys").result(60)
""",
        str(tmp_path),
    )


def test_a_fork_does_not_wait_for_the_program_that_it_runs_in(tmp_path):
    """The module of a program may be imported all the time, and import mds."""
    (tmp_path / "program.py").write_text(
        """
import os, threading
from mds._process import fork_safe

fork_safe._IMPORT_SECONDS = 600.0
def fork():
    child = os.fork()
    if not child: os._exit(7)
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
statuses = []
thread = threading.Thread(target=fork)
thread.start()
thread.join(60)
assert statuses == [7]
"""
    )
    _run("import sys; sys.path.insert(0, sys.argv[1]); import program", str(tmp_path))


@pytest.mark.parametrize("limit", ["None", "60_000"])
def test_a_child_works_while_every_lock_of_the_package_is_held(tmp_path, limit):
    """With all locks of a dataset in use held by a thread, a forked child reads all of it."""
    _run(
        HOLD
        + f"""
limit = {limit}
"""
        + """
from mds import MDSWriter, StreamingDataset, StreamingDataLoader, events
from mds.metrics import Tally
from mds._process import fork_safe
from mds.storage import _waiting as waiting
from devtools.httpserver import http_server
folder = sys.argv[1]
with MDSWriter(out=folder + "/data", columns={"id": "int", "text": "str"}, size_limit=2000) as out:
    for i in range(300): out.write({"id": i, "text": "x" * 90})

def make(name):
    return StreamingDataset(remote=url, local=f"{folder}/{name}", batch_size=4, shuffle=True,
                            cache_limit=limit)

with http_server(folder + "/data") as url:
    tally = Tally()
    with events.subscribe(tally):
        mine, begun = make("cache"), make("other")
        loader = StreamingDataLoader(mine, batch_size=4)
        assert len(list(mine)) == 300 and mine[7]["id"] == 7
        going, batches = iter(begun), iter(loader)
        next(going), next(batches)  # prefetchers, their threads, pools and windows are at work

        def work():
            mine.state_dict(4); loader.state_dict(); mine.stats(); mine.cache_usage
            assert sorted(s["id"] for s in mine) == list(range(300))
            assert sorted(s["id"] for s in begun) == list(range(300))
            assert mine[7]["id"] == 7 and len(list(StreamingDataLoader(begun, batch_size=4))) == 75
            assert len(list(make("new"))) == 300
            with events.subscribe(print): tally.as_dict()
            fork_safe.per_process("test", object)

        # One is taken by the thread that forks, just before: a thread that holds it lets go soon.
        locks = [lock for lock in list(fork_safe._locks) if lock is not waiting._Waits.changed]
        assert len(locks) > 20, len(locks)
        fork_while_held(locks, work, 60)
        os._exit(0)
""",
        str(tmp_path),
    )
