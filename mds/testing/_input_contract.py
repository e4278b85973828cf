"""Contract test suite of inputs of mds-convert, to inherit.

An input reads records from a place, such as a file or a folder. It cuts the place into parts, each
of which one process converts, and describes the place of a record for errors. The fixtures give
places for the tests.

class TestFasta(InputContract):
    input = Fasta

    @pytest.fixture
    def place(self, tmp_path):               # ten records or more
        ...
        return str(tmp_path / "genes.fa")

    @pytest.fixture
    def damaged(self, tmp_path):             # a broken place, and words that the error contains
        ...
        return str(tmp_path / "broken.fa"), "broken.fa, line 3"
"""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
import pickle
import tempfile
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mds.encodings import parse_encoding
from mds.errors import MdsError
from mds.formats import Problem
from mds.writers.convert import Input, InputPart, prepare
from mds.writers.convert._inputs.registry import inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mds.writers.convert._conversion import Conversion

_NAME = "under-contract"
_LARGEST_PART = 1 << 40  # bytes: more than the tests read, so an input is cut as little as possible


class InputContract:
    """Tests that every input of mds-convert must pass.

    Inherit it, name the class ``Test...``, set ``input`` to the class of the input and add the
    fixtures ``place`` and ``damaged``; the module shows an example.

    For example::

        from mds.testing import InputContract

        class TestFasta(InputContract):
            input = Fasta

            @pytest.fixture
            def place(self, tmp_path):  # ten records or more
                (tmp_path / "genes.fa").write_text(GOOD)
                return str(tmp_path / "genes.fa")

            @pytest.fixture
            def damaged(self, tmp_path):  # a broken place, and words that the error contains
                (tmp_path / "broken.fa").write_text(BROKEN)
                return str(tmp_path / "broken.fa"), "broken.fa, sequence 2"
    """

    input: ClassVar[type[Input]]
    #: Options of `convert` for the tests.
    options: ClassVar[Mapping[str, Any]] = {}

    def test_it_says_what_it_is(self, place: str) -> None:
        """Attributes of an input have the right types, and descriptions are one line of text."""
        assert not inspect.isabstract(self.input)
        opened = self._open(place)
        assert opened.title
        for text in (opened.title, opened.describe(), opened.fingerprint(), *opened.notes):
            assert isinstance(text, str)
            assert len(text.splitlines()) == 1
        for name in ("is_text", "is_json", "is_encoded", "has_late_keys"):
            assert type(getattr(opened, name)) is bool

    def test_opening_it_again_finds_the_same(self, place: str) -> None:
        """Columns, splits, parts and digest are the same when a place is opened again.

        A conversion that is resumed relies on this.
        """
        first_input, second_input = self._open(place), self._open(place)
        assert first_input.fingerprint() == second_input.fingerprint()
        assert (list(first_input.infer_columns()), list(first_input.list_extra_columns())) == (
            list(second_input.infer_columns()),
            list(second_input.list_extra_columns()),
        )
        assert list(first_input.list_splits()) == list(second_input.list_splits())
        for size in self._part_sizes(first_input):
            parts = list(first_input.cut_parts(size))
            assert pickle.dumps(parts) == pickle.dumps(list(first_input.cut_parts(size)))
            assert pickle.dumps(parts) == pickle.dumps(list(second_input.cut_parts(size)))

    def test_parts_are_numbered_and_bounded(self, place: str) -> None:
        """Parts are numbered from 0, have no more bytes than the input, and belong to a split."""
        opened = self._open(place)
        splits: set[str | None] = {*opened.list_splits()}
        for size in self._part_sizes(opened):
            parts = list(opened.cut_parts(size))
            assert [part.number for part in parts] == list(range(len(parts)))
            assert all(part.size >= 0 for part in parts)
            assert not opened.size or sum(part.size for part in parts) <= opened.size
            assert {part.split for part in parts} <= (splits or {None})

    def test_records_do_not_depend_on_the_parts(self, place: str) -> None:
        """The same records in the same order, however large the parts are."""
        opened = self._open(place)
        records_by_size = [
            [record for part in opened.cut_parts(size) for _, record in _read(opened, part)]
            for size in self._part_sizes(opened)
        ]
        assert len(records_by_size[0]) >= 10, "the place must hold ten records or more"
        assert all(records == records_by_size[0] for records in records_by_size)

    def test_a_part_is_read_anywhere_and_again(self, place: str) -> None:
        """A part has the same records in any order of reading, and from a pickled copy."""
        opened = self._open(place)
        parts = list(opened.cut_parts(min(self._part_sizes(opened))))
        first = {part.number: _read(opened, part) for part in parts}
        copy: Input = pickle.loads(pickle.dumps(opened))
        for part in reversed(parts):
            assert _read(opened, part) == first[part.number]
            assert _read(copy, pickle.loads(pickle.dumps(part))) == first[part.number]

    def test_columns_hold_the_records(self, place: str) -> None:
        """Column names are distinct, encodings safe, and records have no other keys."""
        opened = self._open(place)
        columns = [*opened.infer_columns(), *opened.list_extra_columns()]
        names = [column.name for column in columns]
        assert names
        assert len(set(names)) == len(names)
        assert not any(parse_encoding(column.encoding).is_unsafe for column in columns)
        for part in opened.cut_parts(_LARGEST_PART):
            for _, record in _read(opened, part):
                assert opened.has_late_keys or {*record} <= {*names}

    def test_every_record_has_a_place_of_its_own(self, place: str) -> None:
        """The place of each record is described in one line that no other record has."""
        opened = self._open(place)
        places = [
            opened.locate(part, position)
            for part in opened.cut_parts(_LARGEST_PART)
            for position, _ in _read(opened, part)
        ]
        assert all(len(each.splitlines()) == 1 for each in places)
        assert len(set(places)) == len(places)

    def test_a_conversion_writes_every_record(self, place: str) -> None:
        """Every record becomes a sample, with the same bytes for parts of any size."""
        opened = self._open(place)
        records = sum(len(_read(opened, part)) for part in opened.cut_parts(_LARGEST_PART))
        with tempfile.TemporaryDirectory() as folder:
            written = []
            for number, size in enumerate(self._part_sizes(opened)):
                conversion = self._prepare(place, f"{folder}/{number}", part_size=size)
                assert conversion.run().samples == records
                written.append(_files(f"{folder}/{number}"))
        assert all(files == written[0] for files in written)

    def test_a_stopped_conversion_goes_on(self, place: str) -> None:
        """A conversion that stops after any step and is resumed writes the same files."""
        size = min(self._part_sizes(self._open(place)))
        with tempfile.TemporaryDirectory() as folder:
            self._prepare(place, f"{folder}/whole", part_size=size).run()
            for step in range(100):
                out = f"{folder}/{step}"
                try:
                    self._prepare(place, out, part_size=size).run(_stop_after(step))
                except _StoppedError:
                    self._prepare(place, out, part_size=size, resume=True).run()
                    assert _files(out) == _files(f"{folder}/whole")
                else:
                    assert step > 1, "a conversion has more steps than one"
                    return
        raise AssertionError("the place holds too much to be tried")

    def test_damage_is_named_with_its_place(self, damaged: tuple[str, str]) -> None:
        """A broken file stops the conversion with an error that names the place; no index."""
        place, words = damaged
        with tempfile.TemporaryDirectory() as folder:
            try:
                self._prepare(place, f"{folder}/out").run()
            except MdsError as error:
                message = str(error)
            else:
                raise AssertionError("a broken input was converted")
            assert words in message
            assert not list(pathlib.Path(folder).rglob("index.json"))

    # ------------------------------------------------------------------ inside

    def _open(self, place: str) -> Input:
        """Return the input at a place, opened as a conversion opens it."""
        with tempfile.TemporaryDirectory() as folder:
            return self._prepare(place, f"{folder}/out").source

    def _prepare(self, place: str, out: str, part_size: int = 0, **options: Any) -> Conversion:
        """Return a conversion of ``place`` to the folder ``out``, in parts of ``part_size`` bytes.

        ``options`` are further options of `convert`. A conversion finds an input by its name, so
        the class is registered until the conversion is prepared.
        """
        registered_inputs = dict(inputs)
        inputs[_NAME] = self.input
        try:
            options = {"durable": False, "size_limit": 4000, **self.options, **options}
            conversion = prepare(place, out, format=_NAME, **options)
        finally:
            inputs.clear()
            inputs.update(registered_inputs)
        assert conversion.source.name == place
        return dataclasses.replace(conversion, part_size=part_size)

    def _part_sizes(self, opened: Input) -> tuple[int, ...]:
        """Return sizes in bytes that cut an input into seven parts, two parts and one part."""
        return opened.size // 7 + 1, opened.size // 2 + 1, _LARGEST_PART


class _StoppedError(Exception):
    """The reason why a conversion was stopped."""


def _stop_after(steps: int) -> Callable[[object], None]:
    """Return a progress function that does nothing ``steps`` times, and then raises _StoppedError.

    A conversion calls it after each step.
    """
    remaining_steps = steps

    def progress(_: object) -> None:
        nonlocal remaining_steps
        if remaining_steps == 0:
            raise _StoppedError
        remaining_steps -= 1

    return progress


def _read(opened: Input, part: InputPart) -> list[tuple[Any, dict[str, Any]]]:
    """Return the records of a part with their positions, in a form that can be compared."""
    records = []
    for position, record in opened.read_records(part):
        assert not isinstance(record, Problem), opened.describe_problem(part, position, record)
        records.append((position, {name: _comparable(value) for name, value in record.items()}))
    return records


def _comparable(value: Any) -> Any:
    """Return a value that is equal (==) exactly if arrays have equal type, shape and content."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return value


def _files(folder: str) -> dict[str, bytes]:
    paths = [path for path in pathlib.Path(folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
