"""The door: `import streaming` gives the names of this library."""

import importlib
import inspect
import sys

import pytest

import mds.compat.streaming as door
from mds.compat._names import MODULES


@pytest.mark.parametrize("module", MODULES)
def test_every_name_is_there(module):
    """Each name of a module can be imported from its old place, and dir() shows it."""
    if module == "streaming.base.converters":
        pytest.importorskip(
            "pyspark", reason='pyspark is not installed: pip install "mds-streaming[spark]"'
        )
    facade = importlib.import_module(module)
    for name in MODULES[module]:
        assert getattr(facade, name) is not None, name
    assert {*MODULES[module]} <= {*dir(facade)}


def test_the_nine_classes_are_ours():
    """The classes behind the door are the library's own, or made of them."""
    import streaming

    import mds

    for name in streaming.__all__:
        assert issubclass(getattr(streaming, name), getattr(mds, name))
        assert getattr(streaming.base, name) is getattr(streaming, name)
    assert len(streaming.__all__) == 9


def test_opening_twice_is_fine():
    """The door is one finder, however often it is opened."""
    door.install()
    door.install()
    assert sum(isinstance(finder, door.Door) for finder in sys.meta_path) == 1


def test_star_import():
    """`from streaming import *` brings the nine classes."""
    space = {}
    exec("from streaming import *", space)
    assert "StreamingDataset" in space


def test_an_unknown_name_is_an_import_error():
    """A name that does not exist fails as in any package."""
    with pytest.raises(ImportError):
        from streaming import NoSuchThing  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="has no module"):
        importlib.import_module("streaming.no_such_module")


def test_an_absent_module_says_what_to_use():
    """A module without a counterpart tells what there is in its place."""
    with pytest.raises(ModuleNotFoundError, match="mds-convert"):
        importlib.import_module("streaming.text.convert")


def test_old_classes_keep_their_own_defaults():
    """Dataset classes of a domain show the defaults from before 0.7 in their signatures."""
    from streaming.text import StreamingC4, StreamingEnWiki, StreamingPile
    from streaming.vision import StreamingADE20K, StreamingCIFAR10, StreamingCOCO, StreamingImageNet
    from streaming.vision.base import StreamingVisionDataset

    for kind in (
        StreamingC4,
        StreamingPile,
        StreamingEnWiki,
        StreamingADE20K,
        StreamingCIFAR10,
        StreamingCOCO,
        StreamingImageNet,
    ):
        parameters = inspect.signature(kind).parameters
        assert parameters["partition_algo"].default == "orig"
        assert parameters["shuffle_algo"].default == "py1s"
        assert parameters["shuffle_block_size"].default == 262144
        assert parameters["download_timeout"].default == 60
        assert "replication" not in parameters
        assert "streams" not in parameters
        assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values())
    required = inspect.signature(StreamingVisionDataset).parameters["batch_size"]
    assert required.default is required.empty
    for name in ("tokenizer_name", "max_seq_len", "group_method"):
        parameter = inspect.signature(StreamingC4).parameters[name]
        assert parameter.default is parameter.empty
