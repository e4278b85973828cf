"""Arrow files and streams, and what `datasets` saves to disk, are read as they lie."""

import io
import json

import numpy as np
import pytest
from PIL import Image

pa = pytest.importorskip("pyarrow")

from tables import as_told, every_type, table  # noqa: E402
from tables import write_arrow as write  # noqa: E402

from mds import StreamingDataLoader, StreamingDataset  # noqa: E402
from mds.errors import FormatError, MdsError  # noqa: E402
from mds.formats import Arrow  # noqa: E402
from mds.testing import FormatContract  # noqa: E402
from mds.writers.convert import convert  # noqa: E402


class TestArrow(FormatContract):
    format = Arrow()

    @pytest.fixture
    def folder(self, tmp_path):
        write(tmp_path / "files" / "a.arrow", table(0, 20), 7)
        write(tmp_path / "files" / "b.arrow", table(20, 9), 4, kind="stream")
        return tmp_path / "files"

    @pytest.fixture
    def damaged(self, tmp_path):
        write(tmp_path / "x" / "whole.arrow", table(0, 20), 7)
        data = (tmp_path / "x" / "whole.arrow").read_bytes()
        path = tmp_path / "broken.arrow"
        path.write_bytes(data[: len(data) // 2])
        return path, "broken.arrow"


def of(folder, tmp_path, **more):
    return StreamingDataset(remote=str(folder), local=str(tmp_path / "cache"), batch_size=4, **more)


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_every_value_is_that_of_the_file(tmp_path, kind, compression):
    """Each type gives what pyarrow gives of it; a record batch is a shard."""
    whole = every_type().drop_columns(["dictionary"])
    write(tmp_path / "files" / "a.arrow", whole, 9, kind, compression)
    dataset = of(tmp_path / "files", tmp_path)
    assert dataset.samples_per_shard.tolist() == [9, 9, 5]
    for number, row in enumerate(whole.to_pylist(maps_as_pydicts="strict")):
        sample = dataset[number]
        for name, value in row.items():
            found = sample[name]
            if name == "time_ns":
                continue
            found = found.tolist() if isinstance(found, np.ndarray) else found
            assert found == as_told(name, value), name


def test_rows_in_place_are_those_that_are_decoded(tmp_path):
    """Value for value and type for type, one by one and many, and nothing is written for them."""
    whole = every_type(40).drop_columns(["dictionary"])
    write(tmp_path / "plain" / "a.arrow", whole, 9)
    write(tmp_path / "packed" / "a.arrow", whole, 9, compression="lz4")
    plain, packed = (of(tmp_path / name, tmp_path / name) for name in ("plain", "packed"))
    assert "read in place" in plain.explain()
    assert "decoded about" in packed.explain()
    picked = [7, 3, 3, 39, 0, 20]
    pairs = zip([*plain, *plain[picked]], [*packed, *packed[picked]], strict=True)
    for one, other in pairs:
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert type(value) is type(other[name]), name
            np.testing.assert_equal(value, other[name])
    assert not list((tmp_path / "plain" / "cache").glob("**/shard.*"))
    assert list((tmp_path / "packed" / "cache").glob("**/shard.*"))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_in_place_are_those_that_are_decoded(tmp_path, workers):
    """Of columns that are taken at once."""
    found = []
    for name, compression in (("plain", None), ("packed", "zstd")):
        write(tmp_path / name / "a.arrow", table(0, 40), 9, compression=compression)
        dataset = of(tmp_path / name, tmp_path / name, shuffle=True)
        loader = StreamingDataLoader(dataset, batch_size=4, num_workers=workers)
        found.append([{k: str(v) for k, v in batch.items()} for batch in loader])
    assert found[0] == found[1]


def test_samples_in_place_are_the_callers(tmp_path):
    """An array that is changed changes nothing else, and outlives the file."""
    write(tmp_path / "files" / "a.arrow", table(0, 20), 20)
    dataset = of(tmp_path / "files", tmp_path)
    tokens = dataset[3]["tokens"]
    expected = tokens.tolist()
    tokens[:] = 0
    assert dataset[3]["tokens"].tolist() == expected
    kept = dataset[4]
    (tmp_path / "files" / "a.arrow").unlink()
    assert kept["tokens"].tolist() == table(0, 20)["tokens"][4].as_py()


def test_dictionaries_make_a_file_one_shard(tmp_path):
    """Their values come once, before the first batch."""
    whole = pa.table({"word": pa.array(["ab"[n % 2] for n in range(30)]).dictionary_encode()})
    write(tmp_path / "files" / "a.arrow", whole, 7)
    dataset = of(tmp_path / "files", tmp_path)
    assert dataset.num_shards == 1
    assert [sample["word"] for sample in dataset] == ["ab"[n % 2] for n in range(30)]


def test_a_folder_of_datasets_saved_to_disk(tmp_path):
    """As the library `datasets` leaves it, its own cache files left out; and a copy of it."""
    datasets = pytest.importorskip("datasets")
    rows = [{"text": f"text {n}", "label": n % 3, "ids": [n] * (n % 4)} for n in range(50)]
    saved = tmp_path / "saved"
    datasets.Dataset.from_list(rows).save_to_disk(str(saved), num_shards=2)
    write(saved / "cache-0123.arrow", table(0, 5), 5)
    found = list(of(saved, tmp_path))
    assert [sample["text"] for sample in found] == [row["text"] for row in rows]
    assert [sample["ids"].tolist() for sample in found] == [row["ids"] for row in rows]
    assert convert(str(saved), str(tmp_path / "copy"), keep_shards=True).samples == 50
    copy = StreamingDataset(local=str(tmp_path / "copy"), batch_size=4)
    assert [sample["label"] for sample in copy] == [row["label"] for row in rows]


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_null_among_images_of_two_kinds(tmp_path, kind):
    """A column of a JPEG and a null, then of a PNG, keeps its nulls."""
    jpeg, png = (make_image(name) for name in ("JPEG", "PNG"))
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = {"info": {"features": {"image": {"_type": "Image"}}}}
    schema = pa.schema([("image", image)], metadata={"huggingface": json.dumps(features)})
    rows = [{"bytes": jpeg, "path": None}, None, {"bytes": png, "path": None}]
    whole = pa.Table.from_pylist([{"image": row} for row in rows], schema=schema)
    write(tmp_path / "files" / "a.arrow", whole, 2, kind=kind)
    images = [sample["image"] for sample in of(tmp_path / "files", tmp_path)]
    assert images[1] is None
    assert [image.size for image in (images[0], images[2])] == [(2, 3), (2, 3)]


def make_image(kind):
    file = io.BytesIO()
    Image.new("RGB", (2, 3)).save(file, kind)
    return file.getvalue()


def test_a_file_whose_footer_alone_has_the_schema(tmp_path):
    """As Polars writes it: behind the magic word is no stream."""
    path = tmp_path / "files" / "a.arrow"
    write(path, table(0, 20), 7)
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + b"\4\0\0\0\xf2\xff\xff\xff" + whole[16:])
    dataset = of(tmp_path / "files", tmp_path)
    assert dataset.samples_per_shard.tolist() == [20]
    assert [sample["text"] for sample in dataset] == table(0, 20)["text"].to_pylist()


def test_views_of_text(tmp_path):
    """As Polars has them, with nulls and as the values of a dictionary."""
    words = [None if n % 3 == 0 else f"word {n} of many letters" for n in range(20)]
    views = pa.array(words, pa.string_view())
    numbers = pa.array([n % 2 for n in range(20)], pa.uint32())
    kinds = pa.DictionaryArray.from_arrays(numbers, pa.array(["a", "b"], pa.string_view()))
    for name, whole in (("one", pa.table({"t": views})), ("two", pa.table({"t": kinds}))):
        write(tmp_path / name / "a.arrow", whole, 7)
        found = [sample["t"] for sample in of(tmp_path / name, tmp_path / name)]
        assert found == (words if name == "one" else ["ab"[n % 2] for n in range(20)])


def test_views_in_batches(tmp_path):
    """Views are not taken by their numbers, so batches of them are decoded."""
    words = [f"word {n} of many letters" for n in range(20)]
    inside = pa.array([[word] for word in words], pa.list_(pa.string_view()))
    whole = pa.table(
        {
            "text": pa.array(words, pa.string_view()),
            "data": pa.array([word.encode() for word in words], pa.binary_view()),
            "inside": inside,
        }
    )
    write(tmp_path / "files" / "a.arrow", whole, 7)
    dataset = of(tmp_path / "files", tmp_path)
    batches = list(StreamingDataLoader(dataset, batch_size=4))
    assert [text for batch in batches for text in batch["text"]] == words
    assert [data for batch in batches for data in batch["data"]] == [w.encode() for w in words]
    assert [dataset[n]["inside"] for n in range(20)] == [[word] for word in words]


def test_lists_of_one_length_with_nulls(tmp_path):
    """A row, a batch and a whole record batch of nulls, read in place and decoded."""
    lists = [[1, 2, 3], None, [4, 5, 6], None, None, [7, 8, 9]]
    whole = pa.table({"t": pa.array(lists, pa.list_(pa.int16(), 3))})
    for name, compression in (("place", None), ("decoded", "lz4")):
        for rows in (1, 2, 6):
            folder = tmp_path / f"{name}-{rows}"
            write(folder / "a.arrow", whole, rows, compression=compression)
            dataset = of(folder, tmp_path / f"c-{name}-{rows}")
            found = [dataset[n]["t"] for n in range(6)]
            assert [None if each is None else each.tolist() for each in found] == lists
            batches = list(StreamingDataLoader(dataset, batch_size=1))
            assert [batch["t"][0] is None for batch in batches] == [one is None for one in lists]


def test_what_is_no_arrow_file_is_told(tmp_path):
    """A sentence with the name of the file."""
    write(tmp_path / "files" / "a.arrow", table(0, 30), 5)
    whole = (tmp_path / "files" / "a.arrow").read_bytes()
    for data in (b"no arrow file at all", b"", whole[:-30], whole[:700], whole[:8]):
        (tmp_path / "files" / "a.arrow").write_bytes(data)
        with pytest.raises(FormatError, match=r"a\.arrow: this is not an Arrow file"):
            of(tmp_path / "files", tmp_path)


def test_a_file_that_was_cut_short_since_it_was_planned_is_named(tmp_path):
    """A batch that the file does not reach any more is told by its place."""
    write(tmp_path / "files" / "a.arrow", table(0, 20), 7)
    dataset = StreamingDataset(local=str(tmp_path / "files"), batch_size=4)
    with (tmp_path / "files" / "a.arrow").open("r+b") as file:
        file.truncate(200)
    with pytest.raises(MdsError, match=r"a\.arrow"):
        dataset[19]


def test_a_read_of_some_rows_takes_their_wanted_columns_alone(tmp_path):
    """Nothing of what lies beside them is looked at, taken or encoded: no row, and no column."""
    rows = 400
    whole = pa.table(
        {
            "n": pa.array(range(rows)),
            "maybe": pa.array([None if at % 3 else f"text {at}" for at in range(rows)]),
            "large": pa.array([bytes(100_000)] * rows),
        }
    )
    write(tmp_path / "files" / "a.arrow", whole, rows)
    dataset = of(tmp_path / "files", tmp_path, columns=["n", "maybe"])
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        assert dataset[3] == {"n": 3, "maybe": "text 3"}
        batch = next(iter(StreamingDataLoader(dataset)))
        assert batch["n"].tolist() == [0, 1, 2, 3]
        assert pool.max_memory() < 100_000
    finally:
        pa.set_memory_pool(before)
