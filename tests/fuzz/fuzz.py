"""Coverage-guided fuzzing of what reads untrusted bytes. Needs ``pip install atheris``.

    python tests/fuzz/fuzz.py shard tests/fuzz/corpus/shard -max_total_time=600

The first argument is a target (shard, sample, lines, index), the rest is libFuzzer's: folders of
inputs, the first of which takes new ones, and options. To keep the corpus small:

    python tests/fuzz/fuzz.py shard -merge=1 tests/fuzz/corpus/shard FOLDER_WITH_NEW_INPUTS
"""

import importlib.util
import pathlib
import sys
import warnings

import atheris

with atheris.instrument_imports(include=["mds"]):
    import mds._index
    import mds._readers  # noqa: F401 - instrumented by being imported here

_SPEC = importlib.util.spec_from_file_location(
    "targets", pathlib.Path(__file__).with_name("targets.py")
)
targets = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(targets)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    name = sys.argv.pop(1)
    # libFuzzer starts itself again to merge, with this as the command.
    command = f"{sys.executable} {__file__} {name}"
    atheris.Setup([command, *sys.argv[1:]], targets.TARGETS[name])
    atheris.Fuzz()
