"""A writer and readers of the token files of Megatron-LM."""

import itertools
import pathlib
import struct

import numpy as np

#: Bytes of the header of an index.
HEADER = 34
#: Type of a token by its code in an index.
DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}


def write(path, documents, code=8, modes=False):
    """Write documents, each a list of sequences, to ``path`` with ``.bin`` and ``.idx``."""
    dtype = np.dtype(DTYPES[code])
    sequences = [np.asarray(tokens, dtype) for document in documents for tokens in document]
    lengths = np.array([len(tokens) for tokens in sequences], "<i4")
    offsets = np.cumsum([0, *lengths[:-1]])[: len(lengths)].astype("<i8") * dtype.itemsize
    cuts = np.cumsum([0, *map(len, documents)]).astype("<i8")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sequences), len(cuts))
    with open(f"{path}.bin", "wb") as file:
        file.writelines(tokens.tobytes() for tokens in sequences)
    with open(f"{path}.idx", "wb") as file:
        file.writelines([head, lengths.tobytes(), offsets.tobytes(), cuts.tobytes()])
        file.write(bytes(len(sequences)) if modes else b"")


def random_documents(rng, code, most=12, is_empty=False):
    """Make documents of one to four sequences, some of which may have no tokens."""
    kind = np.dtype(DTYPES[code])
    tokens = rng.integers(0, 127, 4000).astype(kind)

    def sequence(least):
        start = rng.integers(0, 3900)
        return tokens[start : start + rng.integers(least, 90)]

    documents = [
        [sequence(1), *(sequence(0) for _ in range(rng.integers(0, 4)))]
        for _ in range(rng.integers(1, most))
    ]
    if is_empty:
        documents.insert(rng.integers(0, len(documents)), [])
    return documents


def read_by_numpy(path):
    """Read all documents with NumPy and the layout alone."""
    data = pathlib.Path(f"{path}.idx").read_bytes()
    code, count, cuts_count = struct.unpack_from("<BQQ", data, 17)
    lengths = np.frombuffer(data, "<i4", count, HEADER)
    offsets = np.frombuffer(data, "<i8", count, HEADER + 4 * count)
    cuts = np.frombuffer(data, "<i8", cuts_count, HEADER + 12 * count)
    body, dtype = pathlib.Path(f"{path}.bin").read_bytes(), DTYPES[code]
    sequences = [np.frombuffer(body, dtype, n, at) for n, at in zip(lengths, offsets, strict=True)]
    return [
        np.concatenate([np.zeros(0, dtype), *sequences[first:last]])
        for first, last in itertools.pairwise(cuts.tolist())
    ]


def tokens_of(dataset):
    return [np.asarray(dataset[number]["tokens"]) for number in range(dataset.num_samples)]


def same(documents, others):
    assert len(documents) == len(others)
    for one, other in zip(documents, others, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
