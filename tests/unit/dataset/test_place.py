"""The place of the data is the first argument of a dataset and of a Stream, without a name."""

import copy
import inspect
import pathlib

import pytest

import mds
from mds import LocalDataset, MDSWriter, Samples, Stream, StreamingDataset
from mds.errors import ArgumentError, ConfigError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two datasets of ten samples, ``a`` and ``b``, in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "user-cache"))
    for first, name in ((0, "a"), (100, "b")):
        with MDSWriter(name, {"id": "int"}) as writer:
            for number in range(10):
                writer.write({"id": first + number})
    return tmp_path


def ids(dataset):
    return [sample["id"] for sample in dataset]


@pytest.mark.parametrize("kind", [StreamingDataset, Samples])
@pytest.mark.parametrize("make", [str, pathlib.Path, "file://{}".format])
def test_a_path_is_read_in_place(folder, kind, make):
    """As with local=."""
    dataset = kind(make(folder / "a"))
    assert ids(dataset) == [*range(10)]
    stream = dataset.streams[0]
    assert (stream.remote, stream.local) == (None, str(folder / "a"))


@pytest.mark.parametrize("make", [str, pathlib.Path])
def test_a_path_beside_local_is_the_source(folder, make):
    """And local= is the cache."""
    dataset = StreamingDataset(make(folder / "a"), local="cache", batch_size=2)
    assert ids(dataset) == [*range(10)]
    assert (folder / "cache" / "index.json").exists()
    assert dataset.streams[0].remote == str(folder / "a")


def test_a_url_is_the_source():
    """As with remote=, for a dataset and for a Stream."""
    assert Stream("s3://bucket/train").remote == "s3://bucket/train"
    assert Stream("dbfs:/Volumes/x", local="cache").local == "cache"
    both = Stream("s3://bucket/train", local="cache", proportion=0.5)
    assert (both.remote, both.local, both.proportion) == ("s3://bucket/train", "cache", 0.5)


@pytest.mark.parametrize("kind", [StreamingDataset, Samples])
def test_several_places_may_be_paths(folder, kind):
    """In a list or dict, beside Streams."""
    for places in (["a", pathlib.Path("b")], {"a": "a", "b": Stream("b")}, ("a", Stream("b"))):
        for dataset in (kind(places), kind(streams=places)):
            assert sorted(ids(dataset)) == [*range(10), *range(100, 110)]
    scheduled = kind({"a": "a", "b": "b"}, batch_size=4, schedule={0: {"b": 1}})
    assert {*ids(scheduled)} == {*range(100, 110)}


def test_a_stream_has_a_place_too(folder):
    """The same as with a name, also in what it prints."""
    stream = Stream("a", repeat=2)
    assert repr(stream) == repr(Stream(local="a", repeat=2))
    assert len(StreamingDataset(streams=[stream])) == 20


@pytest.mark.parametrize("kind", [list, tuple])
def test_streams_come_first_too(folder, kind):
    """A list is streams=."""
    assert ids(StreamingDataset(kind([Stream("a"), Stream("b")]))) == [*range(10), *range(100, 110)]


def test_streams_by_name_come_first_too(folder):
    """A dict is streams=."""
    dataset = StreamingDataset({"x": Stream("a"), "y": Stream("b")})
    assert [stream._name for stream in dataset.streams] == ["x", "y"]


def test_other_arguments_mean_the_same(folder):
    """split= is below the place."""
    assert ids(StreamingDataset(folder, split="b")) == [*range(100, 110)]


REFUSED = [
    ("StreamingDataset('cache', remote='s3://b/x')", "StreamingDataset('s3://b/x', local='cache')"),
    ("StreamingDataset('s3://b/x', remote='s3://b/y')", "Leave one of the two out"),
    ("StreamingDataset('a', streams=[Stream('b')])", "Add Stream('a') to streams="),
    ("StreamingDataset([Stream('a')], streams=[Stream('b')])", "Put streams= into a Stream"),
    ("StreamingDataset([Stream('a')], local='c')", "Put local= into a Stream of the list"),
    ("StreamingDataset('a', 'cache')", "Write StreamingDataset('a', local='cache')"),
    ("StreamingDataset('c', 's3://b/x')", "Write StreamingDataset('s3://b/x', local='c')"),
    ("StreamingDataset(3)", "Write StreamingDataset('data/train')"),
    ("StreamingDataset(Stream('a'))", "streams=[Stream('a'), Stream('b')]"),
    ("StreamingDataset({'a': True})", "Write Stream('data/train')"),
    ("StreamingDataset({'a': {'locl': 'a'}})", "Did you mean local="),
    ("StreamingDataset(place='a')", "without a name: StreamingDataset('a')"),
    ("Stream('a', remote='s3://b/x')", "Write Stream('s3://b/x', local='a')"),
    ("Stream(['a'])", "Write Stream('data/train')"),
    ("Stream('s3:/bucket/x')", "two slashes"),
]


@pytest.mark.parametrize(("call", "way_out"), REFUSED)
def test_other_calls_are_refused_with_what_to_write(folder, call, way_out):
    """The error is a ConfigError, and shows the call that was probably meant."""
    with pytest.raises(ConfigError) as caught:
        eval(call, vars(mds) | {"StreamingDataset": StreamingDataset, "Stream": Stream})
    assert way_out in str(caught.value)


def test_none_is_no_place(folder):
    """A configuration may have None there; then another argument has the place."""
    assert len(StreamingDataset(None, local="a")) == 10
    with pytest.raises(ConfigError, match=r"no data was named.* StreamingDataset\('data/train'\)"):
        StreamingDataset(None)


class Doubled(StreamingDataset):
    """A class of a user, as the docs show it, with a constructor of its own."""

    def __init__(self, *, local, **options):
        super().__init__(local=local, **options)

    def __getitem__(self, index):
        return {"id": super().__getitem__(index)["id"] * 2}


def test_classes_of_users_are_as_before(folder):
    """They pass the place by name, or inherit the first argument."""
    assert ids(Doubled(local="a")) == [*range(0, 20, 2)]
    own = type("Own", (StreamingDataset,), {})
    assert ids(own("a")) == [*range(10)]
    assert ids(copy.copy(own("a").map(lambda sample: sample))) == [*range(10)]


@pytest.mark.parametrize("kind", [StreamingDataset, Samples, Stream])
def test_the_signature_shows_the_place(kind):
    """Positional only, and the first; all others have names."""
    place, *others = inspect.signature(kind).parameters.values()
    assert (place.name, place.kind) == ("place", place.POSITIONAL_ONLY)
    assert {each.kind for each in others} == {inspect.Parameter.KEYWORD_ONLY}


def test_the_incumbent_s_names_do_not_have_it():
    """`import streaming` takes names only, as it did."""
    from mds.compat._dataset import StreamingDataset as Compatible

    assert "place" not in inspect.signature(Compatible).parameters
    with pytest.raises(TypeError):
        Compatible("a")


def test_a_local_dataset_and_a_writer_take_the_place_first(folder):
    """Also with unknown arguments, whose error tells the name."""
    assert len(LocalDataset(pathlib.Path("a"))) == 10
    with pytest.raises(ArgumentError, match=r"LocalDataset\(shuffel=True\)"):
        LocalDataset("a", shuffel=True)


def test_streams_of_a_configuration(tmp_path):
    """A dict has the arguments of a Stream, and a number is the proportion of its key."""
    for name in ("a", "b"):
        with mds.MDSWriter(str(tmp_path / name), {"id": "int"}) as writer:
            for number in range(20):
                writer.write({"id": number})
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    for streams in (
        {"a": {"local": a, "proportion": 0.75}, "b": {"local": b, "proportion": 0.25}},
        [{"local": a, "proportion": 0.75}, {"local": b, "proportion": 0.25}],
        {a: 0.75, b: 0.25},
    ):
        dataset = mds.StreamingDataset(streams)
        assert [stream.proportion for stream in dataset.streams] == [0.75, 0.25]
        assert [stream.local for stream in dataset.streams] == [a, b]
