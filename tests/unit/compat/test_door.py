"""The door: `import streaming` answers from this library, lazily, and only when it was opened."""

import importlib
import inspect
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

import mds.compat.streaming as door
from mds.compat.names import MODULES
from mds.errors import CompatError

NEEDS_SPARK = {"dataframe_to_mds", "infer_dataframe_schema", "SPARK_TO_MDS", "is_json_compatible"}
NAMES = [(module, name) for module, names in MODULES.items() for name in names]


def python(code, *arguments, **environment):
    """Run code in a fresh interpreter and give what it printed."""
    path = [environment.pop("PYTHONPATH", None), os.environ.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    done = subprocess.run(
        [sys.executable, *(arguments or ("-c", textwrap.dedent(code)))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[".".join(pair) for pair in NAMES])
def test_every_name_is_there(module, name):
    """Each name of the table can be imported from its old place, and dir() shows it."""
    if name in NEEDS_SPARK:
        pytest.importorskip(
            "pyspark", reason='pyspark is not installed: pip install "mds-streaming[spark]"'
        )
    found = importlib.import_module(module)
    assert getattr(found, name) is not None
    assert name in dir(found)


def test_the_nine_classes_are_ours():
    """The classes behind the door are the library's own, or made of them."""
    import streaming

    import mds

    for name in streaming.__all__:
        assert issubclass(getattr(streaming, name), getattr(mds, name))
        assert getattr(streaming.base, name) is getattr(streaming, name)
    assert len(streaming.__all__) == 9


def test_sub_modules_are_attributes_without_an_import():
    """`import streaming` is enough to touch everything below it."""
    out = python("""
        import mds.compat.streaming
        import streaming
        print(streaming.base.util.bytes_to_int("1kb"), streaming.base.world.World.__name__)
    """)
    assert out == "1024 World"


def test_opening_the_door_is_free():
    """Neither the door nor the names that need no torch bring in torch, PIL or transformers."""
    out = python("""
        import sys
        import mds.compat.streaming, streaming
        from streaming.base.util import get_list_arg
        from streaming.base.compression import get_compressions
        print({"torch", "PIL", "transformers", "torchvision", "boto3"} & set(sys.modules))
    """)
    assert out == "set()"


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


def test_an_imported_incumbent_is_refused(tmp_path):
    """With another `streaming` already imported the door says so instead of mixing the two."""
    (tmp_path / "streaming").mkdir()
    (tmp_path / "streaming" / "__init__.py").write_text("value = 1\n")
    out = python(
        """
        import streaming
        assert streaming.value == 1
        try:
            import mds.compat.streaming
        except ImportError as error:
            print(type(error).__name__, error)
        """,
        PYTHONPATH=str(tmp_path),
    )
    assert out.startswith("CompatError")
    assert str(tmp_path) in out
    assert issubclass(CompatError, ImportError)


def test_an_installed_incumbent_stays_behind_the_door(tmp_path):
    """An installed `streaming` that nobody imported yet is not in the way."""
    (tmp_path / "streaming").mkdir()
    (tmp_path / "streaming" / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    out = python(
        """
        import mds.compat.streaming
        from streaming import Stream
        print(Stream.__module__)
        """,
        PYTHONPATH=str(tmp_path),
    )
    assert out == "mds.compat.stream"


SCRIPT = """
    import multiprocessing

    import streaming
    from streaming.base.util import get_list_arg


    def child(queue):
        queue.put((streaming.Stream.__module__, get_list_arg("a,b")))


    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        print(queue.get(timeout=600))
        process.join()
"""


def test_a_program_that_cannot_be_edited(tmp_path):
    """`python -m mds.compat program.py` opens the door in it and in the processes it spawns."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(SCRIPT))
    assert python("", "-m", "mds.compat", str(script)) == "('mds.compat.stream', ['a', 'b'])"


def test_the_door_on_pythonpath(tmp_path):
    """The folder that `python -m mds.compat` prints does the same when it is on PYTHONPATH."""
    folder = python("", "-m", "mds.compat")
    assert pathlib.Path(folder, "streaming.py").exists()
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(SCRIPT))
    assert python("", str(script), PYTHONPATH=folder) == "('mds.compat.stream', ['a', 'b'])"


def test_the_door_of_another_installation(tmp_path):
    """It is refused with a sentence that says which folder to put on PYTHONPATH instead."""
    folder = tmp_path / "mds" / "compat" / "door"
    folder.mkdir(parents=True)
    shutil.copy(python("", "-m", "mds.compat") + "/streaming.py", folder)
    code = """
        try:
            import streaming
        except ImportError as error:
            print(error)
    """
    said = python(code, PYTHONPATH=str(folder))
    assert f"{folder}/streaming.py belongs to another installation" in said
    assert "`python -m mds.compat` prints" in said


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
