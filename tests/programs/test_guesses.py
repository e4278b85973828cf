"""What users of other libraries type first works, or its error tells what to write instead.

`guesses.py` has the programs. Each runs in a forked child over fresh copies of small datasets.
"""

import csv
import importlib
import json
import logging
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import traceback
import warnings
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="a guess reads Parquet: pip install 'mds-streaming[arrow]'")

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

import mds
from devtools.servers import s3_server

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "programs"))
GUESSES = importlib.import_module("guesses").GUESSES

pytestmark = pytest.mark.slow

LONGEST_RUN = 90  # seconds; a program that hangs is killed
WORDS = ["the", "a", "of", "cat", "dog", "run", "sun", "rain", "sea", "day", "code", "data"]


def write_dataset(folder, columns, samples):
    """Write a dataset of several small shards."""
    with mds.MDSWriter(str(folder), columns, size_limit=4000) as writer:
        for sample in samples:
            writer.write(sample)


def make_picture(seed):
    """Return a picture of about 24 by 20 pixels."""
    shape = (20 + seed % 5, 24, 3)
    return Image.fromarray(np.random.RandomState(seed).randint(0, 255, shape, dtype=np.uint8))


def write_files(folder):
    """Write the datasets and files that the guesses name."""
    rng = random.Random(0)

    def text(number):
        return f"{number} " + " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 20)))

    columns = {"id": "int", "text": "str", "label": "int"}
    for name, first, count in (("data/train", 0, 120), ("data/val", 1000, 30)):
        ids = range(first, first + count)
        samples = [{"id": i, "text": text(i), "label": (i - first) % 3} for i in ids]
        write_dataset(folder / name, columns, samples)
    for name, first in (("a", 0), ("b", 100)):
        samples = [{"id": first + i, "text": name + text(i)} for i in range(60)]
        write_dataset(folder / name, {"id": "int", "text": "str"}, samples)
    tokens = [np.arange(i * 100, i * 100 + rng.randint(5, 60), dtype=np.int32) for i in range(200)]
    write_dataset(folder / "tokens", {"tokens": "ndarray:int32"}, [{"tokens": t} for t in tokens])
    pictures = [{"image": make_picture(i), "label": i % 2} for i in range(24)]
    write_dataset(folder / "pictures", {"image": "jpeg", "label": "int"}, pictures)
    for number, name in enumerate(("cat", "dog")):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(12):
            make_picture(100 * number + i).save(folder / "photos" / name / f"{i}.jpg")
    rows = [{"text": text(i), "label": i % 4} for i in range(50)]
    lines = [json.dumps(row) for row in rows]
    (folder / "docs.jsonl").write_text("".join(f"{line}\n" for line in lines))
    lines[7], lines[30] = '{"text": "broken', "nonsense"
    (folder / "bad.jsonl").write_text("\n".join(lines) + "\n")
    with (folder / "docs.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["text", "label"])
        table.writeheader()
        table.writerows(rows)
    pq.write_table(
        pa.Table.from_pylist([{"id": i, **row} for i, row in enumerate(rows)]),
        folder / "docs.parquet",
    )
    (folder / "texts").mkdir()
    for i in range(6):
        (folder / "texts" / f"{i}.txt").write_text(text(i))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return the folder of the files, and the URL of an S3 server that has one dataset."""
    files, served = tmp_path_factory.mktemp("files"), tmp_path_factory.mktemp("served")
    write_files(files)
    shutil.copytree(files / "data" / "train", served / "bucket" / "train")
    with s3_server(str(served), auth="key,secret") as url:
        yield files, url


def run_here(code, names):
    """Run a program in a forked child; return its error and what it printed, or None."""
    log = pathlib.Path("error.txt")
    child = os.fork()
    if not child:
        os.setsid()
        signal.alarm(LONGEST_RUN)
        output = os.open("output.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # pytest has other streams, and handlers of logging that print nothing.
        sys.stdout = sys.stderr = os.fdopen(output, "w", buffering=1)
        logging.getLogger().handlers.clear()
        ending = 1
        warnings.resetwarnings()  # pytest makes them errors
        try:
            path = pathlib.Path("guess.py")
            path.write_text(code)
            exec(compile(code, str(path), "exec"), names)
            ending = 0
        except BaseException as error:  # noqa: BLE001 - SystemExit and others are answers, too
            log.write_text(f"{type(error).__name__}: {error}")
            traceback.print_exc()
        os._exit(ending)
    _, status = os.waitpid(child, 0)
    # Workers that the program left behind end with it.
    subprocess.run(["pkill", "-9", "-g", str(child)], check=False)
    if not status:
        return None
    error = log.read_text() if log.exists() else f"the program ended with status {status}"
    return error + pathlib.Path("output.txt").read_text()  # a warning may tell the fix


def run_in_shell(code, environment):
    """Run a shell program; return what it printed if it failed, or None."""
    done = subprocess.run(
        ["bash", "-e", "-c", code], env=environment, capture_output=True, text=True, check=False,
        timeout=LONGEST_RUN,
    )  # fmt: skip
    return done.stderr + done.stdout if done.returncode else None


@pytest.fixture
def run(home, tmp_path, monkeypatch):
    """Return a function that runs a guess in a copy of the files, and returns its error."""
    files, url = home
    variables = {
        "ENDPOINT": url,
        "KEY": "key",
        "SECRET": "secret",
        "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
    }

    def act(code):
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        shutil.copytree(files, folder)
        monkeypatch.chdir(folder)
        for name, value in {**variables, "MDS_CACHE_DIR": str(folder / ".cache")}.items():
            monkeypatch.setenv(name, value)
        if code.startswith("$ "):
            return run_in_shell(code[2:], dict(os.environ))
        names = {"__name__": "__main__", "np": np, "torch": torch, "Image": Image, "mds": mds}
        names |= {"model": lambda _: None, "out": str(folder / "out")}
        return run_here(code, names | {k: variables[k] for k in ("ENDPOINT", "KEY", "SECRET")})

    return act


def plain(text):
    """Return a text without line ends and repeated spaces."""
    return " ".join(text.split())


@pytest.mark.parametrize("guess", GUESSES, ids=lambda guess: guess.task.replace(" ", "-"))
def test_a_guess_works_or_its_error_tells_the_fix(guess, run):
    """The fix that an error tells is applied and run."""
    error = run(guess.code)
    if guess.outcome == "works":
        assert error is None
        return
    assert error is not None
    assert plain(guess.words) in plain(error)
    if guess.outcome == "told":
        assert run(guess.fixed) is None


def test_enough_guesses_work_or_are_told():
    """At least 45 % work as typed, and at most 10 % are refused without a fix."""
    outcomes = Counter(guess.outcome for guess in GUESSES)
    assert len(GUESSES) >= 300
    assert outcomes["works"] >= 0.45 * len(GUESSES)
    assert outcomes["refused"] <= 0.1 * len(GUESSES)
