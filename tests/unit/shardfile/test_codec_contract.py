"""Every compression passes the contract, at its lowest, highest and own level."""

import pytest

from mds._shardfile.compression import compression_names, parse_compression
from mds.errors import ConfigError, ShardError
from mds.testing import CodecContract

# The highest levels of br and bz2 take a minute for the 200 MB of the bomb.
NAMES = ["br:0", "br:4", "bz2:1", "gz", "gz:0", "gz:1", "snappy", "zstd", "zstd:1", "zstd:12"]


@pytest.mark.parametrize("codec", NAMES, indirect=True)
class TestCodecs(CodecContract):
    @pytest.fixture
    def codec(self, request):
        return parse_compression(request.param)


def test_there_are_58_names():
    """Every algorithm with each of its levels, as other readers know them."""
    names = compression_names()
    assert len(names) == 58
    for name in names:
        codec = parse_compression(name)
        assert codec.name == name
        assert codec.extension == name.split(":")[0]


@pytest.mark.parametrize(
    "name",
    [
        "nope",
        "zstd:0",
        "zstd:23",
        "gz:10",
        "br:12",
        "bz2:0",
        "snappy:1",
        "zstd:",
        "zstd:07",
        "gz:-1",
        "zstd:٣",
        "ZSTD",
        "zstd:3:4",
        " zstd",
        ":",
    ],
)
def test_other_names_are_refused(name):
    """A name that is no compression is a ValueError that shows it."""
    with pytest.raises(ConfigError, match=r"compression|levels"):
        parse_compression(name)


def test_nothing_is_no_compression():
    """None and the empty text mean that files are stored as they are."""
    assert parse_compression(None) is None
    assert parse_compression("") is None


@pytest.mark.parametrize("name", ["zstd:3", "gz:6", "bz2:9"])
def test_files_of_several_frames_are_read(name):
    """Parallel compressors write frame after frame; such files are one file."""
    codec = parse_compression(name)
    data = b"one and" * 1000 + b" two" * 1000
    packed = codec.compress(data[:7000]) + codec.compress(b"") + codec.compress(data[7000:])
    assert codec.decompress(packed, len(data)) == data
    with pytest.raises(ShardError):
        codec.decompress(packed[:-3], len(data))


def test_zstd_frames_need_not_know_their_size():
    """A stream compressor leaves the size out of the header; the index knows it anyway."""
    import zstandard

    data = b"no size in the header" * 500
    stream = zstandard.ZstdCompressor().compressobj()
    packed = stream.compress(data) + stream.flush()
    assert zstandard.frame_content_size(packed) == -1
    assert parse_compression("zstd").decompress(packed, len(data)) == data


def test_a_lying_zstd_header_takes_no_memory():
    """A header that promises a terabyte is not believed."""
    frame = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little") + b"\x01\x00\x00"
    for size in (10, 1 << 40):
        with pytest.raises(ShardError):
            parse_compression("zstd").decompress(frame, size)
