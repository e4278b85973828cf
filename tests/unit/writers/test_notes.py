"""Names of classes and descriptions of columns: kept by writers, merges and conversions."""

import json
import logging

import pytest

from mds import CSVWriter, JSONWriter, LocalDataset, MDSWriter, StreamingDataset, merge_index
from mds._cli.verification import verify
from mds._index.column_notes import NAME
from mds.errors import ArgumentError, ConfigError
from mds.writers.convert import convert

NAMES = {"label": ["cat", "dog"]}
TEXTS = {"label": "the animal", "id": "a number"}


def write(out, kind=MDSWriter, **given):
    with kind(out=str(out), columns={"id": "int", "label": "int"}, **given) as writer:
        for number in range(20):
            writer.write({"id": number, "label": number % 2})
    return str(out)


@pytest.mark.parametrize("kind", [MDSWriter, JSONWriter, CSVWriter])
def test_a_writer_keeps_what_it_is_told_of_columns(kind, tmp_path):
    """Every format has the file, and every dataset reads it."""
    out = write(tmp_path / "a", kind, class_names=NAMES, descriptions=TEXTS)
    dataset = StreamingDataset(local=out, batch_size=2)
    assert dataset.class_names == NAMES
    assert dataset.descriptions["label"] == "the animal"
    assert dataset.descriptions["id"] == "a number"
    assert verify(out).faults == []


def test_without_notes_there_is_no_file(tmp_path):
    """The folder is what it always was."""
    write(tmp_path / "a")
    assert not (tmp_path / "a" / NAME).exists()


def test_notes_go_to_both_places_of_a_pair(tmp_path):
    """As the index does."""
    write((tmp_path / "near"), class_names=NAMES)
    with MDSWriter(
        out=(str(tmp_path / "local"), str(tmp_path / "far")),
        columns={"label": "int"},
        class_names=NAMES,
        keep_local=True,
    ) as writer:
        writer.write({"label": 1})
    for name in ("local", "far"):
        assert LocalDataset(str(tmp_path / name)).class_names == NAMES


def test_a_dataset_that_is_replaced_loses_its_notes(tmp_path):
    """They were of what was there before."""
    write(tmp_path / "a", class_names=NAMES)
    write(tmp_path / "a", exist_ok=True)
    assert LocalDataset(str(tmp_path / "a")).class_names == {}


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"class_names": {"lable": ["a"]}}, ConfigError, "Did you mean 'label'"),
        ({"class_names": {"label": "cat"}}, ConfigError, "must be a list of texts"),
        ({"class_names": {"label": [1, 2]}}, ConfigError, "must be a list of texts"),
        ({"class_names": {"label": None}}, ConfigError, "must be a list of texts"),
        ({"class_names": ["cat"]}, ArgumentError, "{'label': ['cat', 'dog']}"),
        ({"descriptions": {"label": 3}}, ConfigError, "must be a text"),
        ({"descriptions": {"label": "a\ud800"}}, ConfigError, "has a lone surrogate"),
        ({"class_names": {"label": ["a", "\udc80"]}}, ConfigError, "'\\udc80' has a lone"),
        ({"descriptions": "the animal"}, ArgumentError, "{'label': 'the animal'}"),
    ],
)
def test_notes_that_make_no_sense_are_refused_before_anything_is_made(
    given, error, words, tmp_path
):
    """With the near name, or how to write it."""
    with pytest.raises(error) as caught:
        MDSWriter(out=str(tmp_path / "a"), columns={"label": "int"}, **given)
    assert words in str(caught.value)
    assert not (tmp_path / "a").exists()


def test_merging_keeps_the_notes_of_the_parts(tmp_path):
    """Of all below a folder, and of a list; also where one part alone tells any."""
    write(tmp_path / "x", descriptions={"id": "a number"})
    write(tmp_path / "y", class_names=NAMES)
    merge_index(str(tmp_path))
    merged = LocalDataset(str(tmp_path))
    assert len(merged) == 40
    assert merged.class_names == NAMES
    assert merged.descriptions["id"] == "a number"
    (tmp_path / NAME).unlink()
    merge_index([str(tmp_path / name / "index.json") for name in "yx"], str(tmp_path))
    assert LocalDataset(str(tmp_path)).class_names == NAMES
    assert verify(str(tmp_path)).faults == []


def test_numbers_that_mean_other_classes_lose_their_names_when_merged(tmp_path, caplog):
    """A number must not mean two things; it is told."""
    write(tmp_path / "x", class_names=NAMES, descriptions=TEXTS)
    write(tmp_path / "y", class_names={"label": ["dog", "cat"]})
    with caplog.at_level(logging.WARNING):
        merge_index(str(tmp_path))
    assert "column 'label' mean different classes" in caplog.text
    merged = LocalDataset(str(tmp_path))
    assert merged.class_names == {}
    assert merged.descriptions["label"] == "the animal"


def test_merging_again_without_notes_leaves_none(tmp_path):
    """The file of an index that is gone goes with it."""
    write(tmp_path / "x", class_names=NAMES)
    merge_index(str(tmp_path))
    assert (tmp_path / NAME).exists()
    write(tmp_path / "x", exist_ok=True)
    merge_index(str(tmp_path))
    assert not (tmp_path / NAME).exists()


def test_a_dataset_that_is_cut_anew_or_split_keeps_its_notes(tmp_path):
    """Of the columns that it still has; what is said now comes first."""
    source = write(tmp_path / "a", class_names=NAMES, descriptions=TEXTS)
    convert(source, str(tmp_path / "cut"), size_limit="1kb", describe={"id": "which"})
    cut = LocalDataset(str(tmp_path / "cut"))
    assert cut.class_names == NAMES
    assert cut.descriptions["id"] == "which"
    assert cut.descriptions["label"] == "the animal"
    convert(source, str(tmp_path / "parts"), split={"train": 0.5, "val": 0.5}, columns=["label"])
    for name in ("train", "val"):
        assert LocalDataset(str(tmp_path / "parts"), name).class_names == NAMES
        told = json.loads((tmp_path / "parts" / name / NAME).read_text().partition("\n")[2])
        assert set(told["columns"]) == {"label"}


def test_verify_looks_at_notes(tmp_path):
    """Damaged ones, and those of a column that there is not."""
    out = write(tmp_path / "a", class_names=NAMES)
    path = tmp_path / "a" / NAME
    data = path.read_bytes()
    path.write_bytes(data.replace(b"cat", b"cow"))
    assert any("is damaged" in fault for fault in verify(out).faults)
    write(tmp_path / "b", descriptions={"id": "a number"})
    index = (tmp_path / "b" / "index.json").read_bytes()
    (tmp_path / "b" / "index.json").write_bytes(index.replace(b'"id"', b'"no"'))
    assert any("belongs to another" in fault for fault in verify(str(tmp_path / "b")).faults)


def test_a_schema_is_of_the_columns_that_are_read_and_reads_nothing(tmp_path, monkeypatch):
    """It has the encodings, and a writer takes it."""
    out = write(tmp_path / "a", class_names=NAMES, descriptions=TEXTS)
    whole, part = StreamingDataset(local=out), LocalDataset(out, columns=["label"])
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", None)
        patch.setattr("os.open", None)
        assert whole.schema == whole.limit(3).schema == {"id": "int", "label": "int"}
        assert whole.columns == ["id", "label"]
        assert (part.schema, part.columns) == ({"label": "int"}, ["label"])
    assert part.class_names == NAMES
    assert part.descriptions == {"label": TEXTS["label"]}
    with MDSWriter(tmp_path / "copy", whole.schema) as writer:
        for sample in whole:
            writer.write(sample)
    assert LocalDataset(tmp_path / "copy")[7] == whole[7]
