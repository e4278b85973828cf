"""Samples lost or read twice where shuffled runs of several libraries resume on other ranks.

    python benchmarks/peers/resume.py    # in a Python that has this library and the others

    pip install mosaicml-streaming       # its numpy is too old for some of the others, so in a
    pip install litdata datasets grain lancedb    # Python of its own

Each run reads 6,000 samples on two ranks, which are processes with the variables of torchrun, in
global batches of 16. It is stopped after 20 steps and resumed from its states up to the end of the
epoch, on two ranks and on four. At last its states are loaded for other data, of 3,000 samples, of
which one batch is read: `other_data` is "accepted", or the error. A library that is not installed
is left out, with a line that says so. No rank makes a process group; `made_group` says whether the
library made one.

    mds, mosaicml-streaming, litdata    the state of rank 0, on all ranks
    grain                               ElasticIterator, the state of rank 0, on all ranks
    lancedb                             `StreamingDataset.merge_state_dicts` of all states
    datasets                            `split_dataset_by_node`, the state of each rank on the same
                                        rank; its documentation names no way to another number
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

COUNT, BATCH, STEPS = 6000, 16, 20
Run = tuple[Iterator[Any], Callable[[], Any]]  # batches of numbers, and what takes the state


def main() -> None:
    """Print a line for each library and number of ranks."""
    for package in SYSTEMS:
        try:
            version = "" if package == "mds" else importlib.metadata.version(package)
            with tempfile.TemporaryDirectory() as root:
                folders = [os.path.join(root, name) for name in ("data", "other")]
                for folder, count in zip(folders, (COUNT, COUNT // 2), strict=True):
                    os.mkdir(folder)
                    SYSTEMS[package][0](folder, count)
                measure(f"{package} {version}".strip(), package, *folders)
        except ImportError as error:
            tell(name=package, missing=str(error))


def measure(name: str, package: str, folder: str, other_folder: str) -> None:
    """Stop on two ranks, resume on two and four, and count the samples that all ranks saw."""
    first = start_ranks(package, folder, 2, None, STEPS)
    states = os.path.join(folder, "states.pickle")
    with open(states, "wb") as file:
        pickle.dump([rank["state"] for rank in first], file)
    for ranks in (2, 4):
        rest = start_ranks(package, folder, ranks, states, None)
        errors = [rank["error"] for rank in rest if "error" in rank]
        if errors:
            tell(name=name, resumed_on=ranks, refused=errors[0])
            continue
        counts = Counter(number for rank in first + rest for number in rank["numbers"])
        twice = sum(count > 1 for count in counts.values())
        lost, made_group = COUNT - len(counts), any(rank["made_group"] for rank in first + rest)
        tell(name=name, resumed_on=ranks, lost=lost, twice=twice, made_group=made_group)
    errors = [rank.get("error") for rank in start_ranks(package, other_folder, 2, states, 1)]
    tell(name=name, other_data=next(filter(None, errors), "accepted"))


def start_ranks(
    package: str, folder: str, ranks: int, states: str | None, steps: int | None
) -> list[dict[str, Any]]:
    """Run all ranks side by side, and return what each of them saw."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes, results = [], []
    for rank in range(ranks):
        result = os.path.join(folder, f"result-{rank}.pickle")
        job = {"package": package, "folder": folder, "states": states, "steps": steps}
        environment = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        command = [sys.executable, __file__, json.dumps(job), result]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        results.append(result)
    for process in processes:
        if process.wait(timeout=600):
            raise SystemExit(f"a rank of {package} failed")
    loaded = []
    for result in results:
        with open(result, "rb") as file:
            loaded.append(pickle.load(file))
    return loaded


def be_rank(job: dict[str, Any], result: str) -> None:
    """Read batches as one rank, and write what was seen."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    states = None
    if job["states"]:
        with open(job["states"], "rb") as file:
            states = pickle.load(file)
    seen: list[int] = []
    outcome: dict[str, Any] = {"numbers": seen, "made_group": False}
    make_group = torch.distributed.init_process_group

    def record_and_make(*args: Any, **options: Any) -> Any:
        outcome["made_group"] = True
        return make_group(*args, **options)

    torch.distributed.init_process_group = record_and_make
    try:
        batches, state = SYSTEMS[job["package"]][1](job["folder"], rank, ranks, states)
        for step, batch in enumerate(batches, 1):
            seen += [int(number) for number in batch]
            if step == job["steps"]:
                outcome["state"] = state()
                break
    except Exception as error:  # noqa: BLE001 - libraries refuse a state by errors of any type
        outcome["error"] = f"{type(error).__name__}: {str(error)[:160]}"
    with open(result, "wb") as file:
        pickle.dump(outcome, file)
    sys.stdout.flush()
    os._exit(0)  # some libraries leave threads that keep a process from ending


def write_mds(folder: str, count: int) -> None:
    """Write shards of 500 samples by this library."""
    from mds import MDSWriter

    with MDSWriter(out=f"{folder}/data", columns={"number": "int"}, size_limit=8000) as writer:
        for number in range(count):
            writer.write({"number": number})


def mds(folder: str, rank: int, ranks: int, states: list[Any] | None) -> Run:
    """This library, which finds its rank by the variables of torchrun."""
    from mds import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(local=f"{folder}/data", shuffle=True, batch_size=BATCH // ranks)
    loader = StreamingDataLoader(dataset, num_workers=0)
    if states is not None:
        loader.load_state_dict(states[0])
    return (batch["number"].tolist() for batch in loader), loader.state_dict


def write_streaming(folder: str, count: int) -> None:
    """Write shards of 500 samples by mosaicml-streaming."""
    from streaming import MDSWriter

    with MDSWriter(out=f"{folder}/data", columns={"number": "int"}, size_limit=8000) as writer:
        for number in range(count):
            writer.write({"number": number})


def streaming(folder: str, rank: int, ranks: int, states: list[Any] | None) -> Run:
    """mosaicml-streaming, with the same canonical nodes before and after."""
    from streaming import StreamingDataLoader, StreamingDataset

    size = BATCH // ranks
    dataset = StreamingDataset(local=f"{folder}/data", shuffle=True, batch_size=size)
    loader = StreamingDataLoader(dataset, batch_size=size, num_workers=0)
    if states is not None:
        loader.load_state_dict(states[0])
    return (batch["number"].tolist() for batch in loader), loader.state_dict


def write_litdata(folder: str, count: int) -> None:
    """Write chunks of 500 samples by litdata."""
    import litdata

    litdata.optimize(
        fn=_keep, inputs=[*range(count)], output_dir=f"{folder}/data", chunk_size=500,
        num_workers=1, verbose=False,
    )  # fmt: skip


def _keep(number: int) -> int:
    return number


def litdata(folder: str, rank: int, ranks: int, states: list[Any] | None) -> Run:
    """litdata, which finds its rank by WORLD_SIZE and GLOBAL_RANK, or by a process group."""
    from litdata import StreamingDataLoader, StreamingDataset

    os.environ["GLOBAL_RANK"] = str(rank)  # torchrun sets RANK alone
    dataset = StreamingDataset(f"{folder}/data", shuffle=True, seed=1, drop_last=True)
    loader = StreamingDataLoader(dataset, batch_size=BATCH // ranks, num_workers=0)
    if states is not None:
        loader.load_state_dict(states[0])
    return (batch.tolist() for batch in loader), loader.state_dict


def write_parquet(folder: str, count: int) -> None:
    """Write 16 Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for number, numbers in enumerate(np.array_split(np.arange(count), 16)):
        pq.write_table(pa.table({"number": numbers}), f"{folder}/{number:02}.parquet")


def datasets(folder: str, rank: int, ranks: int, states: list[Any] | None) -> Run:
    """An IterableDataset of Hugging Face, whose shards are shuffled."""
    from datasets import load_dataset
    from datasets.distributed import split_dataset_by_node

    files = [f"{folder}/{number:02}.parquet" for number in range(16)]
    dataset = load_dataset("parquet", data_files=files, split="train", streaming=True)
    dataset = dataset.shuffle(seed=1, buffer_size=1)
    dataset = split_dataset_by_node(dataset, rank, ranks).batch(BATCH // ranks)
    if states is not None:
        dataset.load_state_dict(states[rank % len(states)])
    return (batch["number"] for batch in dataset), dataset.state_dict


def write_numbers(folder: str, count: int) -> None:
    """Write an array of numbers, which is a source with random access."""
    import grain  # noqa: F401 - to know that it is installed

    np.save(f"{folder}/numbers.npy", np.arange(count))


def grain(folder: str, rank: int, ranks: int, states: list[Any] | None) -> Run:
    """ElasticIterator over a dataset with random access."""
    from grain import MapDataset, sharding
    from grain.experimental import ElasticIterator

    order = MapDataset.source(np.load(f"{folder}/numbers.npy")).seed(1).shuffle()
    shard = sharding.ShardOptions(shard_index=rank, shard_count=ranks)
    iterator = iter(ElasticIterator(order, BATCH, shard))
    if states is not None:
        iterator.set_state(states[0])
    return iterator, iterator.get_state


def write_lancedb(folder: str, count: int) -> None:
    """Write a table."""
    import lancedb
    import pyarrow as pa

    lancedb.connect(folder).create_table("data", pa.table({"number": np.arange(count)}))


def lancedb(folder: str, rank: int, ranks: int, states: list[Any] | None) -> Run:
    """LanceDB's StreamingDataset with four splits."""
    import lancedb
    from lancedb.streaming import StreamingDataLoader, StreamingDataset

    table = lancedb.connect(folder).open_table("data")
    dataset = StreamingDataset(table, num_splits=4, shuffle_seed=1, rank=rank, world_size=ranks)
    if states is not None:
        dataset.load_state_dict(StreamingDataset.merge_state_dicts(states))
    loader = StreamingDataLoader(dataset, batch_size=BATCH // ranks)
    return (batch["number"].tolist() for batch in loader), dataset.state_dict


def tell(**result: Any) -> None:
    """Print a result."""
    print(json.dumps(result), flush=True)


SYSTEMS: dict[str, tuple[Callable[[str, int], None], Callable[..., Run]]] = {
    "mds": (write_mds, mds),
    "mosaicml-streaming": (write_streaming, streaming),
    "litdata": (write_litdata, litdata),
    "datasets": (write_parquet, datasets),
    "grain": (write_numbers, grain),
    "lancedb": (write_lancedb, lancedb),
}

if __name__ == "__main__":
    if len(sys.argv) == 3:
        be_rank(json.loads(sys.argv[1]), sys.argv[2])
    main()
