"""Columns are inferred so that nothing is lost, and values are fitted or refused."""

import math
from decimal import Decimal

import numpy as np
import pytest

from mds.formats._columns import encoding_of, infer_columns
from mds.formats._fit import find_coercer


@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        ([1, -2], "int"),
        ([1, 1 << 70], "str_int"),
        ([1, 2.5], "float64"),
        ([(1 << 53) + 1, 2.5], "json"),
        (["a", ""], "str"),
        ([b"a"], "bytes"),
        ([True, False], "json"),
        ([1, True], "json"),
        ([1, None], "json"),
        ([None], "json"),
        ([[1], []], "json"),
        ([{"a": 1}], "json"),
        (["a", 1], "json"),
        ([Decimal("1.1")], "str_decimal"),
        ([np.float32(1), np.float32(2)], "float32"),
        ([np.zeros((2, 3), np.uint8)] * 2, "ndarray:uint8:2,3"),
        ([np.zeros(2, np.uint8), np.zeros(3, np.uint8)], "ndarray:uint8"),
        ([np.zeros(2, np.float32), np.zeros(2, np.float64)], "ndarray:float64:2"),
    ],
)
def test_values_find_the_encoding_that_gives_them_back(values, encoding):
    """The narrowest encoding of the format that every reader knows and that loses nothing."""
    assert encoding_of(values)[0] == encoding


@pytest.mark.parametrize(
    ("texts", "encoding"),
    [
        (["1", "-2", "0"], "int"),
        (["1", ""], "str"),
        (["007", "008"], "str"),
        (["1.5", "2", "1e-3"], "float64"),
        (["00.5"], "str"),
        (["1_000"], "str"),
        (["nan", "1"], "str"),
        (["+1"], "str"),
        (["9" * 30], "str"),
        (["a"], "str"),
    ],
)
def test_text_is_a_number_only_when_no_character_would_be_lost(texts, encoding):
    """Codes with leading zeros, empty cells and words for infinity stay text."""
    (column,) = infer_columns([{"x": text} for text in texts], is_text=True)
    assert column.encoding == encoding


def test_column_that_is_missing_in_places_is_json():
    """A key that some records lack is stored as null there, and the plan says so."""
    one, two = infer_columns([{"a": 1}, {"a": 2, "b": "x"}])
    assert (one.encoding, two.encoding) == ("int", "json")
    assert "stored as null in records that lack it" in two.note


@pytest.mark.parametrize(
    ("encoding", "value", "fitted"),
    [
        ("int8", 100, 100),
        ("int", np.int16(5), 5),
        ("uint16", 7.0, 7),
        ("int32", "12", 12),
        ("float32", "1.5", 1.5),
        ("float64", Decimal("1.25"), 1.25),
        ("str", 12, "12"),
        ("bytes", "é", b"\xc3\xa9"),
        ("json", '{"a": 1}', {"a": 1}),
        ("json", {"a": (np.int64(1), Decimal(2))}, {"a": [1, "2"]}),
        ("str_decimal", "1.50", Decimal("1.50")),
    ],
)
def test_value_is_fitted_where_nothing_changes(encoding, value, fitted):
    """A number stays the same number in its column, text is read as one where that was asked."""
    result = find_coercer(encoding, from_text=True)(value)
    assert (result, type(result)) == (fitted, type(result))


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("int8", 128),
        ("uint8", -1),
        ("int", 1 << 63),
        ("int32", 1.5),
        ("int32", math.nan),
        ("int32", math.inf),
        ("int32", None),
        ("int32", "1_0"),
        ("int32", "x"),
        ("float32", "x"),
        ("float32", None),
        ("float32", True),
        ("str", None),
        ("str", ["a"]),
        ("json", "{"),
        ("json", {"a": b"x"}),
        ("str_decimal", "x"),
        ("ndarray:int8", [1, 300]),
        ("ndarray:int8", [1.5]),
        ("ndarray:float32", [[1], [1, 2]]),
        ("ndarray:float32", "x"),
    ],
)
def test_value_that_would_change_is_refused(encoding, value):
    """What would be rounded, cut, or made up is an error, not a sample."""
    with pytest.raises(ValueError, match=r"."):
        find_coercer(encoding, from_text=True)(value)


def test_list_becomes_the_array_that_was_asked_for():
    """Numbers of JSON become an array of the column's dtype."""
    made = find_coercer("ndarray:float32:2", from_text=False)([1, 2.5])
    assert (made.dtype, made.tolist()) == (np.float32, [1.0, 2.5])
