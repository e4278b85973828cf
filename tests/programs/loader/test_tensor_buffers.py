"""Memory of batches: used again when it is free, and never a moment earlier."""

import gc

import numpy as np
import pytest
import torch

from mds._iteration.rows import TensorPool
from tests.unit.loader.tensor_buffers_helpers import BYTES, LARGE


@pytest.mark.parametrize(
    "view",
    [
        lambda tensor: tensor[10:],
        lambda tensor: tensor.numpy(),
        lambda tensor: np.asarray(tensor[5:])[1:],
        lambda tensor: tensor.view(512, -1)[3],
        lambda tensor: torch.from_dlpack(tensor[1:]),
        lambda tensor: memoryview(tensor.numpy())[7:],
        lambda tensor: {"x": [tensor.untyped_storage()]},
    ],
)
def test_whatever_looks_at_the_memory_keeps_it(view):
    """Views, arrays, buffers and storages are owners as the tensor is."""
    pool = TensorPool()
    tensor = pool(LARGE, BYTES)
    place = tensor.data_ptr()
    kept = view(tensor)
    del tensor
    gc.collect()
    others = [pool(LARGE, BYTES) for _ in range(3)]
    assert place not in {other.data_ptr() for other in others}
    del kept
    gc.collect()
    assert pool(LARGE, BYTES).data_ptr() == place
