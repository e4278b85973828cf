"""Starts the ranks of a run as real processes, and ends all of them when one dies.

It imports torch once and forks every rank from there, so that a hundred scenarios take minutes.
A line on stdin is the JSON of {config, nodes, ranks}; the answer is a line with the exit status of
each rank, negative for a signal. A rank is killed alone: its workers are left to find out.
"""

import contextlib
import json
import os
import signal
import sys
import traceback

from rank_program import main as run_rank


def start(config, nodes, ranks, node, local):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        os.environ.update(
            RANK=str(node * ranks + local),
            WORLD_SIZE=str(nodes * ranks),
            LOCAL_RANK=str(local),
            LOCAL_WORLD_SIZE=str(ranks),
            GROUP_RANK=str(node),
            MDS_CACHE_DIR=os.path.join(config["home"], f"node{node}"),
        )
        run_rank(config)
        status = 0
    except BaseException:  # noqa: BLE001 - a child must not run on as its parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def run(config, nodes, ranks):
    """Exit statuses by rank."""
    places = [(node, local) for node in range(nodes) for local in range(ranks)]
    running = {start(config, nodes, ranks, *place): i for i, place in enumerate(places)}
    everybody, statuses = list(running), {}
    while running:
        pid, status = os.wait()
        if pid not in running:
            continue
        statuses[running.pop(pid)] = os.waitstatus_to_exitcode(status)
        if status:
            for other in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
    if config["last"]:
        for pid in everybody:  # orphaned workers of ranks that were killed
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
    return [statuses[i] for i in range(len(places))]


if __name__ == "__main__":
    for line in sys.stdin:
        told = json.loads(line)
        print(json.dumps(run(told["config"], told["nodes"], told["ranks"])), flush=True)
