"""Remedies: for each cause of a wait the argument to change, and to which value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from mds.report.account import MUCH_IDLE
from mds.units import format_bytes

if TYPE_CHECKING:
    from mds.report.account import CacheUse, LoaderSetup, WaitAccount

    Remedy = Callable[[WaitAccount, LoaderSetup, CacheUse], str]

_FETCHING_WORKERS = 3  # 16 connections each, 48 of a machine
_SMALL_SHARD = 32 << 20
_FEW_CORES = 3  # workers that sleep keep less than a third of the cores busy
_MOST_IN_TURNS = 1.3  # cores of threads that wait for each other's Python code
_MOST_WAITING = 8  # workers of a core that wait
_IMAGES = ("jpeg", "png", "jpeg_array", "jpegarray", "pil")


def _trainer(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    del cache
    sufficient_workers = _sufficient_workers(account)
    if setup.workers > sufficient_workers:
        return (
            f"Make the step itself faster; num_workers={sufficient_workers} would feed it as well."
        )
    return "Make the step itself faster: no argument of the loader changes much."


def _latency(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    del account
    advice = []
    if max(setup.workers, 1) < _FETCHING_WORKERS:
        advice.append(
            f"Have more requests under way: num_workers={_FETCHING_WORKERS} (each worker has up to "
            "16, a machine 48)."
        )
    mean = cache.total // max(cache.shards, 1)
    if mean < _SMALL_SHARD:
        advice.append(
            f"Write larger shards (size_limit='64mb'): these have {format_bytes(mean)}, and each "
            "takes a request."
        )
    advice.append("Fetch earlier with a larger predownload=, or read from a store that is nearer.")
    return " ".join(advice)


def _bandwidth(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    del setup
    rate = cache.bytes_fetched / max(account.waited + account.worked + account.first, 1e-9)
    advice = [f"{format_bytes(rate)} came a second."]
    if not cache.is_compressed:
        advice.append("Write the shards compressed (compression='zstd'), if the data allow.")
    advice.append(
        "Read from a store that is nearer or a machine with a wider line; later epochs read from "
        "the cache folder, so keep local= between runs."
    )
    return " ".join(advice)


def _cache_limit(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    del account, setup
    limit = format_bytes(cache.limit or 0)
    needed_limit = format_bytes(cache.total * 1.05)
    return (
        f"Raise cache_limit from {limit}: with {needed_limit!r} all fits and comes once. A smaller "
        "shuffle_block_size= needs less room at a time; dataset.explain() says how much."
    )


def _decompression(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    del cache
    return _more_workers(account, setup, "write the shards with a quicker compression, or without")


def _decoding(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    del cache
    pictures = [name for name, encoding in setup.columns if encoding in _IMAGES]
    cheaper = "leave out columns that are not used (columns=[...])"
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
    del cache
    names = ", ".join(setup.functions) or "what the class does with a sample"
    cheaper = f"make {names} cheaper, with map_batches() on whole columns or before the training"
    return _more_workers(account, setup, _processes(account, setup) + cheaper)


def _collate(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    del cache
    cheaper = (
        "leave out columns that are not used (columns=[...]), or write arrays of one shape as "
        "'ndarray:dtype:shape', which are gathered at once"
    )
    if setup.collate:
        cheaper = (
            f"make collate_fn={setup.collate} cheaper; those of mds.transforms work on whole "
            "columns"
        )
        cheaper = _processes(account, setup) + cheaper
    return _more_workers(account, setup, cheaper)


def _crossing(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    del account, cache
    if setup.kind == "processes" and setup.workers:
        return (
            "Use workers='threads', which cross nothing, if your functions release the "
            "interpreter's lock; or send less: smaller dtypes, normalise on the device."
        )
    return "Set pin_memory=False if nothing needs it, and send smaller dtypes."


def _uncertain(account: WaitAccount, setup: LoaderSetup, cache: CacheUse) -> str:
    del account, setup, cache
    return "Ask again when nothing else runs on this machine, or after more steps."


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
    """Return how many workers keep up with the trainer if there are enough cores."""
    seconds_per_batch = sum(account.making_seconds.values()) / max(account.batches, 1)
    worked = account.worked / max(account.batches - 1, 1)
    return max(1, math.ceil(1.1 * seconds_per_batch / worked)) if worked > 0.0 else 1 << 30


def _processes(account: WaitAccount, setup: LoaderSetup) -> str:
    """Return the advice to use processes, if threads together kept no more than one core busy."""
    is_in_turns = setup.kind == "threads" and setup.workers > 1 and account.cores < _MOST_IN_TURNS
    if not is_in_turns or _is_waiting(account, setup):
        return ""
    return "set workers='processes', where functions written in Python do not take turns, or "


def _is_waiting(account: WaitAccount, setup: LoaderSetup) -> bool:
    """Whether workers sleep or wait for others, and so need no core of their own.

    Workers that share cores, and threads that take turns in the interpreter, are idle for most of
    their time as well. Together they keep the cores busy, or the one that threads share.
    """
    cores = 1 if setup.kind == "threads" else max(setup.cores, 1)
    return account.idle > MUCH_IDLE and account.cores < cores / _FEW_CORES


def _more_workers(account: WaitAccount, setup: LoaderSetup, cheaper: str) -> str:
    sufficient_workers, cores = _sufficient_workers(account), max(setup.cores, 1)
    max_workers = _MOST_WAITING * cores if _is_waiting(account, setup) else cores
    useful = min(sufficient_workers, max_workers)
    ways = "Make batches in more workers"
    if not setup.workers:
        ways = "Make batches beside the trainer"
    if useful <= setup.workers:
        return f"More than {setup.workers} workers do not help on {cores} cores: {cheaper}."
    advice = f"{ways}: num_workers={useful} instead of {setup.workers}"
    if max_workers > cores:
        advice += f" (they compute in {1 - account.idle:.0%} of their time, and wait in the rest)"
    elif sufficient_workers > cores:
        advice += f" (this rank has {cores} cores; that alone will not do)"
    return f"{advice}. Or {cheaper}."
