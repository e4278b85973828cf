"""Every file of a folder gives samples, or is counted as left out, or raises an error.

Each folder has a file of a sample for each oddity: a link inside, outside or to nothing, a hidden
name, a name with ``_``, an empty file, a file of another kind. A subfolder that cannot be listed
is an error. The long form makes folders with random oddities.
"""

import io
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import wave

import numpy as np
import pytest
from PIL import Image

from mds import LocalDataset, StreamingDataset
from mds.errors import DeniedError, MdsError
from mds.writers.convert import prepare
from tests.unit.cache.users import USERS, can_become, run_as


def _parquet(path):
    import pyarrow as pa
    import pyarrow.parquet

    pa.parquet.write_table(pa.table({"x": [1]}), path)


def _arrow(path):
    import pyarrow as pa

    table = pa.table({"x": [1]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _tar(path):
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo(f"{path.stem}.txt")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"a"))


def _tokens(path):
    np.array([1, 2], "<u2").tofile(path)
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2)
    path.with_suffix(".idx").write_bytes(head + struct.pack("<iqqq", 2, 0, 0, 1))


def _audio(path):
    with wave.open(str(path), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(b"\0\0" * 10)


#: By format: ending, function that writes a file of a sample, whether it is read in place, and
#: whether an empty file is an error.
FORMATS = {
    "parquet": (".parquet", _parquet, True, True),
    "arrow": (".arrow", _arrow, True, True),
    "tar": (".tar", _tar, True, True),
    "jsonl": (".jsonl", lambda path: path.write_text('{"x": 1}\n'), True, False),
    "lines": (".txt", lambda path: path.write_text("a\n"), True, False),
    "images": (".png", lambda path: Image.new("RGB", (2, 2)).save(path), True, True),
    "megatron": (".bin", _tokens, True, True),
    "csv": (".csv", lambda path: path.write_text("x\n1\n"), True, False),
    "text": (".txt", lambda path: path.write_text("a"), False, False),
    "audio": (".wav", _audio, False, True),
    "files": (".dat", lambda path: path.write_bytes(b"a"), False, False),
}
IN_PLACE = [name for name in FORMATS if FORMATS[name][2]]
ODDITIES = (
    *("link inside", "linked folder inside", "link outside", "linked folder outside"),
    *("dangling link", "link to itself", "hidden", "underscore", "underscored folder"),
    *("another kind", "hidden folder", "pipe"),
)


def make_folder(root, name, oddities):
    """Write a folder of two plain files of a format, and of the named oddities."""
    ending, write, _, _ = FORMATS[name]
    folder, outside = root / "data", root / "outside"

    def file(*parts):
        path = folder.joinpath(*parts[:-1], parts[-1] + ending)
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)

    def link(path, target):
        for each in {ending, ".idx"} if name == "megatron" else {ending}:
            (folder / f"{path}{each}").symlink_to(f"{target}{each}")

    file("a")
    file("sub", "b")
    outside.mkdir()
    write(outside / f"o{ending}")
    acts = {
        "link inside": lambda: link("inside", "a"),
        "linked folder inside": lambda: (folder / "linked").symlink_to("sub"),
        "link outside": lambda: link("far", "../outside/o"),
        "linked folder outside": lambda: (folder / "away").symlink_to("../outside"),
        "dangling link": lambda: (folder / f"gone{ending}").symlink_to("nowhere"),
        "link to itself": lambda: (folder / f"loop{ending}").symlink_to(f"loop{ending}"),
        "hidden": lambda: file(".hidden"),
        "underscore": lambda: file("_under"),
        "underscored folder": lambda: file("_old", "c"),
        "another kind": lambda: (folder / "README.md").write_text("about"),
        "hidden folder": lambda: file(".git", "d"),
        "pipe": lambda: os.mkfifo(folder / f"pipe{ending}"),
        "empty": lambda: (folder / f"empty{ending}").write_bytes(b""),
    }
    for each in oddities:
        acts[each]()
    return folder


def list_entries(folder):
    """List all files, and links that are not followed, as a program of a few lines does.

    A hidden folder counts as one entry.
    """
    entries = []
    for entry in sorted(folder.iterdir()):
        if os.path.isdir(entry) and not entry.name.startswith("."):
            entries += list_entries(entry)
        else:
            entries.append(entry)
    return entries


def count_plain(name):
    """Return the number of files of all oddities that a format reads: those with ``_``, or not."""
    links = ["inside", "linked/b", "far", "away/o"]
    underscored = [] if name in ("parquet", "arrow", "jsonl", "csv") else ["_under", "_old/c"]
    return len(["a", "sub/b", *links, *underscored])


def count_in_place(folder, name):
    """Return the number of files that are read, and of those that `explain` counts."""
    dataset = StreamingDataset(str(folder), format=name, batch_size=1)
    rows = re.findall(r"left out +([0-9,]+) ", str(dataset.explain()))
    assert len([*dataset]) == dataset.num_samples
    return dataset.num_samples, sum(map(int, rows))


def count_converted(folder, name, out):
    """Return the number of files that are converted, and of those that the plan counts."""
    made = prepare(str(folder), str(out), format=name)
    (note,) = [each for each in made.source.notes if "left out" in each] or [""]
    return made.run().samples, sum(map(int, re.findall(r"(\d+) ", note)))


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_all_files_are_read_or_counted(tmp_path, name):
    """All oddities in one folder."""
    folder = make_folder(tmp_path, name, ODDITIES)
    read, left_out = count_in_place(folder, name)
    assert read + left_out == len(list_entries(folder))
    assert read == count_plain(name)


@pytest.mark.parametrize("name", FORMATS)
def test_converted_all_files_are_read_or_counted(tmp_path, name):
    """The same files as in place."""
    oddities = [each for each in ODDITIES if each != "another kind"]  # a format takes all files
    folder = make_folder(tmp_path, name, oddities)
    read, left_out = count_converted(folder, name, tmp_path / "out")
    assert read + left_out == len(list_entries(folder))
    assert read == count_plain(name)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("way", ["in place", "convert"])
def test_an_empty_file_is_an_error_or_counted(tmp_path, name, way):
    """An empty file of lines or of CSV has no samples and no say; an empty document is one."""
    _, _, is_in_place, is_error = FORMATS[name]
    if way == "in place" and not is_in_place:
        return
    folder = make_folder(tmp_path, name, ["empty"])

    def count():
        if way == "in place":
            return count_in_place(folder, name)
        return count_converted(folder, name, tmp_path / "out")

    if is_error:
        with pytest.raises(MdsError, match="empty"):
            count()
    else:
        assert sum(count()) == 3


def reach(folder):
    """Let other users reach a folder."""
    for above in (folder, *folder.parents):
        if above.stat().st_uid == os.geteuid() and above != above.parent:
            above.chmod(above.stat().st_mode | 0o055)


@pytest.mark.skipif(not can_become(), reason="only root can be another user")
def test_a_folder_without_permission_is_an_error(tmp_path):
    """In place and converted, in every format; and if the format is detected."""
    folders = {name: make_folder(tmp_path / name, name, []) for name in mkdirs(tmp_path)}
    for name, folder in folders.items():
        count_converted(folder, name, tmp_path / "first" / name)  # imports all that it needs
        reach(folder)
        (folder / "sub").chmod(0o700)
    tmp_path.chmod(0o777)

    def read():
        for name, folder in folders.items():
            ways = [lambda: prepare(str(folder), str(tmp_path / "out"), format=name)]  # noqa: B023
            if name in IN_PLACE:
                ways.append(lambda: StreamingDataset(str(folder), format=name))  # noqa: B023
            for way in ways:
                with pytest.raises(DeniedError, match=r"data/sub.*chmod -R a\+rX"):
                    way()

    run_as(USERS[0], read)


def mkdirs(root):
    for name in FORMATS:
        (root / name).mkdir()
    return FORMATS


#: Fails to list folders named "sub", at once or after the first entry.
FAULT = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
static DIR *bad;
DIR *opendir(const char *name) {
    DIR *(*real)(const char *) = dlsym(RTLD_NEXT, "opendir");
    size_t end = strlen(name);
    while (end && name[end - 1] == '/') end--;
    if (end < 4 || strncmp(name + end - 4, "/sub", 4)) return real(name);
    if (getenv("FAULT_AT_ONCE")) { errno = ESTALE; return NULL; }
    return bad = real(name);
}
int closedir(DIR *dir) {
    int (*real)(DIR *) = dlsym(RTLD_NEXT, "closedir");
    if (dir == bad) bad = NULL;
    return real(dir);
}
struct dirent *readdir(DIR *dir) {
    struct dirent *(*real)(DIR *) = dlsym(RTLD_NEXT, "readdir");
    if (dir == bad) { errno = EIO; return NULL; }
    return real(dir);
}
struct dirent64 *readdir64(DIR *dir) {
    struct dirent64 *(*real)(DIR *) = dlsym(RTLD_NEXT, "readdir64");
    if (dir == bad) { errno = EIO; return NULL; }
    return real(dir);
}
"""
PROGRAM = """
import json, sys
from mds import StreamingDataset
from mds.writers.convert import prepare
answers = {}
for name, folder, is_in_place in json.loads(sys.argv[1]):
    ways = {"convert": lambda: prepare(folder, folder + "-out", format=name)}
    if is_in_place:
        ways["in place"] = lambda: StreamingDataset(folder, format=name)
    for way, act in ways.items():
        try:
            act()
        except Exception as error:
            answers[f"{name} {way}"] = f"{type(error).__module__} {error}"
        else:
            answers[f"{name} {way}"] = "nothing"
print(json.dumps(answers))
"""


@pytest.mark.parametrize(
    "at_once",
    [pytest.param(True, id="ESTALE", marks=pytest.mark.slow), pytest.param(False, id="EIO")],
)
def test_an_error_of_the_disk_is_an_error(tmp_path, at_once):
    """While a folder is opened, and while it is listed."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make the fault with")
    (tmp_path / "fault.c").write_text(FAULT)
    library = tmp_path / "fault.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, tmp_path / "fault.c", "-ldl"], check=True
    )
    folders = {name: make_folder(tmp_path / name, name, []) for name in mkdirs(tmp_path)}
    arguments = [(name, str(folders[name]), name in IN_PLACE) for name in FORMATS]
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    if at_once:
        environment["FAULT_AT_ONCE"] = "1"
    program = [sys.executable, "-c", PROGRAM, json.dumps(arguments)]
    printed = subprocess.run(program, env=environment, check=True, capture_output=True).stdout
    answers = json.loads(printed)
    assert len(answers) == len(FORMATS) + len(IN_PLACE)
    for way, answer in answers.items():
        assert re.match(r"mds\.errors list .*data/sub.*would be left out. Repair", answer), way


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("seed", range(12))
def test_random_folders(tmp_path, name, seed):
    """Each oddity alone, and random ones together."""
    chooser = random.Random(f"{name} {seed}")
    choices = list(ODDITIES) + ([] if FORMATS[name][3] else ["empty"])
    oddities = [choices[seed % len(choices)], *chooser.sample(choices, seed % 5)]
    oddities = [*dict.fromkeys(oddities)]
    folder = make_folder(tmp_path, name, oddities)
    if name in IN_PLACE:
        entries = list_entries(folder)
        assert sum(count_in_place(folder, name)) == len(entries), oddities
    if "another kind" in oddities and name != "megatron":
        return
    entries = list_entries(folder)
    assert sum(count_converted(folder, name, tmp_path / "out")) == len(entries), oddities
    pathlib.Path(tmp_path / "kept").mkdir()
    if name in IN_PLACE:
        kept = prepare(str(folder), str(tmp_path / "kept" / "out"), format=name, keep_shards=True)
        kept.run()
        assert len(LocalDataset(str(tmp_path / "kept" / "out"))) == count_in_place(folder, name)[0]
