"""One dataset, whoever writes it: one writer, one process, several, resumed after any stop."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from mds import MDSWriter
from mds.errors import ConfigError, RecordError, WriterError
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
    convert(str(kit.source), kit.out, size_limit=1000, hashes="none")
    columns = {"path": "str", "text": "str"}
    with MDSWriter(kit.out + "2", columns, size_limit=1000, hashes=[]) as writer:
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
    two = convert(source, kit.out + "2", num_workers=2, **options)
    assert one.samples == two.samples
    assert kit.files() == kit.files(kit.out + "2")


def test_size_of_parts_leaves_no_trace(kit):
    """Where the source is cut for reading is not seen in what is written."""
    path, _ = kit.many()
    prepare(path, kit.out, **OPTIONS).run()
    again = prepare(path, kit.out + "2", **OPTIONS)
    dataclasses.replace(again, part_size=again.read_spec().part_size // 7).run()
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

def dying(*paths, **folders):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*paths, **folders)

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
        [sys.executable, "-c", KILL, path, out, str(renames)], check=False, timeout=600
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
        "    convert(sys.argv[1], sys.argv[2], num_workers=2, size_limit=200_000,\n"
        "        hashes=['xxh3_64'], compression='zstd:1', progress=lambda p:\n"
        "        p.shards > 3 and os.kill(os.getpid(), signal.SIGKILL))\n"
    )
    script = kit.write("../script.py", code)
    out = kit.out + "2"
    # The pipe ends when the last process that holds it does.
    killed = subprocess.run(
        [sys.executable, script, path, out], check=False, timeout=600, stdout=subprocess.PIPE
    )
    assert killed.returncode == -signal.SIGKILL
    assert not os.path.exists(os.path.join(out, "index.json"))
    summary = convert(path, out, resume=True, num_workers=2, **OPTIONS)
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
    with pytest.raises(ConfigError, match=r'differs in compression \("zstd:1" before, "gz" now\)'):
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
    summary = convert(path, kit.out, resume=True, on_error="skip", num_workers=2, **OPTIONS)
    assert (summary.samples, summary.bad_count) == (5000, 1)
    assert summary.resumed_parts > 0


def test_resume_of_what_is_whole_does_nothing(kit):
    """A conversion that ended may be resumed: there is nothing to do, and it says so."""
    path, _ = kit.many(100)
    convert(path, kit.out)
    before = kit.files()
    assert "already complete" in convert(path, kit.out, resume=True).notes[0]
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


def test_a_conversion_and_a_writer_do_not_mix(kit):
    """Whichever comes second is refused, in the output and in the folder of a split."""
    path, _ = kit.many(3000)
    refused = []

    def meanwhile(_):
        if not refused:
            for place in (kit.out, kit.out + "/a"):
                with pytest.raises(WriterError, match="in use"):
                    MDSWriter(out=place, columns={"x": "int"}, exist_ok=True)
                refused.append(place)

    convert(path, kit.out, progress=meanwhile, split="a=0.5,b=0.5", **OPTIONS)
    assert len(refused) == 2
    out = kit.out + "2"
    with MDSWriter(out=out, columns={"x": "int"}) as writer:
        writer.write({"x": 1})
        with pytest.raises(ConfigError, match="another process is converting or writing"):
            convert(path, out, overwrite=True, **OPTIONS)
    assert len(kit.samples(out)) == 1


@pytest.mark.parametrize("what", ["shard", "part of a shard", "output", "work"])
def test_what_is_deleted_meanwhile_is_missed(kit, what):
    """A shard, the output or the work folder is gone at the end: an error, and no index."""
    path, _ = kit.many(3000)
    out = pathlib.Path(kit.out)
    done = []

    def harm(progress):
        shards = sorted(out.glob("shard.*"))
        if done or not shards:
            return
        done.append(what)
        if what == "shard":
            shards[0].unlink()
        elif what == "part of a shard":
            os.truncate(shards[0], 10)
        else:
            gone = out if what == "output" else out / ".mds-convert"
            gone.rename(out.parent / "gone")

    with pytest.raises(WriterError, match=r"is missing|instead of|deleted or replaced"):
        convert(path, kit.out, progress=harm, **OPTIONS)
    assert done
    assert not list(out.parent.rglob("index.json"))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("split", ["", "all"])
def test_a_dataset_that_took_the_place_of_the_output_stays(kit, workers, split):
    """No shard and no index lands in a folder that is not the one that was locked."""
    path, _ = kit.many(3000)
    out = pathlib.Path(kit.out, split)
    theirs = []

    def exchange(progress):
        if not theirs and list(out.glob("shard.*")):
            out.rename(out.parent / "moved")
            with MDSWriter(out=str(out), columns={"x": "int"}) as writer:
                writer.write({"x": 1})
            theirs.append(kit.files(out))

    options = {**OPTIONS, "work": kit.out + "-work", "num_workers": workers}
    with pytest.raises(WriterError, match="deleted or replaced"):
        convert(
            path, kit.out, progress=exchange, **options, **({"split": "all=1"} if split else {})
        )
    assert [kit.files(out)] == theirs


def test_a_shard_that_is_gone_at_the_resume(kit):
    """What a killed conversion had done is looked at again before the index names it."""
    path, _ = kit.many(3000)
    with pytest.raises(Stop):
        convert(path, kit.out, progress=stop_after(4), **OPTIONS)
    [*shards] = pathlib.Path(kit.out).glob("shard.*")
    shards[0].unlink()
    with pytest.raises(WriterError, match=r"shard\.0.* is missing.*--overwrite"):
        convert(path, kit.out, resume=True, **OPTIONS)
    convert(path, kit.out, overwrite=True, **OPTIONS)
    convert(path, kit.out + "2", **OPTIONS)
    assert kit.files() == kit.files(kit.out + "2")


def test_a_work_folder_of_the_users_own_keeps_its_files(kit, tmp_path):
    """A folder that holds something else is refused, whatever is asked; nothing in it goes."""
    path, _ = kit.many(300)
    mine = tmp_path / "mine"
    (mine / "parts").mkdir(parents=True)
    (mine / "parts" / "thesis.tex").write_text("mine")
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(ConfigError, match="holds 'parts', and not an interrupted conversion"):
            convert(path, kit.out, work=str(mine), **options, **OPTIONS)
    (mine / "plan.json").write_text('{"mine": 1}')
    with pytest.raises(ConfigError, match="not the plan of a conversion"):
        convert(path, kit.out, work=str(mine), overwrite=True, **OPTIONS)
    assert (mine / "parts" / "thesis.tex").read_text() == "mine"
    assert not os.path.exists(kit.out)


def test_replacing_removes_shards_and_nothing_else(kit):
    """An index that names other files of the folder does not have them removed."""
    path, _ = kit.many(300)
    convert(path, kit.out, **OPTIONS)
    out = pathlib.Path(kit.out)
    (out / "notes.txt").write_text("mine")
    index = json.loads((out / "index.json").read_text())
    index["shards"][0]["raw_data"]["basename"] = "notes.txt"
    index["shards"][0]["zip_data"] = None
    (out / "index.json").write_text(json.dumps(index))
    convert(path, kit.out, overwrite=True, **OPTIONS)
    assert (out / "notes.txt").read_text() == "mine"
    assert len(kit.samples()) == 300


def test_digests_are_written_unless_they_are_not_wanted(kit):
    """xxh3_64 by default, so that `mds verify` finds a flipped byte; 'none' leaves them out."""
    path, _ = kit.many(300)
    for hashes, names in (
        (None, ["xxh3_64"]),
        ("none", []),
        ((), []),
        ("sha1,md5", ["md5", "sha1"]),
    ):
        convert(path, kit.out, hashes=hashes, overwrite=True)
        index = json.loads(kit.files()["index.json"])
        for shard in index["shards"]:
            assert shard["hashes"] == sorted(shard["raw_data"]["hashes"]) == names


def test_a_conversion_leaves_nothing_but_the_dataset(kit):
    """No work folder, temporary file or empty folder stays behind."""
    path, _ = kit.many(3000)
    convert(path, kit.out, split="a=0.5,b=0.5", **OPTIONS)
    names = {os.path.basename(name).split(".")[0] for name in kit.files()}
    assert names == {"shard", "index"}
    assert sorted(os.listdir(kit.out)) == ["a", "b"]
    assert json.loads(kit.files()["a/index.json"])["version"] == 2
    assert np.sum([len(kit.samples(kit.out + "/" + name)) for name in "ab"]) == 3000
