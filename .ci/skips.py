"""Find the tests that no environment has run, in the results that pytest wrote (JUnit XML).

`python .ci/skips.py files RESULT...` prints the test files that README's command did not run
completely: a test was skipped there, or is marked `slow`. `python .ci/skips.py check RESULT...`
lists the tests that were skipped in every environment, and ends with 1 if there are any. A test
that needs an accelerator may be skipped. `--without TEXT` allows skips whose reason contains TEXT,
for an environment that a registry did not deliver.

`pytest -p skips --ran RESULT`, with this folder in PYTHONPATH, leaves out the tests that ran there.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from typing import Any

ACCELERATOR = "needs a CUDA device"
SLOW = "pytest.mark.slow"
TESTS = pathlib.Path(__file__).parents[1] / "tests"


def skipped_tests(result: str) -> tuple[set[str], dict[str, str]]:
    """Return the tests that ran and those that were skipped, as ``file::class::name``.

    A file that is skipped as a whole has no class; it ran where one of its tests did.
    """
    ran: set[str] = set()
    skipped: dict[str, str] = {}
    for case in ET.parse(result).iter("testcase"):
        kind, name = case.get("classname") or "", case.get("name")
        file = _module_of(kind) or case.get("file")
        test = f"{file}::{kind}::{name}" if kind else f"{file}::"
        reason = case.find("skipped")
        if reason is None:
            ran |= {test, f"{file}::"}
        else:
            message = reason.get("message") or "no reason"
            skipped[test] = message if kind else reason.text or message
    return ran, skipped


def _module_of(kind: str) -> str | None:
    """Return the file of a class; pytest writes that of the method, which may be inherited."""
    parts = kind.split(".")
    paths = ("/".join(parts[:end]) + ".py" for end in range(len(parts), 0, -1))
    return next((path for path in paths if pathlib.Path(path).is_file()), None)


def pytest_addoption(parser: Any) -> None:
    """Add the option of this file as a plugin of pytest."""
    parser.addoption("--ran", metavar="RESULT", help="leave out the tests that ran there")


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Leave out the tests that ran in an earlier environment."""
    ran, _ = skipped_tests(config.getoption("--ran"))
    kept, left_out = [], []
    for item in items:
        (left_out if _test_of(item.nodeid) in ran else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _test_of(nodeid: str) -> str:
    """Return a test as `skipped_tests` does, of its id ``file::class::name[parameters]``."""
    path, bracket, parameters = nodeid.partition("[")
    file, *classes, name = path.split("::")
    kind = ".".join([file.removesuffix(".py").replace("/", "."), *classes])
    return f"{file}::{kind}::{name}{bracket}{parameters}"


def files_with_skips(results: Iterable[str]) -> set[str]:
    """Return the test files in which a test lacked something else than an accelerator."""
    return {
        test.partition("::")[0]
        for result in results
        for test, reason in skipped_tests(result)[1].items()
        if ACCELERATOR not in reason
    }


def files_marked_slow(root: pathlib.Path = TESTS) -> set[str]:
    """Return the test files below a folder with a test that `pytest` without a path leaves out."""
    return {
        path.relative_to(root.parent).as_posix()
        for path in root.rglob("test_*.py")
        if SLOW in path.read_text(encoding="utf-8")
    }


def never_run(results: Iterable[str], excused: Iterable[str] = ()) -> dict[str, str]:
    """Return the tests that no environment ran, with the reason of the last skip."""
    ran: set[str] = set()
    skipped: dict[str, str] = {}
    for result in results:
        ran_here, skipped_here = skipped_tests(result)
        ran |= ran_here
        skipped |= skipped_here
    allowed = (ACCELERATOR, *excused)
    return {
        test: reason
        for test, reason in skipped.items()
        if test not in ran and not any(text in reason for text in allowed)
    }


def main() -> int:
    """Print the files or the tests, and return the exit status: 1 if no environment ran a test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("act", choices=["files", "check"])
    parser.add_argument("results", nargs="+", metavar="RESULT")
    parser.add_argument("--without", action="append", default=[], metavar="TEXT")
    options = parser.parse_args()
    if options.act == "files":
        print(*sorted(files_with_skips(options.results) | files_marked_slow()), sep="\n")
        return 0
    missed = never_run(options.results, options.without)
    for test, reason in sorted(missed.items()):
        print(f"skipped in every environment: {test}: {reason}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
