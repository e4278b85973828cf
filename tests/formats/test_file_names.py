"""A state names the files that it is of, so what came or went is told on any machine."""

import json
import random

import pytest

from mds import StreamingDataset
from mds.errors import StateError
from mds.formats.file_names import pack_names, tell_changes, unpack_names


def write(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text('{"x": 1}\n')
    return folder


def of(folder, cache):
    return StreamingDataset(remote=str(folder), local=str(cache), batch_size=1)


def test_what_came_and_what_went_is_refused_by_name(tmp_path):
    """Also by a machine that has never seen the files as they were."""
    folder = write(tmp_path / "lines", *[f"{n:03}.jsonl" for n in range(300)])
    state = json.loads(json.dumps(of(folder, tmp_path / "a").state_dict(num_samples=4)))
    assert len(json.dumps(state)) < 4000
    (folder / "007.jsonl").unlink()
    write(folder, "new one.jsonl")
    with pytest.raises(StateError, match=r"came: 'new one\.jsonl'; went: '007\.jsonl'\. Put back"):
        of(folder, tmp_path / "b").load_state_dict(state)
    (folder / "new one.jsonl").unlink()
    (folder / "007.jsonl").write_text('{"x": 17}\n')
    with pytest.raises(StateError, match="the names are the same, and what is in them is not"):
        of(folder, tmp_path / "c").load_state_dict(state)
    (folder / "007.jsonl").write_text('{"x": 1}\n')
    of(folder, tmp_path / "d").load_state_dict(state)


def test_a_state_with_other_texts_for_names_is_refused_all_the_same(tmp_path):
    """Names are for the message alone; what is none of them changes no answer."""
    folder = write(tmp_path / "lines", "a.jsonl", "b.jsonl")
    state = of(folder, tmp_path / "a").state_dict(num_samples=1)
    write(folder, "c.jsonl")
    for texts in (None, [], ["~"], [5], "abc", pack_names(["a"])[0][:-5], {"a": 1}):
        state["data"]["streams"][0]["names"] = texts
        with pytest.raises(StateError, match=r"the state is of 2 files of jsonl, and .* has 3"):
            of(folder, tmp_path / "b").load_state_dict(state)


def test_names_come_back_and_a_list_that_is_too_long_has_none():
    """Ten thousand numbered files fit; so many random names do not, nor is a bomb unpacked."""
    names = [f"part-{n:05}-of-10000.parquet" for n in range(10_000)]
    packed = pack_names(names)
    assert unpack_names(packed) == names
    assert sum(map(len, packed)) < 32 << 10
    assert all(len(text) <= 400 for text in packed)
    rng = random.Random(0)
    assert pack_names([f"{rng.getrandbits(128):032x}" for _ in range(10_000)]) == []
    assert unpack_names(pack_names(["x" * (65 << 20)])) is None


def test_many_changes_are_counted_behind_the_first():
    """Five of each are named."""
    told = tell_changes([], [f"{n}" for n in range(8)])
    assert told == "came: '0', '1', '2', '3', '4' and 3 more"


def test_a_start_tells_each_change_since_the_last_one_once(tmp_path, caplog):
    """New, gone and replaced files are told apart."""
    folder = write(tmp_path / "lines", "a.jsonl", "b.jsonl", "c.jsonl")
    of(folder, tmp_path / "cache")
    (folder / "a.jsonl").unlink()
    (folder / "b.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    write(folder, "d.jsonl")
    of(folder, tmp_path / "cache")
    told = [message.split("these files are ")[1] for message in caplog.messages]
    assert [line.split(". ")[0] for line in told] == [
        "new: d.jsonl",
        "gone: a.jsonl",
        "replaced: b.jsonl",
    ]
