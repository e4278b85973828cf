"""Which files a folder has, by the same rules in place, converted, and with kept shards."""

import json
import os

import pytest

import mds
from mds import LocalDataset, StreamingDataset
from mds.errors import DeniedError, StateError
from mds.formats import Tar
from mds.writers.convert import prepare
from tests.unit.cache.users import USERS, can_become, run_as
from tests.unit.formats import tars
from tests.unit.formats.pictures import jpeg

WAYS = ["in place", "convert", "keep shards"]


def read(folder, way, out, file_format):
    """Return the samples of a folder as a sorted list of JSON, and the texts for the user."""
    if way == "in place":
        dataset = StreamingDataset(str(folder), format=file_format, batch_size=1)
        notes = str(dataset.explain())
    else:
        keep = {"keep_shards": True} if way == "keep shards" else {}
        plan = prepare(str(folder), str(out), format=file_format, **keep)
        notes = "; ".join(plan.source.notes)
        plan.run()
        dataset = LocalDataset(str(out))
    names = [name for name in ("path", "class", "label", "text", "v", "txt") if name in dataset[0]]
    samples = [{name: sample[name] for name in names} for sample in dataset]
    return sorted(json.dumps(sample) for sample in samples), " ".join(notes.split())


def values(samples, column):
    """Return the values of a column."""
    return [json.loads(sample)[column] for sample in samples]


def write_lines(folder, *names):
    """Write files of one sample each, whose value is the name of the file."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"v": name}) + "\n" if name.endswith("jsonl") else name + "\n")


def write_pictures(folder, *names):
    """Write pictures."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(1))


@pytest.mark.parametrize("way", WAYS)
class TestWays:
    """Each rule, in the three ways."""

    def test_hidden_names(self, tmp_path, way):
        """Dots, folders with two underscores, and files that Windows leaves."""
        folder = tmp_path / "data"
        hidden = (".a.txt", ".git/b.txt", "__MACOSX/c.txt", "d/__pycache__/e.txt", "d/Thumbs.db")
        write_lines(folder, "a.txt", "d/b.txt", "__c.txt", "_d.txt", "_e/f.txt", *hidden)
        samples, notes = read(folder, way, tmp_path / "out", "lines")
        assert values(samples, "text") == ["__c.txt", "_d.txt", "_e/f.txt", "a.txt", "d/b.txt"]
        assert "5 hidden names" in notes

    def test_names_with_an_underscore_are_data(self, tmp_path, way):
        """A class of pictures, a picture and a tar."""
        write_pictures(tmp_path / "p", "_background/1.jpg", "cat/_2.jpg")
        samples, _ = read(tmp_path / "p", way, tmp_path / "out", "images")
        assert [(s["class"], s["label"]) for s in map(json.loads, samples)] == [
            ("_background", 0),
            ("cat", 1),
        ]
        (tmp_path / "t").mkdir()
        for name in ("a", "_b"):
            tars.by_python(tmp_path / "t" / f"{name}.tar", [(f"{name}.txt", name.encode())])
        samples, _ = read(tmp_path / "t", way, tmp_path / "out-2", "tar")
        assert values(samples, "txt") == ["_b", "a"]

    def test_names_with_an_underscore_are_left_out_of_formats_of_engines(self, tmp_path, way):
        """They are counted; those of an engine are companions, also where a format is detected."""
        engine = ("_SUCCESS", "_temporary/0/x.jsonl", "_delta_index/y.jsonl", "_metadata")
        write_lines(tmp_path / "j", "a.jsonl", "_b.jsonl", "_c/d.jsonl", *engine)
        samples, notes = read(tmp_path / "j", way, tmp_path / "out", "jsonl")
        assert values(samples, "v") == ["a.jsonl"]
        assert "2 names that begin with _" in notes
        assert read(tmp_path / "j", way, tmp_path / "out-2", None)[0] == samples

    def test_names_with_an_underscore_are_data_where_there_are_no_others(self, tmp_path, way):
        """Nothing else can be meant."""
        write_lines(tmp_path / "j", "_b.jsonl", "_temporary/0/x.jsonl")
        for number, source in enumerate(("j", "j/_b.jsonl", "j/_*.jsonl")):
            out = tmp_path / f"out-{number}"
            samples, _ = read(tmp_path / source, way, out, None)
            assert values(samples, "v") == ["_b.jsonl"]

    def test_links_to_folders_and_files(self, tmp_path, way):
        """Inside and elsewhere; never to a folder above, also not around a corner."""
        write_pictures(tmp_path, "data/cat/1.jpg", "elsewhere/2.jpg", "far/sub/3.jpg")
        data = tmp_path / "data"
        (data / "ant").symlink_to("cat")
        (data / "dog").symlink_to(tmp_path / "elsewhere")
        (data / "cat" / "4.jpg").symlink_to(tmp_path / "far" / "sub" / "3.jpg")
        (data / "cat" / "up").symlink_to("..")
        (data / "far").symlink_to(tmp_path / "far")
        (tmp_path / "far" / "sub" / "back").symlink_to(tmp_path / "data")
        (tmp_path / "elsewhere" / "root").symlink_to("/")
        (data / "cat" / "gone.jpg").symlink_to("nowhere")
        samples, notes = read(data, way, tmp_path / "out", "images")
        assert values(samples, "class") == ["ant", "ant", "cat", "cat", "dog", "far"]

        assert "4 links to a folder above" in notes
        assert "2 broken links" in notes
        assert "2 links to files" in notes
        assert "3 links to folders" in notes

    @pytest.mark.skipif(not can_become(), reason="only root can be another user")
    def test_links_that_others_could_plant_are_not_followed(self, tmp_path_factory, way):
        """In a sticky folder that anyone can write to, unless the folder's owner made them."""
        root = tmp_path_factory.getbasetemp() / f"planted {way}"
        write_lines(root / "data", "a.txt")
        write_lines(root, "elsewhere/b.txt", "file.txt")
        os.chown(root / "data", USERS[1], -1)
        for name, owner in (("own", 0), ("owners", USERS[1]), ("planted", USERS[0])):
            (root / "data" / name).symlink_to(root / "elsewhere")
            (root / "data" / f"{name}.txt").symlink_to(root / "file.txt")
            for link in (name, f"{name}.txt"):
                os.lchown(root / "data" / link, owner, -1)
        (root / "data").chmod(0o1777)
        samples, notes = read(root / "data", way, root / "out", "lines")
        texts = ["a.txt", *["elsewhere/b.txt"] * 2, *["file.txt"] * 2]
        assert values(samples, "text") == texts

        assert "1 link" in notes
        assert "of another user to a folder" in notes or "of other users to folders" in notes
        # Where only the owner can write, the link is followed.
        (root / "data").chmod(0o755)
        assert len(read(root / "data", way, root / "out-2", "lines")[0]) == len(texts) + 2

    @pytest.mark.skipif(not can_become(), reason="only root can be another user")
    @pytest.mark.parametrize("name", ["dog", "train"])
    def test_a_class_or_split_that_is_not_followed_is_an_error(self, tmp_path, way, name):
        """Its samples would be missing, and the labels of others would be other numbers."""
        write_pictures(tmp_path, "data/cat/1.jpg", "elsewhere/2.jpg")
        link = tmp_path / "data" / name
        link.symlink_to(tmp_path / "elsewhere")
        os.lchown(link, USERS[0], -1)
        (tmp_path / "data").chmod(0o1777)
        with pytest.raises(DeniedError, match=f"{name}: this link .* user {USERS[0]}") as raised:
            read(tmp_path / "data", way, tmp_path / "out", "images")
        command = str(raised.value).rpartition(": ")[2]
        assert command == f"chown -h 0 {link}"
        assert os.system(command) == 0
        assert len(read(tmp_path / "data", way, tmp_path / "out", "images")[0]) == 2

    @pytest.mark.skipif(not can_become(), reason="only root can be another user")
    def test_a_folder_that_cannot_be_listed_is_an_error(self, tmp_path_factory, way):
        """Also behind a link; a hidden one is left out, as are its files."""
        root = tmp_path_factory.getbasetemp() / f"locked {way}"
        write_lines(root, "data/a.txt", "data/.hidden/b.txt", "closed/c.txt")
        (root / "data" / "link").symlink_to(root / "closed")
        for above in (root / "data", *(root / "data").parents):
            if above.stat().st_uid == os.geteuid() and above != above.parent:
                above.chmod(above.stat().st_mode | 0o055)
        (root / "data" / ".hidden").chmod(0o700)
        (root / "closed").chmod(0o700)
        root.chmod(0o777)

        def act():
            with pytest.raises(DeniedError, match=r"data/link"):
                read(root / "data", way, root / "out", "lines")

        run_as(USERS[0], act)
        (root / "closed").chmod(0o755)
        run_as(USERS[0], lambda: read(root / "data", way, root / "out", "lines"))


def test_a_state_of_other_files_says_which_are_new(tmp_path):
    """As a state of an mds that left out links: it names the files that came."""
    write_lines(tmp_path, "data/a.jsonl", "data/b.jsonl", "elsewhere/c.jsonl")
    dataset = StreamingDataset(str(tmp_path / "data"), batch_size=1)
    state = dataset.state_dict(num_samples=1)
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    later = StreamingDataset(str(tmp_path / "data"), batch_size=1)
    with pytest.raises(StateError, match=r"belongs to 2 files of jsonl, .* has 3 .*link/c\.jsonl"):
        later.load_state_dict(state)


def test_a_user_s_format_inherits_the_rule(tmp_path):
    """Names with ``_`` are data unless its class says otherwise."""

    class Engine(Tar):
        omits_underscored = True

    for name in ("a", "_b"):
        tars.by_python(tmp_path / f"{name}.tar", [(f"{name}.txt", b"x")])
    count = {kind: len(StreamingDataset(str(tmp_path), format=kind())) for kind in (Tar, Engine)}
    assert count == {Tar: 2, Engine: 1}
    assert mds.formats.JsonLines.omits_underscored
