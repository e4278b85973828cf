"""Compressed files that are made to take time or memory: linear in one, bounded in the other."""

import bz2
import tracemalloc
import zlib

import pytest

from mds._shardfile import compression
from mds._shardfile.compression import parse_compression
from mds.errors import ShardError


def gz(data):
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    return stream.compress(data) + stream.flush()


PACK = {"gz": gz, "bz2": bz2.compress}


@pytest.mark.parametrize("name", PACK)
def test_empty_members_without_end_are_refused(name):
    """A file of empty members is an error after a thousand, not hours of copying what is left."""
    packed = PACK[name](b"") * 30_000
    with pytest.raises(ShardError, match="empty members"):
        parse_compression(name).decompress(packed, 1000)


@pytest.mark.parametrize("name", PACK)
def test_a_member_costs_its_own_bytes(name, monkeypatch):
    """However many members follow one another, no more is copied than a few times their bytes."""
    packed, count = PACK[name](b"x") * 500, 500
    seen = []
    kind = type(parse_compression(name).decompressor(count))
    expand = kind._expand
    monkeypatch.setattr(
        kind, "_expand", lambda self, piece: (seen.append(len(piece)), expand(self, piece))
    )
    assert parse_compression(name).decompress(packed, count) == b"x" * count
    assert sum(seen) <= count * compression._FIRST_PIECE


@pytest.mark.parametrize("name", PACK)
def test_members_of_all_sizes_are_one_file(name):
    """Small, empty and large members give their bytes in order, in chunks of any size."""
    parts = [b"", b"a", b"b" * 3000, b"", bytes(range(256)) * 9000, b"c"]
    packed, whole = b"".join(map(PACK[name], parts)), b"".join(parts)
    for step in (1, 7, 100, 4096, len(packed)):
        under_way = parse_compression(name).decompressor(len(whole))
        chunks = [packed[at : at + step] for at in range(0, len(packed), step)]
        assert b"".join([*map(under_way.feed, chunks), under_way.finish()]) == whole


def test_zeros_behind_a_member_are_padding():
    """Tapes pad gzip files with zeros; there may be very many."""
    packed = gz(b"one") + bytes(5 << 20) + gz(b"two") + bytes(3)
    assert parse_compression("gz").decompress(packed, 6) == b"onetwo"


@pytest.mark.parametrize("name", ["gz:1", "bz2:1", "zstd", "br:0"])
def test_what_one_chunk_expands_to_is_passed_on_in_pieces(name):
    """Sixty megabytes of zeros in one chunk take a few megabytes of memory."""
    codec, size = parse_compression(name), 60 << 20
    packed = codec.compress(bytes(size))
    came = []
    tracemalloc.start()
    try:
        under_way = codec.decompressor(size)
        under_way.feed_to(packed, lambda piece: came.append(len(piece)))
        under_way.finish_to(lambda piece: came.append(len(piece)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(came) == size
    assert max(came) <= 2 * compression._PIECE
    assert peak < 10 * compression._PIECE


def test_an_error_of_the_sink_is_not_one_of_the_data():
    """A full disk is told as such and not as broken data."""

    def full(piece):
        raise OSError(28, "No space left on device")

    under_way = parse_compression("gz").decompressor(9)
    with pytest.raises(OSError, match="No space left"):
        under_way.feed_to(gz(b"x" * 9), full)
