"""The door in processes of its own: what it loads, which `streaming` it takes, and programs."""

import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

from mds.errors import CompatError


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
    assert out == "mds.compat._stream"


def test_a_program_that_cannot_be_edited(tmp_path):
    """`python -m mds.compat program.py` opens the door in it and in the processes it spawns."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(SCRIPT))
    assert python("", "-m", "mds.compat", str(script)) == "('mds.compat._stream', ['a', 'b'])"


def test_the_door_on_pythonpath(tmp_path):
    """The folder that `python -m mds.compat` prints does the same when it is on PYTHONPATH."""
    folder = python("", "-m", "mds.compat")
    assert pathlib.Path(folder, "streaming.py").exists()
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(SCRIPT))
    assert python("", str(script), PYTHONPATH=folder) == "('mds.compat._stream', ['a', 'b'])"


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
