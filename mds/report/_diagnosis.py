"""Diagnosis of a slow run: the one cause that costs the trainer most, and its remedy.

The report is a pure function of an account of waits and facts of the setup. Thresholds: a trainer
that waits less than a tenth of its time is limited by its own work; a cache is too small when a
fifth of the fetched shards had been in it before, or three tenths of the bytes were fetched row by
row.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mds._units import format_bytes
from mds._words import plural
from mds.report._account import MUCH_IDLE

if TYPE_CHECKING:
    from mds.report._account import CacheUse, LoaderSetup, WaitAccount

    Remedy = Callable[[WaitAccount, LoaderSetup, CacheUse], str]

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
# Cause of a wait, by the phase of making a batch (`mds._process.stopwatch`) that it is charged to.
_CAUSE_OF_CHARGE = {
    "request": "latency",
    "transfer": "bandwidth",
    "unpack": "decompression",
    "decode": "decoding",
    "functions": "functions",
    "collate": "collate",
    "crossing": "crossing",
}
_FETCH_CAUSES = ("latency", "bandwidth", "decompression")  # until the bytes of shards are there
_COMPUTED_CAUSES = ("decoding", "functions", "collate")  # computed in the interpreter
_FEW_WAITS = 0.1  # of the time
_MUCH_WASTED = 0.2  # of the fetched shards, see `CacheUse.wasted`
_MUCH_LESS = 0.8  # of the longest wait: a second cause that costs more makes it uncertain
_MUCH_RANGED = 0.3  # of the fetched bytes, see `CacheUse.ranged`
_SOME_WAITS = 0.25  # of the time
_ONE_CORE = (0.8, 1.3)  # cores that threads keep busy which take turns; the trainer has turns too
_FEW_TURNS = 0.1  # of the time of a thread, in which others have theirs
_NO_PAUSE = 0.95  # of the time
_SOME_CORE, _HALF_OF_THE_TIME = 0.4, 0.5
_WORDS = {
    "latency": "requests wait for their answer",
    "bandwidth": "bytes arrive slowly",
    "decompression": "shards are decompressed",
    "decoding": "samples are decoded",
    "functions": "your functions run",
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

    >>> loader = mds.StreamingDataLoader(mds.StreamingDataset("data/train", batch_size=2))
    >>> batches = list(loader)
    >>> print(loader.report())  # doctest: +SKIP
    In 60.4 s and 800 batches the trainer waited 41% of the time, 31 ms a batch; ...
    >>> loader.report().cause in CAUSES
    True
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
    """Find the cause of the waits of an iteration and its remedy.

    Args:
        account: Waits and work of the iteration.
        setup: Settings of the loader.
        cache: Shards and bytes that this rank fetched.
    """
    elapsed = account.waited + account.worked
    if account.batches < 2 or elapsed <= 0.0:
        return WaitReport(
            "none",
            f"No diagnosis yet: this iteration has read only {plural(account.batches, 'batch')}. "
            "Call "
            "report() again after some steps.",
        )
    seconds = {_CAUSE_OF_CHARGE[name]: spent for name, spent in account.charged.items()}
    share = account.waited / elapsed
    cause = _find_cause(share, seconds, account, setup, cache)
    # A trainer that waits little may still be slow: it shares the interpreter with the threads.
    if share < _SOME_WAITS and _is_interpreter_held(account, setup):
        making_seconds = {
            _CAUSE_OF_CHARGE[name]: spent for name, spent in account.making_seconds.items()
        }
        cause = max(_COMPUTED_CAUSES, key=making_seconds.__getitem__)
        text = (
            f"{_headline(account, share)} The threads of the loader were always busy, mostly "
            f"while {_WORDS[cause]}. They share the interpreter lock with the trainer, so its own "
            "work is slower, too. Set worker_type='processes'."
        )
        return WaitReport(cause, text, share, seconds)
    sentences = [_headline(account, share), *_reason(cause, share, seconds, account, cache)]
    sentences.append(REMEDIES[cause](account, setup, cache))
    return WaitReport(cause, " ".join(sentences), share, seconds)


def _find_cause(
    share: float,
    seconds: Mapping[str, float],
    account: WaitAccount,
    setup: LoaderSetup,
    cache: CacheUse,
) -> str:
    """Return the one of `CAUSES` that costs most, or "uncertain" if two cost about the same.

    Args:
        share: Share of the time that the trainer waited, 0 to 1.
        seconds: Seconds waited, by cause.
        account: Waits and work of the iteration.
        setup: Settings of the loader.
        cache: Shards and bytes that this rank fetched.
    """
    if share < _FEW_WAITS:
        return "uncertain" if _is_core_shared(account, setup) else "trainer"
    fetch_seconds = sum(seconds[name] for name in _FETCH_CAUSES)
    other_causes = {
        name: seconds[name] for name in ("decoding", "functions", "collate", "crossing")
    }
    longest = max(other_causes, key=other_causes.__getitem__)
    # With a small cache, shards or rows are fetched again and again. That is the cause only if
    # fetching is the longest wait.
    is_small = cache.wasted >= _MUCH_WASTED or cache.ranged >= _MUCH_RANGED
    if is_small and fetch_seconds >= other_causes[longest]:
        return "cache_limit"
    second, first = sorted(seconds, key=seconds.__getitem__)[-2:]
    if setup.kind == "threads" and first in _COMPUTED_CAUSES:
        # Threads take turns in the interpreter, so it is chance in which phase a thread was when
        # the trainer waited. Compare all the time of each phase instead, not only the waits.
        seconds = {_CAUSE_OF_CHARGE[name]: spent for name, spent in account.making_seconds.items()}
        second, first = sorted(_COMPUTED_CAUSES, key=seconds.__getitem__)[-2:]
    if seconds[second] > _MUCH_LESS * seconds[first]:
        return "uncertain"
    if first == "decoding":
        if account.idle > MUCH_IDLE:
            return "uncertain"  # the decoding itself waits for a disk, or for a core
        if sum(seconds[name] for name in _FETCH_CAUSES) > _MUCH_LESS * seconds[first]:
            return "uncertain"  # each phase of fetching is shorter, but together they cost as much
    return first


def _is_interpreter_held(account: WaitAccount, setup: LoaderSetup) -> bool:
    """Whether threads compute in the interpreter all the time, which the trainer needs too.

    Three signs: together they keep one core busy, they never pause, as they would if they were
    faster than the trainer and their queue was full, and several of them wait for each other.
    """
    low, high = _ONE_CORE
    return (
        setup.kind == "threads"
        and low < account.cores < high
        # Busy with batches for at least the time that has passed: no pause.
        and sum(account.making_seconds.values()) > _NO_PAUSE * (account.waited + account.worked)
        and (setup.workers == 1 or account.idle > _FEW_TURNS)
    )


def _is_core_shared(account: WaitAccount, setup: LoaderSetup) -> bool:
    """Whether threads compute much, and wait as long for a core or for their turn.

    They wait for a core if other programs use all of them, and for their turn if the trainer
    computes in the interpreter. The trainer then waits in the same way, in what counts as its own
    work, so its own work need not be the cause.
    """
    return (
        setup.kind == "threads" and account.cores > _SOME_CORE and account.idle > _HALF_OF_THE_TIME
    )


def _headline(account: WaitAccount, share: float) -> str:
    """Return the first sentence of a report: how long the trainer waited and worked.

    ``share`` is the share of the time that it waited, 0 to 1.
    """
    count = account.batches - 1
    return (
        f"In {account.waited + account.worked:,.3g} s and {plural(count, 'batch')} the trainer "
        f"waited {share:.0%} of the time, {account.waited / count * 1000:,.3g} ms a batch; its own "
        f"work took {account.worked / count * 1000:,.3g} ms."
    )


def _reason(
    cause: str,
    share: float,
    seconds: Mapping[str, float],
    account: WaitAccount,
    cache: CacheUse,
) -> list[str]:
    """Return sentences about how the waits are divided, and why ``cause`` was chosen.

    Args:
        cause: One of `CAUSES`.
        share: Share of the time that the trainer waited, 0 to 1.
        seconds: Seconds waited, by cause.
        account: Waits and work of the iteration.
        cache: Shards and bytes that this rank fetched.
    """
    if cause == "trainer":
        return ["The loader is not the bottleneck."]
    waited = max(account.waited, 1e-12)
    parts = sorted(seconds.items(), key=lambda item: -item[1])
    shares = [
        f"{spent / waited:.0%} while {_WORDS[name]}"
        for name, spent in parts
        if spent >= waited / 100
    ]
    sentences = [f"It waited {', '.join(shares)}."]
    if cause == "uncertain" and parts[0][0] == "decoding" and account.idle > MUCH_IDLE:
        sentences.append(
            f"The processor was idle in {account.idle:.0%} of the decoding, which waited for a "
            "slow disk or for a core that other threads and programs use."
        )
    elif cause == "uncertain" and share < _FEW_WAITS:
        sentences.append(
            "The trainer's own work seems to be the bottleneck. But the threads of the loader "
            "wait for the interpreter lock, or for a core, as long as they compute."
        )
    elif cause == "uncertain":
        sentences.append("Several of these cost about the same, so there is no single cause.")
    if cause == "cache_limit":
        sentences.append(
            f"cache_limit is too small: {cache.wasted:.0%} of the fetched shards had been fetched "
            f"before, and {cache.ranged:.0%} of the bytes were fetched sample by sample."
        )
    return sentences


# ------------------------------------------------------------------ remedies

# Functions for each cause: they return the advice for a report.

_FETCHING_WORKERS = 3  # 16 connections each, 48 of a machine
_SMALL_SHARD = 32 << 20
_FEW_CORES = 3  # workers that sleep keep less than a third of the cores busy
_MOST_IN_TURNS = 1.3  # cores of threads that wait for each other's Python code
_MOST_WAITING = 8  # workers of a core that wait
_IMAGES = ("jpeg", "png", "jpeg_array", "jpegarray", "pil")


def _trainer(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    """Return the advice for a trainer whose own work limits, or that has too many workers."""
    del cache
    sufficient_workers = _sufficient_workers(account)
    if setup.workers > sufficient_workers:
        return (
            f"Make the training step faster. num_workers={sufficient_workers} would be sufficient."
        )
    return "Make the training step faster: no argument of the loader changes much."


def _latency(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    """Return the advice if requests to a store take long to answer."""
    del account
    advice = []
    if max(setup.workers, 1) < _FETCHING_WORKERS:
        advice.append(
            f"Download more at a time: num_workers={_FETCHING_WORKERS} (up to 16 shards or "
            "samples for each worker, and 48 for a machine)."
        )
    mean_size = cache.total // max(cache.shards, 1)
    if mean_size < _SMALL_SHARD:
        advice.append(
            f"Write larger shards (size_limit='64mb'): the shards have {format_bytes(mean_size)}, "
            "and each needs a request."
        )
    advice.append("Fetch earlier with a larger predownload=, or read from a closer store.")
    return " ".join(advice)


def _bandwidth(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    """Return the advice if the bytes of shards arrive slowly."""
    del setup
    rate = cache.bytes_fetched / max(account.waited + account.worked + account.first, 1e-9)
    advice = [f"{format_bytes(rate)} were fetched a second."]
    if not cache.is_compressed:
        advice.append("Write compressed shards (compression='zstd'), if the data are compressible.")
    advice.append(
        "Read from a closer store or on a machine with a faster network. Later epochs read from "
        "the cache folder, so keep local= between runs."
    )
    return " ".join(advice)


def _cache_limit(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    """Return the advice if shards are fetched again because the cache is too small."""
    del account, setup
    limit = format_bytes(cache.limit or 0)
    needed_limit = format_bytes(cache.total * 1.05)
    return (
        f"Raise cache_limit from {limit}: with {needed_limit!r} the whole dataset fits and is "
        "fetched once. A smaller shuffle_block_size= needs less space; dataset.explain() shows "
        "how much."
    )


def _decompression(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    """Return the advice if shards are decompressed for most of the wait."""
    del cache
    return _more_workers(
        account, setup, ("write the shards with a faster compression, or without compression")
    )


def _decoding(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    """Return the advice if samples are decoded for most of the wait."""
    del cache
    pictures = [name for name, encoding in setup.columns if encoding in _IMAGES]
    cheaper = "leave out unused columns (columns=[...])"
    if pictures:
        cheaper = (
            f"decode column {pictures[0]!r} to arrays (images='array', with simplejpeg installed), "
            "store it smaller, or " + cheaper
        )
    elif setup.columns:
        cheaper += ", or store them in an encoding that is cheaper than " + ", ".join(
            sorted({encoding for _, encoding in setup.columns})
        )
    return _more_workers(account, setup, cheaper)


def _functions(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    """Return the advice if the caller's functions of samples run for most of the wait."""
    del cache
    names = ", ".join(setup.functions) or "the sample code of the class"
    cheaper = f"make {names} cheaper, with map_batches() on whole columns or before the training"
    return _more_workers(account, setup, _processes(account, setup) + cheaper)


def _collate(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    """Return the advice if batches are collated for most of the wait."""
    del cache
    cheaper = (
        "leave out unused columns (columns=[...]), or write arrays of one shape as "
        "'ndarray:dtype:shape', which are read as one block"
    )
    if setup.collate:
        cheaper = (
            f"make collate_fn={setup.collate} cheaper; those of mds.transforms work on whole "
            "columns"
        )
        cheaper = _processes(account, setup) + cheaper
    return _more_workers(account, setup, cheaper)


def _crossing(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    """Return the advice if sending batches from workers to the trainer takes most of the wait."""
    del account, cache
    if setup.kind == "processes" and setup.workers:
        return (
            "Use worker_type='threads', which copy no data, if your functions release the "
            "interpreter lock. Or send less data: use smaller dtypes and normalise on the device."
        )
    return "Set pin_memory=False if you do not need it, and use smaller dtypes."


def _uncertain(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    del account, setup, cache
    return "Call report() again when this machine runs no other programs, or after more steps."


def _none(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    del account, setup, cache
    return ""


REMEDIES: dict[str, Remedy] = {
    "trainer": _trainer,
    "latency": _latency,
    "bandwidth": _bandwidth,
    "cache_limit": _cache_limit,
    "decompression": _decompression,
    "decoding": _decoding,
    "functions": _functions,
    "collate": _collate,
    "crossing": _crossing,
    "uncertain": _uncertain,
    "none": _none,
}


def _sufficient_workers(account: WaitAccount) -> int:
    """Return how many workers keep up with the trainer if there are enough cores.

    For example, if making a batch takes 0.9 s and the step of the trainer 0.3 s: 1.1 * 3, so 4.
    """
    seconds_per_batch = sum(account.making_seconds.values()) / max(account.batches, 1)
    worked = account.worked / max(account.batches - 1, 1)  # seconds of a step
    if worked <= 0.0:
        return 1 << 30  # no number of workers keeps up with a trainer that does nothing
    return max(1, math.ceil(1.1 * seconds_per_batch / worked))


def _processes(account: WaitAccount, setup: LoaderSetup) -> str:
    """Return the beginning of a sentence that advises processes instead of threads, or ''.

    Processes help if functions in Python take turns in the interpreter: several threads together
    kept about one core busy, and not because they slept or waited for a server. The text ends with
    "or ", after which callers put other advice.
    """
    is_in_turns = setup.kind == "threads" and setup.workers > 1 and account.cores < _MOST_IN_TURNS
    if not is_in_turns or _is_waiting(account, setup):
        return ""
    return "set worker_type='processes', where Python functions run in parallel, or "


def _is_waiting(account: WaitAccount, setup: LoaderSetup) -> bool:
    """Whether workers mostly sleep or wait, for example for a server, and so need no whole core.

    They do if they are idle for most of their time and keep few cores busy. Being idle is not
    enough: workers that share cores, and threads that take turns in the interpreter, are idle as
    well, but together they keep all cores busy, or the one that threads share.
    """
    cores = 1 if setup.kind == "threads" else max(setup.cores, 1)
    return account.idle > MUCH_IDLE and account.cores < cores / _FEW_CORES


def _more_workers(account: WaitAccount, setup: LoaderSetup, cheaper: str) -> str:
    """Return the advice to use more workers, if they help, or else a cheaper way to work.

    Workers help up to the number that keeps up with the trainer, and up to one for each core, or
    several for each core if they mostly wait. ``cheaper`` describes the cheaper way as an
    imperative clause.
    """
    sufficient_workers, cores = _sufficient_workers(account), max(setup.cores, 1)
    max_workers = _MOST_WAITING * cores if _is_waiting(account, setup) else cores
    useful = min(sufficient_workers, max_workers)
    ways = "Use more workers"
    if not setup.workers:
        ways = "Make batches in workers, in parallel with the trainer"
    if useful <= setup.workers:
        return (
            f"More than {plural(setup.workers, 'worker')} do not help on {cores} cores: {cheaper}."
        )
    advice = f"{ways}: num_workers={useful} instead of {setup.workers}"
    if max_workers > cores:
        advice += f" (they compute {1 - account.idle:.0%} of the time and wait for the rest)"
    elif sufficient_workers > cores:
        advice += f" (this rank has only {cores} cores, so this alone is not enough)"
    return f"{advice}. Or {cheaper}."
