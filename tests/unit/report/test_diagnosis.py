"""Recorded phases lead to the cause that was there, and to an argument that mends it."""

import pytest
from torch.utils.data import TensorDataset

from mds import StreamingDataLoader
from mds._process.stopwatch import PHASES
from mds.errors import ConfigError
from mds.report._account import CacheUse, LoaderSetup, WaitAccount
from mds.report._diagnosis import CAUSES, explain_waits

SETUP = LoaderSetup(
    workers=1,
    cores=4,
    functions=("map(crop)",),
    collate="my_collate",
    columns=(("image", "jpeg"), ("label", "int")),
)
CACHE = CacheUse(total=1000 << 20, shards=100, fetches=50, needed=50, bytes_fetched=500 << 20)


def recorded(batches=20, step=0.010, wait=0.030, busy=1.0, **phases):
    """Return an account of batches that the trainer waited for.

    ``phases`` are seconds of making one, ``busy`` the share in which the processor worked.
    """
    account = WaitAccount()
    now = 100.0
    for _ in range(batches):
        asked = now + step
        came = asked + wait
        seconds = tuple(phases.get(name, 0.0) for name in PHASES)
        account.add(asked, came, (*seconds, busy * sum(seconds)))
        now = came
    return account


def cause_of(account, setup=SETUP, cache=CACHE):
    found = explain_waits(account, setup, cache)
    assert found.cause in CAUSES
    assert str(found) == repr(found) == found.text
    return found


EXPECTED = {
    "request": ("latency", "num_workers=3"),
    "transfer": ("bandwidth", "compression='zstd'"),
    "unpack": ("decompression", "num_workers=4"),
    "decode": ("decoding", "images='array'"),
    "functions": ("functions", "map(crop)"),
    "collate": ("collate", "collate_fn=my_collate"),
}


@pytest.mark.parametrize("phase", EXPECTED)
def test_the_longest_phase_is_the_cause(phase):
    """Its name is told, with the argument to change; the others are told in order."""
    phases = {**dict.fromkeys(PHASES, 0.004), phase: 0.060}
    found = cause_of(recorded(**phases))
    cause, argument = EXPECTED[phase]
    assert found.cause == cause
    assert argument in found.text
    assert found.seconds[cause] == pytest.approx(19 * 0.030 * 0.060 / 0.084)
    assert sum(found.seconds.values()) == pytest.approx(19 * 0.030)
    assert found.waited == pytest.approx(0.75)


def test_a_trainer_that_hardly_waits_is_the_cause():
    """Below a tenth of the time; and fewer workers would do where they make more than is used."""
    account = recorded(step=0.1, wait=0.005, decode=0.050)
    found = cause_of(account, SETUP._replace(workers=4))
    assert found.cause == "trainer"
    assert "num_workers=1" in found.text
    assert "not the bottleneck" in found.text


@pytest.mark.parametrize("phase", ["decode", "functions", "collate"])
def test_threads_that_hold_the_interpreter_are_the_cause(phase):
    """The trainer hardly waits for batches: it waits for its turn, in what counts as its work."""
    setup = SETUP._replace(workers=2, kind="threads")
    in_turns = recorded(step=0.0048, wait=0.0002, busy=0.5, **{phase: 0.010})
    found = cause_of(in_turns, setup)
    assert found.cause == EXPECTED[phase][0]
    assert "Set worker_type='processes'." in found.text
    assert cause_of(in_turns, SETUP._replace(workers=2)).cause == "trainer"
    for busy, seconds in ((0.2, 0.010), (0.9, 0.010), (0.98, 0.005)):  # sleeps, or two cores
        other = recorded(step=0.0052, wait=0.0002, busy=busy, **{phase: seconds})
        assert cause_of(other, setup).cause == "trainer"


def test_threads_that_wait_for_cores_are_uncertain():
    """The trainer waits for the same cores, so that its own work may not be what limits."""
    setup = SETUP._replace(workers=2, kind="threads")
    shared = recorded(step=0.0052, wait=0.0002, busy=0.4, decode=0.008)
    found = cause_of(shared, setup)
    assert found.cause == "uncertain"
    assert "the interpreter lock, or for a core" in found.text
    assert cause_of(shared, SETUP._replace(workers=2)).cause == "trainer"
    for busy, seconds in ((0.4, 0.005), (0.2, 0.008), (0.9, 0.004)):  # pauses, sleeps, has cores
        other = recorded(step=0.0052, wait=0.0002, busy=busy, decode=seconds)
        assert cause_of(other, setup).cause == "trainer"


def test_what_threads_did_most_is_their_cause():
    """The phase at which a thread had to wait for its turn is not the one that took the turns."""
    account = recorded(step=0.010, wait=0.002, decode=0.004, functions=0.030)
    account.add(100.25, 100.55, (*(0.3 if name == "decode" else 0.0 for name in PHASES), 0.3))
    assert account.charged["decode"] > account.charged["functions"]
    assert account.making_seconds["decode"] < account.making_seconds["functions"]
    assert cause_of(account, SETUP._replace(workers=2, kind="threads")).cause == "functions"
    assert cause_of(account, SETUP._replace(workers=2)).cause == "decoding"


def test_the_way_to_the_trainer_is_a_phase_too():
    """Encoding and copying keep a worker from its next batch."""
    found = cause_of(recorded(crossing=0.024, collate=0.006))
    assert found.cause == "crossing"
    assert found.seconds["crossing"] == pytest.approx(19 * 0.024)
    assert "worker_type='threads'" in found.text


def test_a_batch_that_came_with_another_is_charged_to_its_way():
    """The first one of a message has told what all of them took."""
    account = recorded(batches=2, collate=0.010)
    account.add(200.0, 200.5, None)
    assert account.charged["crossing"] == 0.5


def test_shards_that_come_again_are_the_limits_fault():
    """A fifth of what came had been here: the cache, whatever the requests took."""
    cache = CACHE._replace(limit=250 << 20, fetches=200, needed=100, evictions=150)
    found = cause_of(recorded(request=0.060), cache=cache)
    assert found.cause == "cache_limit"
    assert "cache_limit from 250.0 MB" in found.text
    assert "'1.0 GB'" in found.text


def test_rows_that_come_alone_are_the_limits_fault():
    """Shards that find no room come sample by sample."""
    cache = CACHE._replace(limit=250 << 20, ranged_bytes=300 << 20)
    assert cause_of(recorded(transfer=0.060), cache=cache).cause == "cache_limit"


def test_a_limit_that_costs_nothing_is_no_cause():
    """What comes once has to come; and decoding is no matter of the cache."""
    enough = CACHE._replace(limit=250 << 20)
    assert cause_of(recorded(request=0.060), cache=enough).cause == "latency"
    small = CACHE._replace(limit=250 << 20, fetches=200, needed=100, evictions=150)
    assert cause_of(recorded(request=0.010, decode=0.060), cache=small).cause == "decoding"


def test_no_more_workers_than_cores_are_advised():
    """The work itself has to become cheaper then."""
    found = cause_of(recorded(decode=0.2), SETUP._replace(workers=4))
    assert "More than 4 workers do not help on 4 cores" in found.text
    found = cause_of(recorded(decode=0.2), SETUP._replace(workers=0))
    assert "num_workers=4 instead of 0" in found.text
    assert "this alone is not enough" in found.text


@pytest.mark.parametrize("batches", [0, 1])
def test_nothing_is_said_too_early(batches):
    """One batch tells of the start of workers alone."""
    found = cause_of(recorded(batches=batches, decode=1.0))
    assert found.cause == "none"
    assert "Call report() again" in found.text


def test_other_datasets_have_no_report():
    """A plain dataset of torch's is read by torch."""
    import torch

    loader = StreamingDataLoader(TensorDataset(torch.arange(4)), batch_size=2)
    with pytest.raises(ConfigError, match="needs a StreamingDataset"):
        loader.report()


def test_workers_that_wait_may_be_more_than_cores():
    """Functions that sleep, or ask a server, need no core of their own."""
    setup = SETUP._replace(workers=4)
    found = cause_of(recorded(functions=0.2, busy=0.02), setup)
    assert "num_workers=22 instead of 4 (they compute 2% of the time" in found.text
    # Other programs on the same cores take half of the time.
    assert "do not help on 4 cores" in cause_of(recorded(functions=0.2, busy=0.5), setup).text


def test_no_collate_function_is_blamed_where_there_is_none():
    """Stacking arrays is the library's own work, which fewer columns make less."""
    found = cause_of(recorded(collate=0.060), SETUP._replace(collate=""))
    assert found.cause == "collate"
    assert "collate_fn" not in found.text
    assert "columns=[...]" in found.text


def test_two_causes_that_cost_the_same_are_not_told_apart():
    """Neither is named; both stand in the paragraph, and neither has its remedy advised."""
    found = cause_of(recorded(transfer=0.060, decode=0.055))
    assert found.cause == "uncertain"
    assert "52% while bytes arrive slowly, 48% while samples are decoded" in found.text
    assert cause_of(recorded(transfer=0.060, decode=0.040)).cause == "bandwidth"
    shards = {"request": 0.016, "transfer": 0.005, "unpack": 0.021}  # which count together
    assert cause_of(recorded(**shards, decode=0.045)).cause == "uncertain"
    assert cause_of(recorded(**shards, decode=0.060)).cause == "decoding"


def test_decoding_that_waits_is_not_named():
    """Threads that decompress shards have the cores, or the disk is slow."""
    found = cause_of(recorded(unpack=0.010, decode=0.060, busy=0.1))
    assert found.cause == "uncertain"
    assert "The processor was idle in 88% of the decoding" in found.text
    assert cause_of(recorded(unpack=0.010, decode=0.060, busy=0.5)).cause == "decoding"
    assert cause_of(recorded(unpack=0.080, decode=0.060, busy=0.1)).cause == "decompression"


@pytest.mark.parametrize(
    ("kind", "cores", "workers", "busy"),
    [
        ("processes", 2, 10, 0.2),  # which share the cores
        ("processes", 2, 10, 0.09),  # with other programs too
        ("threads", 8, 6, 1 / 6),  # in turns, as the interpreter has one lock
        ("threads", 8, 6, 0.08),
    ],
)
def test_workers_that_share_cores_do_not_wait(kind, cores, workers, busy):
    """Each is idle for most of its time, but together they keep busy what they share."""
    setup = SETUP._replace(kind=kind, cores=cores, workers=workers)
    # Between two batches 40 ms pass, in which each worker is at work.
    account = recorded(functions=0.040 * workers, busy=busy)
    assert account.idle > 0.75
    text = cause_of(account, setup).text
    assert "and wait for the rest" not in text
    if "num_workers=" in text:
        assert int(text.partition("num_workers=")[2].split()[0]) <= cores
    assert ("worker_type='processes'" in text) == (kind == "threads")


def test_threads_that_compute_at_once_need_no_processes():
    """Functions that release the interpreter's lock keep several cores busy."""
    setup = SETUP._replace(kind="threads", cores=8, workers=4)
    account = recorded(functions=0.16)
    assert account.cores == pytest.approx(4, rel=0.1)
    assert "worker_type='processes'" not in cause_of(account, setup).text
    asleep = cause_of(recorded(functions=0.16, busy=0.02), setup)
    assert "worker_type='processes'" not in asleep.text
