"""Any sample of any schema comes back: written by MDSWriter, read by LocalDataset."""

import math
import tempfile
from decimal import Decimal

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mds import LocalDataset, MDSWriter
from mds.encodings import parse_encoding

INTS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
NUMBERS = sorted(INTS | {"float16", "float32", "float64"})
MORE = [*NUMBERS, "bool", "complex64", "complex128"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
# Names may be anything; the order of columns is that of their code points.
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
PLAIN = {
    "bytes": st.binary(max_size=40),
    "str": TEXT,
    "int": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
    "str_int": st.integers(),
    "str_float": st.floats(),
    "str_decimal": st.decimals(allow_nan=False).map(Decimal),
    "json": JSON,
    **{name: hnp.from_dtype(np.dtype(name)) for name in NUMBERS},
}


@st.composite
def arrays(draw):
    """An encoding of arrays, and values of it."""
    family = draw(st.sampled_from(["ndarray", "tensor"]))
    dtype = draw(st.sampled_from(NUMBERS if family == "ndarray" else MORE))
    least = 1 if family == "ndarray" else 0
    shapes = hnp.array_shapes(min_dims=least, max_dims=3, min_side=least, max_side=4)
    known = draw(st.integers(0, 2))
    if known == 2:
        shape = draw(shapes)
        dims = ",".join(map(str, shape)) or "()"
        return f"{family}:{dtype}:{dims}", hnp.arrays(dtype, shape)
    return f"{family}:{dtype}" if known else family, hnp.arrays(dtype, shapes)


@st.composite
def inside(draw, inner):
    """An encoding around another, and values of it."""
    name, values = draw(inner)
    if name == "int" or draw(st.booleans()):
        return f"optional[{name}]", st.none() | values
    return f"list[{name}]", st.lists(values, max_size=3)


ENCODINGS = st.recursive(
    st.sampled_from(sorted(PLAIN)).map(lambda name: (name, PLAIN[name])) | arrays(),
    inside,
    max_leaves=2,
)


@st.composite
def datasets(draw):
    """Columns, and samples of them."""
    columns = draw(st.dictionaries(NAMES, ENCODINGS, min_size=1, max_size=4))
    sample = st.fixed_dictionaries({name: values for name, (_, values) in columns.items()})
    samples = draw(st.lists(sample, max_size=6))
    return {name: encoding for name, (encoding, _) in columns.items()}, samples


def same(left, right):
    if isinstance(right, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(
            left, right, equal_nan=right.dtype != bool
        )
    if isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in right)
    if isinstance(right, (float, np.floating)) and math.isnan(right):
        return math.isnan(left)
    return type(left) is type(right) and left == right


@given(datasets(), st.sampled_from([None, "zstd", "gz:1"]), st.sampled_from([1, 200, 1 << 20]))
@settings(max_examples=60)
def test_any_dataset_comes_back(dataset, compression, size_limit):
    """Every value of every sample is what it was, in every shard."""
    columns, samples = dataset
    with tempfile.TemporaryDirectory() as out:
        options = {"compression": compression, "size_limit": size_limit, "hashes": ["xxh64"]}
        with MDSWriter(out=out, columns=columns, max_workers=2, **options) as writer:
            for sample in samples:
                writer.write(sample)
        if compression is None:
            found = LocalDataset(out)
            assert len(found) == len(samples)
            for i, sample in enumerate(samples):
                assert same(found[i], sample)


@given(ENCODINGS, st.data())
@settings(max_examples=200)
def test_any_value_comes_back(case, data):
    """Encoding and decoding are each other's inverse, and fixed sizes are true."""
    name, values = case
    encoding = parse_encoding(name)
    value = data.draw(values)
    packed = encoding.pack(value)
    assert encoding.size in {None, len(packed)}
    assert same(encoding.decode(memoryview(packed)), value)
