"""Trains a part of an epoch with either library: ``migrate_program.py LIBRARY CONFIG``, as a rank.

Nothing in here is of one library: it is what users of both write.
"""

import importlib
import json
import os
import sys

import torch


def main(library, config):
    streaming = importlib.import_module(library)
    rank = int(os.environ["RANK"])
    local = os.path.join(config["work"], f"{library}-{config['phase']}")
    streams = [
        streaming.Stream(remote=remote, local=os.path.join(local, str(i)), **share)
        for i, (remote, share) in enumerate(zip(config["streams"], config["mixture"], strict=True))
    ]
    dataset = streaming.StreamingDataset(streams=streams, **config["dataset"])
    loader = streaming.StreamingDataLoader(
        dataset, batch_size=dataset.batch_size, num_workers=config["workers"]
    )
    if config["state"] is not None:
        loader.load_state_dict(config["state"])
    batches = []
    for batch in loader:
        batches.append(batch["id"].tolist())
        if len(batches) == config["stop"]:
            break
    with open(os.path.join(config["work"], f"batches-{config['phase']}-{rank}"), "w") as file:
        json.dump(batches, file)
    if rank == 0:
        with open(os.path.join(config["work"], "state.json"), "w") as file:
            json.dump(loader.state_dict(), file)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    with open(sys.argv[2]) as file:
        main(sys.argv[1], json.load(file))
