"""Code that runs as other users than root; imported by the tests."""

from __future__ import annotations

import os
import sys
import traceback

#: Users and the group that they share; no names have to exist for them.
USERS, GROUP = (61_001, 61_002, 61_003), 61_000


def can_become():
    """Whether this process can be other users."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def become(user, umask=0o022):
    """Be another user from here on, in the group of all."""
    os.setgroups([GROUP])
    os.setgid(GROUP)
    os.setuid(user)
    os.umask(umask)


def run_as(user, act, umask=0o022):
    """Run a function in a forked child that is another user; fail with what it raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            become(user, umask)
            act()
            status = 0
        except BaseException:  # noqa: BLE001 - a child of the tests never goes on with them
            os.write(writing, traceback.format_exc().encode()[-4000:])
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as said:
        text = said.read().decode()
    assert os.waitpid(child, 0)[1] == 0, text
