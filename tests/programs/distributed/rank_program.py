"""One rank of a run: trains on batches, writes down their ids, saves positions, dies when told.

It is forked by `launcher.py`, or started by torchrun as ``rank_program.py CONFIG``. The config:

    streams       arguments of each Stream; ``{node}`` in a local folder is the node's number
    dataset       arguments of StreamingDataset
    workers       workers of the loader
    kind          "plain": torch's own DataLoader, counting samples as trainers do; otherwise what
                  StreamingDataLoader calls its workers: "processes" or "threads"
    state         the position to begin from, or null; the same for all ranks
    checkpoint    file of the position, written every ``save_every`` batches
    log           folder of one file a rank, one line a batch
    stop          batches after which to leave; none: at the end of the epoch
    epochs        epochs to train, with ``stop`` none
    kill          {"rank", "batch", "where"}: the victim, when, and "rank", "worker" or "saving"
"""

from __future__ import annotations

import json
import os
import signal
import sys

from torch.utils.data import DataLoader

from mds import Stream, StreamingDataLoader, StreamingDataset


def main(config):
    rank, node = int(os.environ["RANK"]), int(os.environ["GROUP_RANK"])
    streams = [
        Stream(**{**stream, "local": stream["local"].format(node=node)})
        for stream in config["streams"]
    ]
    dataset = StreamingDataset(streams=streams, **config["dataset"])
    settings = {"batch_size": dataset.batch_size, "num_workers": config["workers"]}
    if config["kind"] == "plain":
        loader = DataLoader(dataset, **settings)
    else:
        kind = config["kind"] if config["workers"] else "auto"  # there may be no workers
        loader = StreamingDataLoader(dataset, worker_type=kind, **settings)
    position = Position(dataset, loader, config)
    with open(os.path.join(config["log"], str(rank)), "a", buffering=1) as log:
        for _ in range(config["epochs"]):
            train(loader, position, config, rank, log)


def train(loader, position, config, rank, log):
    position.yielded = 0
    batches = iter(loader)
    for number, batch in enumerate(batches, 1):
        ids = batch["id"].tolist()
        position.yielded += len(ids)
        made = None if position.plain else str(loader.order_hash)
        log.write(f"{json.dumps([ids, made])}\n")
        kill = config["kill"]
        if kill and (kill["rank"], kill["batch"]) == (rank, number):
            die(kill["where"], batches, position)
        if rank == 0 and number % config["save_every"] == 0:
            position.save()
        if number == config["stop"]:
            if rank == 0:
                position.save()
            return
    log.write('"end"\n')
    if rank == 0:
        position.save()


class Position:
    """The position of the run in its file, which always holds a whole one."""

    def __init__(self, dataset, loader, config):
        self.dataset, self.loader = dataset, loader
        self.path, self.plain = config["checkpoint"], config["kind"] == "plain"
        self.yielded = 0
        if config["state"] is not None:
            target = dataset if self.plain else loader
            target.load_state_dict(config["state"])

    def save(self, *, dies=False):
        if self.plain:
            count = self.yielded * int(os.environ["WORLD_SIZE"])
            state = self.dataset.state_dict(count, False)
        else:
            state = self.loader.state_dict()
        with open(f"{self.path}.next", "w") as file:
            file.write(json.dumps(state)[: 20 if dies else None])
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        os.replace(f"{self.path}.next", self.path)


def die(where, batches, position):
    """Be killed -9: between two batches, by way of a worker, or in the middle of saving."""
    if where == "saving":
        position.save(dies=True)
    workers = getattr(batches, "_workers", None)
    if where == "worker" and workers:
        os.kill(workers[0].pid, signal.SIGKILL)
        return  # the loader notices and raises
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        main(json.load(file))
