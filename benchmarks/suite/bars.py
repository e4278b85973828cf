"""What was measured against what was promised."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from benchmarks import systems
from benchmarks.questions.base import Case, Question
from benchmarks.suite.runs import Measured

NO_PEERS = ("limit", "plain", "mds")


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """One bar: what it asks, what was found (a ratio, or a value for absolute bars)."""

    question: str
    case: str
    asks: str
    found: str
    is_met: bool


def best(measured: Iterable[Measured], question: Question) -> dict[str, Measured]:
    """The best setting of each system; for the limit the one that the bars mean."""
    found: dict[str, Measured] = {}
    for entry in measured:
        if not entry.values or entry.variant == "view":
            continue
        before = found.get(entry.system)
        if before is None or (entry.median > before.median) == question.more_is_better:
            found[entry.system] = entry
    return found


def judge(question: Question, case: Case, measured: Sequence[Measured]) -> Iterator[Verdict]:
    """The verdicts of one case; none where a system needed was not measured."""
    found = best(measured, question)
    if "mds" not in found:
        return
    ours, bar = found["mds"].median, case.bar
    peers = {name: e.median for name, e in found.items() if name not in NO_PEERS}
    pick = max if question.more_is_better else min
    shares: list[tuple[str, float, float]] = []
    if bar.of_limit is not None and "limit" in found:
        shares.append(("limit", bar.of_limit, found["limit"].median))
    if bar.of_peers is not None and peers:
        name = pick(peers, key=lambda peer: peers[peer])
        shares.append((f"best peer, {_label(name)}", bar.of_peers, peers[name]))
    shares += [
        (_label(name), share, found[name].median) for name, share in bar.of.items() if name in found
    ]
    for name, share, theirs in shares:
        ratio = ours / theirs
        is_met = ratio >= share if question.more_is_better else ratio <= share
        asks = _ratio_to(question, share, name)
        yield Verdict(question.name, case.name, asks, f"{ratio:.2f} x", is_met)
    if bar.at_most is not None:
        asks, value = _at_most(question, case), f"{ours:.3g} {case.unit or question.unit}"
        yield Verdict(question.name, case.name, asks, value, ours <= bar.at_most)


def describe(question: Question, cases: Sequence[Case]) -> str:
    """Return the bars of the rows of a table, each with the names of its rows if others differ."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(_conditions(question, case), []).append(case)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{bar} ({_rows(group, cases)})" for bar, group in groups.items() if bar)


def _conditions(question: Question, case: Case) -> str:
    bar = case.bar
    shares = {"limit": bar.of_limit, "best peer": bar.of_peers}
    shares |= {_label(name): share for name, share in bar.of.items()}
    conditions = [
        _ratio_to(question, share, name) for name, share in shares.items() if share is not None
    ]
    if bar.at_most is not None:
        conditions.append(_at_most(question, case))
    return " and ".join(conditions)


def _rows(group: Sequence[Case], cases: Sequence[Case]) -> str:
    """Name a group of rows by the part of each name that no row outside the group has."""
    others = {part for case in cases if case not in group for part in case.name.split(", ")}
    common = set.intersection(*(set(case.name.split(", ")) for case in cases))
    names = []
    for case in group:
        parts = [part for part in case.name.split(", ") if part not in common]
        names.append(next((part for part in parts if part not in others), ", ".join(parts)))
    return ", ".join(dict.fromkeys(names))


def _ratio_to(question: Question, share: float, name: str) -> str:
    sign = "≥" if question.more_is_better else "≤"
    return f"{sign} {share:g} x {name}"


def _at_most(question: Question, case: Case) -> str:
    return f"≤ {case.bar.at_most:g} {case.unit or question.unit}"


def _label(name: str) -> str:
    return systems.find(name).label
