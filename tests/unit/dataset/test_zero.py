"""Zero means zero: a dataset of nothing iterates to nothing, and is never everything."""

import os

import pytest
from PIL import Image

from mds import LocalDataset, MDSWriter, Stream, StreamingDataset, convert
from mds.errors import ConfigError, NotFoundError


def test_a_stream_of_which_nothing_is_selected_gives_nothing(make):
    """The others go on, with the shares that they have among themselves."""
    streams = [
        Stream(local=make(), proportion=0.5),
        Stream(local=make(samples=40, first=500), proportion=0.5),
    ]
    dataset = StreamingDataset(streams=streams, batch_size=4).limit(60)
    assert sorted(s["id"] for s in dataset) == list(range(60))
    plain = StreamingDataset(streams=[Stream(local=s.local) for s in streams], batch_size=4)
    assert sorted(s["id"] for s in plain.select([100, 139])) == [500, 539]


def test_less_than_zero_is_refused(make):
    """It was everything too."""
    with pytest.raises(ConfigError, match=r"limit.*-5"):
        StreamingDataset(local=make(), batch_size=4).limit(-5)
    with pytest.raises(ConfigError, match="epoch_size=-1"):
        StreamingDataset(local=make(), batch_size=4, epoch_size=-1)


def test_proportions_of_zero_alone_are_refused(make):
    """Of nothing but zeros there is no share."""
    with pytest.raises(ConfigError, match="all proportions are zero"):
        StreamingDataset(streams=[Stream(local=make(), proportion=0)], batch_size=4)


def test_a_stream_without_samples_is_named_with_its_place(tmp_path):
    """Of a thousand streams its number does not say much."""
    for name, count in (("full", 3), ("empty", 0)):
        with MDSWriter(str(tmp_path / name), {"x": "int"}) as writer:
            for number in range(count):
                writer.write({"x": number})
    streams = [Stream(str(tmp_path / name)) for name in ("full", "full", "empty")]
    with pytest.raises(ConfigError, match=f"stream 2 has no samples: {tmp_path}/empty. Leave"):
        StreamingDataset(streams=streams, batch_size=1)


@pytest.mark.parametrize("kind", ["local", "remote", "LocalDataset", "lines"])
def test_a_split_of_a_dataset_without_splits(tmp_path, kind):
    """The error says to leave it out, and nothing of remote=."""
    place = str(tmp_path / "data")
    with MDSWriter(place, {"x": "int"}) as writer:
        writer.write({"x": 1})
    if kind == "lines":
        place = str(tmp_path / "lines")
        os.mkdir(place)
        (tmp_path / "lines" / "a.jsonl").write_text('{"x": 1}\n')
    openers = {
        "LocalDataset": lambda: LocalDataset(place, split="train"),
        "remote": lambda: StreamingDataset(
            remote=place, local=str(tmp_path / "c"), split="train", batch_size=1
        ),
    }
    opener = openers.get(kind, lambda: StreamingDataset(place, split="train", batch_size=1))
    with pytest.raises(NotFoundError, match="leave split='train' out") as error:
        opener()
    assert "remote=" not in str(error.value)
    assert len(StreamingDataset(place, batch_size=1)) == 1


def test_class_names_of_pictures_that_are_read_in_place(tmp_path):
    """They are the names of the folders, as after converting."""
    for name in ("dog", "cat"):
        for number in range(3):
            path = tmp_path / "pictures" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4)).save(path)
    place = str(tmp_path / "pictures")
    dataset = StreamingDataset(place, format="images", batch_size=1)
    assert dataset.class_names == {"label": ["cat", "dog"]}
    assert {s["class"]: dataset.class_names["label"][s["label"]] for s in dataset} == {
        "cat": "cat",
        "dog": "dog",
    }
    convert(place, str(tmp_path / "converted"))
    assert LocalDataset(str(tmp_path / "converted")).class_names == dataset.class_names
    without = StreamingDataset(place, format="images", batch_size=1, columns=["image"])
    assert without.class_names == {}
