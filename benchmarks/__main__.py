"""Measure how fast mds reads and writes, beside other libraries and plain NumPy."""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from benchmarks import questions, systems
from benchmarks.suite import against, environment, readme, report, studies
from benchmarks.suite.runs import Settings, measure_all

_DOCS = os.path.join(environment.ROOT, "docs")
_ROUNDS = {"smoke": 1, "quick": 3, "full": 5}
_SECONDS = {"smoke": 0.05, "quick": 0.5, "full": 2.0}


def main() -> None:
    """Measure, and write the results."""
    options = _options()
    if options.report:
        _write(report.load(options.report), options)
        return
    if options.against:
        _compare(options)
        return
    names = [*_chosen(options.systems, systems.NAMES)]
    if options.scale == "smoke" and not options.systems:
        names = [*systems.OURS]
    needed = [r for name in names for r in systems.find(name).requires]
    python = options.python or (
        environment.make(dict.fromkeys(needed), options.torch) if needed else sys.executable
    )
    settings = Settings(
        scale=options.scale,
        rounds=options.rounds or _ROUNDS[options.scale],
        seconds=options.seconds or _SECONDS[options.scale],
        python=python,
        folder=os.path.abspath(options.data),
        systems=tuple(names),
        questions=tuple(_chosen(options.questions, questions.NAMES)),
        cases=options.cases,
        images=options.images,
        # A process for each measurement would cost ten times what smoke measures.
        fresh=options.scale != "smoke",
    )
    run = report.collect(settings, measure_all(settings))
    selected = _chosen(options.studies, studies.NAMES) if options.studies != "none" else []
    run["studies"] = studies.run(selected, python, is_smoke=options.scale == "smoke")
    if options.update:
        run = report.merged(report.load(options.update), run)
    _write(run, options)


def _compare(options: argparse.Namespace) -> None:
    scale = "quick" if options.scale == "full" else options.scale
    settings = Settings(
        scale=scale,
        rounds=options.rounds or against.ROUNDS,
        seconds=options.seconds or against.SECONDS,
        python=options.python or sys.executable,
        folder=os.path.abspath(options.data),
        systems=("mds",),
        questions=tuple(_chosen(options.questions, questions.NAMES)),
        cases=options.cases,
        images=options.images,
    )
    pairs: list[against.Pair] = []
    commits = options.against.split(",")
    for pairs in against.compare(settings, commits):
        if options.output:  # after each round, since all of them take long
            against.save(pairs, options.output)
    for commit in commits:
        print(against.table(pairs, commit))
    if against.lost(pairs):
        raise SystemExit(1)


def _write(run: dict[str, object], options: argparse.Namespace) -> None:
    text = report.markdown(run)
    print(text)
    if options.output:
        report.save(run, options.output)
    if options.docs:
        from benchmarks.suite.plot import draw

        report.save(run, os.path.join(_DOCS, "benchmarks", "results.json"))
        draw(run, os.path.join(_DOCS, "benchmarks", "results.svg"))
        report.insert(text, os.path.join(_DOCS, "benchmarks.md"))
        report.insert(readme.table(run), os.path.join(environment.ROOT, "README.md"))
    if any(entry.error for entry in report.entries(run) if entry.system in systems.OURS):
        raise SystemExit(1)


def _chosen(text: str, names: tuple[str, ...]) -> list[str]:
    selected = [name.strip() for name in text.split(",")] if text not in ("", "all") else [*names]
    for name in selected:
        if name not in names:
            raise SystemExit(f"{name!r} is not one of {', '.join(names)}")
    return selected


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    scale = parser.add_mutually_exclusive_group()
    for name, about in (
        ("smoke", "does every question work? mds alone, in seconds"),
        ("quick", "a quarter of the data, 3 rounds of half a second"),
        ("full", "5 rounds of two seconds (the default)"),
    ):
        scale.add_argument(f"--{name}", dest="scale", action="store_const", const=name, help=about)
    parser.set_defaults(scale="full")
    parser.add_argument("--systems", default="", help=f"some of {', '.join(systems.NAMES)}")
    parser.add_argument("--questions", default="", help=f"some of {', '.join(questions.NAMES)}")
    parser.add_argument(
        "--studies", default="none", help=f"also run some of {', '.join(studies.NAMES)}, or all"
    )
    parser.add_argument("--cases", default="", help="only cases whose name has this text")
    parser.add_argument(
        "--rounds", type=int, help="measurements of each case; tables show the median"
    )
    parser.add_argument("--seconds", type=float, help="longest time of a measurement")
    parser.add_argument("--images", help="a folder of photographs (JPEG) for the images")
    parser.add_argument(
        "--python",
        type=lambda path: os.path.abspath(shutil.which(path) or path),
        help="an interpreter that has all libraries (default: one in .bench/venv, which is made)",
    )
    parser.add_argument("--torch", help="pip requirement for torch, as torch==2.13.0")
    parser.add_argument(
        "--data", default=os.path.join(environment.HOME, "data"), help="folder for the data"
    )
    parser.add_argument("--output", help="write the results here, as JSON")
    parser.add_argument("--update", help="add the results to those in this file")
    parser.add_argument(
        "--against", metavar="COMMITS", help="measure this version and commits (a,b) in turns"
    )
    parser.add_argument(
        "--docs", action="store_true", help="write docs/benchmarks.md, its plot and README's table"
    )
    parser.add_argument("--report", help="measure nothing, report on a file that --output wrote")
    return parser.parse_args()


if __name__ == "__main__":
    main()
