"""A conversion to a folder that the user may not write to is an error that names it."""

import multiprocessing
import os
import tempfile

import pytest
from click.testing import CliRunner

import mds
from mds._cli import convert as command
from mds.errors import DeniedError

NOBODY = 65534


@pytest.fixture
def folder():
    """A folder that every user can enter, with a source, and a folder that nobody can write to."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o755)
        with open(os.path.join(path, "in.jsonl"), "w", encoding="utf-8") as file:
            file.write('{"id": 1}\n' * 10)
        os.mkdir(os.path.join(path, "closed"))
        os.mkdir(os.path.join(path, "open"))
        os.chmod(os.path.join(path, "open"), 0o777)
        os.chmod(os.path.join(path, "closed"), 0o555)
        yield path
        os.chmod(os.path.join(path, "closed"), 0o755)


def convert_as_nobody(folder, out, options, results):
    """Convert once to import all modules, then as a user without rights; send what was raised."""
    source = os.path.join(folder, "in.jsonl")
    mds.convert(source, os.path.join(folder, "warm"))
    CliRunner().invoke(command, [source, os.path.join(folder, "warm-too")])
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    try:
        mds.convert(source, os.path.join(folder, out), **options)
    except DeniedError as error:
        results.put(str(error))
    except BaseException as error:  # noqa: BLE001 - the test reports it
        results.put(repr(error))
    words = [f"--{name}={value}" for name, value in options.items()]
    run = CliRunner().invoke(command, [source, os.path.join(folder, out), *words])
    results.put((run.exit_code, run.output))


@pytest.mark.parametrize(
    ("out", "work", "named"),
    [
        ("closed/out", "", "closed/out"),
        ("closed", "", "closed"),
        ("open/out", "closed/work", "closed/work"),
    ],
)
def test_a_folder_without_permission_is_named(folder, out, work, named):
    """In Python and on the command line: the output, a folder above it, the work folder."""
    options = {"work": os.path.join(folder, work)} if work else {}
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=convert_as_nobody, args=(folder, out, options, results))
    process.start()
    error, (code, output) = results.get(), results.get()
    process.join()
    sentence = f"a dataset cannot be written to the folder {os.path.join(folder, named)!r}: "
    assert error.startswith(sentence)
    assert "Choose a folder that you may write to" in error
    assert code == 2
    assert sentence in " ".join(output.split())
    assert not os.path.exists(os.path.join(folder, "open", "out"))
