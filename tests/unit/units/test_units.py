"""Sizes and numbers of samples as users write them."""

import pytest

from mds._units import format_bytes, parse_bytes, parse_count
from mds.errors import ConfigError

SIZES = {
    "64": 64,
    "64b": 64,
    "1kb": 1024,
    "1.5gb": 3 << 29,
    "64MiB": 64 << 20,
    "512 MiB": 512 << 20,
    "10KiB": 10 << 10,
    "1G": 1 << 30,
    "2 tb": 2 << 40,
    "1EiB": 1 << 60,
    "1eb": 1 << 60,
    "1e9": 10**9,
    "1E+3kb": 1000 << 10,
    "1_000": 1000,
    ".5k": 512,
    " 7 ": 7,
    "9007199254740993": 9007199254740993,  # 2**53 + 1, which no float is
    512: 512,
    1e3: 1000,
}


@pytest.mark.parametrize("size", SIZES, ids=repr)
def test_sizes(size):
    """Units of bytes are powers of 1,024 in every spelling."""
    assert parse_bytes(size) == SIZES[size]


COUNTS = {"100k": 100_000, "1.5m": 1_500_000, "2B": 2 * 10**9, "1e6": 10**6, "1_000": 1000, 7: 7}


@pytest.mark.parametrize("count", COUNTS, ids=repr)
def test_counts(count):
    """Units of samples are powers of 1,000."""
    assert parse_count(count) == COUNTS[count]


def test_a_fraction_is_rounded_down_as_ever():
    """The length of an epoch does not change: 1.001 * 1000 is a little less than 1,001."""
    assert parse_count("1.001k") == 1000
    assert parse_bytes("0.0011kb") == 1


BAD = ["", "much", "1.5", "1e", "1e-3", "1e999", "kb", "b", "-1", "1__0", "_1", "64xb", "1 2", "٣"]


@pytest.mark.parametrize("text", BAD)
@pytest.mark.parametrize("parse", [parse_bytes, parse_count])
def test_other_texts_are_refused_with_an_example(parse, text):
    """The error has the text and two that are right."""
    with pytest.raises(ConfigError, match="Write a number such as ") as caught:
        parse(text)
    assert repr(text) in str(caught.value)


def test_units_of_the_other_kind_are_refused():
    """A number of samples has no MiB, and a size no b for billions."""
    with pytest.raises(ConfigError, match="number of samples"):
        parse_count("1MiB")
    assert parse_bytes("2b") == 2


def test_long_texts_are_refused():
    """Before they are parsed."""
    with pytest.raises(ConfigError, match="too many digits"):
        parse_bytes("9" * 50)


def test_sizes_are_shown_in_the_same_units():
    """Powers of 1,024."""
    assert format_bytes(3 << 20) == "3.0 MB"
