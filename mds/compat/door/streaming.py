# noqa: INP001 - a folder for PYTHONPATH and no package
"""With the folder of this file on PYTHONPATH, ``import streaming`` opens the door of mds."""

import sys

from mds.compat.streaming import facade

sys.modules[__name__] = facade("streaming")
