"""Datasets of tokens for the tests of trainers whose sequences all have one length."""

import numpy as np

from mds import MDSWriter

SAMPLES, LENGTH, IGNORED = 37, 8, -100


def write_token_rows(folder):
    """Write blocks of one token more than a sequence, blocks as long, and documents.

    The tokens of sample n are n + 2. Return the places of the datasets by name; ``other`` has the
    same samples as ``more``.
    """
    rng = np.random.default_rng(0)
    sizes = {
        "more": [LENGTH + 1],
        "other": [LENGTH + 1],
        "equal": [LENGTH],
        "documents": [1, 2, 3, 4, 5],
    }
    for name, choices in sizes.items():
        with MDSWriter(str(folder / name), {"tokens": "ndarray:uint16"}, size_limit=300) as writer:
            for n in range(SAMPLES):
                size = int(rng.choice(choices))
                writer.write({"tokens": np.full(size, n + 2, np.uint16)})
    return {name: str(folder / name) for name in sizes}
