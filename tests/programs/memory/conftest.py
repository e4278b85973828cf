"""The module of this folder is a program as well as a helper; the test imports it by name."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
