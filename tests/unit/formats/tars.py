"""Tars as several programs write them."""

import io
import json
import shutil
import subprocess
import tarfile
import zlib

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


def recorded(text):
    """A tar that a program wrote elsewhere: its bytes, compressed."""
    return zlib.decompress(bytes.fromhex(text))


#: Two samples of a class and a text, under "é/long/long/...", as others write them.
BSDTAR = (  # bsdtar 3.6.2: restricted PAX
    "78daed97c10e8220008639f7143c41828074e9deb15770e5eae0b2192d5fc9e7f0c5a2dab2d92147c0e6fcff"
    "036cba39113ebffd65753a24a5bf619b379b22df1775c29e59eeca8b9d322929795d19ce8ca54a51a685cc94"
    "548f1b4cea54a684362442ae1793d7f655fe7dce70715debe78b065e3ed7829e73735cfb7a5fef437f8e1604"
    "f19d18fbf68b7fc6f8807f95aa8c50365ffea3edbf0602e03fa4ff4d631cfc2f2c90f03ffcdf7bc49e23f87f"
    "82fe1fc1bffd030cfd2fb882ff63a46bc100f80fe67feedcff05fc0fffbf3dc2d1ff27e97feedcff35fc1f23"
    "2b2000fe43fadfb5ff73f81ffefff008faff34fd3faaff8beffe0fff4789b955800041106486b903eb6767e7"
)
WEBDATASET = (  # webdataset 1.0.2, TarWriter
    "78daed974d0e82301046bbe6149ca04c7f103746972ebd42a3444d400cd4c89538071753216143d8186910be"
    "b7689bd97431f3e56578c083ddc194fbd89ce29c8d02b50cdda44875efa62e480ac1fc9239e0515893bfbf67"
    "cb4444cabf1b7bd9d4559064b7f3f48e7628f831293c29fdd45ed37823ba61e1e431f03d5b073dfcf4496b3d"
    "987f22c128527a15eab0a92b0a49329f90ffd189108145c3e17ff8ff1ffc6f4b0bffcfd5ffb2ef7f05ffbba0"
    "ae9001f81ffe87ff27ed7f81fd1ffb3ff2ff7bd68800fc0fffc3ff53f73ff6ff19fb5ff5fdafe17f17d86786"
    "100000c0027901daf21d88"
)
