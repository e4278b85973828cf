"""Delta tables are read as they lie: versions, columns of folders, logs, what is refused."""

import datetime as dt
import json
import multiprocessing
import shutil

import pytest

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")

import pyarrow.parquet as pq  # noqa: E402
from tables import mixed_with_mds, table  # noqa: E402

from mds import RunHistory, StreamingDataLoader, StreamingDataset  # noqa: E402
from mds.errors import ConfigError, FormatError, NotFoundError, StateError  # noqa: E402
from mds.formats import Delta, Files  # noqa: E402
from mds.storage import register_store  # noqa: E402
from mds.storage._base import ObjectInfo  # noqa: E402
from mds.storage._memory import MemoryStore  # noqa: E402
from mds.testing import FormatContract  # noqa: E402


def write_versions(folder, versions=4, rows=5, **more):
    """A table to which every version adds rows, whose ids count through."""
    for version in range(versions):
        deltalake.write_deltalake(folder, table(version * rows, rows), mode="append", **more)
    return folder


def of(folder, tmp_path, kind="delta", **more):
    return StreamingDataset(
        remote=str(folder), local=str(tmp_path / "cache"), format=kind, batch_size=4, **more
    )


def rows_of(found, key="id"):
    rows = found if isinstance(found, list) else [found[n] for n in range(found.num_samples)]
    return sorted(rows, key=lambda row: row[key])


class TestDelta(FormatContract):
    format = Delta()

    @pytest.fixture
    def folder(self, tmp_path):
        return write_versions(tmp_path / "table")

    @pytest.fixture
    def damaged(self, tmp_path):
        folder = write_versions(tmp_path / "broken")
        path = next(folder.glob("*.parquet"))
        path.write_bytes(path.read_bytes()[:200])
        return folder, path.name


def test_every_version_of_twenty_commits(tmp_path):
    """Each has the rows that deltalake reads, with appends, deletes, overwrites and compaction."""
    folder = tmp_path / "table"
    write_versions(folder, 8)
    deltalake.DeltaTable(folder).delete("id % 3 = 0")
    write_versions(folder, 5)
    deltalake.DeltaTable(folder).optimize.compact()
    deltalake.write_deltalake(folder, table(900, 7), mode="overwrite")
    write_versions(folder, 4)
    for version in range(20):
        whole = deltalake.DeltaTable(folder, version=version).to_pyarrow_table()
        expected = sorted(row["id"] for row in whole.to_pylist())
        found = of(folder, tmp_path, Delta(version=version, columns=["id"]))
        assert sorted(sample["id"] for sample in found) == expected, version
    assert of(folder, tmp_path).num_samples == len(expected)


def test_the_order_is_that_of_the_paths(tmp_path):
    """It follows from the files of a version alone, however its log was written down."""
    folder = write_versions(tmp_path / "table", 6)
    before = [sample["id"] for sample in of(folder, tmp_path)]
    deltalake.DeltaTable(folder).create_checkpoint()
    shutil.copytree(folder, tmp_path / "copy")
    again = [sample["id"] for sample in of(tmp_path / "copy", tmp_path / "other")]
    assert again == before
    assert [s["id"] // 5 for s in of(folder, tmp_path)][::5] == [
        pq.read_table(path)["id"][0].as_py() // 5 for path in sorted(folder.glob("*.parquet"))
    ]


def test_a_folder_with_a_log_is_a_table(tmp_path):
    """On a disk it is known as one, so files that a version has no more are not read."""
    folder = write_versions(tmp_path / "table")
    deltalake.write_deltalake(folder, table(50, 3), mode="overwrite")
    dataset = StreamingDataset(local=str(folder), batch_size=4)
    assert [sample["id"] for sample in dataset] == [50, 51, 52]
    everything = StreamingDataset(local=str(folder), format="parquet", batch_size=4)
    assert everything.num_samples == 23


def test_columns_of_folders(tmp_path):
    """Their values are of the table's types, with nulls and with what a path cannot say."""
    days = [dt.date(2024, 1, 2), None, dt.date(2024, 1, 2), dt.date(1969, 12, 31)]
    whole = pa.table(
        {
            "id": [1, 2, 3, 4],
            "day": pa.array(days, pa.date32()),
            "place": ["a b/c%20ü", "x=y", "a b/c%20ü", ""],
            "level": pa.array([1, 2, 1, -3], pa.int16()),
        }
    )
    deltalake.write_deltalake(tmp_path / "table", whole, partition_by=["day", "place", "level"])
    expected = deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    found = rows_of(of(tmp_path / "table", tmp_path))
    assert found == [
        {**row, "day": row["day"] and row["day"].isoformat()} for row in rows_of(expected)
    ]
    alone = of(tmp_path / "table", tmp_path / "alone", columns=["level"])
    assert sorted(int(sample["level"]) for sample in alone) == [-3, 1, 1, 2]
    assert alone.stats()["fetched_bytes"] == 0


def test_a_column_that_came_later(tmp_path):
    """Files from before it have None there, or are refused by name."""
    folder = write_versions(tmp_path / "table", 1)
    wider = table(5, 5).append_column("more", pa.array(["x"] * 5))
    deltalake.write_deltalake(folder, wider, mode="append", schema_mode="merge")
    with pytest.raises(FormatError, match=r"there is no column 'more', but .*missing='null'"):
        of(folder, tmp_path, Delta(missing="error"))
    found = rows_of(of(folder, tmp_path, Delta(missing="null")))
    assert [row["more"] for row in found] == [None] * 5 + ["x"] * 5


def test_a_column_that_no_file_has(tmp_path):
    """One that was added to the table alone is None, left out, or refused, as one of some files."""
    folder = write_versions(tmp_path / "table", 2)
    field = deltalake.Field("note", deltalake.schema.PrimitiveType("string"))
    deltalake.DeltaTable(folder).alter.add_columns([field])
    with pytest.raises(
        FormatError, match=r"a column 'note', but none of its files .*missing='null'"
    ):
        of(folder, tmp_path, Delta(missing="error"))
    assert {*of(folder, tmp_path, Delta(columns=["id"]))[0]} == {"id"}
    null = of(folder, tmp_path, Delta(missing="null"))
    assert [row["note"] for row in rows_of(null)] == [None] * 10
    assert of(folder, tmp_path, Delta(missing="null", columns=["note"]))[3] == {"note": None}
    assert "note" not in of(folder, tmp_path, Delta(version=1))[0]


@pytest.mark.parametrize("change", ["delete", "update"])
def test_text_that_was_written_anew(tmp_path, change):
    """Those files have views of text, with nulls."""
    whole = pa.table({"id": [1, 2, 3], "t": ["a", None, "c"], "b": [b"x", None, b"z"]})
    deltalake.write_deltalake(tmp_path / "table", whole)
    table = deltalake.DeltaTable(tmp_path / "table")
    if change == "delete":
        table.delete("id = 3")
    else:
        table.update({"id": "id + 1"}, predicate="id = 3")
    found = rows_of(of(tmp_path / "table", tmp_path))
    assert [(row["t"], row["b"]) for row in found[:2]] == [("a", b"x"), (None, None)]


def test_a_log_behind_a_checkpoint(tmp_path):
    """Versions that follow from a checkpoint are read, older ones refused with those there are."""
    folder = write_versions(tmp_path / "table", 6)
    deltalake.DeltaTable(folder, version=3).create_checkpoint()
    for version in range(3):
        (folder / f"_delta_log/{version:020}.json").unlink()
    for version, rows in ((3, 20), (4, 25), (None, 30)):
        assert of(folder, tmp_path, Delta(version=version)).num_samples == rows
    for version in (2, 9):
        with pytest.raises(
            FormatError, match=f"no version {version} .*log has the versions 3 to 5"
        ):
            of(folder, tmp_path, Delta(version=version))
    with pytest.raises(FormatError, match="this is not a Delta table"):
        of(tmp_path, tmp_path)
    for wrong in (-1, "3", 1.5, True):
        with pytest.raises(ConfigError, match="version= must be a whole number, 0 or more"):
            Delta(version=wrong)


def test_any_store_has_tables(tmp_path):
    """The log comes through the store of the files: those behind it, and no listing of data."""
    folder = write_versions(tmp_path / "table", 12)
    deltalake.DeltaTable(folder, version=9).create_checkpoint()
    store = MemoryStore("memory://delta")
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(folder).as_posix(), path.read_bytes())
    came = []
    kind = Delta()
    found = kind.find(kind.narrow(_place(store.url)), Files(store, came.append))
    assert len(found.files) == 12
    assert found.pin == {"version": 11}
    assert len(came) == 4, "a checkpoint, its commit, and two commits behind it"
    dataset = of(store.url, tmp_path)
    assert [row["id"] for row in rows_of(dataset)] == list(range(60))


def _place(url):
    from mds.formats._source import parse_place

    return parse_place(url)


def test_new_versions_look_at_new_files_alone(tmp_path):
    """A start of another version reads the footers of the files that came."""
    store = MemoryStore("memory://delta-new")

    def upload():
        for path in (tmp_path / "table").rglob("*"):
            if path.is_file():
                store.put(path.relative_to(tmp_path / "table").as_posix(), path.read_bytes())

    looked = []

    class Counted(Delta):
        def plan_file(self, file, files):
            looked.append(file.key)
            return super().plan_file(file, files)

    for files in (3, 1):
        write_versions(tmp_path / "table", files)
        upload()
        of(store.url, tmp_path, Counted())
    of(store.url, tmp_path, Counted())
    assert len(looked) == 4


def test_beside_shards_of_mds_in_one_mix(tmp_path):
    """A version of a table and MDS with the same columns are streams of one dataset."""
    folder = write_versions(tmp_path / "table", 3)
    found = mixed_with_mds(folder, Delta(version=1, columns=["id", "text"]), tmp_path)
    assert {number for number in found if number < 1000} <= set(range(10))


def test_a_file_that_was_vacuumed(tmp_path):
    """It is told as one that the version names, when planning and under a run."""
    folder = write_versions(tmp_path / "table", 3)
    dataset = of(folder, tmp_path)
    gone = min(folder.glob("*.parquet"))
    gone.unlink()
    with pytest.raises(NotFoundError, match=rf"{gone.name}: the table lists this .*VACUUM"):
        dataset[0]
    with pytest.raises(NotFoundError, match=rf"{gone.name}: the table lists this .*VACUUM"):
        of(folder, tmp_path / "other")


# ------------------------------------------------------------------ logs that others write


def by_hand(folder, schema, adds, configuration=None, features=()):
    """A table of one version whose log says this."""
    (folder / "_delta_log").mkdir(parents=True)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features:
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7,
                    "readerFeatures": list(features), "writerFeatures": list(features)}  # fmt: skip
    actions = [
        {"protocol": protocol},
        {
            "metaData": {
                "id": "0", "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": schema}),
                "partitionColumns": [], "configuration": configuration or {}, "createdTime": 0,
            }
        },
        *({"add": {"partitionValues": {}, "modificationTime": 0, "dataChange": True, **add}}
          for add in adds),
    ]  # fmt: skip
    log = "".join(json.dumps(action) + "\n" for action in actions)
    (folder / "_delta_log" / f"{0:020}.json").write_text(log)
    return folder


def _field(name, kind="long", **metadata):
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def _file(folder, **columns):
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), folder / "a.parquet")
    return {"path": "a.parquet", "size": (folder / "a.parquet").stat().st_size}


@pytest.mark.parametrize("kind", ["inline", "file"])
def test_deletion_vectors_are_refused(tmp_path, kind):
    """Rows that are marked as deleted would come; a table that has none of them is read."""
    add = _file(tmp_path / "table", id=[1, 2, 3])
    by_hand(tmp_path / "table", [_field("id")], [add], features=["deletionVectors"])
    assert of(tmp_path / "table", tmp_path).num_samples == 3
    if kind == "inline":  # the one of the specification: rows 3, 4, 7, 11, 18, 29
        told = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
        vector = {"storageType": "i", "pathOrInlineDv": told, "cardinality": 6, "sizeInBytes": 40}
    else:
        vector = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4,
                  "sizeInBytes": 40, "cardinality": 6}  # fmt: skip
    by_hand(
        tmp_path / "marked", [_field("id")], [add | {"deletionVector": vector}],
        features=["deletionVectors"],
    )  # fmt: skip
    shutil.copy(tmp_path / "table" / "a.parquet", tmp_path / "marked")
    with pytest.raises(FormatError, match=r"deletion vectors in version 0, .*PURGE"):
        of(tmp_path / "marked", tmp_path)


def test_fields_inside_of_columns_that_came_later(tmp_path):
    """A field that a file does not have is None, as deltalake reads it; in lists and maps too."""
    first = {"id": [1, 2], "s": [{"x": 1}, None], "l": [[{"x": 1}], []]}
    then = {"id": [3], "s": [{"x": 1, "y": "q"}], "l": [[{"x": 1, "y": "r"}]]}
    deltalake.write_deltalake(tmp_path / "table", pa.table(first))
    deltalake.write_deltalake(
        tmp_path / "table", pa.table(then), mode="append", schema_mode="merge"
    )
    assert rows_of(of(tmp_path / "table", tmp_path)) == [
        {"id": 1, "s": {"x": 1, "y": None}, "l": [{"x": 1, "y": None}]},
        {"id": 2, "s": None, "l": []},
        {"id": 3, "s": {"x": 1, "y": "q"}, "l": [{"x": 1, "y": "r"}]},
    ]


def test_structs_that_files_call_otherwise(tmp_path):
    """Under column mapping the fields of a struct have their names of the table too."""
    mapping = "delta.columnMapping.physicalName"
    stored = {"col-1": [1, 2], "col-2": [{"f-1": 5, "f-2": 6}, None]}
    add = _file(tmp_path / "table", **stored)
    inside = [_field("y", **{mapping: "f-3"}), _field("x", **{mapping: "f-1"})]
    schema = [
        _field("id", **{mapping: "col-1"}),
        _field("s", {"type": "struct", "fields": inside}, **{mapping: "col-2"}),
    ]
    for number, field in enumerate([schema[0], schema[1], *inside]):
        field["metadata"]["delta.columnMapping.id"] = number
    settings = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "9"}
    by_hand(tmp_path / "table", schema, [add], settings, ["columnMapping"])
    found = rows_of(of(tmp_path / "table", tmp_path))
    assert found == [{"id": 1, "s": {"y": None, "x": 5}}, {"id": 2, "s": None}]


def test_columns_that_files_call_otherwise(tmp_path):
    """Under column mapping a column has its name of the table, and a dropped one is gone."""
    folder = tmp_path / "table"
    add = _file(folder, **{"col-1": [1, 2], "col-2": ["x", "y"], "col-3": [5, 6]})
    mapping = "delta.columnMapping.physicalName"
    numbered = "delta.columnMapping.id"
    schema = [
        _field("id", **{mapping: "col-1", numbered: 1}),
        _field("text", "string", **{mapping: "col-2", numbered: 2}),
    ]
    settings = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}
    by_hand(folder, schema, [add], settings, ["columnMapping"])
    assert rows_of(of(folder, tmp_path)) == [{"id": 1, "text": "x"}, {"id": 2, "text": "y"}]
    assert [s["text"] for s in of(folder, tmp_path / "one", columns=["text"])] == ["x", "y"]


def test_names_in_capitals_and_small_letters_are_the_same(tmp_path):
    """Delta keeps the case of a name and compares without; the table's is what a sample has."""
    add = _file(tmp_path / "table", ID=[1, 2], s=[{"Deep": 5}, {"Deep": 6}])
    inside = {"type": "struct", "fields": [_field("deep")]}
    by_hand(tmp_path / "table", [_field("Id"), _field("S", inside)], [add])
    assert rows_of(of(tmp_path / "table", tmp_path), "Id") == [
        {"Id": 1, "S": {"deep": 5}},
        {"Id": 2, "S": {"deep": 6}},
    ]


@pytest.mark.parametrize("path", ["s3://other/table/a.parquet", "../a.parquet", "%2e%2e/a.parquet"])
def test_files_outside_of_the_folder_are_refused(tmp_path, path):
    """A shallow copy names files of another table, a stranger's log files of the machine."""
    add = _file(tmp_path / "table", id=[1]) | {"path": path}
    by_hand(tmp_path / "table", [_field("id")], [add])
    with pytest.raises(FormatError, match=r"table: the table has files outside its"):
        of(tmp_path / "table", tmp_path)


def test_a_state_names_its_version(tmp_path, caplog):
    """Where the table went on it is refused with the version, in which it goes on."""
    folder = write_versions(tmp_path / "table", 3)
    loader = StreamingDataLoader(of(folder, tmp_path, shuffle=True), batch_size=4)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    expected = [batch["id"].tolist() for batch in batches]
    assert json.loads(state["data"])["streams"][0]["pin"] == {"version": 2}
    write_versions(folder, 1)
    later = StreamingDataLoader(of(folder, tmp_path, shuffle=True), batch_size=4)
    with pytest.raises(
        StateError,
        match=r"to 3 files of delta, version 2, but .* has 4 files of delta, version 3: .*"
        r"format=Delta\(version=2\)",
    ):
        later.load_state_dict(state)
    again = StreamingDataLoader(of(folder, tmp_path, Delta(version=2), shuffle=True), batch_size=4)
    caplog.clear()
    again.load_state_dict(state)
    assert "written with other data" not in caplog.text
    assert [batch["id"].tolist() for batch in again] == expected


@pytest.mark.parametrize("is_named", [True, False])
def test_a_state_leads_back_to_its_version(tmp_path, is_named):
    """What came in a step is told of the table as it was, however many versions came since."""
    folder = write_versions(tmp_path / "table", 2)
    more = {"format": "delta"} if is_named else {}
    dataset = StreamingDataset(local=str(folder), batch_size=2, shuffle=True, **more)
    state = dataset.state_dict()
    expected = [row.sample for row in RunHistory(state).step(1)]
    write_versions(folder, 1)
    assert [row.sample for row in RunHistory(state).step(1)] == expected


class Hostile(MemoryStore):
    """A bucket with a key that is no path below a folder; S3 takes any."""

    key = ""

    def list(self, prefix=""):
        yield from super().list(prefix)
        yield ObjectInfo(self.key, 5, "1")


def test_a_log_with_a_key_that_leads_out_touches_no_file(tmp_path):
    """Copies of the log stay in their folder: a key with `..` is refused, and nothing is opened."""
    write_versions(tmp_path / "table", 2)
    deltalake.DeltaTable(tmp_path / "table").create_checkpoint()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    Hostile.key = f"_delta_log/_sidecars{'/..' * 40}{victim}"
    register_store("hostile", Hostile)
    bucket = MemoryStore("hostile://events")
    for path in (tmp_path / "table").rglob("*"):
        if path.is_file():
            bucket.put(str(path.relative_to(tmp_path / "table")), path.read_bytes())
    with pytest.raises(ConfigError, match="is not the name of an object"):
        of("hostile://events", tmp_path)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    "line",
    [
        '{"add":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"add":{"path":"x","size":1,"modificationTime":1,"dataChange":true,"partitionValues":{},'
        '"stats":"' + "[" * 100_000 + "]" * 100_000 + '"}}',
    ],
    ids=["value", "text"],
)
def test_deep_brackets_in_a_log_are_refused(tmp_path, line):
    """They end the process in deltalake, whose stack they exhaust."""
    folder = write_versions(tmp_path / "data", versions=1)
    log = folder / "_delta_log"
    (log / f"{1:020}.json").write_text(f'{{"commitInfo":{{}}}}\n{line}\n')
    with pytest.raises(FormatError, match=r"1\.json: line 2 has brackets .* beyond 10000"):
        of(folder, tmp_path)


def test_a_forked_child_says_why_it_cannot_open_a_table(tmp_path):
    """The panic of deltalake is no Exception; what the parent has opened can be read."""
    folder = write_versions(tmp_path / "data", versions=1)
    dataset = of(folder, tmp_path)
    results = multiprocessing.get_context("fork").SimpleQueue()

    def read():
        results.put(len([*dataset]))
        try:
            of(folder, tmp_path)
        except ConfigError as error:
            results.put(str(error))

    child = multiprocessing.get_context("fork").Process(target=read)
    child.start()
    child.join(60)
    assert results.get() == 5
    assert 'start processes with "spawn"' in results.get()
