"""Batches as messages: what comes out is what went in, few messages, and none of them late."""

import dataclasses
import pickle
from typing import NamedTuple

import numpy as np
import pytest
import torch

from mds._iteration.rows import BatchInfo
from mds._loader.batch_codec import decode, encode
from mds._loader.messages import BatchIterator, BatchList
from mds._loader.segments import SegmentFile, SegmentPool, SegmentReader
from mds._loader.worker_batches import MessageSender
from tests.unit.loader.worker_batches_helpers import Clock, sent


class Pair(NamedTuple):
    """Two of anything."""

    x: object
    y: object


@dataclasses.dataclass
class Record:
    """What a collate function may make."""

    ids: torch.Tensor
    texts: list
    more: dict


def across(value):
    encoded = encode(value)
    memory = np.zeros(encoded.size + 64, np.uint8)
    assert encoded.write(memoryview(memory), 64) == len(memory)
    found, end = decode(memory, 64, encoded.layout)
    assert end == len(memory)
    return found


TENSORS = {
    "matrix": torch.arange(12).view(3, 4),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    "uint16": torch.tensor([1, 65535], dtype=torch.uint16),
    "bool": torch.tensor([True, False]),
    "bfloat16": torch.rand(3, 3).bfloat16(),
    "complex": torch.rand(4, dtype=torch.complex64),
    "transposed": torch.arange(12).view(3, 4).t(),
    "channels last": torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "every second": torch.arange(12)[::2],
    "part of a row": torch.arange(24).view(4, 6)[:, 1:3],
    "asks for a gradient": torch.ones(3, requires_grad=True),
    "conjugate": torch.rand(3, dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_cross(name):
    """With dtype, shape and values, as memory that can be written to."""
    tensor = TENSORS[name]
    found = across({"x": [tensor]})["x"][0]
    assert found.dtype == tensor.dtype
    assert found.requires_grad == tensor.requires_grad
    assert torch.equal(found, tensor)
    if not found.requires_grad:
        found.zero_()


def test_an_expanded_tensor_stays_small():
    """A mask for a thousand rows is one row, there as here; channels last stays what it was."""
    mask = torch.rand(1, 4096).expand(1000, 4096)
    encoded = encode(mask)
    assert encoded.size < 20_000
    assert across(mask).stride() == (0, 1)
    images = TENSORS["channels last"]
    assert across(images).is_contiguous(memory_format=torch.channels_last)


def test_what_a_view_does_not_show_stays_behind():
    """Ten rows of a large tensor take the bytes of ten rows."""
    large = torch.zeros(100_000, 100, dtype=torch.uint8)
    assert encode(large[500:510]).size < 2000
    assert across(large[500:510]).untyped_storage().nbytes() == 1000


def test_views_of_one_tensor_are_that_there_too():
    """Inputs and labels of a language model share their memory, which is copied once."""
    tokens = torch.arange(4096).view(4, 1024)
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    value = {"inputs": inputs, "labels": labels, "tokens": tokens, "apart": torch.ones(3)}
    value["none"] = torch.ones(0, 2)
    assert encode(value).size < tokens.nbytes + 1000
    found = across(value)
    assert all(torch.equal(found[name], value[name]) for name in value)
    found["labels"][0, 0] = -100
    assert found["inputs"][0, 1] == found["tokens"][0, 1] == -100
    assert tokens[0, 1] == 1


ARRAYS = {
    "matrix": np.arange(12.0).reshape(3, 4),
    "read-only": np.frombuffer(b"abcd", np.uint8),
    "transposed": np.arange(12).reshape(3, 4).T,
    "cut": np.arange(24).reshape(4, 6)[:, 1:3],
    "scalar": np.array(5),
    "empty": np.zeros((0, 4)),
    "dates": np.array(["2020-01-01", "2021-01-01"], "M8[D]"),
    "texts": np.array(["a", "bcd"]),
    "records": np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
    "big-endian": np.arange(3, dtype=">i4"),
    "objects": np.array([None, "x"], object),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_cross(name):
    """With dtype, shape and values, as memory that can be written to."""
    found = across([ARRAYS[name]])[0]
    assert found.dtype == ARRAYS[name].dtype
    assert np.array_equal(found, ARRAYS[name])
    assert found.flags.writeable


def test_any_nesting_crosses():
    """Dicts, lists, tuples, named tuples and dataclasses, and what lies between the tensors."""
    ids = torch.arange(3)
    value = Record(ids, ["a", "é", b"\0"], {"p": Pair(ids, (1.5, None)), 7: [np.float32(2)]})
    found = across(value)
    assert type(found) is Record
    assert found.texts == value.texts
    assert type(found.more["p"]) is Pair
    assert found.more["p"].y == (1.5, None)
    assert found.more[7] == [np.float32(2)]
    assert found.ids is found.more["p"].x  # one tensor is one tensor there too
    assert torch.equal(found.ids, ids)


def test_a_batch_that_is_larger_than_the_others_fits():
    """Or begins a message of its own."""
    sizes = [10, 10, 10, 5000, 10, 100_000, 10, 10, 20, 0]
    batches = ((BatchInfo(1, (0, 0)), {"x": torch.ones(size)}) for size in sizes)
    with SegmentFile() as file:
        reader = SegmentReader(file)
        sender = MessageSender(3, SegmentPool(file), Clock([0.0]))
        found = [pickle.loads(pickle.dumps(m)) for m in sender.send(batches)]
        assert [len(b["x"]) for m in found for _, b in m.batches()] == sizes
        assert {m.worker for m in found} == {3}
        assert all(bool((b["x"] == 1).all()) for m in found for _, b in m.batches())
        assert "0 of 0" not in repr(reader)


def test_without_shared_memory_batches_go_with_the_message():
    """They are the same, and can be written to."""
    messages, batches = sent(10)
    assert batches == [*range(10)]
    messages[0].items[0][1].zero_()


def failing():
    yield BatchInfo(1, (0, 0)), torch.ones(2)
    yield BatchInfo(1, (0, 0)), torch.ones(2)
    raise ValueError("the third is bad")


def unpicklable():
    yield BatchInfo(1, (0, 0)), torch.ones(2)
    yield BatchInfo(1, (0, 0)), torch.ones(2)
    yield BatchInfo(1, (0, 0)), (lambda: 0)


def through_a_queue(batches):
    messages = MessageSender(0, None, Clock([0.0])).send(batches)
    return [pickle.loads(pickle.dumps(m)) for m in messages]


@pytest.mark.parametrize("make", [failing, unpicklable])
def test_what_was_made_before_an_error_comes_before_it(make):
    """Also where a batch cannot be pickled; then there is no more."""
    iterator = BatchIterator(through_a_queue(make()), 1)
    assert len([next(iterator), next(iterator)]) == 2
    with pytest.raises(Exception, match=r"the third is bad|pickle"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_an_error_waits_for_its_turn():
    """What other workers made for earlier steps comes first, however messages are dealt out."""
    info = BatchInfo(1, (0, 1))
    good = [
        BatchList(1, [(info, 10), (info, 11), (info, 12)]),
        BatchList(1, []),
    ]
    iterator = BatchIterator([*through_a_queue(failing()), *good], 2)
    found = [next(iterator)[1] for _ in range(4)]
    assert found[1::2] == [10, 11]
    with pytest.raises(ValueError, match="the third is bad"):
        next(iterator)
