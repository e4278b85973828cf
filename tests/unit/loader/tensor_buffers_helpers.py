"""Helpers of the tests of tensor buffers, in this folder and in tests/programs/loader."""

import numpy as np

LARGE = (1 << 20,)  # as large as to be kept


BYTES = np.dtype(np.uint8)
