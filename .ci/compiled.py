"""Compile each file of a package once for all environments: `python .ci/compiled.py FOLDER`.

It runs in an environment that is not compiled. Where uv has linked a file of its cache into several
environments, they share the compiled file too, of which FOLDER has a link.
"""

from __future__ import annotations

import compileall
import functools
import importlib.util
import os
import pathlib
import sys
import sysconfig
from concurrent.futures import ProcessPoolExecutor


def compile_once(packages: str, folder: str) -> int:
    """Compile the files that no earlier environment had, and return the number of the others."""
    new, shared = {}, 0
    for source in pathlib.Path(packages).rglob("*.py"):
        compiled = importlib.util.cache_from_source(str(source))
        status = source.stat()
        kept = os.path.join(folder, f"{status.st_dev}-{status.st_ino}")
        if status.st_nlink > 1 and os.path.exists(kept) and not os.path.exists(compiled):
            os.makedirs(os.path.dirname(compiled), exist_ok=True)
            os.link(kept, compiled)
            shared += 1
        else:
            new[str(source)] = compiled, kept if status.st_nlink > 1 else None
    with ProcessPoolExecutor() as pool:
        # Some packages contain templates, which do not compile.
        list(pool.map(functools.partial(compileall.compile_file, quiet=2), new, chunksize=16))
    for compiled, kept in new.values():
        if kept and os.path.exists(compiled) and not os.path.exists(kept):
            os.link(compiled, kept)
    return shared


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    compile_once(sysconfig.get_paths()["purelib"], sys.argv[1])
