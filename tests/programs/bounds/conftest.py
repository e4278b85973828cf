"""Lets the tests of this folder import the file `limits.py` that is beside them."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
