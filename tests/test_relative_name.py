"""Names from outside: what becomes a path below a folder, and what never does."""

import pathlib
import pickle
import re

import pytest

import mds
from mds.errors import ConfigError, FormatError, IndexFileError
from mds.storage._relative_name import MAX_NAME_BYTES, RelativeName, split_folder

GOOD = [
    *("shard.00000.mds", "train/shard.00000.mds.zstd", "a b", "ü/shard", ".hidden/shard", "日本"),
    *('quo"te', "a..b", "..a", "a.", "x" * 255, "index.json.mds", "my.mds", "m.mds-part", "~/x"),
    "/".join(["y" * 100] * 10),
]
LEAVING = [
    *("", ".", "..", "/", "/etc/passwd", "../x", "a/../../x", "a/..", "a/.", "./a", "a//b", "a/"),
    *(
        "a\0b",
        "\0",
        "a\nb",
        "a\x1b[2J",
        "a\x7f",
        "a\u202eb",
        "\ud800",
        "a\\b",
        "\\\\host\\x",
        "C:/x",
    ),
    *("c:x", "C:\\x", "a\r", "\u200b"),
]
RESERVED = [
    *(".mds/index.mds", ".MDS/ledger", "a/.mds/x", ".mds", ".Mds", ".md\u017f/lock", "\uff0emds/x"),
    *(".mds-convert/plan.json", "index.json", "train/index.json", "INDEX.JSON", "index.json/x"),
    *(".shard.00000.mds.77-0123456789ab.mds-part", ".a.MDS-PART/x", ".\uff4dds/x"),
]
LONG = ["x" * 256, "日" * 86, "/".join(["y" * 100] * 11), "z" * (MAX_NAME_BYTES + 1)]


@pytest.mark.parametrize("name", GOOD, ids=lambda name: repr(name[:20]))
def test_names_that_stay_inside_are_taken(name):
    """A checked name is the text it was made of, joins below a folder, and travels."""
    found = RelativeName(name)
    assert found == name
    assert found.under("/data") == f"/data/{name}"
    assert type(pickle.loads(pickle.dumps(found))) is RelativeName


@pytest.mark.parametrize("name", LEAVING + RESERVED + LONG, ids=lambda name: repr(name[:20]))
def test_names_that_leave_or_are_ours_are_refused(name):
    """There is no checked name for a path outside, for our own files, or for a path too long."""
    with pytest.raises(FormatError, match=r"^here: "):
        RelativeName(name, "here")
    with pytest.raises(IndexFileError):
        RelativeName(name, "here", IndexFileError)


def test_a_refusal_shows_no_control_characters():
    """The sentence about a name can be printed."""
    with pytest.raises(FormatError) as caught:
        RelativeName("a\x1b]0;title\x07b")
    assert str(caught.value).isprintable()


def test_a_forged_name_does_not_travel():
    """A pickle that holds a bad name is refused where it is loaded."""
    good = pickle.dumps(RelativeName("aa/evil"))
    with pytest.raises(FormatError):
        pickle.loads(good.replace(b"aa/evil", b"../evil"))


@pytest.mark.parametrize(
    ("split", "folder"),
    [
        *[(None, ""), ("", ""), (".", ""), ("./", ""), ("a/..", "")],
        *[("train", "train"), ("./train", "train"), ("train/.", "train"), ("a/../train", "train")],
        *[("a/b/", "a/b"), ("a//b", "a/b"), ("./a/./b", "a/b")],
    ],
)
def test_splits_are_folders_below(split, folder, tmp_path):
    """A split is a relative path in any spelling, for every dataset."""
    assert split_folder(split) == folder
    with mds.MDSWriter(out=str(tmp_path / folder), columns={"x": "int"}) as writer:
        writer.write({"x": 7})
    place = str(tmp_path)
    assert mds.LocalDataset(place, split=split)[0] == {"x": 7}
    assert mds.StreamingDataset(place, split=split)[0] == {"x": 7}
    streams = [mds.Stream(place, split=split)]
    assert mds.StreamingDataset(streams=streams)[0] == {"x": 7}


@pytest.mark.parametrize("split", ["/etc", "..", "../other", "a/../..", "a\0", ".mds", "//etc"])
def test_splits_that_leave_are_refused(split, tmp_path):
    """No split leads out of local and remote, in any dataset."""
    for make in (
        lambda: mds.Stream(remote="s3://bucket/data", local=str(tmp_path), split=split),
        lambda: mds.LocalDataset(str(tmp_path), split=split),
        lambda: mds.StreamingDataset(local=str(tmp_path), split=split),
    ):
        with pytest.raises(ConfigError, match="split="):
            make()


def test_only_checked_names_are_joined_to_a_folder():
    """No code joins the name of a shard's file to a folder by itself."""
    found = []
    for path in pathlib.Path(mds.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found += [f"{path}: {hit}" for hit in re.findall(r"path\.join\([^)]*basename[^)]*\)", text)]
    assert found == []
