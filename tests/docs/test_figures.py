"""Figures that README and docs/benchmarks.md show are those of the last run of the benchmarks.

Pictures are those that their script draws.
"""

import re
import runpy
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import questions
from benchmarks.suite import readme, report
from benchmarks.suite.runs import Measured

ROOT = Path(__file__).resolve().parents[2]


def test_readme_shows_the_last_run():
    """Its table is what the run makes of itself."""
    run = report.load(str(ROOT / "docs" / "benchmarks" / "results.json"))
    assert readme.table(run) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_page_shows_the_last_run():
    """Its tables and their texts are what the suite writes for the run."""
    run = report.load(str(ROOT / "docs" / "benchmarks" / "results.json"))
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert report.markdown(run).strip() in page


@pytest.mark.parametrize("name", questions.NAMES)
def test_each_table_has_a_question_and_a_short_text(name):
    """At most five sentences say what is measured, and what its rows and its limit are."""
    question = questions.find(name)
    assert question.heading.endswith("?")
    assert 1 <= len(re.findall(r"\.(?= [A-Z'`]|$| mds)", question.note)) <= 5


def test_bars_name_their_rows_and_whether_they_are_kept():
    """A row is named by what other rows lack; a bar whose other system is missing is not judged."""
    mds = Measured("write", "8 KB tokens", "mds", "", [2.0])
    text = report._units_and_bars(questions.find("write"), [mds])
    assert text.endswith("**Bars:** ≤ 1 x ArrayRecord + Grain. **Kept:** not measured.")
    peer = Measured("write", "8 KB tokens", "grain", "", [1.0])
    other = Measured("write", "text and json", "mds", "", [2.0])
    text = report._units_and_bars(questions.find("write"), [mds, peer, other])
    assert text.endswith("≤ 1 x ArrayRecord + Grain (8 KB tokens). **Kept:** 0 of 1.")


def run_of(*measured):
    return {"versions": {"litdata": "1.2"}, "measured": [asdict(each) for each in measured]}


def test_the_best_setting_of_each_system_is_shown():
    """Medians, in three digits; a dash where a system was not measured."""
    entries = [
        Measured("iterate", "text, shuffled", "mds", "", [100.0, 123_456.0, 900_000.0]),
        Measured("random_access", "tokens", "mds", "", [12.34]),
        Measured("random_access", "tokens", "litdata", "slow", [3.0]),
        Measured("random_access", "tokens", "litdata", "", [9876.0]),
    ]
    assert readme.table(run_of(*entries)).splitlines() == [
        "| samples/s unless stated | mds | mosaicml-streaming | litdata 1.2 |",
        "|---|---:|---:|---:|",
        "| samples of text and JSON, shuffled | 123,000 | - | - |",
        "| `dataset[i]` at random, 8 KB | 12 | - | 9,880 |",
    ]


def test_a_peer_that_was_measured_gets_a_column():
    """A run without a peer has no column of dashes for it."""
    entries = [
        Measured("random_access", "tokens", "mds", "", [12.34]),
        Measured("random_access", "tokens", "lancedb", "", [9876.0]),
    ]
    head, line, *rows = readme.table(run_of(*entries)).splitlines()
    assert head == "| samples/s unless stated | mds | mosaicml-streaming | litdata 1.2 | lancedb |"
    assert line == "|---|---:|---:|---:|---:|"
    assert rows == ["| `dataset[i]` at random, 8 KB | 12 | - | - | 9,880 |"]


@pytest.mark.parametrize(("variant", "seconds"), [("first time", 0.0894), ("again", 0.00751)])
def test_starts_are_compared_with_starts_of_the_same_kind(variant, seconds):
    """A second start of mds is beside a second start of the peer."""
    entries = [
        Measured("start", f"50,000 shards, {variant}", "mds", variant, [seconds]),
        Measured("start", f"50,000 shards, {variant}, memory", "mds", variant, [10.2]),
        Measured("start", f"50,000 shards, {variant}", "incumbent", "", [2.6]),
        Measured("start", f"50,000 shards, {variant}, memory", "incumbent", "", [177.3]),
    ]
    *_, row = readme.table(run_of(*entries)).splitlines()
    assert ("started again" in row) == (variant == "again")
    assert row.endswith(f"| {seconds:.1g}; 10 | 2.6; 177 | - |")


def test_the_diagrams_are_those_that_their_script_draws():
    """``python docs/pictures/diagrams.py`` draws them; each has colors for light and dark pages."""
    folder = ROOT / "docs" / "pictures"
    for name, picture in runpy.run_path(str(folder / "diagrams.py"))["draw_all"]().items():
        assert (folder / name).read_text(encoding="utf-8") == picture
        assert "prefers-color-scheme: dark" in picture
        assert len(picture) < 30_000


def test_every_picture_has_a_text_and_is_shown():
    """A page shows it, with words for readers who do not see it."""
    pictures = ROOT / "docs" / "pictures"
    shown = {}
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        for words, path in re.findall(r"!\[([^\]]*)\]\((?:\.\./)*pictures/([^)]+)\)", text):
            shown[path] = words
    assert set(shown) == {path.name for path in pictures.iterdir() if path.suffix != ".py"}
    assert min(map(len, shown.values())) > 20
    assert all((pictures / name).stat().st_size < 30_000 for name in shown)
