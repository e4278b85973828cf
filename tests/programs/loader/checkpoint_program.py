"""Run ranks that save a loader with torch.distributed.checkpoint, or go on from what it saved.

The argument is JSON: ``folder`` of the streams, ``case`` of `CASES`, ``ranks``, ``checkpoint`` (a
folder), ``save`` ("sync", "async", or None to load) and ``out``, a folder for one file a rank: the
documents of each batch after the checkpoint, sorted.
"""

import json
import os
import sys
import traceback

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from mds import Packing, Schedule, StreamingDataLoader, StreamingDataset

GLOBAL_BATCH = 24
SAVED_STEP = 5
SCHEDULE = Schedule({0: {"web": 0.75, "code": 0.25}, 8: {"web": 0.25, "code": 0.75}})
PACKING = Packing(64, window=48)
CASES = {
    "samples": {},
    "drop": {},
    "schedule": {"schedule": SCHEDULE},
    "packs": {"packing": PACKING},
    "packed schedule": {"packing": PACKING, "schedule": SCHEDULE},
}


def make_loader(config):
    """A loader of this rank, of which no state was loaded."""
    dataset = StreamingDataset(
        {name: os.path.join(config["folder"], name) for name in ("web", "code")},
        batch_size=GLOBAL_BATCH // config["ranks"],
        shuffle=True,
        num_canonical_nodes=4,
        **CASES[config["case"]],
    )
    return StreamingDataLoader(dataset, num_workers=2, worker_type="threads")


def edit(loader, case):
    """Change the order as a training would, before the step that is saved."""
    if case != "samples":
        loader.dataset.edits.replace_samples([3, 150, 222], reason="noise")
        loader.dataset.edits.skip_steps(range(9, 11))
    if "schedule" in case:
        loader.dataset.edits.set_weights({"web": 0.5, "code": 0.5}, at_step=12)


def documents(batch):
    """Numbers of the documents of a batch, sorted. Padding is 0."""
    tokens = batch["tokens"]  # a list of documents without packs
    tokens = np.concatenate(tokens) if isinstance(tokens, list) else tokens
    return [number for number in np.unique(tokens).tolist() if number]


def run_rank(config, rank):
    """Save the loader after some steps, or load it, and write what comes then."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{config['out']}/store",
        rank=rank,
        world_size=config["ranks"],
    )
    loader = make_loader(config)
    # A model is saved beside the loader, as in a training.
    state = {"model": {"weight": torch.full((4,), float(rank))}, "loader": loader}
    if config["save"]:
        batches = iter(loader)
        for step in range(SAVED_STEP):
            next(batches)
            if step == 2:
                edit(loader, config["case"])
        if config["save"] == "sync":
            dcp.save(state, checkpoint_id=config["checkpoint"])
        else:
            saving = dcp.async_save(state, checkpoint_id=config["checkpoint"])
            after = documents(next(batches))  # the training goes on meanwhile
            saving.result()
    else:
        dcp.load(state, checkpoint_id=config["checkpoint"])
        batches = iter(loader)
    rest = [documents(batch) for batch in batches]
    if config["save"] == "async":
        rest.insert(0, after)
    with open(os.path.join(config["out"], f"{rank}.json"), "w") as file:
        json.dump(rest, file)
    dist.barrier()
    dist.destroy_process_group()


def main():
    """Fork a process for each rank, and wait for all of them."""
    config = json.loads(sys.argv[1])
    ranks = []
    for rank in range(config["ranks"]):
        pid = os.fork()
        if not pid:
            os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
            os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = str(config["ranks"])
            try:
                run_rank(config, rank)
            except BaseException:  # noqa: BLE001 - a child must not run on as its parent
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        ranks.append(pid)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks))


if __name__ == "__main__":
    main()
