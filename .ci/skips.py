"""Which tests no environment has run, from the results that pytest wrote in each (JUnit XML).

`python .ci/skips.py files RESULT...` prints the test files in which something was skipped, and
`python .ci/skips.py check RESULT...` names what was skipped in every environment and ends with 1 if
there is any. What needs an accelerator may be skipped; `--without TEXT` excuses reasons that hold
TEXT, for an environment that a registry did not deliver.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable

ACCELERATOR = "needs a CUDA device"


def skipped_tests(result: str) -> tuple[set[str], dict[str, str]]:
    """Return the tests that ran and those that were skipped, as ``file::class::name``.

    A file that is skipped as a whole has no class; it ran where one of its tests did.
    """
    ran, skipped = set(), {}
    for case in ET.parse(result).iter("testcase"):
        kind, name = case.get("classname") or "", case.get("name")
        file = _module_of(kind) or case.get("file")
        test = f"{file}::{kind}::{name}" if kind else f"{file}::"
        reason = case.find("skipped")
        if reason is None:
            ran |= {test, f"{file}::"}
        else:
            told = reason.get("message") or "no reason"
            skipped[test] = told if kind else reason.text or told
    return ran, skipped


def _module_of(kind: str) -> str | None:
    """Return the file of a class; pytest names the file of the method, which may be inherited."""
    parts = kind.split(".")
    paths = ("/".join(parts[:end]) + ".py" for end in range(len(parts), 0, -1))
    return next((path for path in paths if pathlib.Path(path).is_file()), None)


def files_with_skips(results: Iterable[str]) -> list[str]:
    """Return the test files, sorted, in which a test lacked something else than an accelerator."""
    found = set()
    for result in results:
        for test, reason in skipped_tests(result)[1].items():
            if ACCELERATOR not in reason:
                found.add(test.partition("::")[0])
    return sorted(found)


def never_run(results: Iterable[str], excused: Iterable[str] = ()) -> dict[str, str]:
    """Return the tests that no environment ran, with the reason of the last skip."""
    ran: set[str] = set()
    skipped: dict[str, str] = {}
    for result in results:
        ran_there, skipped_there = skipped_tests(result)
        ran |= ran_there
        skipped |= skipped_there
    allowed = (ACCELERATOR, *excused)
    return {
        test: reason
        for test, reason in skipped.items()
        if test not in ran and not any(text in reason for text in allowed)
    }


def main() -> int:
    """Print what was asked for; 1 when a test was run nowhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("act", choices=["files", "check"])
    parser.add_argument("results", nargs="+", metavar="RESULT")
    parser.add_argument("--without", action="append", default=[], metavar="TEXT")
    options = parser.parse_args()
    if options.act == "files":
        print(*files_with_skips(options.results), sep="\n")
        return 0
    missed = never_run(options.results, options.without)
    for test, reason in sorted(missed.items()):
        print(f"skipped in every environment: {test}: {reason}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
