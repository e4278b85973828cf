"""Many streams, datasets, shards and threads under each limit of the system alone."""

import pytest
from limits import run

from mds import MDSWriter

READ = """
import mds
from mds import StreamingDataLoader, StreamingDataset
folder, streams, datasets, workers = sys.argv[1:]
if __name__ == "__main__":
    kept = [
        StreamingDataset(
            streams=[mds.Stream(remote=folder, local=f"{folder}-{n}") for n in range(int(streams))],
            batch_size=100,
            shuffle=True,
        )
        for _ in range(int(datasets))
    ]
    seen = 0
    for dataset in kept:
        loader = StreamingDataLoader(dataset, num_workers=int(workers))
        seen += sum(len(batch["x"]) for batch in loader)
    print(seen)
"""

#: Shards, streams, datasets and worker threads; datasets share a folder.
SHAPES = {
    "streams": (1, 2000, 1, 2),
    "datasets": (1, 1, 100, 0),
    "shards": (3000, 1, 1, 2),
    "threads": (200, 5, 1, 64),
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("limit", [{"descriptors": 256}, {"memory": 3000}], ids=["files", "memory"])
def test_a_limit_alone_is_kept(tmp_path, shape, limit):
    """Every sample is read, at the first start and at the second one."""
    shards, streams, datasets, workers = SHAPES[shape]
    data = tmp_path / "data"
    with MDSWriter(out=str(data), columns={"x": "int"}, size_limit=150) as writer:
        for number in range(shards):
            writer.write({"x": number})
    total = streams * datasets * shards
    for _ in range(2):
        out = run(READ, data, streams, datasets, workers, **limit, timeout=1500)
        assert out == f"{total}\n"
