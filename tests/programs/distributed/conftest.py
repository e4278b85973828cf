"""The modules of this folder are programs as well as helpers; tests import them by name."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
