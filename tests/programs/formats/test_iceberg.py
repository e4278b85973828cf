"""Iceberg tables are read as they lie: snapshots, names by number, what is refused."""

import json
import shutil

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyiceberg")

import pyarrow.parquet as pq  # noqa: E402
from pyiceberg import manifest  # noqa: E402
from pyiceberg.catalog.sql import SqlCatalog  # noqa: E402
from pyiceberg.transforms import IdentityTransform  # noqa: E402
from pyiceberg.types import LongType  # noqa: E402
from tables import mixed_with_mds, table  # noqa: E402

from mds import StreamingDataset  # noqa: E402
from mds.errors import ConfigError, FormatError, NotFoundError  # noqa: E402
from mds.formats import Iceberg  # noqa: E402
from mds.storage._memory import MemoryStore  # noqa: E402
from mds.testing import FormatContract  # noqa: E402


@pytest.fixture
def catalog(tmp_path):
    """A catalog of tables below a folder."""
    found = SqlCatalog(
        "tests", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/lake"
    )
    found.create_namespace("db")
    yield found
    found.close()


def make_table(catalog, snapshots=3, rows=5, name="db.events"):
    """A table with a file for each snapshot; ids count through."""
    made = catalog.create_table(name, schema=table(0, 1).schema)
    for number in range(snapshots):
        made.append(table(number * rows, rows))
    return made


def folder_of(made, tmp_path):
    return tmp_path / made.location().removeprefix(f"file://{tmp_path}/")


def of(folder, tmp_path, kind="iceberg", **more):
    return StreamingDataset(
        remote=str(folder), local=str(tmp_path / "cache"), format=kind, batch_size=4, **more
    )


def ids_of(dataset):
    return sorted(sample["id"] for sample in dataset)


class TestIceberg(FormatContract):
    format = Iceberg()

    @pytest.fixture
    def folder(self, tmp_path, catalog):
        return folder_of(make_table(catalog), tmp_path)

    @pytest.fixture
    def damaged(self, tmp_path, catalog):
        folder = folder_of(make_table(catalog, name="db.broken"), tmp_path)
        path = next(folder.rglob("*.parquet"))
        path.write_bytes(path.read_bytes()[:200])
        return folder, path.name


def test_every_snapshot(tmp_path, catalog):
    """Each has the rows that pyiceberg reads, with appends, deletes and overwrites."""
    made = make_table(catalog, 4)
    made.delete("id = 7")
    made.append(table(50, 5))
    made.overwrite(table(90, 2))
    made.append(table(92, 3))
    for snapshot in made.snapshots():
        expected = made.scan(snapshot_id=snapshot.snapshot_id).to_arrow()["id"].to_pylist()
        kind = Iceberg(snapshot=snapshot.snapshot_id)
        if expected:
            assert ids_of(of(folder_of(made, tmp_path), tmp_path, kind)) == sorted(expected)
    assert ids_of(of(folder_of(made, tmp_path), tmp_path)) == list(range(90, 95))
    with pytest.raises(FormatError, match="snapshot 12 does not exist"):
        of(folder_of(made, tmp_path), tmp_path, Iceberg(snapshot=12))
    for wrong in (-1, "3", 1.5, True):
        with pytest.raises(ConfigError, match="snapshot= must be a whole number"):
            Iceberg(snapshot=wrong)


def test_a_table_that_was_copied_to_a_store(tmp_path, catalog):
    """Paths count from the location, so a copy anywhere is read there; by folder or metadata."""
    made = make_table(catalog)
    store = MemoryStore("memory://iceberg")
    folder = folder_of(made, tmp_path)
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(folder).as_posix(), path.read_bytes())
    location = made.metadata_location.removeprefix(f"{made.location()}/")
    catalog.drop_table("db.events")
    shutil.rmtree(folder)
    assert ids_of(of(store.url, tmp_path)) == list(range(15))
    dataset = StreamingDataset(remote=f"{store.url}/{location}", local=str(tmp_path / "c"))
    assert ids_of(dataset) == list(range(15))


def test_two_metadata_of_one_number(tmp_path, catalog):
    """A writer that lost a race leaves one: then the catalog's has to be named."""
    made = make_table(catalog, 1)
    folder = folder_of(made, tmp_path)
    newest = max((folder / "metadata").glob("*.metadata.json"))
    shutil.copy(newest, newest.with_name(f"{newest.name[:5]}-lost.metadata.json"))
    with pytest.raises(FormatError, match="have the same number; give the URL of the one"):
        of(folder, tmp_path)
    assert ids_of(StreamingDataset(remote=str(newest), local=str(tmp_path / "c"))) == [
        0,
        1,
        2,
        3,
        4,
    ]
    (folder / "metadata" / "version-hint.text").write_text(newest.name)
    assert ids_of(of(folder, tmp_path)) == [0, 1, 2, 3, 4]
    with pytest.raises(FormatError, match="this is not an Iceberg table"):
        of(tmp_path / "lake", tmp_path)


def test_columns_are_known_by_their_number(tmp_path, catalog):
    """A renamed one has its new name in every file, a dropped one is gone, one of before is not."""
    made = make_table(catalog, 1)
    with made.update_schema() as change:
        change.rename_column("text", "words")
        change.delete_column("score")
    made.append(table(5, 5).rename_columns(["id", "words", "tokens", "score"]).drop(["score"]))
    dataset = of(folder_of(made, tmp_path), tmp_path)
    rows = sorted((dataset[n] for n in range(10)), key=lambda row: row["id"])
    assert [row["words"] for row in rows] == table(0, 10)["text"].to_pylist()
    assert {*rows[0]} == {"id", "words", "tokens"}
    with made.update_schema() as change:
        change.add_column("score", change._schema.find_type("id"))
    last = table(10, 1).select(["id", "text", "tokens"]).rename_columns(["id", "words", "tokens"])
    made.append(last.append_column("score", pa.array([1], pa.int64())))
    with pytest.raises(FormatError, match="there is no column 'score'"):
        of(folder_of(made, tmp_path), tmp_path, Iceberg(missing="error"))
    again = of(folder_of(made, tmp_path), tmp_path, Iceberg(missing="null"))
    rows = sorted((again[n] for n in range(11)), key=lambda row: row["id"])
    assert [row["score"] for row in rows] == [None] * 10 + [1]


def shown(made, tmp_path, kind="iceberg"):
    """The samples of a table by id, and the rows that pyiceberg reads."""
    dataset = of(folder_of(made, tmp_path), tmp_path / f"cache-{made.name()[-1]}", kind)
    found = sorted((dataset[n] for n in range(dataset.num_samples)), key=lambda row: row["id"])
    return found, sorted(made.scan().to_arrow().to_pylist(), key=lambda row: row["id"])


def test_fields_inside_of_columns_are_known_by_their_number(tmp_path, catalog):
    """Renamed, dropped, added, and another of a dropped one's name; in structs, lists and maps."""
    pairs = pa.map_(pa.string(), pa.struct([("x", pa.int64())]))
    whole = pa.table(
        {
            "id": [1, 2, 3],
            "place": [{"x": 1, "y": "q", "in": {"a": 1, "b": 2}}, None, {"x": 2, "y": "r"}],
            "many": [[{"x": 1, "y": 2}, None], None, []],
            "pairs": pa.array([[("k", {"x": 1})], None, []], pairs),
            "plain": [{"x": 1}, {"x": None}, None],
        }
    )
    made = catalog.create_table("db.places", schema=whole.schema)
    made.append(whole)
    assert shown(made, tmp_path)[0][0]["place"] == whole["place"][0].as_py()
    with made.update_schema() as change:
        change.rename_column("place.x", "left")
        change.delete_column("place.y")
        change.delete_column("place.in.b")
        change.rename_column("many.element.x", "other")
        change.add_column(("pairs", "z"), LongType())
    with made.update_schema() as change:
        change.add_column(("place", "y"), LongType())
        change.add_column(("place", "in", "c"), LongType())
    found, expected = shown(made, tmp_path)
    assert found == [{**row, "pairs": dict(row["pairs"])} for row in expected]
    assert found[0] == {
        "id": 1,
        "place": {"left": 1, "in": {"a": 1, "c": None}, "y": None},
        "many": [{"other": 1, "y": 2}, None],
        "pairs": {"k": {"x": 1, "z": None}},
        "plain": {"x": 1},
    }
    made.append(
        pa.table(
            {
                "id": [4],
                "place": [{"left": 7, "in": {"a": 5, "c": 6}, "y": 8}],
                "many": [[{"other": 1, "y": 2}]],
                "pairs": pa.array(
                    [[("k", {"x": 1, "z": 9})]],
                    pa.map_(pa.string(), pa.struct([("x", pa.int64()), ("z", pa.int64())])),
                ),
                "plain": [{"x": 3}],
            }
        )
    )
    found, _ = shown(made, tmp_path)
    assert found[3]["place"] == {"left": 7, "in": {"a": 5, "c": 6}, "y": 8}
    assert found[3]["pairs"] == {"k": {"x": 1, "z": 9}}
    assert found[0]["place"]["y"] is None


def test_a_file_column_counts_before_the_manifest(tmp_path, catalog):
    """The manifest has a double as a float, and a field of a struct is no column."""
    whole = pa.table({"id": [0, 1], "p": [0.1, 0.2], "s": [{"x": 1}, {"x": 2}]})
    made = catalog.create_table("db.doubles", schema=whole.schema)
    with made.update_spec() as change:
        change.add_identity("p")
        change.add_identity("s.x")
    made.append(whole)
    found, expected = shown(made, tmp_path)
    assert found == expected == whole.to_pylist()


def test_files_that_were_added_without_numbers(tmp_path, catalog):
    """The table says which their columns are, also after a change; else they are refused."""
    whole = pa.table({"id": [0, 1], "a": ["x", "y"], "s": [{"u": 1}, {"u": 2}]})
    made = catalog.create_table("db.added", schema=whole.schema)
    path = folder_of(made, tmp_path) / "data" / "file.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(whole, path)
    made.add_files([f"file://{path}"])
    assert shown(made, tmp_path)[0] == whole.to_pylist()
    with made.update_schema() as change:
        change.rename_column("a", "b")
        change.rename_column("s.u", "v")
    found, expected = shown(made, tmp_path)
    assert found == expected == [{"id": n, "b": "xy"[n], "s": {"v": n + 1}} for n in (0, 1)]
    with made.transaction() as change:
        change.remove_properties("schema.name-mapping.default")
    with pytest.raises(FormatError, match="its columns have no field ids, and the table has no"):
        shown(made, tmp_path)


def test_doubles_that_only_a_manifest_has_are_whole_or_refused(tmp_path, catalog):
    """The decoder of pyiceberg cuts their digits; what the file has itself is right either way."""
    whole = pa.table({"id": [1, 2], "d": [0.1, 0.1]})
    made = catalog.create_table("db.doubles", schema=whole.schema)
    with made.update_spec() as change:
        change.add_identity("d")
    made.append(whole)
    assert {sample["d"] for sample in of(folder_of(made, tmp_path), tmp_path / "one")} == {0.1}
    _leave_out(folder_of(made, tmp_path), "d")
    try:
        found = {sample["d"] for sample in of(folder_of(made, tmp_path), tmp_path / "two")}
    except FormatError as error:
        assert "column 'd' is not in the file, and pyiceberg reads its double" in str(error)  # noqa: PT017
    else:
        assert found == {0.1}


def test_values_for_files_of_before_are_refused(tmp_path, catalog):
    """A default of the table stands for what a file lacks, which would be None here."""
    made = make_table(catalog, 1)
    path = max((folder_of(made, tmp_path) / "metadata").glob("*.metadata.json"))
    told = json.loads(path.read_text())
    told["schemas"][0]["fields"].append(
        {"id": 99, "name": "new", "type": "long", "required": False, "initial-default": 7}
    )
    path.with_name("00009-x.metadata.json").write_text(json.dumps(told))
    with pytest.raises(FormatError, match=r"default values of a column for older files .'new'"):
        of(folder_of(made, tmp_path), tmp_path, Iceberg(missing="null"))


def test_partitions_of_files_that_do_not_hold_them(tmp_path, catalog):
    """A column by which files are kept apart comes from the manifest where they lack it."""
    import datetime as dt

    day = dt.date(2024, 5, 6)
    whole = pa.table({"id": [1, 2], "day": pa.array([day, None], pa.date32())})
    made = catalog.create_table("db.days", schema=whole.schema)
    with made.update_spec() as change:
        change.add_field("day", IdentityTransform())
    made.append(whole)
    folder = folder_of(made, tmp_path)
    dataset = of(folder, tmp_path)
    expected = [(1, "2024-05-06"), (2, None)]
    assert sorted((s["id"], s["day"]) for s in dataset) == expected
    _leave_out(folder, "day")
    without = of(folder, tmp_path / "again", columns=["day"])
    assert sorted((s["day"] for s in without), key=str) == ["2024-05-06", None]


def _leave_out(folder, column):
    """Files of the sizes that they had, without a column, as those taken over from Hive."""
    for path in folder.rglob("*.parquet"):
        size = path.stat().st_size
        pq.write_table(pq.read_table(path, partitioning=None).drop([column]), path)
        padded = path.read_bytes()
        assert len(padded) <= size
        path.write_bytes(padded[:4] + bytes(size - len(padded)) + padded[4:])


@pytest.mark.parametrize("content", ["POSITION_DELETES", "EQUALITY_DELETES"])
def test_deleted_rows_beside_the_files_are_refused(tmp_path, catalog, content):
    """They would come: by position, by value and as vectors, all in manifests of deletes."""
    made = make_table(catalog, 1)
    folder = folder_of(made, tmp_path)
    name = _add_deletes(made, folder, content)
    with pytest.raises(FormatError, match=r"files of deleted rows in snapshot .*rewrite_da"):
        of(folder / "metadata" / name, tmp_path, Iceberg())


def _add_deletes(made, folder, content):
    """Metadata of the table with a manifest of deletes in its snapshot; the name."""

    class Deletes(manifest.ManifestWriterV2):
        def content(self):
            return manifest.ManifestContent.DELETES

        @property
        def _meta(self):
            return {**super()._meta, "content": "deletes"}

    snapshot = made.current_snapshot()
    file = manifest.DataFile.from_args(
        content=getattr(manifest.DataFileContent, content), file_path=made.location() + "/d",
        file_format=manifest.FileFormat.PARQUET, partition=manifest.Record(), record_count=1,
        file_size_in_bytes=1, column_sizes={}, value_counts={}, null_value_counts={},
        nan_value_counts={}, lower_bounds={}, upper_bounds={}, equality_ids=[1], split_offsets=[],
    )  # fmt: skip
    out = made.io.new_output(f"{made.location()}/metadata/deletes.avro")
    with Deletes(made.spec(), made.schema(), out, snapshot.snapshot_id, "deflate") as writer:
        writer.add_entry(
            manifest.ManifestEntry.from_args(
                status=manifest.ManifestEntryStatus.ADDED, snapshot_id=snapshot.snapshot_id,
                sequence_number=None, file_sequence_number=None, data_file=file,
            )
        )  # fmt: skip
        written = writer.to_manifest_file
    listed = f"{made.location()}/metadata/snap-deletes.avro"
    with manifest.write_manifest_list(
        2, made.io.new_output(listed), snapshot.snapshot_id, None, 1, "deflate"
    ) as lists:
        lists.add_manifests([*snapshot.manifests(made.io), written()])
    newest = max((folder / "metadata").glob("*.metadata.json"))
    told = json.loads(newest.read_text())
    told["snapshots"][-1]["manifest-list"] = listed
    (folder / "metadata" / "00099-deletes.metadata.json").write_text(json.dumps(told))
    return "00099-deletes.metadata.json"


def test_a_file_of_an_expired_snapshot(tmp_path, catalog):
    """It is told as one that the table names."""
    made = make_table(catalog)
    next(folder_of(made, tmp_path).rglob("*.parquet")).unlink()
    with pytest.raises(NotFoundError, match=r"the table lists this file, .*expired snapshots"):
        of(folder_of(made, tmp_path), tmp_path)


def test_beside_shards_of_mds_in_one_mix(tmp_path, catalog):
    """A snapshot of a table and MDS with the same columns are streams of one dataset."""
    folder = folder_of(make_table(catalog), tmp_path)
    mixed_with_mds(folder, Iceberg(columns=["id", "text"]), tmp_path)
