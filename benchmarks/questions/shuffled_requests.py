"""What does an epoch cost that is fully shuffled and has room for a quarter of the data?"""

from __future__ import annotations

import gc
import os
import resource
import shutil
import tempfile
from typing import Any

from benchmarks.questions.base import Case, Question
from benchmarks.questions.cold import KEYS
from benchmarks.suite.workloads import WORKLOADS
from benchmarks.systems.base import Data, System
from benchmarks.systems.mds import worker_type

_MOST = 16_384  # samples; the beginning of an epoch is like the rest of it
_SHARD = 4 << 20
_BUCKET = "shards-of-4-mb"


def measure(
    system: System, data: Data, case: Case, variant: str, seconds: float
) -> dict[str, float]:
    """Microseconds of CPU a sample: of this process and of its workers, which end before."""
    from devtools.servers import s3_server

    os.environ.update(KEYS)
    place = os.path.dirname(data.folder)
    _write(case.workload, data.count, os.path.join(place, _BUCKET))
    size = sum(each.stat().st_size for each in os.scandir(os.path.join(place, _BUCKET)))
    cache = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        with s3_server(place, etags=False) as url:
            os.environ["S3_ENDPOINT_URL"] = url
            loader = _loader(case, variant, cache, size // 4)  # imports and the index are over
            before = _cpu()
            samples = _read(loader, min(_MOST, data.count))
            del loader
            gc.collect()  # workers end with the iterator, and only then they are counted
            return {"value": (_cpu() - before) / samples * 1e6}
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def _write(workload: str, count: int, folder: str) -> None:
    from mds import MDSWriter

    if os.path.exists(os.path.join(folder, "index.json")):
        return
    kind = WORKLOADS[workload]
    with MDSWriter(columns=kind.columns, out=folder, size_limit=_SHARD, exist_ok=True) as writer:
        for sample in kind.samples(count, None):
            writer.write(sample)


def _loader(case: Case, variant: str, cache: str, limit: int) -> Any:
    from mds import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        remote=f"s3://{_BUCKET}",
        local=cache,
        shuffle=case.shuffled,
        shuffle_algo="py1s",
        batch_size=case.size,
        cache_limit=limit,
    )
    return StreamingDataLoader(
        dataset, batch_size=case.size, num_workers=case.workers, **worker_type(variant)
    )


def _read(batches: Any, max_samples: int) -> int:
    samples = 0
    for batch in batches:
        samples += len(batch["tokens"])
        if samples >= max_samples:
            break
    return samples


def _cpu() -> float:
    """Return the processor time of this process and its ended children, so without the server's."""
    used = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


QUESTION = Question(
    name="shuffled_requests",
    title="Full shuffle from S3 with a cache for 25 %, CPU of the client a sample",
    heading="What does a full shuffle from S3 cost with a cache for 25 % of the data?",
    unit="µs/sample",
    cases=(Case("tokens", "tokens", size=32, workers=2, shuffled=True),),
    measure=measure,
    more_is_better=False,
    note=(
        "Two workers read a shuffled epoch from an S3 server on the same machine. Only the "
        "client's processor time counts, including the start of workers but not imports. Shards "
        'have 4 MB, uncompressed. With `shuffle_algo="py1s"`, an epoch reads up to 64 shards at '
        "once, more than the cache holds. So mds fetches most samples without their shard, with "
        "ranged requests."
    ),
)
