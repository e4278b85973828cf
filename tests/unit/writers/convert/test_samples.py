"""Samples of Python: iterables, datasets of other libraries, tables, and splits of them."""

import json
import os

import numpy as np
import pytest
from PIL import Image
from quickly import convert, prepare

import mds
from mds.errors import ArgumentError, ConfigError, RecordError, SourceError
from mds.writers.convert._checkpoint import Checkpoint


def rows(count=5):
    return [{"id": i, "text": f"text {i}"} for i in range(count)]


def test_lists_and_generators_give_the_same_dataset(kit):
    """Columns are inferred, samples keep their order, and bytes do not depend on the iterable."""
    convert(rows(), kit.out)
    convert((row for row in rows()), kit.out + "2")
    assert kit.samples() == kit.samples(kit.out + "2") == rows()
    assert kit.encodings(prepare(rows(), kit.out + "3")) == {"id": "int", "text": "str"}
    names = [name for name in os.listdir(kit.out) if name.endswith(".mds")]
    for name in names:
        with open(f"{kit.out}/{name}", "rb") as one, open(f"{kit.out}2/{name}", "rb") as other:
            assert one.read() == other.read()


def test_more_samples_than_are_looked_at_come_once_each(kit):
    """The first thousand decide the columns, and all are written; a limit stops the iterator."""
    convert(({"i": i} for i in range(2500)), kit.out)
    assert [sample["i"] for sample in kit.samples()] == list(range(2500))
    endless = ({"i": i} for i in iter(int, 1))
    assert convert(endless, kit.out + "2", limit=1500).samples == 1500


class OwnIterator:
    """A dataset that is its own iterator, and begins anew at each iter(), as that of litdata."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        self.number = -1
        return self

    def __next__(self):
        self.number += 1
        if self.number == self.count:
            raise StopIteration
        return {"i": self.number}


@pytest.mark.parametrize("count", [50, 2500])
def test_a_dataset_that_is_its_own_iterator_gives_each_sample_once(kit, count):
    """Also those that were looked at to infer the columns."""
    convert(OwnIterator(count), kit.out)
    assert [sample["i"] for sample in kit.samples()] == list(range(count))


def test_large_samples_are_cut_into_parts(kit):
    """A part has a few megabytes, and shards do not show where it ended."""
    big = [{"i": i, "data": bytes([i]) * 3_000_000} for i in range(5)]
    assert len([*prepare(big, kit.out).source.cut_parts(1)]) == 3
    convert(big, kit.out, size_limit="7mb")
    assert [(s["i"], s["data"][0], len(s["data"])) for s in kit.samples()] == [
        (i, i, 3_000_000) for i in range(5)
    ]


def test_values_of_arrays_pictures_and_numbers(kit):
    """Arrays and numbers keep their types; pictures are stored without loss."""
    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    samples = [
        {"a": np.full(3, i, np.int16), "n": np.float32(i), "p": picture, "z": np.array(i)}
        for i in range(3)
    ]
    plan = prepare(samples, kit.out)
    assert kit.encodings(plan) == {"a": "ndarray:int16:3", "n": "float32", "p": "png", "z": "int64"}
    plan.run()
    sample = mds.LocalDataset(kit.out)[2]
    assert np.array_equal(np.asarray(sample["p"]), np.asarray(picture))
    assert (sample["a"].tolist(), sample["n"], sample["z"]) == ([2, 2, 2], 2, 2)


def test_pictures_of_jpeg_files_are_the_files(kit, tmp_path):
    """A picture that was opened from a JPEG file is stored as the file, never encoded anew."""
    path = tmp_path / "a.jpg"
    Image.new("RGB", (8, 8), "red").save(path)
    with Image.open(path) as picture:
        picture.load()
    convert([{"p": picture}] * 2, kit.out)
    assert kit.encodings(prepare([{"p": picture}], kit.out)) == {"p": "jpeg"}
    with open(f"{kit.out}/shard.00000.mds", "rb") as shard:
        assert shard.read().count(path.read_bytes()) == 2
    drawn = [{"p": picture}] * 1000 + [{"p": Image.new("RGB", (8, 8))}]
    with pytest.raises(RecordError, match=r"column 'p' stores unchanged JPEG files.*'png'"):
        convert(drawn, kit.out + "2")
    some = prepare([{"p": Image.new("L", (2, 2))}, {"p": None}], kit.out)
    assert kit.encodings(some) == {"p": "optional[png]"}


def test_a_dict_has_the_splits(kit):
    """Each name is a dataset of its own, with the same columns; one alone has no folder."""
    convert({"train": rows(4), "val": iter(rows(2))}, kit.out)
    assert kit.samples(kit.out + "/train") == rows(4)
    assert kit.samples(kit.out + "/val") == rows(2)
    convert({"train": rows(3)}, kit.out + "2")
    assert kit.samples(kit.out + "2") == rows(3)


def test_datasets_that_have_numbers_only(kit):
    """A dataset of torch has no iterator: its samples are asked for one by one."""

    class Numbered:
        def __len__(self):
            return 4

        def __getitem__(self, number):
            return {"x": number}

    convert(Numbered(), kit.out)
    assert [sample["x"] for sample in kit.samples()] == [0, 1, 2, 3]


def test_tables_of_other_libraries(kit):
    """Columns have the types of the table; the index of pandas is no column."""
    pa = pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": np.arange(3, dtype=np.int32), "y": ["a", "b", None]}, [7, 8, 9])
    plan = prepare(frame, kit.out)
    assert kit.encodings(plan) == {"x": "int32", "y": "optional[str]"}
    plan.run()
    assert kit.samples()[2] == {"x": 2, "y": None}
    table = pa.table({"v": [[1, 2], [3, 4]], "w": [[1], []]})
    assert kit.encodings(prepare(table, kit.out)) == {"v": "ndarray:int64", "w": "tensor:int64"}
    portable = prepare(table, kit.out, portable=True)
    assert kit.encodings(portable) == {"v": "ndarray:int64", "w": "json"}


def test_datasets_of_hugging_face(kit):
    """Features decide the columns of tables in memory, and class names are kept."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    table = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}, features=features)
    for number, source in enumerate((table, table.to_iterable_dataset())):
        plan = prepare(source, f"{kit.out}{number}")
        assert kit.encodings(plan) == {"label": "int", "text": "str"}
        assert plan.columns[0].class_names == ("no", "yes")
        plan.run()
        assert kit.samples(f"{kit.out}{number}")[1] == {"label": 1, "text": "b"}


def test_a_conversion_that_resumes_reads_the_iterable_again(kit):
    """What was encoded before is skipped; other samples are another conversion."""
    samples = [{"i": i, "data": b"x" * 3_000_000} for i in range(6)]
    broken = [*samples[:5], {"i": "five", "data": b""}]
    with pytest.raises(RecordError, match=r"<list>, sample 5, column 'i'"):
        convert(broken, kit.out, encodings={"i": "int", "data": "bytes"})
    with pytest.raises(ConfigError, match="differs in source content"):
        convert(samples[1:], kit.out, encodings={"i": "int", "data": "bytes"}, resume=True)
    with open(f"{kit.out}/.mds-convert/plan.json") as file:
        plan = json.load(file)
    plan["source content"] = prepare(samples, kit.out).source.fingerprint()
    with open(f"{kit.out}/.mds-convert/plan.json", "w") as file:
        json.dump(plan, file)
    done = convert(samples, kit.out, encodings={"i": "int", "data": "bytes"}, resume=True)
    assert (done.samples, done.resumed_parts) == (6, 2)


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ([], SourceError, "<list> has no samples"),
        (iter(()), SourceError, "can be read only once: create it again"),
        ({}, SourceError, "empty dict"),
        (5, ConfigError, "an iterable of dicts, or a dict of such iterables by split, got 5"),
        (b"x", ConfigError, "an iterable of dicts"),
        (["x"], SourceError, r"sample 0: expected a dict with the columns as keys.*got 'x'"),
        ({"a": [1, 2]}, SourceError, r"sample 0: expected a dict with the columns as keys.*got 1"),
        ([{1: 2}], SourceError, "expected names of columns as keys, got 1"),
    ],
)
def test_sources_that_are_no_samples(kit, source, error, words):
    """The error says what came and what is expected; nothing is written."""
    with pytest.raises(error, match=words):
        convert(source, kit.out)
    assert not os.path.exists(kit.out)


def test_a_generator_is_read_once(kit):
    """A plan of a generator runs once; a plan of a list runs again."""
    plan = prepare((row for row in rows()), kit.out)
    plan.run()
    with pytest.raises(SourceError, match="has already been read"):
        [*plan.source.cut_parts(1)]
    listed = prepare(rows(), kit.out + "2").source
    assert [*listed.cut_parts(1)] == [*listed.cut_parts(1)]


def test_samples_that_are_wrong_are_named(kit):
    """A late sample that does not fit is an error with its number, or is left out."""
    wrong = [*rows(), {"id": "six", "text": ""}, *rows()]
    with pytest.raises(RecordError, match=r"<list>, sample 5, column 'id' \(int\): expected"):
        convert(wrong, kit.out, encodings={"id": "int"})
    assert convert(wrong, kit.out + "2", encodings={"id": "int32"}, on_error="skip").bad_count == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 2}, r"no option 'workers'. Write num_workers=2"),
        ({"num_proc": 2}, "Write num_workers=2"),
        ({"kind": "csv"}, "Write format='csv'"),
        ({"only": ["id"]}, r"Write columns=\['id'\]"),
        ({"skip_bad": True}, "Write on_error='skip'"),
        ({"map": len}, r"mds.convert\(map\(function, samples\), out\)"),
        ({"shuffle": True}, "where the dataset is read"),
        ({"format": "csv"}, "format='csv' applies to files only"),
        ({"null": "NA"}, "applies to files only"),
        ({"keep_shards": True}, "needs files in a known format"),
        ({"columns": {"id": "int"}}, r"Write encodings=\{'id': 'int'\}"),
        ({"columns": "id:int,text"}, r"--encodings id:int, in Python encodings=\{'id': 'int'\}"),
        ({"encoding": {"id": "int"}}, "Encodings of columns are given as --encodings"),
        ({"columns": ["ids"]}, "no column 'ids'. Did you mean 'id'"),
    ],
)
def test_other_spellings_are_refused_with_the_right_one(kit, options, words):
    """Words of other libraries and of before: the error has what to write."""
    with pytest.raises(ConfigError, match=words) as raised:
        convert(rows(), kit.out, **options)
    assert isinstance(raised.value, ArgumentError) == ("no option" in str(raised.value))


@pytest.mark.parametrize(
    ("word", "right"),
    [
        ("imagefolder", "images"),
        ("json", "jsonl"),
        ("webdataset", "tar"),
        ("wds", "tar"),
        ("huggingface", "hf"),
        ("TSV", "csv"),
    ],
)
def test_words_of_other_libraries_for_formats(kit, word, right):
    """The error names the word here."""
    path = kit.write("a.csv", "a\n1\n")
    with pytest.raises(ConfigError, match=f"no format '{word}': write '{right}'"):
        convert(path, kit.out, format=word)


def test_an_unfinished_conversion_of_before_is_known(kit):
    """Its plan has the first names of options and inputs, and can be compared."""
    path = kit.write("a.jsonl", kit.lines(rows()))
    plan = prepare(path, kit.out, format="jsonl", columns="id", encodings={"id": "int32"})
    options = plan.identity()["options"]
    assert options["kind"] == "jsonl"
    assert (options["only"], options["columns"]) == (["id"], {"id": "int32"})
    assert not {"format", "encodings"} & set(options)
    checkpoint = Checkpoint(str(kit.source / "work"))
    before = {**plan.identity(), "options": {**options, "kind": "webdataset"}}
    checkpoint.begin_or_resume(before)
    assert checkpoint.load_plan()["options"]["kind"] == "tar"
