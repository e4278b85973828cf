"""When lines about long waits are logged, and by which thread."""

import threading

import pytest

from mds.storage import _waiting as waiting_module
from mds.storage._waiting import WaitingLines, waiting


def test_lines_go_to_the_log(caplog):
    """As warnings."""
    WaitingLines(waiting_module._Waits.lines._write).look(9.0, [waiting("bytes of", "there")])
    assert caplog.records[-1].levelname == "WARNING"
    assert caplog.messages[-1] == "Waiting for bytes of there for 9 s."


def test_lines_come_ever_more_seldom():
    """After 5, 10, 20, ... seconds of trouble, at most 300 apart; anew after a time without any."""
    now, times = 100.0, []
    lines = WaitingLines(lambda line: times.append((now - 100, line)))
    wait = waiting("bytes of", "there")
    wait.since, looks = now, 0
    while now < 2000:
        now = max(now, lines.look(now, [wait]))
        looks += 1
    assert [time for time, _ in times] == [5, 10, 20, 40, 80, 160, 320, 620, 920, 1220, 1520, 1820]
    assert times[2][1] == "Waiting for bytes of there for 20 s."
    assert looks <= len(times) + 2  # it sleeps from line to line
    later = waiting("an answer of", "elsewhere")
    later.since, later.note = 9000.0, "try 1 failed"
    times.clear()
    for now in (9004.0, 9005.0, 9009.0, 9010.0):
        due = lines.look(now, [later, wait] if now == 9010 else [later])
        assert due > now
    assert [time + 100 for time, _ in times] == [9005, 9010]
    assert times[0][1] == "Waiting for an answer of elsewhere for 5 s (try 1 failed)."
    assert times[1][1].endswith("and for 1 more.")


def test_short_waits_share_a_thread():
    """A thousand of them have one thread started, if it does not sleep already."""
    started = []
    start = threading.Thread.start
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self: (started.append(self), start(self)))
        for number in range(1000):
            with waiting("nothing", str(number)):
                assert any(each.name == "mds-waiting" for each in threading.enumerate())
    assert len([each for each in started if each.name == "mds-waiting"]) <= 1
