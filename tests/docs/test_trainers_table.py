"""The table of trainers in docs/trainers.md is that of docs/benchmarks/trainers.json."""

import json
import pathlib
import runpy
import sys

TRAINERS = pathlib.Path(__file__).parents[1] / "trainers"


def test_the_table_shows_the_results(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(TRAINERS), *sys.path])
    full = runpy.run_path(str(TRAINERS / "full.py"))
    results = json.loads(full["RESULTS"].read_text(encoding="utf-8"))
    page = full["PAGE"].read_text(encoding="utf-8")
    assert full["page_with_table"](page, results) == page
    for result in results.values():
        for case in result["cases"]:
            if case["loader"] == "mds":
                assert case["equal_steps"] == case["steps"], case
                assert case["lost"] == case["added"] == 0, case
