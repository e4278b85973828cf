"""The gate: README's commands, its stages, the slow tests, and tests that no environment ran."""

import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
GATE = ROOT / ".ci"

PROGRAM = '''
import pytest

def test_here():
    """Runs everywhere."""

@pytest.mark.skip(reason="pip install a_peer")
def test_with_a_peer():
    """Runs where the peer is."""

@pytest.mark.skip(reason="needs a CUDA device")
def test_on_an_accelerator():
    """Runs nowhere here."""
'''

SLOW_PROGRAM = """
import pytest

@pytest.mark.{marker}
def test_slow():
    pass

def test_quick():
    pass
""".format(marker="slow")  # this file itself has no slow test


def run_tests(folder, name, program):
    """The results of a test file in an environment of that name."""
    (folder / "tests").mkdir(exist_ok=True)
    (folder / "tests" / "test_it.py").write_text(program)
    result = folder / f"{name}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    command += ["-o", "junit_family=xunit1", "--junitxml", str(result)]
    subprocess.run(command, cwd=folder, capture_output=True, check=False)
    return str(result)


def ask(*arguments):
    """Exit status and lines of the program that looks at skips."""
    command = [sys.executable, str(GATE / "skips.py"), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of an environment without a peer, and of one that has it."""
    folder = tmp_path_factory.mktemp("results")
    with_peer = PROGRAM.replace('@pytest.mark.skip(reason="pip install a_peer")', "")
    return run_tests(folder, "bare", PROGRAM), run_tests(folder, "peer", with_peer)


def test_a_skip_in_every_environment_fails_the_gate(results):
    """It is named with its reason; one that needs an accelerator is not."""
    status, lines = ask("check", results[0])
    assert status == 1
    assert len(lines) == 1
    assert "test_with_a_peer" in lines[0]
    assert lines[0].endswith("pip install a_peer")


def test_what_ran_in_one_environment_counts_as_run(results):
    """One that has the peer is enough."""
    assert ask("check", *results) == (0, [])


def test_a_file_that_is_skipped_as_a_whole_ran_where_its_tests_did(tmp_path):
    """Its skip has neither a class nor the name of a test."""
    body = 'def test_it():\n    """Runs."""\n'
    skip = 'import pytest\n\npytest.skip("pip install a_peer", allow_module_level=True)\n'
    without, having = run_tests(tmp_path, "bare", skip + body), run_tests(tmp_path, "peer", body)
    status, lines = ask("check", without)
    assert (status, len(lines)) == (1, 1)
    assert "tests/test_it.py" in lines[0]
    assert "a_peer" in lines[0]
    assert "tests/test_it.py" in ask("files", without)[1]
    assert ask("check", without, having) == (0, [])
    assert ask("check", without, "--without", "a_peer") == (0, [])


def test_the_file_of_an_inherited_test_is_that_of_its_class(tmp_path):
    """A contract lies in the package, and its tests are run by the file that inherits it."""
    case = (
        '<testcase file="mds/testing/_store_contract.py" name="test_it" '
        'classname="tests.programs.storage.test_contract.TestAzure">'
        '<skipped message="no peer"/></testcase>'
    )
    result = tmp_path / "result.xml"
    result.write_text(f"<testsuites><testsuite>{case}</testsuite></testsuites>")
    assert "tests/programs/storage/test_contract.py" in ask("files", str(result))[1]


def test_an_environment_that_was_not_delivered_is_excused(results):
    """By the reason that its tests give."""
    assert ask("check", results[0], "--without", "a_peer") == (0, [])


def test_the_gate_excuses_only_packages_of_a_missing_environment(tmp_path):
    """One that another environment has is no excuse, though its reason has the same words."""
    program = '''
import pytest
from tests.skip_reasons import not_installed

@pytest.mark.parametrize("package", ["trl", "ray", "ray[train]"])
def test_it(package):
    """Needs a package."""
    pytest.skip(not_installed(package))
'''
    text = (GATE / "run").read_text(encoding="utf-8")
    function = re.search(r"^optional\(\) {.*?^}", text, re.DOTALL | re.MULTILINE)[0]
    call = re.search(r"optional trainers [^;]*", text)[0]
    script = f"environment() {{ return 1; }}\nnot_delivered=()\n{function}\n{call}\n"
    script += 'printf "%s\\n" "${not_delivered[@]#*: }"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    excuses = [part for line in done.stdout.splitlines() for part in ("--without", line)]
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "skip_reasons.py", tmp_path / "tests")
    status, lines = ask("check", run_tests(tmp_path, "bare", program), *excuses)
    assert (status, len(lines)) == (1, 1)
    assert 'ray is not installed: pip install "ray"' in lines[0]


def test_files_with_skips_are_run_again(results):
    """In the environment that has the rest; a file that needs an accelerator alone is not."""
    assert "tests/test_it.py" in ask("files", results[0])[1]
    assert "tests/test_it.py" not in ask("files", results[1])[1]


def test_what_ran_is_not_run_again(results):
    """In the files that are: only the tests that were skipped, with parameters and classes too."""
    folder = pathlib.Path(results[0]).parent
    program = """
import pytest

class TestClass:
    @pytest.mark.parametrize("text", ["a b", "c[d]::e"])
    def test_it(self, text):
        pass
"""
    first = run_tests(folder, "first", PROGRAM + program)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "skips",
        "--ran",
        first,
        "-n",
        "2",
        "tests",
    ]
    second = PROGRAM.replace('@pytest.mark.skip(reason="pip install a_peer")', "") + program
    (folder / "tests" / "test_it.py").write_text(second)
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(GATE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed, 1 skipped" in done.stdout, done.stdout


def test_files_with_slow_tests_are_run_again(results, tmp_path):
    """README's command leaves these tests out, so the gate names their files."""
    files_marked_slow = runpy.run_path(str(GATE / "skips.py"))["files_marked_slow"]
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_slow.py").write_text(SLOW_PROGRAM)
    assert files_marked_slow(tmp_path / "tests") == {"tests/test_slow.py"}
    slow_files = files_marked_slow()
    assert len(slow_files) > 10
    assert slow_files <= set(ask("files", results[1])[1])


def test_environments_share_what_is_compiled(tmp_path):
    """A file that uv linked from its cache is compiled once; a copy, in each environment."""
    compile_once = runpy.run_path(str(GATE / "compiled.py"))["compile_once"]
    (tmp_path / "kept").mkdir()
    (tmp_path / "cached.py").write_text("ANSWER = 42")
    compiled = []
    for number, name in enumerate(["first", "second"]):
        package = tmp_path / name / "package"
        package.mkdir(parents=True)
        os.link(tmp_path / "cached.py", package / "linked.py")
        (package / "copied.py").write_text("ANSWER = 42")
        (package / "template.py").write_text("{{ no Python }}")
        assert compile_once(str(tmp_path / name), str(tmp_path / "kept")) == number
        compiled.append({path.name: path for path in package.glob("__pycache__/*")})
    shared = {name for name, path in compiled[0].items() if path.samefile(compiled[1][name])}
    assert len(compiled[0]) == 2
    assert {name.partition(".")[0] for name in shared} == {"linked"}


@pytest.mark.parametrize(
    ("arguments", "runs_slow"),
    [
        ([], False),
        (["-n", "1"], False),
        (["tests", "-n", "1"], True),
        (["-m", "slow"], True),
        (["-k", "slow"], True),
    ],
)
def test_slow_tests_run_where_they_are_named(tmp_path, arguments, runs_slow):
    """`pytest` alone leaves them out; a path, a marker or a keyword selects from all tests."""
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    (tmp_path / "tests" / "test_slow.py").write_text(SLOW_PROGRAM)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *arguments]
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stdout
    assert ("test_slow.py::test_slow" in done.stdout) == runs_slow


def test_readme_has_two_commands():
    """The gate pastes them as they are."""
    command = [sys.executable, str(GATE / "readme_command.py")]
    first, second = (
        subprocess.run([*command, n], capture_output=True, text=True, check=True).stdout
        for n in ("1", "2")
    )
    assert "venv" in first
    assert "quickstart.py" in first
    assert "pytest" in second


def test_the_gate_refuses_an_unknown_stage():
    """It lists the stages before it installs anything."""
    command = ["bash", str(GATE / "run"), "untis"]
    gate = subprocess.run(command, capture_output=True, text=True, check=False)
    assert gate.returncode == 2
    assert "[lint | types | unit | programs | trainers], got untis" in gate.stderr


def test_every_benchmark_takes_the_option_of_its_smoke():
    """The gate calls each file with it, and argparse ends a program that does not know it."""
    files = sorted((ROOT / "benchmarks").glob("[!_]*.py"))
    assert len(files) > 8
    for file in files:
        assert '"--smoke"' in file.read_text(encoding="utf-8"), file
