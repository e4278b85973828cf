"""On a machine with an accelerator: pinned batches, and CUDA that only the caller touches."""

import subprocess
import sys
import textwrap

import pytest
import torch

from mds import StreamingDataLoader, StreamingDataset

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device and a CUDA build of torch"
)


@needs_cuda
@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_batches_are_pinned_and_arrive_whole_on_the_device(make, workers):
    """Pinned by the loader, copied without waiting, equal to what is stored."""
    dataset = StreamingDataset(local=make(), batch_size=8, shuffle=True)
    loader = StreamingDataLoader(dataset, num_workers=2, worker_type=workers, pin_memory=True)
    seen = []
    for batch in loader:
        assert batch["vector"].is_pinned()
        vector = batch["vector"].to("cuda", non_blocking=True)
        ids = batch["id"].to("cuda", non_blocking=True)
        assert torch.equal(vector, ids[:, None].expand(-1, 4).float())
        seen += ids.tolist()
    assert sorted(seen) == list(range(100))
    assert loader.state_dict()["sample_in_epoch"] == 100


@needs_cuda
def test_nothing_touches_the_device_but_the_caller(make):
    """Making and iterating a dataset leaves CUDA uninitialised, and no process group behind."""
    code = f"""
        import torch
        from mds import StreamingDataLoader, StreamingDataset
        for workers in ("processes", "threads"):
            dataset = StreamingDataset(local={make()!r}, batch_size=8, shuffle=True)
            assert sum(len(b["id"]) for b in StreamingDataLoader(
                dataset, num_workers=2, worker_type=workers)) == 100
        assert not torch.cuda.is_initialized()
        assert not torch.distributed.is_initialized()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=600)
