"""What does a small ranged GET from S3 cost the client?"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.questions.base import Bar, Case, Question
from benchmarks.questions.cold import KEYS
from benchmarks.systems.base import Data, System

_SIZE = 8192
_SEED = 20


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Microseconds of CPU of this process, all threads, for each range of 8 KB.

    The server is rclone's, a process beside, over the shards that this library wrote.
    """
    from devtools.servers import s3_server

    os.environ.update(KEYS)
    place = os.path.dirname(data.folder)
    folder = os.path.join(place, "mds")
    names = [name for name in os.listdir(folder) if name.endswith(".mds")]
    name = max(names, key=lambda each: os.path.getsize(os.path.join(folder, each)))
    size = os.path.getsize(os.path.join(folder, name))
    with s3_server(place, etags=False) as url, ThreadPoolExecutor(case.workers) as pool:
        get = system.ranges(data, name, url)
        draw = random.Random(_SEED)

        def some(count: int) -> int:
            starts = [draw.randrange(size - _SIZE) for _ in range(count)]
            parts = pool.map(get, starts, [start + _SIZE for start in starts])
            if any(len(piece) != _SIZE for piece in parts):
                raise RuntimeError("a range had another length")
            return count

        some(4 * case.workers)  # clients, connections and imports
        request_count, until, before = 0, time.perf_counter() + seconds, time.process_time()
        while not request_count or time.perf_counter() < until:
            request_count += some(128)
        return {"value": (time.process_time() - before) / request_count * 1e6}


QUESTION = Question(
    name="requests",
    title="Ranged GETs of 8 KB from S3, CPU of the client",
    heading="What does a small ranged GET from S3 cost the client?",
    unit="µs/request",
    cases=(
        Case("16 threads", "tokens", Bar(of={"boto3": 0.25}), workers=16),
        Case("one thread", "tokens", Bar(of={"boto3": 0.25}), workers=1),
    ),
    measure=measure,
    more_is_better=False,
    note=(
        "Threads read ranges of 8 KB from an S3 server on the same machine. Only the client's "
        "processor time counts. The limit is Python's http.client, which signs nothing and never "
        "retries."
    ),
)
