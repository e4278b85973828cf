"""Memory of batches: used again when it is free, and never a moment earlier."""

import threading

import numpy as np
import pytest

from mds._iteration.rows import TensorPool, allocate
from tests.unit.loader.tensor_buffers_helpers import BYTES, LARGE


@pytest.mark.parametrize("allocator", [allocate, TensorPool()])
@pytest.mark.parametrize("dtype", ["int64", "float32", "uint8", "bool", "uint16"])
@pytest.mark.parametrize("shape", [(3, 2, 5), (1 << 16, 2), (0,), (7,)])
def test_a_buffer_is_a_writable_tensor(allocator, dtype, shape):
    """Of the shape and dtype, in C order, filled through numpy."""
    tensor = allocator(shape, np.dtype(dtype))
    array = tensor.numpy()
    array[...] = 1
    assert array.dtype == dtype
    assert tensor.shape == shape
    assert tensor.is_contiguous()
    assert (tensor.numpy() == 1).all()


def test_memory_is_used_again_when_nobody_has_it_in_hand():
    """One block serves one tensor after the other."""
    pool = TensorPool()
    places = set()
    for _ in range(5):
        tensor = pool(LARGE, BYTES)
        places.add(tensor.data_ptr())
        del tensor
    assert len(places) == 1


def test_memory_comes_back_from_another_thread_and_after_its_maker():
    """Tensors outlive the pool that they are from."""
    pool = TensorPool()
    held = [pool(LARGE, BYTES)]
    place = held[0].data_ptr()
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    tensor = pool(LARGE, BYTES)
    assert tensor.data_ptr() == place
    del pool
    tensor.fill_(3)
    assert int(tensor.sum()) == 3 * len(tensor)


def test_only_a_few_blocks_wait():
    """What is not needed again goes back to the system."""
    pool = TensorPool()
    held = [pool(LARGE, BYTES) for _ in range(50)]
    held.clear()
    assert len(pool._free) <= 8
