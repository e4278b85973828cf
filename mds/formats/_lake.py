"""Tables whose files are named by a log: the common part of Delta and Iceberg.

The log says which Parquet files make up a version of the table, and what the files do not contain:
partition columns (one value for a whole file), and the current names of columns. A file of a table
never changes, so it is planned once. The facts of the log about a file are kept with its footer, so
reading a shard does not need the log.

A field is a column, or a value inside a nested column. A table that numbers its fields can rename,
drop, move and add them without writing files again: a field always keeps its number, in the schema
of the table and in that of each file. So a column of a file may have to be rebuilt to match the
table. Delta uses the name in the files as the number. Fields are trees of plain values:

    (number, name, kind, fields inside)    kind: "struct", "list", "map" or ""

Some files do not hold the numbers of their fields. These are found by name then, in `Numbers`:
``{"user": ("1", {"id": ("2", {})})}`` gives the number 1 to the column user, and 2 to id inside it.

`recipe` compares two trees and returns the steps from a column of a file to one of the table;
`rebuilt` carries the steps out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from mds.errors import ConfigError, FormatError, NotFoundError
from mds.formats._arrow_values import encoding_of, pyarrow
from mds.formats._columnar import Columnar
from mds.formats._facts import DataFile, FilePlan, FoundFiles, ShardPlace
from mds.formats._parquet import Parquet
from mds.formats._parquet_footer import read_footer
from mds.storage._base import check_key

if TYPE_CHECKING:
    from mds.formats._source import FilePlace, Files

#: Files of a log that are fetched at once.
SIDE_BY_SIDE = 16
#: Metadata of a constant whose value is only known with the digits of a float.
ROUGH = b"rough"
#: Number, name, kind, fields inside.
Tree = Sequence[Any]
#: For files without numbers: name -> (number, the same mapping for the fields inside).
Numbers = Mapping[str, Sequence[Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts of a log about one file of a table.

    - ``constants``: the columns with one value in the whole file, as a record batch of one row.
    - ``names``: name in the table by name in the file, for the columns that belong to the table;
      None if the names are the same.
    - ``inside``: the `recipe` by name in the file, for columns whose inner fields differ from those
      of the table.
    - ``fields``: three facts from which `resolve` makes ``names`` and ``inside`` once the schema of
      the file is known; None after `resolve`. They are: the fields of the table as trees; the
      `Numbers` by which to number the fields of a file that holds no numbers, or None; whether
      files may hold numbers themselves, and also the columns in ``constants`` (True for Iceberg,
      False for Delta).
    """

    constants: Any
    names: Mapping[str, str] | None = None
    inside: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    fields: Sequence[Any] | None = None

    def to_bytes(self) -> bytes:
        """Return the facts as bytes: two lengths, u32 | names, JSON | constants, Arrow stream."""
        names = json.dumps([self.names, self.inside, self.fields]).encode()
        sink = pyarrow().BufferOutputStream()
        with pyarrow().ipc.new_stream(sink, self.constants.schema) as writer:
            writer.write_batch(self.constants)
        constants = bytes(sink.getvalue())
        return (
            len(names).to_bytes(4, "little")
            + len(constants).to_bytes(4, "little")
            + names
            + constants
        )

    @classmethod
    def parse(cls, data: bytes) -> tuple[FileFacts, bytes]:
        """Parse the bytes of `to_bytes`; return the facts, and the bytes after them."""
        names_size, constants_size = (
            int.from_bytes(data[offset : offset + 4], "little") for offset in (0, 4)
        )
        middle = 8 + names_size
        end = middle + constants_size
        names, inside, fields = json.loads(data[8:middle])
        with pyarrow().ipc.open_stream(data[middle:end]) as reader:
            return cls(reader.read_next_batch(), names, inside, fields), data[end:]

    def resolve(self, schema: Any, location: str) -> FileFacts:
        """Return the facts with ``names`` and ``inside``, given the Arrow schema of the file.

        Each field of the table is compared with the field of the file that has the same number.
        Raises FormatError for a file without numbers if the table does not say which columns they
        are.
        """
        if self.fields is None:
            return self
        table_trees, numbers, is_iceberg = self.fields
        if is_iceberg and has_numbers(schema):
            numbers = None  # `tree_of` takes them from the schema
        elif numbers is None:
            raise FormatError(
                f"{location}: its columns have no field ids, and the table has no "
                f"schema.name-mapping.default that gives them; write the file again."
            )
        # Names of Delta ignore case, those of Iceberg do not.
        trees = [tree_of(field, numbers, any_case=not is_iceberg) for field in schema]
        stored_by_number = {tree[0]: tree for tree in trees}
        names, inside = {}, {}
        for tree in table_trees:
            number, table_name = tree[:2]
            stored_tree = stored_by_number.get(number)
            if stored_tree is not None:
                stored_name = stored_tree[1]
                names[stored_name] = table_name
                if (steps := recipe(stored_tree, tree)) is not None:
                    inside[stored_name] = steps
        is_same = {*schema.names} == {*names} and all(a == b for a, b in names.items())
        lacking = self.constants.schema.names
        if is_iceberg:  # the file's own column is preferred: the log may have fewer digits
            lacking = [name for name in lacking if name not in names.values()]
        for name in lacking:
            if ROUGH in (self.constants.schema.field(name).metadata or {}):
                raise FormatError(
                    f"{location}: column {name!r} is not in the file, and pyiceberg reads its "
                    f"double from the manifest with the precision of a float. Rewrite the file: "
                    f"CALL system.rewrite_data_files(...)."
                )
        return FileFacts(self.constants.select(lacking), None if is_same else names, inside)

    def stored(self, columns: Sequence[str]) -> list[str]:
        """Return the names in the file of some columns of the table, except those it lacks.

        The constants are left out, too: they are not read from the file.
        """
        columns = [name for name in columns if name not in self.constants.schema.names]
        if self.names is None:
            return columns
        stored_names = {name: stored for stored, name in self.names.items()}
        return [stored_names[name] for name in columns if name in stored_names]

    def complete(self, batch: Any) -> Any:
        """Convert a batch of the file to one of the table: rename, rebuild, add constants."""
        pa = pyarrow()
        names = [self._name(name) for name in batch.schema.names]
        columns = [
            rebuilt(column, self.inside.get(name))
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        for name, column in zip(self.constants.schema.names, self.constants.columns, strict=True):
            if name not in names:
                names.append(name)
                columns.append(pa.repeat(column[0], batch.num_rows))
        return pa.record_batch(columns, names=names)

    def _name(self, stored: str) -> str:
        return stored if self.names is None else self.names.get(stored, stored)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableFormat(Parquet):
    """Base class of tables: Parquet files that a log names. Write `files_of_table`.

    Columns that the files still hold but that the table has dropped are left out.
    """

    endings: ClassVar[tuple[str, ...]] = ()
    revision: ClassVar[int] = 5
    has_partitions: ClassVar[bool] = False  # the log has their values
    has_final_files: ClassVar[bool] = True

    @abstractmethod
    def files_of_table(self, place: FilePlace, source: Files) -> FoundFiles:
        """Return the files of a version of the table, in any order, with `FileFacts` of each."""

    @property
    def lists_files(self) -> bool:
        """Return False: the log of the table names its files."""
        return False

    def find(self, place: FilePlace, source: Files) -> FoundFiles:
        """Return the files of the table, sorted by key: the order in the log must not matter."""
        if source.has_choice:
            raise FormatError(
                f"{source.url('')}: --include and --exclude cannot choose files of a {self.name} "
                f"table, because its log decides which rows of a file exist. Convert the whole "
                f"table, or its Parquet files by a pattern, including deleted rows."
            )
        listing = self.files_of_table(place, source)
        key = ""
        try:
            for key in (file.key for file in listing.files):
                check_key(key)
        except ConfigError as error:
            feature = f"files outside its folder ({key})"
            raise refused(source.url(""), feature, "Copy the whole table.") from error
        return listing._replace(files=sorted(listing.files))

    def plan_file(self, file: DataFile, files: Files) -> FilePlan:
        """Return the row groups of a file, with the columns that the table gives it.

        The note of the plan is `FileFacts`, and after them the note of `Parquet` (the footer).
        """
        with _explain_vacuum(file, files):
            plan = super().plan_file(file, files)
        note = files.facts[file.key]
        facts, _ = FileFacts.parse(note)
        columns = dict(plan.columns)
        if facts.fields is not None:  # now that the schema of the file is known
            schema = self.schema_of(plan.note)
            facts = facts.resolve(schema, files.url(file))
            note = facts.to_bytes()
            # The encodings of rebuilt columns follow from the types that rebuilding yields.
            for name, steps in facts.inside.items():
                value_type = rebuilt(pyarrow().array([], schema.field(name).type), steps).type
                columns[name] = encoding_of(value_type, may_be_none=True, may_be_empty=True)
        # Rename the columns as the table does, and drop those that are not columns of the table.
        if facts.names is not None:
            columns = {
                name: columns[stored_name]
                for stored_name, name in facts.names.items()
                if stored_name in columns
            }
        # Add the partition columns.
        for name, column in zip(facts.constants.schema.names, facts.constants, strict=True):
            columns[name] = encoding_of(
                column.type, may_be_none=bool(column.null_count), may_be_empty=True
            )
        return dataclasses.replace(plan, columns=columns, note=note + plan.note)

    def plan_uncounted(self, file: DataFile, files: Files) -> FilePlan:
        """Return the plan of a file, whose columns are those of the table."""
        return self.plan_file(file, files)

    def share(self, shard: ShardPlace) -> float:
        """Return the share of a row group's bytes that the chosen columns have."""
        facts, footer_note = FileFacts.parse(shard.note)
        # The share is computed by the footer, which knows the names in the file.
        columns = shard.columns._replace(names=tuple(facts.stored(shard.columns.names)))
        return super().share(dataclasses.replace(shard, note=footer_note, columns=columns))

    def first_row(self, shard: ShardPlace, files: Files) -> int:
        """Return the number of the first row of a row group in its file, by the footer."""
        _, footer_note = FileFacts.parse(shard.note)
        return super().first_row(dataclasses.replace(shard, note=footer_note), files)

    def footer(self, file: DataFile, files: Files) -> bytes:
        """Return the footer of a file from itself: a table has no ``_metadata``."""
        return read_footer(file, files)

    def known_nulls(self, plan: FilePlan) -> frozenset[str]:
        """Return the columns that may hold None according to the log and the file."""
        return Columnar.known_nulls(self, plan)

    def batches(
        self, shard: ShardPlace, names: Sequence[str], files: Files, location: str
    ) -> Iterator[Any]:
        """Yield the rows of a row group as record batches with the columns ``names`` of the table.

        ``shard.note`` holds the facts of the log about the file, and behind them its footer, which
        is the whole note of a shard of plain Parquet.
        """
        facts, footer_note = FileFacts.parse(shard.note)
        parquet_shard = dataclasses.replace(shard, note=footer_note)
        with _explain_vacuum(shard.file, files):
            for batch in super().batches(parquet_shard, facts.stored(names), files, location):
                yield facts.complete(batch)


@contextlib.contextmanager
def _explain_vacuum(file: DataFile, files: Files) -> Iterator[None]:
    """Turn a NotFoundError inside the block into one that explains why the file is missing."""
    try:
        yield
    except NotFoundError as error:
        raise NotFoundError(
            f"get {files.url(file)}: the table lists this file, but it does not exist. The files "
            f"of old versions were deleted (VACUUM, expired snapshots): read a newer version.",
            url=files.url(file),
            verb="get",
        ) from error


def check_number(name: str, value: object) -> None:
    """Raise ConfigError unless a version or snapshot is None or a whole number from 0 on."""
    if value is not None and (type(value) is not int or value < 0):
        raise ConfigError(f"{name}= must be a whole number, 0 or more, or None, got {value!r}.")


def digest_of(schema: str) -> str:
    """Return a digest of the schema of a table."""
    import xxhash

    return xxhash.xxh3_64_hexdigest(schema.encode())


def refused(url: str, feature: str, remedy: str) -> FormatError:
    """Return the error for a table that needs a feature which is not supported."""
    return FormatError(f"{url}: the table has {feature}, which mds cannot read. {remedy}")


def has_numbers(schema: Any) -> bool:
    """Whether a column of a file's schema has a number (``PARQUET:field_id``)."""
    return any(_number(field) for field in schema)


def tree_of(
    field: Any, numbers: Numbers | None = None, called: str = "", *, any_case: bool = False
) -> Tree:
    """Return the tree of a field in a file's schema.

    - ``field`` (pyarrow.Field): The field.
    - ``numbers`` (Numbers | None, default None): Numbers by name, for a file without numbers.
    - ``called`` (str, default ""): Name of the field in ``numbers``, if it is not its own.
    - ``any_case`` (bool, default False): Whether names in ``numbers`` ignore case.
    """
    if numbers is None:
        number, within = _number(field), None
    else:
        number, within = _number_and_inside(called or field.name, numbers, any_case=any_case)

    def inside(each: Any, name: str = "") -> Tree:
        """Return the tree of a field inside; maps and lists call theirs key, value and element."""
        return tree_of(each, within, name, any_case=any_case)

    types, kind = pyarrow().types, field.type
    if types.is_struct(kind):
        fields = [kind.field(position) for position in range(kind.num_fields)]
        return (number, field.name, "struct", [inside(each) for each in fields])
    if types.is_map(kind):
        pair = ((kind.key_field, "key"), (kind.item_field, "value"))
        return (number, field.name, "map", [inside(each, name) for each, name in pair])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return (number, field.name, "list", [inside(kind.value_field, "element")])
    return (number, field.name, "", [])


def _number_and_inside(name: str, numbers: Numbers, *, any_case: bool) -> Sequence[Any]:
    """Return the number of a field by its name, and the `Numbers` of the fields inside.

    With ``any_case`` a name in other capitals matches, too. An unknown name gives ("", {}).
    """
    if name not in numbers and any_case:
        name = next((each for each in numbers if each.lower() == name.lower()), name)
    return numbers.get(name, ("", {}))


def recipe(stored: Tree, target: Tree) -> list[Any] | None:
    """Return the steps that convert a field of a file to that of the table; None for no steps.

    - ``stored`` (Tree): The field of the file.
    - ``target`` (Tree): The field of the table.

    For a struct, the steps are [name, name in the file or None if it lacks the field, recipe] for
    each field; for a list or map, the recipes of the fields inside. For a struct whose field 2 was
    renamed from "old_x" to "x" they are ``[["x", "old_x", None]]``.
    """
    _, _, stored_kind, stored_fields = stored
    _, _, kind, fields = target
    if stored_kind != kind or not kind:  # no nested fields of one kind: nothing to rebuild
        return None
    if kind != "struct":
        inside = [recipe(*pair) for pair in zip(stored_fields, fields, strict=True)]
        return inside if any(each is not None for each in inside) else None
    by_number = {field[0]: field for field in stored_fields if field[0]}
    steps: list[Any] = []
    for field in fields:
        number, name = field[:2]
        if (stored_field := by_number.get(number)) is None:
            steps.append([name, None, None])
        else:
            steps.append([name, stored_field[1], recipe(stored_field, field)])
    is_same = len(steps) == len(stored_fields) and all(
        name == stored_name and inner is None for name, stored_name, inner in steps
    )
    return None if is_same else steps


def rebuilt(column: Any, steps: Sequence[Any] | None) -> Any:
    """Convert an Arrow column of a file by the steps of `recipe`; missing fields become null.

    ``steps`` None returns the column unchanged. For a struct they are [name in the table, name in
    the file or None, steps of the field] for each field, such as ``[["x", "old_x", None], ["new",
    None, None]]``. For a list they are [steps of the elements], for a map [steps of the keys,
    steps of the values].
    """
    if steps is None:
        return column
    pa = pyarrow()
    kind = column.type
    if pa.types.is_struct(kind):
        parts = dict(zip([field.name for field in kind.fields], column.flatten(), strict=True))
        fields = [
            pa.nulls(len(column)) if stored is None else rebuilt(parts[stored], inner)
            for _, stored, inner in steps
        ]
        names = [name for name, _, _ in steps]
        return pa.StructArray.from_arrays(fields, names=names, mask=column.is_null())
    if pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_field))
    # A copy of all rows, whose offsets begin with 0 even if the column is a slice.
    column = column.take(pa.array(range(len(column)), pa.int64()))
    mask = column.is_null()
    if pa.types.is_map(kind):
        keys, items = rebuilt(column.keys, steps[0]), rebuilt(column.items, steps[1])
        return pa.MapArray.from_arrays(column.offsets, keys, items, mask=mask)
    make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return make.from_arrays(column.offsets, rebuilt(column.values, steps[0]), mask=mask)


def _number(field: Any) -> str:
    """Return the number of a column in a file, or ''."""
    number: bytes = (field.metadata or {}).get(b"PARQUET:field_id", b"")
    return number.decode()
