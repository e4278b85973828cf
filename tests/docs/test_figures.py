"""Figures that README shows are those of the last run of the benchmarks."""

from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.suite import readme, report
from benchmarks.suite.runs import Measured

ROOT = Path(__file__).resolve().parents[2]


def test_readme_shows_the_last_run():
    """Its table is what the run makes of itself."""
    run = report.load(str(ROOT / "docs" / "benchmarks" / "results.json"))
    assert readme.table(run) in (ROOT / "README.md").read_text(encoding="utf-8")


def run_of(*measured):
    return {"versions": {"litdata": "1.2"}, "measured": [asdict(each) for each in measured]}


def test_the_best_setting_of_each_system_is_shown():
    """Medians, in three digits; what was not asked of a system is left empty."""
    entries = [
        Measured("iterate", "text, shuffled", "mds", "", [100.0, 123_456.0, 900_000.0]),
        Measured("random_access", "tokens", "mds", "", [12.34]),
        Measured("random_access", "tokens", "litdata", "slow", [3.0]),
        Measured("random_access", "tokens", "litdata", "", [9876.0]),
    ]
    assert readme.table(run_of(*entries)).splitlines() == [
        "| | mds | mosaicml-streaming | litdata 1.2 |",
        "|---|---:|---:|---:|",
        "| iterate text with a JSON column, shuffled (samples/s) | **123,000** |  |  |",
        "| `dataset[i]` at random, tokens (samples/s) | **12** |  | 9,880 |",
    ]


def test_a_peer_that_was_measured_gets_a_column():
    """Runs before lancedb was a system of the suite have none."""
    entries = [
        Measured("random_access", "tokens", "mds", "", [12.34]),
        Measured("random_access", "tokens", "lancedb", "", [9876.0]),
        Measured("cold", "loopback, 0 ms", "limit", "", [2.0]),
        Measured("cold", "loopback, 0 ms", "mds", "threads", [3.0]),
    ]
    head, line, *rows = readme.table(run_of(*entries)).splitlines()
    assert head == "| | mds | mosaicml-streaming | litdata 1.2 | lancedb |"
    assert line == "|---|---:|---:|---:|---:|"
    assert [row.count("|") for row in rows] == [6, 6]
    assert rows[0].endswith("| **12** |  |  | 9,880 |")


@pytest.mark.parametrize("mine", [1.5, 3.0])
def test_an_epoch_from_s3_is_told_in_downloads(mine):
    """Of the better of the two ways of workers."""
    entries = [
        Measured("cold", "loopback, 0 ms", "limit", "", [2.0]),
        Measured("cold", "loopback, 0 ms", "mds", "threads", [mine]),
        Measured("cold", "loopback, 0 ms", "mds", "processes", [4.0]),
    ]
    assert readme.table(run_of(*entries)).endswith(f"| **{mine / 2:.2f}** | | |")
