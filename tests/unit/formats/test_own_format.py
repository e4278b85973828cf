"""A format of a user's own, in forty lines, does everything that MDS does."""

import dataclasses
import os
import pickle
from typing import ClassVar

import pytest
from numbers_format import Numbers

from mds import StreamingDataLoader, StreamingDataset
from mds._dataset.stream import Stream
from mds.errors import ConfigError, FormatError, NotFoundError, ReplacedError
from mds.formats import register_format
from mds.testing import FormatContract


class TestNumbers(FormatContract):
    format = Numbers()

    @pytest.fixture
    def folder(self, numbers):
        return numbers

    @pytest.fixture
    def damaged(self, tmp_path):
        path = tmp_path / "broken.numbers"
        path.write_text("1\n2\nthree\n4\n5\n")
        return path, "broken.numbers"


def of(folder, cache, **more):
    return StreamingDataset(
        remote=str(folder), local=str(cache), batch_size=2, format="numbers", **more
    )


def test_samples_come_in_the_order_of_files_and_lines(numbers, tmp_path):
    """Files in the order of their paths; hidden ones and others are left out."""
    dataset = of(numbers, tmp_path / "cache")
    assert [sample["number"] for sample in dataset] == list(range(17))
    assert dataset[11] == {"number": 11, "text": "11"}
    assert dataset.num_shards == 5
    assert dataset.samples_per_shard.tolist() == [4, 4, 2, 4, 3]


def test_a_folder_is_known_by_the_endings_in_it(numbers, tmp_path, monkeypatch):
    """local= alone names a folder of such files, which are read where they are."""
    monkeypatch.setenv("MDS_CACHE_DIR", str(tmp_path / "mine"))
    before = sorted(os.listdir(numbers))
    dataset = StreamingDataset(local=str(numbers), batch_size=2)
    assert [sample["number"] for sample in dataset] == list(range(17))
    assert sorted(os.listdir(numbers)) == before


def test_a_setting_without_a_default_is_asked_for(tmp_path):
    """A name alone does not choose a format with such a setting; the class with it does."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Scaled(Numbers):
        name: ClassVar[str] = "scaled"
        endings: ClassVar[tuple[str, ...]] = (".scaled",)
        scale: int

    register_format("scaled", Scaled)
    (tmp_path / "a.scaled").write_text("7\n")
    words = r"'scaled' needs a setting: give format=Scaled\(scale=...\), or --set scale=... on a"
    with pytest.raises(ConfigError, match=words):
        StreamingDataset(remote=str(tmp_path), local=str(tmp_path / "c"), format="scaled")
    dataset = StreamingDataset(
        remote=str(tmp_path), local=str(tmp_path / "c"), format=Scaled(scale=2)
    )
    assert dataset[0]["number"] == 7


def test_patterns_choose_files(numbers, tmp_path):
    """A wildcard or braces in the URL choose among the files; what they name must be there."""
    for pattern in ("a*.numbers", "[!b].numbers", "**/a.numbers"):
        dataset = StreamingDataset(
            remote=f"{numbers}/{pattern}", local=str(tmp_path / "c"), batch_size=2
        )
        assert [sample["number"] for sample in dataset] == list(range(10))
    both = StreamingDataset(
        remote=f"{numbers}/{{a,b}}.numbers", local=str(tmp_path / "d"), batch_size=2
    )
    assert both.num_samples == 17
    with pytest.raises(NotFoundError, match=r"there is no z\.numbers"):
        StreamingDataset(
            remote=f"{numbers}/{{a,z}}.numbers", local=str(tmp_path / "e"), batch_size=2
        )
    with pytest.raises(FormatError, match="no numbers files"):
        StreamingDataset(remote=f"{numbers}/z*.numbers", local=str(tmp_path / "f"), batch_size=2)


def test_it_shuffles_resumes_and_mixes(numbers, tmp_path):
    """A shuffled epoch has each sample once; one that stops goes on with what is left."""
    settings = {"shuffle": True, "shuffle_seed": 3, "num_canonical_nodes": 1}
    whole = [s["number"] for s in of(numbers, tmp_path / "c", **settings)]
    assert sorted(whole) == list(range(17))
    assert whole != sorted(whole)
    loader = StreamingDataLoader(of(numbers, tmp_path / "c", **settings), batch_size=2)
    first = []
    for batch in loader:
        first += batch["number"].tolist()
        if len(first) == 6:
            state = loader.state_dict()
            break
    again = StreamingDataLoader(of(numbers, tmp_path / "c", **settings), batch_size=2)
    again.load_state_dict(state)
    rest = [n for batch in again for n in batch["number"].tolist()]
    assert (first + rest)[:17] == whole


def test_settings_of_a_format_are_said_in_one_value(numbers, tmp_path):
    """format= takes a format with its settings; other settings never meet in one cache."""
    one = StreamingDataset(remote=str(numbers), local=str(tmp_path / "c"), format=Numbers(factor=2))
    other = StreamingDataset(
        remote=str(numbers), local=str(tmp_path / "c"), format=Numbers(factor=3)
    )
    few = StreamingDataset(
        remote=str(numbers), local=str(tmp_path / "c"), format=Numbers(columns=["text"])
    )
    assert one[5] == {"number": 10, "text": "5"}
    assert other[5] == {"number": 15, "text": "5"}
    assert few[5] == {"text": "5"}
    with pytest.raises(ConfigError) as raised:
        of(numbers, tmp_path / "c", columns=["number", "txt"])
    assert str(raised.value) == (
        f"{numbers}: there is no column 'txt'. Did you mean 'text'? "
        "The columns are 'number', 'text'."
    )


def test_what_is_cached_is_used_again(numbers, tmp_path):
    """A second dataset decodes nothing, and one of files that changed decodes the new ones."""
    dataset = of(numbers, tmp_path / "c")
    assert len(list(dataset)) == 17
    again = of(numbers, tmp_path / "c")
    assert len(list(again)) == 17
    assert again.stats()["fetched_shards"] == 0
    os.utime(numbers / "a.numbers", ns=(1, 1))
    cache = pickle.loads(pickle.dumps(dataset))._cache
    with pytest.raises(ReplacedError, match=r"a\.numbers: the file changed"):
        list(cache.runtime.uncached.read_rows(0, [0]).samples([0]))
    assert [s["number"] for s in of(numbers, tmp_path / "c")] == list(range(17))


def test_one_format_in_a_mix_with_another_stream(numbers, tmp_path):
    """Streams of formats mix with others; each has its own format=."""
    streams = [
        Stream(remote=str(numbers), local=str(tmp_path / "a"), format="numbers"),
        Stream(remote=str(numbers / "b.numbers"), local=str(tmp_path / "b"), repeat=2),
    ]
    dataset = StreamingDataset(streams=streams, batch_size=1)
    assert len(list(dataset)) == 17 + 14
    with pytest.raises(ConfigError, match="Give each Stream its own"):
        StreamingDataset(streams=streams, format="numbers")
