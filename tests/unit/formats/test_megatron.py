"""Token files of Megatron-LM are read in place, document by document."""

import os
import re
import struct

import numpy as np
import pytest
from megatron_files import HEADER, random_documents, same, tokens_of, write

from devtools.httpserver import http_server
from mds import Packing, StreamingDataLoader, StreamingDataset
from mds.errors import FormatError, ReplacedError
from mds.events import Fetched, subscribe
from mds.formats import Megatron
from mds.testing import FormatContract


class TestMegatron(FormatContract):
    format = Megatron(shard_size=400)

    @pytest.fixture
    def folder(self, tmp_path):
        folder = tmp_path / "tokens"
        folder.mkdir()
        rng = np.random.default_rng(1)
        write(folder / "a", random_documents(rng, 8, 40) + random_documents(rng, 8, 40))
        write(folder / "b", [[range(n), [n]] for n in range(1, 12)])
        return folder

    @pytest.fixture
    def damaged(self, tmp_path):
        folder = tmp_path / "broken"
        folder.mkdir()
        write(folder / "a", [[[1, 2, 3]], [[4]]])
        with open(folder / "a.idx", "r+b") as file:
            file.truncate(60)
        return folder, "a.idx, byte 60: the file ends"


def test_it_is_known_by_a_url_and_by_its_indexes(tmp_path):
    """Many datasets have ``.bin`` files, so each file of a folder must have an ``.idx`` file."""
    write(tmp_path / "a", [[[1, 2]], [[3]]])
    assert StreamingDataset(local=str(tmp_path / "a.bin")).num_samples == 2
    assert StreamingDataset(remote=f"{tmp_path}/*.bin", local=str(tmp_path / "c")).num_samples == 2
    assert StreamingDataset(local=str(tmp_path)).num_samples == 2
    (tmp_path / "b.bin").write_bytes(b"x")
    assert StreamingDataset(local=str(tmp_path), columns=["path"]).num_samples == 3  # any files


def test_files_of_several_types_widen(tmp_path):
    """Files of 16 and of 32 bits are one dataset of 32 bits; text of floats beside is refused."""
    write(tmp_path / "a", [[[1, 65535]]], 8)
    write(tmp_path / "b", [[[-70000]], [[]]], 4)
    same(
        tokens_of(StreamingDataset(local=str(tmp_path), format="megatron")),
        [np.array(tokens, np.int32) for tokens in ([1, 65535], [-70000], [])],
    )
    write(tmp_path / "c", [[[0.5]]], 7)
    with pytest.raises(FormatError, match="column 'tokens' is ndarray:float32"):
        StreamingDataset(local=str(tmp_path), format="megatron")


def test_packs_are_planned_without_the_tokens(tmp_path):
    """Behind a network no ``.bin`` is read before the first batch; packs are those of a disk."""
    rng = np.random.default_rng(3)
    (tmp_path / "web").mkdir()
    write(
        tmp_path / "web" / "a",
        [document for _ in range(9) for document in random_documents(rng, 8)],
    )
    settings = {"batch_size": 2, "packing": Packing(512), "shuffle": True}
    with http_server(str(tmp_path)) as server:
        urls = []
        with subscribe(lambda event: isinstance(event, Fetched) and urls.append(event.url)):
            far = StreamingDataset(
                remote=f"{server}/web/a.bin", local=str(tmp_path / "c"), **settings
            )
            loader = StreamingDataLoader(far)
            assert len(loader) > 2
            assert [url.rpartition("/")[2] for url in urls] == ["a.idx"] * len(urls)
            batches = [batch["tokens"].tolist() for batch in loader]
            assert any(url.endswith("a.bin") for url in urls)
    near = StreamingDataset(local=str(tmp_path / "web"), format="megatron", **settings)
    assert batches == [batch["tokens"].tolist() for batch in StreamingDataLoader(near)]


def test_another_index_makes_another_plan(tmp_path):
    """A ``.idx`` that was replaced beside the same ``.bin`` is read anew at the next start."""
    write(tmp_path / "a", [[[1, 2]], [[3]]])
    body = os.stat(tmp_path / "a.bin")
    dataset = StreamingDataset(local=str(tmp_path), format="megatron")
    assert dataset.num_samples == 2
    write(tmp_path / "a", [[[1, 2], [3]]])
    os.utime(tmp_path / "a.bin", ns=(body.st_atime_ns, body.st_mtime_ns))
    with pytest.raises(ReplacedError, match=r"a\.idx: the file changed while it was in use"):
        dataset[0]
    again = StreamingDataset(local=str(tmp_path), format="megatron")
    same(tokens_of(again), [np.array([1, 2, 3], np.uint16)])


def overwrite(path, offset, form, value):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(struct.pack(form, value))


# Three documents of five sequences with 2, 3, 1, 4 and 2 tokens of 16 bits.
DOCUMENTS = [[[1, 2], [3, 4, 5]], [[6]], [[7, 8, 9, 10], [11, 12]]]
OFFSETS, CUTS, END = HEADER + 4 * 5, HEADER + 12 * 5, HEADER + 12 * 5 + 8 * 4
DAMAGES = {
    "no header": (lambda p: os.truncate(p / "a.idx", 20), r"a\.idx, byte 20: the file ends inside"),
    "cut short": (lambda p: os.truncate(p / "a.idx", 99), r"a\.idx, byte 99: the file ends, but 5"),
    "magic": (lambda p: overwrite(p / "a.idx", 0, "<B", 65), r"a\.idx, byte 0: it begins with"),
    "version": (lambda p: overwrite(p / "a.idx", 9, "<Q", 2), r"a\.idx, byte 9: its version is 2"),
    "dtype": (lambda p: overwrite(p / "a.idx", 17, "<B", 9), r"a\.idx, byte 17: dtype 9 is"),
    "count": (lambda p: overwrite(p / "a.idx", 18, "<Q", 1 << 63), r"a\.idx, byte 126: the file"),
    "fewer": (lambda p: overwrite(p / "a.idx", 18, "<Q", 3), r"a\.idx, byte 102: 3 sequences"),
    "length": (
        lambda p: overwrite(p / "a.idx", HEADER + 4, "<i", -3),
        r"a\.idx, byte 38: sequence 1 has -3 tokens",
    ),
    "longer": (
        lambda p: overwrite(p / "a.idx", HEADER + 4, "<i", 9),
        r"a\.idx, byte 70: sequence 2 begins at byte 10, but .* end at 22",
    ),
    "offset": (
        lambda p: overwrite(p / "a.idx", OFFSETS + 8 * 4, "<q", 1 << 62),
        rf"a\.idx, byte {OFFSETS + 32}: sequence 4 begins",
    ),
    "first cut": (lambda p: overwrite(p / "a.idx", CUTS, "<q", 1), rf"byte {CUTS}: the first cut"),
    "cuts": (
        lambda p: overwrite(p / "a.idx", CUTS + 8, "<q", 4),
        rf"a\.idx, byte {CUTS + 16}: cut 3 follows 4; cuts must increase",
    ),
    "cuts that overflow": (
        lambda p: [
            overwrite(p / "a.idx", CUTS + 8, "<q", (1 << 63) - 1),
            overwrite(p / "a.idx", CUTS + 16, "<q", -2),
        ],
        rf"a\.idx, byte {CUTS + 16}: cut -2 follows 9,223,372,036,854,775,807; cuts must increase",
    ),
    "last cut": (
        lambda p: overwrite(p / "a.idx", END - 8, "<q", 4),
        rf"a\.idx, byte {END - 8}: the last cut is 4, but there are 5",
    ),
    "tokens": (
        lambda p: os.truncate(p / "a.bin", 21),
        r"a\.bin, byte 21: the file ends, but in .*a\.idx sequence 4 has the bytes 20 to 24",
    ),
    "no index": (lambda p: os.remove(p / "a.idx"), r"a\.bin: there is no a\.idx next to it"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_by_file_and_offset(tmp_path, damage):
    """Each kind of damage is an error at the start, with the file and the byte of it."""
    act, message = DAMAGES[damage]
    write(tmp_path / "a", DOCUMENTS)
    act(tmp_path)
    with pytest.raises(FormatError, match=message):
        StreamingDataset(local=str(tmp_path), format="megatron")


def test_no_damaged_byte_is_read_as_other_documents(tmp_path):
    """With any byte of the index changed, a start is refused or gives documents of the file."""
    write(tmp_path / "a", DOCUMENTS)
    index = (tmp_path / "a.idx").read_bytes()
    whole = np.arange(1, 13)
    for offset in range(len(index)):
        damaged = bytearray(index)
        damaged[offset] ^= 0x11
        (tmp_path / "a.idx").write_bytes(damaged)
        error = ""
        try:
            documents = tokens_of(StreamingDataset(local=str(tmp_path), format="megatron"))
        except FormatError as refusal:
            error = str(refusal)
        if error:
            assert re.search(r"a\.(idx|bin), byte", error)
        else:
            assert len(documents) == 3
            if offset != 17:  # the type, of which others have the same width
                assert np.array_equal(np.concatenate(documents), whole)
