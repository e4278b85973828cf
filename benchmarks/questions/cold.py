"""How long does the first epoch take when nothing is there yet and the data are in S3?"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from contextlib import ExitStack

from benchmarks.questions.base import Bar, Case, Question
from benchmarks.suite.workloads import WORKLOADS
from benchmarks.systems.base import Batching, Data, System, collate_samples

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
    proxy in front that holds every request back for so long. A byte of each page is read.
    """
    import torch

    from devtools.proxy import proxy_process
    from devtools.servers import s3_server

    os.environ.update(KEYS)
    folder = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    with ExitStack() as open_now:
        open_now.callback(shutil.rmtree, folder, ignore_errors=True)
        served = os.path.dirname(data.folder)
        if "8 MB" in case.name:
            served = _in_shards(served, 8 << 20)
        url = open_now.enter_context(s3_server(served, etags=False))
        if "30 ms" in case.name:
            url = open_now.enter_context(proxy_process(url, latency=0.03))
        os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"] = url
        batching = Batching(case.size, case.workers, case.shuffled)
        collate = collate_samples if "own collate" in case.name else None
        begin = system.remote(data, batching, variant, url, os.path.join(folder, "cache"), collate)
        # All of torch's objects are looked through in 150 ms, now and not by luck in one system.
        gc.collect()
        started = time.perf_counter()
        first, samples = 0.0, 0
        for batch in begin():
            first = first or time.perf_counter() - started
            tokens = batch["tokens"] if isinstance(batch, dict) else batch
            samples += len(tokens)
            if isinstance(tokens, torch.Tensor):
                int(tokens.view(-1).view(torch.uint8)[::4096].sum())
        took = time.perf_counter() - started
        if samples < data.count - case.size * case.workers:
            raise RuntimeError(f"the epoch had {samples} samples instead of {data.count}")
        return {"value": took, "first": first}


def _in_shards(place: str, size: int) -> str:
    """A folder with the dataset of ``place`` in shards of ``size`` bytes, made the first time."""
    from mds import MDSWriter, StreamingDataset

    served = os.path.join(place, f"shards-{size}")
    if not os.path.exists(os.path.join(served, "mds", "index.json")):
        dataset = StreamingDataset(local=os.path.join(place, "mds"))
        out = os.path.join(served, "mds")
        shutil.rmtree(out, ignore_errors=True)
        columns = WORKLOADS["tokens"].columns
        with MDSWriter(columns=columns, out=out, size_limit=size) as writer:
            for sample in dataset:
                writer.write(sample)
    return served


def _case(name: str, bar: Bar, *only: str) -> Case:
    ours = "8 MB" in name  # the others' data are not written so
    return Case(name, "tokens", bar, size=32, workers=2, shuffled=True, only=only, ours=ours)


QUESTION = Question(
    name="cold",
    title="A cold epoch from S3",
    heading="How long does a cold epoch from S3 take?",
    unit="s",
    cases=(
        _case("loopback, 0 ms", Bar(of_limit=1.1)),
        _case("loopback, 30 ms", Bar(of_limit=1.1)),
        _case("loopback, shards of 8 MB", Bar(of_limit=1.25)),
        _case("loopback, own collate", Bar(of_limit=1.8), "processes"),
        _case("loopback, shards of 8 MB, own collate", Bar(of_limit=1.8), "processes"),
    ),
    measure=measure,
    more_is_better=False,
    note=(
        "Two workers read a shuffled epoch from an S3 server on the same machine ('loopback') "
        "into an empty cache. The clock includes opening the dataset. '30 ms' is a latency added "
        "to each request (else none), and shards have 64 MB unless the row names 8 MB. In the rows "
        "'own collate', which have only the bar of that name, processes make batches as in "
        "`collate`. The limit downloads the same objects in two processes of eight threads, and "
        "makes no samples."
    ),
)
