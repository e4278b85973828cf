"""Public modules can be looked at without the packages of any extra."""

import subprocess
import sys

#: A program that hides the packages of extras, and then looks at every public name.
PROGRAM = """
import importlib, inspect, pkgutil, sys

HIDDEN = {
    "azure", "boto3", "botocore", "brotli", "cramjam", "databricks", "datasets", "deltalake",
    "fsspec", "google", "huggingface_hub", "oci", "pandas", "paramiko", "polars",
    "prometheus_client", "pyarrow", "pyiceberg", "pyspark", "ray", "simplejpeg", "soundfile",
    "tokenizers",
}

class Hider:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ImportError(f"{name} is hidden")

sys.meta_path.insert(0, Hider())
import mds

count = 0
for info in pkgutil.walk_packages(mds.__path__, "mds."):
    # A module of an integration needs its library.
    if info.name.endswith("__main__") or info.name.startswith("mds.integrations."):
        continue
    module = importlib.import_module(info.name)
    if not info.ispkg and not hasattr(module, "__all__"):
        continue
    assert not hasattr(module, "no_such_name"), info.name
    assert all(hasattr(module, name) for name in dir(module)), info.name
    inspect.getmembers(module)
    exec(f"from {info.name} import *", {})
    count += 1
assert not HIDDEN & {name.partition(".")[0] for name in sys.modules}
print(count)
"""


def test_public_names_need_no_extra():
    """``hasattr``, ``dir``, ``inspect.getmembers`` and ``import *`` work in every package."""
    done = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


def test_packages_are_attributes():
    """``import mds`` suffices for ``mds.transforms`` and the other public packages."""
    code = "import mds; [getattr(mds, name) for name in mds._MODULES]; mds.writers.convert.prepare"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
