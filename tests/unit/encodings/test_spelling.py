"""Other spellings of encodings, and words of other libraries."""

from typing import Optional

import numpy as np
import pytest
import torch
from PIL import Image

from mds import CSVWriter, JSONWriter, LocalDataset, MDSWriter
from mds.encodings import parse_encoding
from mds.encodings._spelling import encoding_name
from mds.errors import UnknownEncodingError

SPELLINGS = [
    (int, "int"),
    (str, "str"),
    (bytes, "bytes"),
    (bool, "bool"),
    (float, "float64"),
    (np.int32, "int32"),
    (np.float16, "float16"),
    (np.bool_, "bool"),
    (np.dtype("uint8"), "uint8"),
    (np.dtype(">i4"), "int32"),
    (np.dtype("<U7"), "str"),
    (torch.int64, "int64"),
    (np.ndarray, "ndarray"),
    (torch.Tensor, "tensor"),
    (Image.Image, "pil"),
    (list[str], "list[str]"),
    (list[float], "list[float64]"),
    (str | None, "optional[str]"),
    (Optional[int], "optional[int]"),  # noqa: UP045 - this spelling is tested
    ("ndarray:int32[4]", "ndarray:int32:4"),
    ("ndarray:int32:(3, 224, 224)", "ndarray:int32:3,224,224"),
    ("ndarray[int32]", "ndarray:int32"),
    ("tensor[bool, 2,3]", "tensor:bool:2,3"),
    ("ndarray:int32", "ndarray:int32"),
    ("list[str]", "list[str]"),
    ("anything", "anything"),
]


@pytest.mark.parametrize(("spelling", "name"), SPELLINGS)
def test_spellings_with_one_meaning(spelling, name):
    """Types of Python, NumPy and torch, and shapes in brackets, are names of encodings."""
    assert encoding_name(spelling) == name


@pytest.mark.parametrize(
    ("spelling", "words"),
    [
        (dict, "got dict. Write 'json'"),
        (list, "Write 'list[str]' with the encoding of the items, 'ndarray:int64' for numbers"),
        (np.integer, "got integer. Write 'int'"),
        (torch.bfloat16, "as in 'int' or 'ndarray:int32'"),
        (np.complex64, "got complex64. Write a name"),
        (3, "got 3. Write a name"),
        ({}, "got {}. Write a name"),
    ],
)
def test_spellings_without_a_meaning(spelling, words, tmp_path):
    """What is no encoding is an error of the column, with what to write."""
    with pytest.raises(UnknownEncodingError) as caught:
        MDSWriter(out=str(tmp_path / "x"), columns={"a": spelling})
    assert "MDSWriter, column 'a': an encoding must be a str or a type" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("string", "'str'"),
        ("Text", "'str'"),
        ("image", "'jpeg', or 'png' or 'pil'"),
        ("list", "'list[str]'"),
        ("binary", "'bytes'"),
        ("boolean", "'bool'"),
        ("float", "'float64', which stores a Python float unchanged, or 'float32'"),
        ("double", "'float64'"),
        ("array", "'ndarray'"),
        ("object", "'json'"),
        ("jpg", "'jpeg'"),
        ("optional", "'optional[str]'"),
    ],
)
def test_words_of_other_libraries(word, remedy):
    """The error for a word says the encoding of that meaning, before names that are alike."""
    with pytest.raises(UnknownEncodingError) as caught:
        parse_encoding(word)
    assert f"there is no encoding {word!r}. Write {remedy}" in str(caught.value)
    assert "Did you mean" not in str(caught.value)


def test_types_write_the_same_bytes(tmp_path):
    """Columns given as types make the dataset of columns given by name."""
    sample = {"id": 1, "text": "hi", "x": np.ones(3), "y": np.float32(2)}
    names = {"id": "int", "text": "str", "x": "ndarray", "y": "float32"}
    kinds = {"id": int, "text": str, "x": np.ndarray, "y": np.float32}
    for out, columns in (("names", names), ("types", kinds)):
        with MDSWriter(out=str(tmp_path / out), columns=columns) as writer:
            writer.write(sample)
    first, second = (tmp_path / out / "shard.00000.mds" for out in ("names", "types"))
    assert first.read_bytes() == second.read_bytes()
    assert columns is kinds
    assert kinds["id"] is int  # the dict of the caller stays


@pytest.mark.parametrize("kind", [JSONWriter, CSVWriter])
def test_types_of_text_formats(kind, tmp_path):
    """`float` is the encoding "float" there, numbers of NumPy are written as Python's."""
    out = str(tmp_path / "x")
    with kind(out=out, columns={"a": int, "b": float, "c": str}) as writer:
        writer.write({"a": np.int64(3), "b": np.float32(0.5), "c": "x"})
        writer.write({"a": torch.tensor(4), "b": torch.tensor(2.0), "c": "y"})
    assert list(LocalDataset(out)) == [{"a": 3, "b": 0.5, "c": "x"}, {"a": 4, "b": 2.0, "c": "y"}]
    for column, remedy in (("int64", "Write 'int'"), (np.float32, "Write 'float'")):
        with pytest.raises(UnknownEncodingError, match=remedy):
            kind(out=out + "2", columns={"a": column})
