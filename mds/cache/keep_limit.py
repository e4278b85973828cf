"""A folder that holds more than a new ``cache_limit`` is brought below it when it is opened.

What is ours and what no process uses goes, what was used longest ago first. The rest is told in one
sentence, since a limit that cannot hold must not be kept silent about: files of other origin are
never deleted, and what another job has in use is its own, whose limit may be a larger one.

Jobs with different limits on one folder keep to their own: each makes room down to its limit before
it adds a byte. So the folder never has more than the largest of their limits, and the job with a
smaller one reads what finds no room without keeping it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mds.cache.ledger_file import UNMANAGED
from mds.text.redaction import get_logger
from mds.units import format_bytes

if TYPE_CHECKING:
    from mds.cache.budget import Budget
    from mds.cache.peers import Peers

log = get_logger("mds.cache")


def keep_limit(budget: Budget, peers: Peers) -> None:
    """Evict until the limit holds; say what is in the way when it does not."""
    if budget.limit is None or budget.evict_above_limit() <= 0 or not peers.is_leader():
        return
    foreign, others = 0, set[int]()
    for opened in budget.folders:
        entries = opened.ledger.entries
        foreign += int(entries["size"][entries["state"] == UNMANAGED].sum())
        foreign += opened.ledger.size - opened.ledger.own_bytes
        others.update(opened.ledger.processes())
    others.discard(os.getpid())
    reasons = []
    if foreign > 0:
        reasons.append(
            f"{format_bytes(foreign)} are files that this library did not fetch, which it never "
            f"deletes: remove them"
        )
    if others:
        reasons.append(
            f"what processes {', '.join(map(str, sorted(others)))} use stays: end them, or give "
            f"this job another folder"
        )
    log.warning(
        "cache_limit=%s does not hold: the cache folders have %s (%s). %s; or set cache_limit to "
        "%d or more. Until then nothing is added.",
        format_bytes(budget.limit),
        format_bytes(budget.used),
        ", ".join(opened.folder.root for opened in budget.folders),
        "; ".join(reasons) or "Nothing can be evicted",
        budget.used,
    )
