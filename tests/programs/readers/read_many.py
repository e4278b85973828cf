"""Read a dataset of many shards under a limit of descriptors; a program of test_many_shards.py.

``python read_many.py HOW,HOW,... FOLDER [URL]`` prints what it saw as JSON, a line for each way.
"""

import json
import os
import random
import resource
import sys

DESCRIPTORS = 256
SEEN = {"descriptors": 0, "maps": 0}


def look():
    """Note how many descriptors and maps of files there are now."""
    from mds._process.mmaps import count_maps

    SEEN["descriptors"] = max(SEEN["descriptors"], len(os.listdir("/proc/self/fd")))
    SEEN["maps"] = max(SEEN["maps"], count_maps())


def batches(dataset, workers, kind):
    """The ids of a loader's batches."""
    from mds import StreamingDataLoader

    loader = StreamingDataLoader(dataset, batch_size=32, num_workers=workers, worker_type=kind)
    for batch in loader:
        yield from batch["id"].tolist()


def numbers(dataset):
    """The ids of all samples, by number, shuffled."""
    order = [*range(len(dataset))]
    random.Random(7).shuffle(order)
    for number in order:
        sample = dataset[number]
        assert sample["id"] == number
        yield number


def ids(how, folder, url):
    """The ids in the order in which they come."""
    from mds import LocalDataset, StreamingDataset

    if how == "local":
        yield from numbers(LocalDataset(folder))
        return
    options = {"shuffle": "py1e" in how or "naive" in how, "batch_size": 32}
    if "naive" in how:
        options["shuffle_algo"] = "naive"
    if "limit" in how:
        options["cache_limit"] = "40mb"
    dataset = StreamingDataset(remote=url, local=folder, **options)
    if "index" in how:
        yield from numbers(dataset)
    elif "threads" in how:
        yield from batches(dataset, 2, "threads")
    elif "processes" in how:
        yield from batches(dataset, 2, "processes")
    else:
        yield from (sample["id"] for sample in dataset)


def main():
    """Read everything in each way, and see that every sample came once."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    hows, folder, *url = sys.argv[1:]
    for how in hows.split(","):
        SEEN.update(descriptors=0, maps=0)
        found = []
        for number in ids(how, folder, *(url or [None])):
            found.append(number)
            if len(found) % 997 == 1:
                look()
        look()
        found.sort()
        is_whole = found == [*range(len(found))]
        print(json.dumps({**SEEN, "how": how, "samples": len(found), "is_whole": is_whole}))


if __name__ == "__main__":
    main()
