"""Tars as several programs write them."""

import io
import json
import shutil
import subprocess
import tarfile

import numpy as np


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def sample(number, **more):
    """The files of a sample by their endings."""
    return {
        "cls": b"%d" % number,
        "json": json.dumps({"n": number, "é": "ü"}).encode(),
        "npy": npy(np.full(3, number, np.float32)),
        "txt": f"number {number} é".encode(),
        "left.bin": bytes([number % 256]) * (number % 700),
        **more,
    }


def members(samples, key="{:06}"):
    """(name, bytes) of the files of samples, which are given as dicts of files by ending."""
    return [
        (f"{key.format(number)}.{ending}", data)
        for number, files in enumerate(samples)
        for ending, data in files.items()
    ]


def by_python(path, files, form=tarfile.PAX_FORMAT):
    """A tar of Python's tarfile: ustar, GNU or PAX."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def by_gnu_tar(path, files, folder, *options):
    """A tar of GNU tar, from files on the disk."""
    for name, data in files:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    names = folder / "names"
    names.write_text("".join(f"{name}\n" for name, _ in files))
    program = shutil.which("tar")
    assert program is not None
    subprocess.run(
        [program, "-C", folder, *options, "-cf", path, "--no-recursion", "-T", names], check=True
    )
    names.unlink()
