"""Streams and their registry."""

import pathlib
import pickle

import pytest

from mds import LocalDataset, MDSWriter, Schedule, Stream, StreamingDataLoader, StreamingDataset
from mds._dataset.stream import streams_registry
from mds.errors import ConfigError


def test_a_stream_class_of_the_callers_serves_a_dataset(make):
    """Registered under a name, by call or as a decorator, with arguments of its own."""

    @streams_registry.register("half")
    class Half(Stream):
        def __init__(self, *, share=0.5, **kwargs):
            super().__init__(repeat=share, **kwargs)

    dataset = StreamingDataset(
        local=make(), stream_name="half", stream_config={"share": 0.25}, batch_size=4
    )
    assert type(dataset.streams[0]) is Half
    assert len(list(dataset)) == 25
    assert "half" in streams_registry.get_all()


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize(
    ("samples", "share", "settings"),
    [
        (0, {}, {"batching_method": "random"}),
        (100, {"choose": 1}, {"batching_method": "stratified"}),
        (3, {}, {"batching_method": "per_stream"}),
    ],
)
def test_an_error_calls_a_stream_by_its_name(make, samples, share, settings, is_named):
    """A stream of a mapping has its name in errors of weights and of batches, else its number."""
    streams = {"web": Stream(local=make()), "code": Stream(local=make(samples=samples), **share)}
    settings = settings | {"streams": streams if is_named else [*streams.values()], "batch_size": 4}
    with pytest.raises(ValueError, match="^stream 'code' " if is_named else "^stream 1 ") as told:
        next(iter(StreamingDataLoader(StreamingDataset(**settings))))
    assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)


def test_errors_of_a_schedule_and_of_columns_have_names_of_streams(make, tmp_path):
    """The share of a stream beside a schedule, and streams of other columns."""
    with pytest.raises(ValueError, match=r"^stream 'web' has a proportion"):
        StreamingDataset(
            streams={"web": Stream(local=make(), proportion=1)},
            schedule=Schedule({0: {"web": 1}}),
            batch_size=4,
        )
    with MDSWriter(out=str(tmp_path / "other"), columns={"z": "int"}) as writer:
        writer.write({"z": 1})
    dataset = StreamingDataset(
        streams={"web": Stream(local=make()), "code": Stream(local=str(tmp_path / "other"))},
        batch_size=4,
    )
    with pytest.raises(ValueError, match=r"stream 'web' have .* stream 'code' have 'z'"):
        StreamingDataLoader(dataset)


def test_an_empty_path_is_refused_with_what_to_write(make, tmp_path, monkeypatch):
    """An empty text for a place, as of a variable that is not set, is refused by name."""
    monkeypatch.chdir(tmp_path)
    folder = make(samples=4)
    for kind in (StreamingDataset, Stream):
        with pytest.raises(ConfigError, match=r"local= is an empty text\. Give"):
            kind(remote=folder, local="")
        with pytest.raises(ConfigError, match=r"local= is an empty text\. Give a path, such as"):
            kind(local="")
    with pytest.raises(ConfigError, match="local is an empty text"):
        LocalDataset("")
    with pytest.raises(ConfigError, match=r"empty\. Give a URL, or a path such as"):
        StreamingDataset(remote="")
    with pytest.raises(ConfigError, match=r"out is an empty text\. Give a folder"):
        MDSWriter(out="", columns={"id": "int"})
    assert not [*tmp_path.glob("*.mds")]


def test_a_split_may_be_a_path(tmp_path):
    """Streams, datasets and local datasets take a pathlib.Path as the name of a split."""
    with MDSWriter(out=str(tmp_path / "train"), columns={"x": "int"}) as writer:
        writer.write({"x": 7})
    split = pathlib.Path("train")
    for dataset in (
        LocalDataset(tmp_path, split=split),
        StreamingDataset(local=tmp_path, split=split, batch_size=1),
        StreamingDataset(remote=tmp_path, local=tmp_path / "cache", split=split, batch_size=1),
        StreamingDataset(streams=[Stream(local=tmp_path, split=split)], batch_size=1),
    ):
        assert dataset[0] == {"x": 7}
