"""Diagnosis of a slow run: the one cause that costs the trainer most, in a paragraph.

A pure function of an account of waits and facts of the setup. Thresholds: a trainer that waits less
than a tenth of its time is limited by its own work; a cache is too small when a fifth of the
fetched shards had been in it before, or three tenths of the bytes were fetched row by row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mds.report import remedies
from mds.report.account import MUCH_IDLE

if TYPE_CHECKING:
    from mds.report.account import CacheUse, LoaderSetup, WaitAccount

#: Why a run is slow: the trainer's own work, the way to the remote (`latency`, `bandwidth`), a
#: cache that is too small, or the work on samples and batches. ``uncertain``: two causes cost
#: about the same. ``none``: nothing was read yet.
CAUSES = (
    "trainer",
    "latency",
    "bandwidth",
    "cache_limit",
    "decompression",
    "decoding",
    "functions",
    "collate",
    "crossing",
    "uncertain",
    "none",
)
_CAUSE_OF_CHARGE = {
    "request": "latency",
    "transfer": "bandwidth",
    "unpack": "decompression",
    "decode": "decoding",
    "functions": "functions",
    "collate": "collate",
    "crossing": "crossing",
}
_FOR_BYTES = ("latency", "bandwidth", "decompression")
_OWN = ("decoding", "functions", "collate")  # computed in the interpreter
_FEW_WAITS = 0.1  # of the time
_MUCH_WASTED = 0.2
_MUCH_LESS = 0.8  # of the longest wait: what costs more is not told apart from it
_MUCH_RANGED = 0.3
_SOME_WAITS = 0.25  # of the time
_ONE_CORE = (0.8, 1.3)  # cores that threads keep busy which take turns; the trainer has turns too
_FEW_TURNS = 0.1  # of the time of a thread, in which others have theirs
_NO_PAUSE = 0.95  # of the time
_SOME_CORE, _HALF_OF_THE_TIME = 0.4, 0.5
_WORDS = {
    "latency": "requests wait for their answer",
    "bandwidth": "bytes come slowly",
    "decompression": "shards are decompressed",
    "decoding": "samples are decoded",
    "functions": "functions of yours run",
    "collate": "batches are collated",
    "crossing": "batches are sent to the trainer",
}


@dataclasses.dataclass(frozen=True)
class WaitReport:
    """Why the trainer waits, and what to do; printed it is a paragraph.

    - ``cause`` (str): One of `CAUSES`.
    - ``text`` (str): The paragraph.
    - ``waited`` (float, share): How much of the time since the first batch the trainer waited.
    - ``seconds`` (Mapping[str, float], seconds): The wait by cause.
    """

    cause: str
    text: str
    waited: float = 0.0
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text


def explain_waits(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> WaitReport:
    """Find the cause of the waits of an iteration and its remedy."""
    elapsed = account.waited + account.worked
    if account.batches < 2 or elapsed <= 0.0:
        return WaitReport(
            "none",
            f"Nothing can be said yet: {account.batches} of the batches of this iteration came. "
            "Ask again after some steps.",
        )
    seconds = {_CAUSE_OF_CHARGE[name]: spent for name, spent in account.charged.items()}
    share = account.waited / elapsed
    cause = _find_cause(share, seconds, account, setup, cache)
    if share < _SOME_WAITS and _is_interpreter_held(account, setup):
        making_seconds = {
            _CAUSE_OF_CHARGE[name]: spent for name, spent in account.making_seconds.items()
        }
        cause = max(_OWN, key=making_seconds.__getitem__)
        text = (
            f"{_headline(account, share)} The threads of the loader worked all the time, mostly "
            f"while {_WORDS[cause]}. The trainer takes turns with them in the interpreter, so its "
            "own work waits too. Set workers='processes'."
        )
        return WaitReport(cause, text, share, seconds)
    sentences = [_headline(account, share), *_reason(cause, share, seconds, account, cache)]
    sentences.append(remedies.REMEDIES[cause](account, setup, cache))
    return WaitReport(cause, " ".join(sentences), share, seconds)


def _find_cause(
    share: float,
    seconds: Mapping[str, float],
    account: WaitAccount,
    setup: LoaderSetup,
    cache: CacheUse,
) -> str:
    if share < _FEW_WAITS:
        return "uncertain" if _is_core_shared(account, setup) else "trainer"
    for_bytes = sum(seconds[name] for name in _FOR_BYTES)
    other_causes = {
        name: seconds[name] for name in ("decoding", "functions", "collate", "crossing")
    }
    longest = max(other_causes, key=other_causes.__getitem__)
    is_small = cache.wasted >= _MUCH_WASTED or cache.ranged >= _MUCH_RANGED
    if is_small and for_bytes >= other_causes[longest]:
        return "cache_limit"
    second, first = sorted(seconds, key=seconds.__getitem__)[-2:]
    if setup.kind == "threads" and first in _OWN:
        # Which of them a thread was at when the trainer waited is a matter of turns.
        seconds = {_CAUSE_OF_CHARGE[name]: spent for name, spent in account.making_seconds.items()}
        second, first = sorted(_OWN, key=seconds.__getitem__)[-2:]
    if seconds[second] > _MUCH_LESS * seconds[first]:
        return "uncertain"
    if first == "decoding":
        if account.idle > MUCH_IDLE:
            return "uncertain"  # it waits for a disk, or for a core
        if sum(seconds[name] for name in _FOR_BYTES) > _MUCH_LESS * seconds[first]:
            return "uncertain"  # three phases of one cause cost as much
    return first


def _is_interpreter_held(account: WaitAccount, setup: LoaderSetup) -> bool:
    """Whether threads compute in the interpreter all the time, which the trainer needs too.

    Together they keep one core busy, and several of them wait for each other. They would pause if
    the trainer were slower than they are.
    """
    low, high = _ONE_CORE
    return (
        setup.kind == "threads"
        and low < account.cores < high
        and sum(account.making_seconds.values()) > _NO_PAUSE * (account.waited + account.worked)
        and (setup.workers == 1 or account.idle > _FEW_TURNS)
    )


def _is_core_shared(account: WaitAccount, setup: LoaderSetup) -> bool:
    """Whether threads compute much and wait for cores, or for their turn, as long as they compute.

    The trainer waits for these too, in what counts as its own work. Other programs use the cores,
    or the trainer itself computes in the interpreter.
    """
    return (
        setup.kind == "threads" and account.cores > _SOME_CORE and account.idle > _HALF_OF_THE_TIME
    )


def _headline(account: WaitAccount, share: float) -> str:
    count = account.batches - 1
    return (
        f"In {account.waited + account.worked:,.3g} s and {count:,} batches the trainer waited "
        f"{share:.0%} of the time, {account.waited / count * 1000:,.3g} ms a batch; its own work "
        f"took {account.worked / count * 1000:,.3g} ms."
    )


def _reason(
    cause: str,
    share: float,
    seconds: Mapping[str, float],
    account: WaitAccount,
    cache: CacheUse,
) -> list[str]:
    if cause == "trainer":
        return ["The loader is not what limits."]
    waited = max(account.waited, 1e-12)
    parts = sorted(seconds.items(), key=lambda item: -item[1])
    shares = [f"{spent / waited:.0%} while {_WORDS[name]}" for name, spent in parts]
    shares = [text for text, (_, spent) in zip(shares, parts, strict=True) if spent >= waited / 100]
    sentences = [f"It waited {', '.join(shares)}."]
    if cause == "uncertain" and parts[0][0] == "decoding" and account.idle > MUCH_IDLE:
        sentences.append(
            f"The processor did nothing in {account.idle:.0%} of the decoding, which waited for a "
            "slow disk, or for a core that other threads and programs use."
        )
    elif cause == "uncertain" and share < _FEW_WAITS:
        sentences.append(
            "Its own work seems to limit, but the threads of the loader wait for their turn, or "
            "for a core that other programs use, as long as they compute."
        )
    elif cause == "uncertain":
        sentences.append("Some of them cost about the same, so none is named as the cause.")
    if cause == "cache_limit":
        sentences.append(
            f"cache_limit is too small: {cache.wasted:.0%} of the shards that came had been here "
            f"before, and {cache.ranged:.0%} of the bytes came sample by sample."
        )
    return sentences
