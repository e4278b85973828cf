"""How long does the first epoch take when nothing is there yet and the data are in S3?"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from contextlib import ExitStack

from benchmarks.questions.base import Bar, Case, Question
from benchmarks.systems.base import Batching, Data, System

KEYS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Seconds from constructing to the end of a shuffled epoch in batches, two workers.

    The server is rclone's, on this machine, each system's folder a bucket of it. "30 ms" puts a
    proxy in front that holds every request back for so long.
    """
    from devtools.proxy import proxy_process
    from devtools.servers import s3_server

    os.environ.update(KEYS)
    folder = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    with ExitStack() as open_now:
        open_now.callback(shutil.rmtree, folder, ignore_errors=True)
        url = open_now.enter_context(s3_server(os.path.dirname(data.folder), etags=False))
        if "30 ms" in case.name:
            url = open_now.enter_context(proxy_process(url, latency=0.03))
        os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"] = url
        batching = Batching(case.size, case.workers, case.shuffled)
        begin = system.remote(data, batching, variant, url, os.path.join(folder, "cache"))
        # All of torch's objects are looked through in 150 ms, now and not by luck in one system.
        gc.collect()
        started = time.perf_counter()
        first, samples = 0.0, 0
        for batch in begin():
            first = first or time.perf_counter() - started
            found = batch["tokens"] if isinstance(batch, dict) else batch
            samples += len(found)
        took = time.perf_counter() - started
        if samples < data.count - case.size * case.workers:
            raise RuntimeError(f"the epoch had {samples} samples instead of {data.count}")
        return {"value": took, "first": first}


def _case(name: str, bar: Bar) -> Case:
    return Case(name, "tokens", bar, size=32, workers=2, shuffled=True)


QUESTION = Question(
    name="cold",
    title="A cold epoch from S3",
    unit="s",
    cases=(
        _case("loopback, 0 ms", Bar(of_limit=1.1)),
        _case("loopback, 30 ms", Bar(of_limit=1.1)),
    ),
    measure=measure,
    more_is_better=False,
    note=(
        "Shards at the default of 64 MB. The limit is a plain download of the same objects by two "
        "processes of eight threads; it makes no samples. More in the study below."
    ),
)
