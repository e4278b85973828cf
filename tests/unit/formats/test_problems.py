"""Problems: records of a file that are no samples."""

import gzip
import pickle

import pytest

import mds
from mds.errors import FormatError
from mds.formats import Block, Problem, encode_records
from mds.formats._columns import as_columns
from mds.formats._encode import raise_problems

COLUMNS = as_columns({"id": "int32"})


def test_a_problem_is_in_the_place_of_its_record():
    """Samples around broken records stay in order, and every record is a sample or a problem."""
    given = Problem("a.txt, line 3", "it is cut off")
    records = [{"id": 1}, {"id": "x"}, given, {}, {"id": 2}, {"id": 3}]
    items = list(encode_records(COLUMNS, records, "a.txt"))
    counts = [len(item.sizes) if isinstance(item, Block) else item for item in items]
    assert [counts[0], counts[-1]] == [1, 2]
    wrong_value, same, no_column = counts[1:-1]
    assert wrong_value.location == "a.txt, sample 1, column 'id'"
    assert same == given
    assert str(no_column) == "a.txt, sample 3: there is no column 'id'."


def test_an_error_is_raised_at_the_first_problem():
    """A dataset yields the samples before a problem, then raises an error with the same text."""
    problem = Problem("a.txt, line 2", "expected a number.", "Correct it.")
    blocks = raise_problems(encode_records(COLUMNS, [{"id": 1}, problem], "a.txt"))
    assert len(next(blocks).sizes) == 1
    with pytest.raises(FormatError) as caught:
        next(blocks)
    assert str(caught.value) == "a.txt, line 2: expected a number. Correct it."
    again = pickle.loads(pickle.dumps(caught.value))
    assert Problem.of(again, "elsewhere") == problem


def test_the_location_is_given_by_a_function():
    """The function is called for broken records alone."""
    rows = []

    def locate(row):
        rows.append(row)
        return f"row {row}"

    items = list(encode_records(COLUMNS, [{"id": 1}, {"id": None}], locate))
    assert {*rows} == {1}
    assert items[1].location == "row 1, column 'id'"


@pytest.mark.parametrize("way", ["number", "iteration"])
def test_a_value_that_cannot_be_decoded_is_located_in_the_file(tmp_path, way):
    """The error names the file and the row, by number and in an iteration."""
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    values = [b"GIF89a", b"GIF89a", b"not a picture", b"GIF89a"]
    pq.write_table(pa.table({"p": values}), tmp_path / "a.parquet", row_group_size=2)
    kind = mds.formats.Parquet(encodings={"p": "jpeg"})
    dataset = mds.StreamingDataset(str(tmp_path), format=kind, batch_size=2)
    row = 2 if way == "number" else 0
    with pytest.raises(mds.errors.MdsError, match=rf"a\.parquet, row {row}, column 'p'"):
        dataset[2] if way == "number" else list(dataset)


def test_a_conversion_that_skips_all_records_says_why(tmp_path):
    """No dataset is written, and the error has the first reason."""
    source = tmp_path / "a.jsonl"
    source.write_text('{"a": 1}\n{"a": 1\n')
    summary = mds.convert(str(source), str(tmp_path / "one"), on_error="skip")
    assert (summary.samples, summary.bad_count) == (1, 1)
    source.write_text('{"a": 1}\n')
    options = {"encodings": {"a": "ndarray:int8:2"}, "on_error": "skip"}
    with pytest.raises(
        mds.errors.SourceError, match=r"Left out: 1 record, first .*a\.jsonl, line 1"
    ):
        mds.convert(str(source), str(tmp_path / "none"), **options)


@pytest.mark.parametrize("way", ["in place", "converted"])
def test_a_picture_whose_pixels_are_damaged_is_skipped(tmp_path, way):
    """Pillow decodes pixels late, but skipping looks at them, and names the file."""
    import io

    from PIL import Image

    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(4):
        file = io.BytesIO()
        Image.effect_noise((64, 64), 90).save(file, "png")
        data = file.getvalue()
        (folder / f"{number}.png").write_bytes(data[: len(data) // 2] if number == 2 else data)
    place, options, words = str(folder), {"format": "images"}, "2.png"
    if way == "converted":
        mds.convert(place, str(tmp_path / "out"))
        place, options, words = str(tmp_path / "out"), {}, "shard.00000.mds, sample 2"
    dataset = mds.StreamingDataset(place, batch_size=1, on_error="skip", **options)
    assert [sample["path"] for sample in dataset] == ["0.png", "1.png", "3.png"]
    ((number, reason),) = dataset.skipped
    assert number == 2
    assert words in reason
    unskipped = mds.StreamingDataset(place, batch_size=1, **options)
    assert len(list(unskipped)) == 4


@pytest.mark.parametrize("kind", ["text", "lines", "csv"])
def test_compressed_data_that_end_too_early_are_located_once(tmp_path, kind):
    """In place and converted, the message begins with the path of the file."""
    folder, name = tmp_path / "files", f"a.{'csv' if kind == 'csv' else 'txt'}.gz"
    folder.mkdir()
    (folder / name).write_bytes(gzip.compress(b"a,b\n1,2\n" * 9)[:-9])
    for read in (
        lambda: [*mds.StreamingDataset(local=str(folder), batch_size=1, format=kind)],
        lambda: mds.convert(str(folder), str(tmp_path / "out"), format=kind),
    ):
        with pytest.raises(mds.errors.MdsError, match="the file is cut short") as caught:
            read()
        assert str(caught.value).startswith(f"{folder / name}")
        assert str(caught.value).count(name) == 1
