"""Contract test suite of formats, whose files are read in place as shards.

The files of a folder are listed once in a table (`FileTable`), with the shards of each file and
their numbers of samples. A shard is read from its file itself if the format can do that; otherwise
its samples are converted to the bytes of an MDS shard.

class TestFasta(FormatContract):
    format = Fasta()

    @pytest.fixture
    def folder(self, tmp_path):              # files of the format: at least ten samples, two shards
        ...
        return tmp_path

    @pytest.fixture
    def damaged(self, tmp_path):             # a file (or folder) that cannot be read, and words
        ...
        return tmp_path / "broken.fa", "broken.fa"
"""

from __future__ import annotations

import os
import pathlib
import pickle
import shutil
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mds._readers.joint import joint_reader
from mds.errors import MdsError
from mds.formats._base import Format
from mds.formats._dataset import FormatData, list_split, make_table
from mds.formats._encode import shard_bytes
from mds.formats._registry import find_format
from mds.formats._source import Files, parse_place
from mds.formats._table import FileTable
from mds.storage import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from mds._readers.base import Reader


class FormatContract:
    """Tests that every format of files must pass.

    Inherit it, name the class ``Test...``, set ``format`` and add the fixtures ``folder`` and
    ``damaged``; the module shows an example.

    For example::

        from mds.testing import FormatContract

        class TestFasta(FormatContract):
            format = Fasta()

            @pytest.fixture
            def folder(self, tmp_path):  # files with at least ten samples and two shards
                (tmp_path / "genes.fa").write_text(GOOD)
                return tmp_path

            @pytest.fixture
            def damaged(self, tmp_path):  # a broken file, and words that the error contains
                (tmp_path / "broken.fa").write_text(BROKEN)
                return tmp_path / "broken.fa", "broken.fa"
    """

    format: ClassVar[Format]

    def test_it_says_what_it_is(self) -> None:
        """A format is found by its name, has endings such as ".fa", and equals its pickled copy."""
        kind = type(self.format)
        assert kind.name == kind.name.lower()
        assert all(each == each.lower() and each[0] == "." for each in kind.endings)
        assert find_format(kind.name) is kind
        again = pickle.loads(pickle.dumps(self.format))
        assert again == self.format
        assert again.settings() == self.format.settings()

    def test_a_plan_says_what_comes(self, folder: pathlib.Path) -> None:
        """Every shard has as many samples as the table says, each with the table's columns."""
        data, files = self._open(folder)
        assert len(data.table) >= 2
        assert int(data.table.samples.sum()) >= 10
        for number in range(len(data.table)):
            reader = self._reader(data, number, files, folder)
            assert len(reader) == int(data.table.samples[number])
            for sample in reader:
                assert tuple(sorted(sample)) == data.columns.names

    def test_shards_come_twice_the_same(self, folder: pathlib.Path) -> None:
        """Opening and reading a folder twice gives equal tables and shards with the same bytes."""
        first_data, files = self._open(folder)
        other, other_files = self._open(folder)
        assert first_data.table.digest() == other.table.digest()
        assert first_data.index().fingerprint() == other.index().fingerprint()
        for number in range(len(first_data.table)):
            first = self._bytes(first_data, number, files)
            assert first == self._bytes(other, number, other_files)

    def test_a_plan_survives_as_bytes_and_in_a_pickle(self, folder: pathlib.Path) -> None:
        """The table of a dataset is the same after it was stored in a file, and after a pickle."""
        data, files = self._open(folder)
        table = FileTable.parse(data.table.to_bytes(), "a table")
        assert table.digest() == data.table.digest()
        again = pickle.loads(pickle.dumps(data))
        assert again.index().fingerprint() == data.index().fingerprint()
        assert self._bytes(again, 0, files) == self._bytes(data, 0, files)

    def test_the_location_of_a_sample_names_its_file(self, folder: pathlib.Path) -> None:
        """The location of each sample of a shard has the name of a file, and is its own."""
        data, files = self._open(folder)
        shard = data.place(0)
        rows = range(min(shard.samples, 10))
        locations = [self.format.location_of(shard, row, files) for row in rows]
        assert len({*locations}) == len(rows)
        assert all(location.startswith(files.url("").rstrip("/")) for location in locations)

    def test_columns_can_be_left_out(self, folder: pathlib.Path) -> None:
        """If one column is selected, samples have only that column, with unchanged values."""
        data, files = self._open(folder)
        for name in data.columns.names:
            single_column = FormatData.of(self.format, data.table, [name])
            narrow_samples = self._reader(single_column, 0, files, folder)
            full_samples = self._reader(data, 0, files, folder)
            assert [*narrow_samples[0]] == [name]
            _same(narrow_samples[0][name], full_samples[0][name])
            last = len(full_samples) - 1
            _same(narrow_samples[last][name], full_samples[last][name])

    def test_what_changed_is_told(self, folder: pathlib.Path) -> None:
        """Reading a file that changed after the table was made raises an error that names it."""
        data, files = self._open(folder)
        file = data.table.file_of(0)
        path = os.path.join(folder, file.key)
        with open(path, "ab") as stream:
            stream.write(b"\0")
        _raises(lambda: self._reader(data, 0, files, folder), file.key)

    def test_what_is_damaged_is_told(self, damaged: tuple[pathlib.Path, str]) -> None:
        """Reading a damaged file raises an MdsError of one line that names the file."""
        path, words = damaged
        folder = path.parent / "damaged"
        if path.is_dir():
            shutil.copytree(path, folder)
        else:
            folder.mkdir()
            shutil.copy(path, folder / path.name)

        def read() -> None:
            data, files = self._open(folder)
            for number in range(len(data.table)):
                self._reader(data, number, files, folder).samples(
                    range(int(data.table.samples[number]))
                )

        _raises(read, words)

    # ------------------------------------------------------------------ inside

    def _open(self, folder: pathlib.Path) -> tuple[FormatData, Files]:
        """Return the dataset of a folder in this format, and the access to its files."""
        files = Files(open_store(str(folder)))
        # List the files that have the format, and then the shards in each of them.
        place = self.format.narrow(parse_place(str(folder), self.format.endings))
        contents = list_split(self.format, place, files, None)
        return FormatData.of(self.format, make_table(self.format, files, contents)), files

    @staticmethod
    def _bytes(data: FormatData, number: int, files: Files) -> bytes:
        """Return shard ``number`` as the bytes of an MDS shard, as the cache would keep it."""
        samples = int(data.table.samples[number])
        blocks = data.blocks(number, files)
        return shard_bytes(samples, data.columns, blocks, data.where(number, files))

    def _reader(self, data: FormatData, number: int, files: Files, folder: pathlib.Path) -> Reader:
        """Return a reader of shard ``number`` of the dataset ``data`` in ``folder``.

        It reads the file itself if the format can do that, else the shard converted to MDS.
        """
        if data.is_in_place:
            from mds._readers.fields import ColumnSelection

            return data.reader(number, str(folder), ColumnSelection())
        shard = self._bytes(data, number, files)
        index = data.index()
        info = index.shard(number)
        reader: Reader = joint_reader(info.schema, info.samples, shard, data.where(number, files))
        return reader


def _raises(act: Callable[[], object], words: str) -> None:
    """Check that a call raises an MdsError of one line that has some words."""
    text = ""
    try:
        act()
    except MdsError as error:
        text = str(error)
    assert words in text
    assert len(text.splitlines()) == 1


def _same(value: object, expected: object) -> None:
    """Check that two values are equal; arrays and images by their content."""
    if isinstance(value, np.ndarray) or isinstance(expected, np.ndarray):
        assert np.array_equal(np.asarray(value), np.asarray(expected))
    elif hasattr(value, "tobytes"):  # an image
        assert value.tobytes() == expected.tobytes()  # type: ignore[attr-defined]
    else:
        assert value == expected
