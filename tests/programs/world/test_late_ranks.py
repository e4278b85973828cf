"""A dataset that is made before the process group finds its ranks, or says that it does not."""

import json

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from mds import MDSWriter

pytestmark = pytest.mark.slow


def train(rank, folder, is_native, workers):
    """Make a dataset, then the process group; write down what this rank read and was told."""
    import logging

    import mds
    import mds.compat.streaming  # noqa: F401 - so that `streaming` can be imported

    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("mds").addHandler(handler)
    if is_native:
        from mds import StreamingDataLoader, StreamingDataset
    else:
        from streaming import StreamingDataLoader, StreamingDataset
    dataset = StreamingDataset(local=f"{folder}/data", batch_size=2)
    assert dataset.size == 8
    if is_native:
        assert dataset.num_ranks == 1  # asked too early
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    loader = StreamingDataLoader(dataset, batch_size=2, num_workers=workers)
    ids = [number for _ in range(2) for batch in loader for number in batch["id"].tolist()]
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump({"ids": ids, "lines": lines}, file)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "door"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_before_its_process_group(tmp_path, is_native, workers):
    """It deals the samples out; through the door it reads all of them, as 0.13, and says so."""
    with MDSWriter(str(tmp_path / "data"), {"id": "int"}) as writer:
        for number in range(8):
            writer.write({"id": number})
    mp.spawn(train, (str(tmp_path), is_native, workers), nprocs=2)
    facts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    ids = sorted(number for fact in facts for number in fact["ids"])
    late = [line for fact in facts for line in fact["lines"] if "was initialized after" in line]
    if is_native:
        assert ids == sorted([*range(8)] * 2)
        assert not late
    else:
        assert ids == sorted([*range(8)] * 4)
        assert len(late) == 2  # one of each rank
