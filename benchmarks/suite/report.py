"""Results as JSON, as tables in Markdown, and as a plot."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import questions, systems
from benchmarks.questions.base import Case, Question
from benchmarks.suite import machine
from benchmarks.suite.bars import best, describe, judge
from benchmarks.suite.runs import Measured, Settings

_BEGIN, _END = "<!-- results: written by python -m benchmarks -->", "<!-- end of results -->"


def collect(settings: Settings, measured: Sequence[Measured]) -> dict[str, Any]:
    """Everything that is known of a run, fit for JSON."""
    packages = [p for name in settings.systems for p in systems.find(name).packages]
    return {
        "when": time.strftime("%Y-%m-%d"),
        "machine": machine.facts(),
        "versions": machine.versions(settings.python, packages),
        "settings": {
            "scale": settings.scale,
            "rounds": settings.rounds,
            "seconds": settings.seconds,
            "images": "photographs" if settings.images else "pictures of text",
        },
        "measured": [dataclasses.asdict(entry) for entry in measured],
    }


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A run with what was measured again put in its place; scale and machine must be the same."""
    if old["settings"]["scale"] != new["settings"]["scale"] or old["machine"] != new["machine"]:
        raise SystemExit("runs of another scale or machine are not put together")
    names = ("question", "case", "system", "variant")
    measurements = {tuple(e[name] for name in names): e for e in old["measured"] + new["measured"]}
    return {
        **new,
        "versions": {**old["versions"], **new["versions"]},
        "studies": {**old.get("studies", {}), **new.get("studies", {})},
        "measured": [*measurements.values()],
    }


def load(path: str) -> dict[str, Any]:
    """A run that was saved."""
    with open(path) as file:
        return json.load(file)  # type: ignore[no-any-return]


def save(run: dict[str, Any], path: str) -> None:
    """Write a run as JSON."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "w") as file:
        json.dump(run, file, indent=1)
        file.write("\n")


def entries(run: dict[str, Any]) -> list[Measured]:
    """The measurements of a run."""
    return [Measured(**entry) for entry in run["measured"]]


def markdown(run: dict[str, Any]) -> str:
    """All tables of a run."""
    measurements = entries(run)
    tables = (_verdicts(measurements), _tables(measurements), _errors(measurements))
    parts = (_heading(run), *tables, _studies(run))
    return "\n".join(line for part in parts for line in part)


def _heading(run: dict[str, Any]) -> Iterator[str]:
    facts, settings = run["machine"], run["settings"]
    versions = (f"{name} {version}" for name, version in run["versions"].items() if version)
    version_list = ", ".join(versions)
    scale = {"quick": "a quarter of the data"}.get(settings["scale"], settings["scale"])
    text = (
        f"Measured on {run['when']}: {facts['processor']}, {facts['cores']} cores, "
        f"{facts['memory_gb']} GB, {facts['system']}. Cells are medians of {settings['rounds']} "
        f"rounds of {settings['seconds']:g} s. Scale: {scale}. "
        f"Images are {settings['images']}."
    )
    yield from _wrap(text)
    yield ""
    yield from _wrap(f"Versions: {version_list}.")
    yield ""


def _wrap(text: str) -> list[str]:
    """Return the lines of a paragraph in Markdown."""
    return textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)


def _verdicts(measurements: Sequence[Measured]) -> Iterator[str]:
    rows = [v for q, c, values in _cases(measurements) for v in judge(q, c, values)]
    if not rows:
        return
    missed = [v for v in rows if not v.is_met]
    yield f"### Which bars does mds miss? {len(missed)} of {len(rows)}"
    yield ""
    if missed:
        yield "| question | row | bar | measured |"
        yield "|---|---|---|---|"
    for v in missed:
        link = f"[{v.question}](#{_anchor(questions.find(v.question).heading)})"
        yield f"| {link} | {v.case} | {v.asks} | {v.found} |"
    yield ""


def _anchor(heading: str) -> str:
    """Return the name by which Markdown links to a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _tables(measurements: Sequence[Measured]) -> Iterator[str]:
    for name in dict.fromkeys(entry.question for entry in measurements):
        question = questions.find(name)
        rows = [entry for entry in measurements if entry.question == name]
        present = [s for s in systems.NAMES if any(e.system == s and e.values for e in rows)]
        labels = [systems.find(s).label for s in present]
        yield f"### {question.heading}"
        yield ""
        yield from _wrap(question.note)
        yield ""
        yield from _wrap(_units_and_bars(question, rows))
        yield ""
        yield f"| | {' | '.join(labels)} |"
        yield "|---|" + "---:|" * len(present)
        for _, case, mine in _cases(rows):
            top = best(mine, question)
            tried = [entry.system for entry in mine if entry.variant != "view"]
            cells = (_cell(top.get(s), case, has_settings=tried.count(s) > 1) for s in present)
            yield f"| {case.name} | {' | '.join(cells)} |"
        yield ""


def _units_and_bars(question: Question, measurements: Sequence[Measured]) -> str:
    groups = [*_cases(measurements)]
    cases = [case for _, case, _ in groups]
    verdicts = [v for _, case, values in groups for v in judge(question, case, values)]
    units = " or ".join(dict.fromkeys(case.unit or question.unit for case in cases))
    bars, kept = describe(question, cases), sum(v.is_met for v in verdicts)
    share = "all" if kept == len(verdicts) else f"{kept} of {len(verdicts)}"
    if not verdicts:
        share = "not measured"
    bars = f"**Bars:** {bars}. **Kept:** {share}." if bars else "**Bars:** none."
    return f"**Question:** `{question.name}`. **Unit:** {units}. {bars}"


def _cell(entry: Measured | None, case: Case, *, has_settings: bool) -> str:
    if entry is None:
        return ""
    unit = f" {case.unit}" if case.unit else ""
    half = (max(entry.values) - min(entry.values)) / 2
    share = ""
    if len(entry.values) > 1 and entry.median:  # what a function costs may be nothing
        share = f" ±{100 * half / entry.median:.0f} %"
    setting = f" ({entry.variant})" if has_settings and entry.variant else ""
    return f"{_number(entry.median)}{unit}{share}{setting}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _errors(measurements: Sequence[Measured]) -> Iterator[str]:
    failures = [entry for entry in measurements if entry.error]
    if failures:
        yield from ("### Which measurements failed?", "")
    for entry in failures:
        setting = f" ({entry.variant})" if entry.variant else ""
        system = f"{systems.find(entry.system).label}{setting}"
        error = textwrap.shorten(entry.error.removeprefix("exit 1: "), 50)
        text = f"* `{entry.question}`, row '{entry.case}', **{system}:** `{error}`"
        yield from textwrap.wrap(text, 100, subsequent_indent="  ", break_long_words=False)


def _studies(run: dict[str, Any]) -> Iterator[str]:
    for name, text in run.get("studies", {}).items():
        yield from ("", f"### Study: benchmarks/{name}.py", "", "```text", text, "```")


def _cases(measurements: Sequence[Measured]) -> Iterator[tuple[Question, Case, list[Measured]]]:
    for name, case_name in dict.fromkeys((e.question, e.case) for e in measurements):
        question = questions.find(name)
        case = next((c for c in question.cases if c.name == case_name), None)
        if case is not None:  # an old run may have had other cases
            yield (
                question,
                case,
                [e for e in measurements if e.question == name and e.case == case_name],
            )


def insert(text: str, path: str) -> None:
    """Put the tables between the marks of a page."""
    with open(path) as file:
        page = file.read()
    before, _, remainder = page.partition(_BEGIN)
    _, _, after = remainder.partition(_END)
    with open(path, "w") as file:
        file.write(f"{before}{_BEGIN}\n\n{text.strip()}\n\n{_END}{after}")
