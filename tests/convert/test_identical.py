"""One dataset, whoever writes it: one writer, one process, several, resumed after any stop."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from mds import MDSWriter
from mds.errors import ConfigError, RecordError
from mds.writers.convert import convert, prepare

OPTIONS = {"size_limit": 200_000, "hashes": ["xxh3_64"], "compression": "zstd:1"}


def test_conversion_is_what_one_writer_writes(kit):
    """Shards and index are those of MDSWriter with the same columns, bytes and digests."""
    path, records = kit.many()
    options = {"size_limit": 200_000, "hashes": ["sha1"]}
    convert(path, kit.out, **options)
    with MDSWriter(
        out=kit.out + "2", columns={"id": "int", "more": "json", "text": "str"}, **options
    ) as writer:
        for record in records:
            writer.write(record)
    assert kit.files() == kit.files(kit.out + "2")


def test_sample_larger_than_a_shard_is_written_as_the_writer_does(kit):
    """An oversize first sample leaves the empty shard that the format's rule asks for."""
    kit.write("a.txt", "x" * 5000)
    kit.write("b.txt", "y")
    convert(str(kit.source), kit.out, size_limit=1000)
    with MDSWriter(
        out=kit.out + "2", columns={"path": "str", "text": "str"}, size_limit=1000
    ) as writer:
        writer.write({"path": "a.txt", "text": "x" * 5000})
        writer.write({"path": "b.txt", "text": "y"})
    assert kit.files() == kit.files(kit.out + "2")


@pytest.mark.parametrize("kind", ["records", "images", "tokens", "splits"])
def test_two_processes_write_what_one_writes(kit, kind):
    """The output does not depend on the number of processes."""
    options = dict(OPTIONS)
    if kind == "images":
        for i in range(60):
            kit.write(f"{i % 7}/{i}.jpg", kit.jpeg + bytes([i]) * 60_000)
        source = str(kit.source)
    else:
        source, _ = kit.many()
    if kind == "tokens":
        options |= {"tokenizer": "bytes", "block": 100}
    if kind == "splits":
        options |= {"split": "train=0.8,val=0.2"}
    one = convert(source, kit.out, **options)
    two = convert(source, kit.out + "2", workers=2, **options)
    assert one.samples == two.samples
    assert kit.files() == kit.files(kit.out + "2")


def test_size_of_parts_leaves_no_trace(kit):
    """Where the source is cut for reading is not seen in what is written."""
    path, _ = kit.many()
    made = prepare(path, kit.out, **OPTIONS)
    parts = type(made.source).parts
    made.run()
    again = prepare(path, kit.out + "2", **OPTIONS)
    again.source.parts = lambda size: parts(again.source, size // 7)
    again.run()
    assert kit.files() == kit.files(kit.out + "2")


class Stop(Exception):
    """The user's own reason to stop."""


def stop_after(steps):
    """A progress callback that stops a conversion at its n-th step."""
    left = [steps]

    def progress(_):
        left[0] -= 1
        if left[0] < 0:
            raise Stop

    return progress


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"split": "a=0.5,b=0.5", "limit": 2000},
        {"tokenizer": "bytes", "block": 999},
    ],
)
def test_stop_at_any_step_and_resume_gives_the_same_bytes(kit, more):
    """Whatever was done when it stopped, the end is that of a conversion that never stopped."""
    path, _ = kit.many(3000)
    options = {**OPTIONS, **more}
    convert(path, kit.out, **options)
    whole = kit.files()
    for step in range(100):
        out = f"{kit.out}-{step}"
        try:
            convert(path, out, progress=stop_after(step), **options)
        except Stop:
            assert not any(name.endswith("index.json") for name in kit.files(out))
            convert(path, out, resume=True, **options)
            assert kit.files(out) == whole
        else:
            assert step > 4
            assert kit.files(out) == whole
            return
    raise AssertionError("a conversion of two parts has fewer steps")


KILL = """
import os, signal, sys
from mds.writers.convert import convert

left = int(sys.argv[3])
replace = os.replace

def dying(*paths):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*paths)

os.replace = dying
convert(sys.argv[1], sys.argv[2], size_limit=200_000, hashes=["xxh3_64"], compression="zstd:1",
        resume=len(sys.argv) > 4)
"""


@pytest.mark.parametrize("renames", [1, 2, 3, 6, 11, 18, 29, 38])
def test_kill_between_any_two_renames_and_resume(kit, renames):
    """A process killed while it publishes a file leaves nothing that another cannot go on from."""
    path, _ = kit.many(4000)
    convert(path, kit.out, **OPTIONS)
    out = kit.out + "2"
    killed = subprocess.run(
        [sys.executable, "-c", KILL, path, out, str(renames)], check=False, timeout=100
    )
    assert killed.returncode in (-signal.SIGKILL, 0)
    convert(path, out, resume=True, **OPTIONS)
    assert kit.files(out) == kit.files()


def test_killed_with_its_processes_still_resumes(kit):
    """Kill -9 of a conversion by two processes leaves no process behind, and resumes."""
    path, _ = kit.many(8000)
    code = (
        "import os, signal, sys\n"
        "from mds.writers.convert import convert\n"
        "if __name__ == '__main__':\n"
        "    convert(sys.argv[1], sys.argv[2], workers=2, size_limit=200_000,\n"
        "        hashes=['xxh3_64'], compression='zstd:1', progress=lambda p:\n"
        "        p.shards > 3 and os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    script = kit.write("../script.py", code)
    out = kit.out + "2"
    # The pipe ends when the last process that holds it does.
    killed = subprocess.run(
        [sys.executable, script, path, out], check=False, timeout=100, stdout=subprocess.PIPE
    )
    assert killed.returncode == -signal.SIGKILL
    assert not os.path.exists(os.path.join(out, "index.json"))
    summary = convert(path, out, resume=True, workers=2, **OPTIONS)
    assert summary.resumed_parts > 0
    convert(path, kit.out, **OPTIONS)
    assert kit.files(out) == kit.files()


def test_resume_refuses_another_conversion(kit):
    """What was begun is finished as it was begun; the difference is named."""
    path, _ = kit.many(3000)
    with pytest.raises(Stop):
        convert(path, kit.out, progress=stop_after(1), **OPTIONS)
    with pytest.raises(FileExistsError, match="--resume"):
        convert(path, kit.out, **OPTIONS)
    with pytest.raises(ConfigError, match=r'differs in compression \("zstd:1" then, "gz" now\)'):
        convert(path, kit.out, resume=True, **{**OPTIONS, "compression": "gz"})
    kit.write("many.jsonl", pathlib.Path(path).read_text() + "\n")
    with pytest.raises(ConfigError, match="source content"):
        convert(path, kit.out, resume=True, **OPTIONS)
    convert(path, kit.out, overwrite=True, **OPTIONS)
    assert "index.json" in kit.files()


def test_resume_may_change_how_but_not_what(kit):
    """Another number of processes, and skipping the record that stopped it, are fine."""
    path, _ = kit.many(5000)
    with open(path, "a") as file:
        file.write("{broken\n")
    with pytest.raises(RecordError, match=r"many\.jsonl, line 5001, column 2"):
        convert(path, kit.out, **OPTIONS)
    summary = convert(path, kit.out, resume=True, skip_bad=True, workers=2, **OPTIONS)
    assert (summary.samples, summary.bad_count) == (5000, 1)
    assert summary.resumed_parts > 0


def test_resume_of_what_is_whole_does_nothing(kit):
    """A conversion that ended may be resumed: there is nothing to do, and it says so."""
    path, _ = kit.many(100)
    convert(path, kit.out)
    before = kit.files()
    assert "done already" in convert(path, kit.out, resume=True).notes[0]
    assert kit.files() == before


def test_two_conversions_to_one_place_do_not_mix(kit):
    """The second to come is refused while the first one runs."""
    path, _ = kit.many(3000)
    errors = []

    def meanwhile(_):
        if not errors:
            with pytest.raises(ConfigError, match="another process is converting") as caught:
                convert(path, kit.out, resume=True, **OPTIONS)
            errors.append(caught)

    convert(path, kit.out, progress=meanwhile, **OPTIONS)
    assert errors


def test_a_conversion_leaves_nothing_but_the_dataset(kit):
    """No work folder, temporary file or empty folder stays behind."""
    path, _ = kit.many(3000)
    convert(path, kit.out, split="a=0.5,b=0.5", **OPTIONS)
    names = {os.path.basename(name).split(".")[0] for name in kit.files()}
    assert names == {"shard", "index"}
    assert sorted(os.listdir(kit.out)) == ["a", "b"]
    assert json.loads(kit.files()["a/index.json"])["version"] == 2
    assert np.sum([len(kit.samples(kit.out + "/" + name)) for name in "ab"]) == 3000
