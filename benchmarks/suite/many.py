"""Data sets of very many shards at the price of one: every shard is a link to the same file."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np


def many_shards(place: str, shards: int, samples: int) -> str:
    """The folder of a data set of ``shards`` shards of ``samples`` int32 each; made once."""
    from mds import MDSWriter

    folder = os.path.join(place, f"many-{shards}-{samples}")
    if os.path.exists(folder):
        return folder
    draft = f"{folder}.draft-{os.getpid()}"
    with MDSWriter(columns={"x": "int32"}, out=draft, hashes=["xxh64"], size_limit=None) as writer:
        for number in range(samples):
            writer.write({"x": np.int32(number)})
    with open(os.path.join(draft, "index.json")) as file:
        (shard,) = json.load(file)["shards"]
    first = os.path.join(draft, shard["raw_data"]["basename"])
    entries = []
    for number in range(shards):
        name = f"shard.{number:05d}.mds"
        if number:
            os.link(first, os.path.join(draft, name))
        entries.append({**shard, "raw_data": {**shard["raw_data"], "basename": name}})
    # Systems read their own bytes from the index, and all of them name a size limit.
    for entry in entries:
        entry["size_limit"] = 1 << 26
    with open(os.path.join(draft, "index.json"), "w") as file:
        json.dump({"shards": entries, "version": 2}, file, sort_keys=True)
    try:
        os.rename(draft, folder)
    except OSError:  # another process was first
        shutil.rmtree(draft)
    return folder


def in_own_cache(data_folder: str, name: str) -> str:
    """Use an empty folder beside the data for caches of this process and its children."""
    cache = os.path.join(data_folder, "..", f"cache-{name.replace(' ', '-')}-{os.getpid()}")
    cache = os.path.abspath(cache)
    shutil.rmtree(cache, ignore_errors=True)
    os.environ["MDS_CACHE_DIR"] = cache
    return cache


def in_a_process_before(act: object) -> None:
    """Call ``act`` in a process that ends, so that what it leaves on the disk is there."""
    pid = os.fork()
    if not pid:
        act()  # type: ignore[operator]
        os._exit(0)
    os.waitpid(pid, 0)
