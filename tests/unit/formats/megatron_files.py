"""A writer of the token files of Megatron-LM."""

import struct

import numpy as np

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
