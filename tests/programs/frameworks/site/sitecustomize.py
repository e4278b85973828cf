"""Tells the tests which samples a program trained on: every Linear writes down its first column.

On PYTHONPATH of the programs under test, so that it reaches every process that a framework starts.
Nothing is imported before the program imports torch by itself.
"""

import importlib.machinery
import os
import sys


class AfterTorch:
    """Finds torch as usual, and registers the hook when it is there."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            module.nn.modules.module.register_module_forward_pre_hook(write_down)

        spec.loader.exec_module = exec_module
        return spec


def write_down(module, arguments):
    if type(module).__name__.endswith("Linear"):
        with open(os.path.join(os.environ["MDS_SEEN"], str(os.getpid())), "a") as file:
            print(*arguments[0][:, 0].int().tolist(), file=file)


if "MDS_SEEN" in os.environ:
    sys.meta_path.insert(0, AfterTorch())
