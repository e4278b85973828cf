"""What a newcomer gets wrong is answered with the subject, the value and a way out."""

import numpy as np
import pytest
from click.testing import CliRunner
from torch.utils.data import DataLoader

from mds import (
    JSONWriter,
    LocalDataset,
    MDSWriter,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
)
from mds._cli import convert, main
from mds.errors import ArgumentError, ConfigError, NotFoundError
from tests.unit.dataset import mistakes_helpers
from tests.unit.dataset.mistakes import MISTAKES

# Fixtures of both halves of these tests.
names = mistakes_helpers.names


@pytest.fixture
def splits(tmp_path):
    """A folder of two datasets."""
    for name in ("train", "val"):
        with MDSWriter(out=str(tmp_path / name), columns={"n": "int"}) as writer:
            writer.write({"n": 1})
    return str(tmp_path)


def test_the_folder_of_splits_names_them(splits):
    """local= is the folder above the datasets, as mds-convert leaves it."""
    with pytest.raises(NotFoundError, match="There are datasets in train, val: give split='train'"):
        StreamingDataset(local=splits, batch_size=1)
    assert len(StreamingDataset(local=splits, split="train", batch_size=1)) == 1


@pytest.mark.parametrize(
    ("shares", "remedy"),
    [
        (0.75, r"train, val = dataset.split\(\[0\.75, 0\.25\]\)"),
        ("train", r"\{'train': 0\.9"),
        ([0.8], "Change one of the shares"),
        ([60, 20], r"Use shares, as in split\(\[0\.75, 0\.25\]\)"),
        ([0.8, "0.2"], r"\{'train': 0\.9"),
    ],
)
def test_split_says_what_it_takes(splits, shares, remedy):
    """The error shows a call with what was probably meant."""
    dataset = StreamingDataset(local=splits, split="train", batch_size=1)
    with pytest.raises(ConfigError, match=remedy):
        dataset.split(shares)


def test_split_gives_parts_in_the_form_of_the_shares(names):
    """A list or a tuple of shares gives a list of the same parts as a dict."""
    dataset = StreamingDataset(local=names["d"], batch_size=1)
    train, val = dataset.split([0.75, 0.25], seed=3)
    named = dataset.split({"train": 0.75, "val": 0.25}, seed=3)
    assert [ids(train), ids(val)] == [ids(named["train"]), ids(named["val"])]
    assert sorted(ids(train) + ids(val)) == list(range(20))
    assert len(dataset.split((0.5, 0.25, 0.25), by="name")) == 3


def ids(dataset):
    """The ids of the samples of a dataset."""
    return [sample["id"] for sample in dataset]


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("cache_limt", "1gb", "Did you mean cache_limit"),
        ("seed", 3, "Did you mean shuffle_seed"),
        ("epoch", 3, "Did you mean next_epoch"),
        ("local", "x", r"Write StreamingDataset\(\.\.\., local="),
        ("columns", ["id"], r"Write StreamingDataset\(\.\.\., columns="),
        ("split", "val", r"Write StreamingDataset\(\.\.\., split="),
        ("predownload", "8", "Write predownload=8"),
        ("replication", 0, "of at least 1"),
    ],
)
def test_an_assignment_without_effect_is_refused(names, name, value, remedy):
    """Also to an attribute that does not exist, if it looks like a setting."""
    dataset = StreamingDataset(local=names["d"], batch_size=1)
    for each in (dataset, dataset.map(dict)):
        with pytest.raises((AttributeError, ConfigError), match=remedy):
            setattr(each, name, value)
    dataset.note = dataset._note = value  # an attribute of the user's
    own = mistakes_helpers.Own(local=names["d"], batch_size=1)
    if name not in {"predownload", "replication"}:
        setattr(own, name, value)
        assert getattr(own, name) == value
    elif name == "replication":  # the ranks depend on it in every class
        with pytest.raises(ConfigError, match=remedy):
            own.replication = value
        assert own.replication is None


def test_an_assignment_to_a_stream_or_a_loader_is_checked(names):
    """A misspelled name is refused, and a value that the constructor would refuse."""
    stream = Stream(local=names["d"])
    with pytest.raises(AttributeError, match="Did you mean proportion"):
        stream.proportions = 0.5
    with pytest.raises(ConfigError, match="Write repeat=2"):
        stream.repeat = "2"
    stream.repeat, stream.note = 2, "mine"
    loader = StreamingDataLoader(StreamingDataset(streams=[stream], batch_size=4))
    with pytest.raises(AttributeError, match="Did you mean num_workers"):
        loader.num_worker = 2
    with pytest.raises(AttributeError, match="Did you mean num_workers"):
        loader.workers = 2
    with pytest.raises(ConfigError, match="num_workers must be a whole number"):
        loader.num_workers = -1
    loader.note = "mine"
    assert len(list(loader)) == 10


def test_there_are_sixty_mistakes():
    """The table is as long as it says, and no call stands in it twice."""
    assert len({call for call, *_ in MISTAKES}) == len(MISTAKES) >= 60


def test_python_s_own_types_of_errors_are_kept(names):
    """Code that catches TypeError or ValueError for an argument goes on doing so."""
    for call in (
        "dataset(shufle=True)",
        "Own(d, d)",
        "writer(colums={})",
        "dataset(batch_size='4')",
    ):
        with pytest.raises(TypeError) as caught:
            eval(call, names)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, ArgumentError)


def test_what_stands_for_a_number_is_one(names):
    """NumPy's numbers and whole floats for samples are as good as Python's."""
    made = names["dataset"](batch_size=np.int64(4), shuffle=np.bool_(True), epoch_size=1e1)
    assert made.batch_size == 4
    assert made.epoch_size == 10


def test_missing_arguments_are_named():
    """A writer says what it lacks, and finds a slip of the pen first."""
    with pytest.raises(ArgumentError, match=r"needs columns=, but got out= and hashes="):
        MDSWriter(out="x", hashes=[])
    with pytest.raises(ArgumentError, match=r"MDSWriter\(colums=\{\}\).*Did you mean columns=\?"):
        MDSWriter(out="x", colums={})
    with pytest.raises(ArgumentError, match=r"JSONWriter\(colums=\{\}\)"):
        JSONWriter(out="x", columns={"a": "int"}, colums={})


def test_secrets_stay_out_of_messages():
    """A login in a URL is masked where the URL is repeated."""
    with pytest.raises(ArgumentError) as caught:
        StreamingDataset("cache", "https://me:hunter22@host/data")
    assert "hunter22" not in str(caught.value)
    assert "local='cache'" in str(caught.value)


def test_samples_come_one_by_one_without_a_batch_size(names):
    """A dataset is iterated, resumed and explained without one in one process."""
    whole = StreamingDataset(local=names["d"], shuffle=True)
    ids = [sample["id"] for sample in whole]
    assert sorted(ids) == list(range(20))
    assert "single samples" in whole.explain()

    first = StreamingDataset(local=names["d"], shuffle=True)
    samples = iter(first)
    seen = [next(samples)["id"] for _ in range(7)]
    second = StreamingDataset(local=names["d"], shuffle=True)
    second.load_state_dict(first.state_dict())
    assert seen + [sample["id"] for sample in second] == ids


def test_several_ranks_need_a_batch_size(names):
    """They are dealt whole batches, so without a size they would not agree with their loaders."""
    for rank in range(2):
        dataset = StreamingDataset(local=names["d"], topology=(rank, 2))
        with pytest.raises(ConfigError, match=r"StreamingDataset\(..., batch_size=32\)"):
            next(iter(dataset))


def test_several_workers_need_a_batch_size(names):
    """They deal out whole batches, so torch's loader cannot do without."""
    loader = DataLoader(StreamingDataset(local=names["d"]), batch_size=2, num_workers=2)
    with pytest.raises(ConfigError, match=r"StreamingDataset\(..., batch_size=32\)") as caught:
        list(loader)
    # Frames of the traceback refer to the iterator. If a garbage collection found it, torch would
    # wait ten seconds for its worker processes; released here, it ends them at once.
    caught.value.with_traceback(None)
    del caught


def test_a_selection_of_columns_makes_streams_alike(names, tmp_path):
    """Streams with other columns are fit for a batch by what they share."""
    with MDSWriter(out=str(tmp_path / "more"), columns={"id": "int", "x": "int"}) as writer:
        writer.write({"id": 1, "x": 2})
    streams = [Stream(local=names["d"]), Stream(local=str(tmp_path / "more"))]
    made = StreamingDataset(streams=streams, batch_size=7, columns=["id"])
    assert sum(len(batch["id"]) for batch in StreamingDataLoader(made)) == 21


def test_pictures_of_other_kinds_go_into_a_column_of_jpeg(tmp_path):
    """What Pillow reads is a picture, whatever the column is called."""
    import io

    from PIL import Image

    with MDSWriter(out=str(tmp_path / "d"), columns={"x": "jpeg"}) as writer:
        for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"):
            file = io.BytesIO()
            Image.new("RGB", (2, 2)).save(file, kind)
            writer.write({"x": file.getvalue()})
    assert [s["x"].size for s in LocalDataset(str(tmp_path / "d"))] == [(2, 2)] * 6


@pytest.mark.parametrize("names", [("0", "1", "2"), ("00000", "00001"), ("part-0", "part-1")])
def test_parts_that_were_not_merged_are_no_splits(tmp_path, names):
    """Whoever takes one of them trains on a part, so the error merges them."""
    for name in names:
        with MDSWriter(out=str(tmp_path / "d" / name), columns={"n": "int"}) as writer:
            writer.write({"n": 1})
    folder = str(tmp_path / "d")
    with pytest.raises(NotFoundError, match=r"parts that were not merged\. Merge") as error:
        StreamingDataset(local=folder, batch_size=1)
    assert "split=" not in str(error.value)
    assert f"merge_index({folder!r})" in str(error.value)
    command = str(error.value).partition("or with: mds ")[2].split()
    assert CliRunner().invoke(main, command).exit_code == 0
    assert len(StreamingDataset(local=folder, batch_size=1)) == len(names)


def test_an_unfinished_conversion_is_not_converted(tmp_path):
    """The error advises to resume it, and not to convert the files of its work folder."""
    source, out = str(tmp_path / "in.jsonl"), str(tmp_path / "out")
    with open(source, "w") as file:
        file.write('{"n": 1, "text": "' + "x" * 300 + '"}\n')
        file.writelines('{"n": 1, "text": "' + "x" * 300 + '"}\n' for _ in range(8000))
        file.write("{broken\n")
    arguments = [source, out, "--size-limit", "200kb", "--num-workers", "1"]
    assert CliRunner().invoke(convert, arguments).exit_code != 0
    with pytest.raises(NotFoundError, match="Continue with mds-convert --resume") as error:
        StreamingDataset(local=out, batch_size=1)
    assert "Convert them" not in str(error.value)
