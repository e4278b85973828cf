"""Contract test suites of encodings and compressions, as tests to inherit.

    class TestPoint(EncodingContract):
        @pytest.fixture
        def encoding(self):
            return parse_encoding("point:3")

        @pytest.fixture
        def values(self):
            return [(0, 0, 0), (1, 2, 3)]

Give `same` if equality of values is not `==`, `refused` for values that must be refused.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import tracemalloc
from collections.abc import Sequence
from typing import Any

from mds._shardfile.compression import Codec
from mds.encodings import Encoding
from mds.errors import EncodingError, MdsError, ShardError

#: Bytes that decoding may allocate besides a small multiple of the data.
SPARE = 4 << 20


def damaged(data: bytes, number: int, rng: random.Random) -> bytes:
    """Return damaged bytes: cut, with a flipped bit, with bytes appended, or with a huge size.

    ``number`` chooses the kind of damage, modulo 4, and ``rng`` the place.
    """
    kind = number % 4
    if kind == 0 or not data:
        return data[: rng.randrange(len(data) + 1)]
    broken = bytearray(data)
    if kind == 1:
        broken[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == 2:
        broken += rng.randbytes(rng.randrange(1, 9))
    else:
        offset = rng.randrange(len(data))
        broken[offset : offset + 4] = b"\xff\xff\xff\x7f"[: len(data) - offset]
    return bytes(broken)


class EncodingContract:
    """Tests that every encoding must pass.

    Inherit it, name the class ``Test...`` and add the fixtures ``encoding`` and ``values``, which
    are values that the encoding accepts. ``refused`` lists values that it must not accept.

    For example::

        from mds.testing import EncodingContract

        class TestUtf16(EncodingContract):
            refused = [3, b"word"]

            @pytest.fixture
            def encoding(self):
                return parse_encoding("utf16")

            @pytest.fixture
            def values(self):
                return ["", "word"]
    """

    refused: Sequence[Any] = ()

    def same(self, decoded: Any, original: Any) -> bool:
        """Whether a decoded value is the one that was encoded."""
        return type(decoded) is type(original) and bool(decoded == original)

    def test_values_come_back(self, encoding: Encoding, values: Sequence[Any]) -> None:
        """Decoding returns the encoded value, from bytes and from a view of a larger buffer."""
        for value in values:
            data = encoding.pack(value)
            assert type(data) is bytes
            assert self.same(encoding.decode(data), value)
            view = memoryview(b"\xff" + data + b"\xff").toreadonly()[1:-1]
            assert self.same(encoding.decode(view), value)

    def test_fixed_sizes_are_true(self, encoding: Encoding, values: Sequence[Any]) -> None:
        """Every value has the size that the encoding announces, if it announces one."""
        sizes = {len(encoding.pack(value)) for value in values}
        assert encoding.size is None or sizes <= {encoding.size}

    def test_it_travels(self, encoding: Encoding, values: Sequence[Any]) -> None:
        """A copy by pickle encodes to the same bytes; worker processes get such copies."""
        copy: Encoding = pickle.loads(pickle.dumps(encoding))
        assert copy.name == encoding.name
        assert copy.pack(values[0]) == encoding.pack(values[0])

    def test_others_are_refused(self, encoding: Encoding) -> None:
        """Values in ``refused`` raise an EncodingError whose message names an encoding."""
        for value in self.refused:
            try:
                encoding.pack(value)
            except EncodingError as error:  # noqa: PERF203 - several values in one test
                assert "encoding " in str(error)  # noqa: PT017 - several values in one test
            else:
                raise AssertionError(f"{value!r} was taken")

    def test_damage_is_an_error(self, encoding: Encoding, values: Sequence[Any]) -> None:
        """Damaged bytes give some value or an EncodingError, with memory in proportion to them."""
        if encoding.is_unsafe:
            return  # a pickle may do anything
        rng = random.Random(encoding.name)
        packed = [encoding.pack(value) for value in values]
        # Modules that decoding or an error imports are not to count as memory of the decoding.
        for data in (packed[0], b""):
            with contextlib.suppress(EncodingError):
                encoding.decode(data)
        for number in range(200):
            # Every value in turn, with the next kind of damage in each round.
            data = damaged(packed[number % len(packed)], number // len(packed), rng)
            tracemalloc.start()
            try:
                encoding.decode(data)
            except EncodingError:
                continue
            finally:
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                assert peak < SPARE + 64 * len(data)


class CodecContract:
    """Tests that every compression must pass.

    Inherit it, name the class ``Test...`` and add a fixture ``codec``.

    For example::

        from mds.testing import CodecContract

        class TestZstd(CodecContract):
            @pytest.fixture
            def codec(self):
                return parse_compression("zstd:7")
    """

    def _samples(self) -> list[bytes]:
        """Return data to compress: empty, short, random, constant, and repetitive."""
        noise = random.Random(7).randbytes
        return [b"", b"x", noise(5000), bytes(300_000), noise(3000) * 40 + bytes(9)]

    def test_data_come_back(self, codec: Codec) -> None:
        """Decompression returns the compressed data, at once or in chunks of any size."""
        for data in self._samples():
            packed = codec.compress(data)
            assert codec.decompress(packed, len(data)) == data
            for step in (1, 17, 4096) if len(packed) < 10_000 else (4096, 100_000):
                stream = codec.decompressor(len(data))
                out = [stream.feed(packed[i : i + step]) for i in range(0, len(packed), step)]
                assert b"".join([*out, stream.finish()]) == data

    def test_the_same_data_make_the_same_file(self, codec: Codec) -> None:
        """Output bytes depend only on the data."""
        for data in self._samples():
            assert codec.compress(data) == codec.compress(bytearray(data))

    def test_another_size_is_an_error(self, codec: Codec) -> None:
        """Data that decompress to another size than the index has are a ShardError."""
        for data in self._samples()[1:]:
            packed = codec.compress(data)
            for size in {0, len(data) - 1, len(data) + 1, 2 * len(data)} - {len(data)}:
                assert _fails(codec, packed, size)

    def test_a_bomb_stops_early(self, codec: Codec) -> None:
        """Decompression stops early if a file expands to far more bytes than it should."""
        packed = codec.compress(bytes(48 << 20))
        tracemalloc.start()
        try:
            assert _fails(codec, packed, 1000)
            assert tracemalloc.get_traced_memory()[1] < 2 * len(packed) + (16 << 20)
        finally:
            tracemalloc.stop()

    def test_damage_is_an_error(self, codec: Codec) -> None:
        """A damaged file gives a ShardError, or data of the right size if damage is not noticed."""
        rng = random.Random(codec.name)
        for data in self._samples()[1:]:
            packed = codec.compress(data)
            for number in range(100):
                try:
                    decompressed = codec.decompress(damaged(packed, number, rng), len(data))
                except ShardError:
                    continue
                assert len(decompressed) == len(data)


def _fails(codec: Codec, packed: bytes, size: int) -> bool:
    """Whether decompression to ``size`` bytes raises a ShardError, and no other error."""
    try:
        codec.decompress(packed, size)
    except MdsError as error:
        return isinstance(error, ShardError)
    return False
