"""A state is refused when files that are read in place differ, and the message says which."""

import json

import pytest

from mds import StreamingDataset
from mds.errors import StateError
from mds.formats._table import first_names
from tests.states import changed, values_of


def write(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text('{"x": 1}\n')
    return folder


def of(folder, cache):
    return StreamingDataset(remote=str(folder), local=str(cache), batch_size=1)


def test_changed_files_are_refused_by_name(tmp_path):
    """A cache folder that had the files of the state knows which are new, gone or replaced."""
    folder = write(tmp_path / "lines", *[f"{n:03}.jsonl" for n in range(300)])
    state = json.loads(json.dumps(of(folder, tmp_path / "a").state_dict(num_samples=4)))
    (folder / "007.jsonl").unlink()
    write(folder, "new one.jsonl")
    for _ in range(2):  # a later start knows it too
        with pytest.raises(StateError, match=r"new: new one\.jsonl; gone: 007\.jsonl\. Restore"):
            of(folder, tmp_path / "a").load_state_dict(state)
    (folder / "new one.jsonl").unlink()
    (folder / "007.jsonl").write_text('{"x": 1}\n')
    of(folder, tmp_path / "a").load_state_dict(state)
    (folder / "007.jsonl").write_text('{"x": 17}\n')
    with pytest.raises(StateError, match=r"replaced: 007\.jsonl\. Restore"):
        of(folder, tmp_path / "a").load_state_dict(state)


def test_a_cache_folder_that_never_had_the_files_refuses_them_too(tmp_path):
    """Their number and a digest of their names and sizes are in the state."""
    folder = write(tmp_path / "lines", "a.jsonl", "b.jsonl")
    state = of(folder, tmp_path / "a").state_dict(num_samples=1)
    write(folder, "c.jsonl")
    expected = (
        r"the state belongs to 2 files of jsonl, but .* has 3 .*: their names or sizes differ\."
    )
    with pytest.raises(StateError, match=expected):
        of(folder, tmp_path / "b").load_state_dict(state)


def test_names_that_older_states_hold_are_ignored(tmp_path):
    """States once held packed names of files; whatever is there changes no answer."""
    folder = write(tmp_path / "lines", "a.jsonl", "b.jsonl")
    state = of(folder, tmp_path / "a").state_dict(num_samples=1)
    data = values_of(state)["data"]
    for texts in (None, [], ["~"], [5], "abc", {"a": 1}):
        data["streams"][0]["names"] = texts
        of(folder, tmp_path / "a").load_state_dict(changed(state, {"data": data}))


def test_changes_do_not_alter_the_data(tmp_path):
    """A dataset whose files changed and one that found them so have the same fingerprint."""
    folder = write(tmp_path / "lines", "a.jsonl")
    of(folder, tmp_path / "a")
    write(folder, "b.jsonl")
    states = [of(folder, tmp_path / cache).state_dict(num_samples=1) for cache in ("a", "b")]
    assert states[0] == states[1]


def test_many_changes_are_counted_after_the_first():
    """Five names are shown."""
    assert first_names([f"{n}" for n in range(8)]) == "0, 1, 2, 3, 4 and 3 more"


def test_a_start_reports_each_change_since_the_last_one_once(tmp_path, caplog):
    """New, gone and replaced files are reported apart."""
    folder = write(tmp_path / "lines", "a.jsonl", "b.jsonl", "c.jsonl")
    of(folder, tmp_path / "cache")
    (folder / "a.jsonl").unlink()
    (folder / "b.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    write(folder, "d.jsonl")
    of(folder, tmp_path / "cache")
    messages = [message.split("these files are ")[1] for message in caplog.messages]
    assert [line.split(". ")[0] for line in messages] == [
        "new: d.jsonl",
        "gone: a.jsonl",
        "replaced: b.jsonl",
    ]
