"""States of version 3 with values in place of their texts of JSON, and back; imported by tests."""

import json

from mds.plan._state import TEXT_KEYS


def values_of(state):
    """A state whose texts of JSON are the values that they spell."""
    return {key: json.loads(text) if key in TEXT_KEYS else text for key, text in state.items()}


def changed(state, changes):
    """A state with other values of some keys, spelled as the library spells them.

    The number of canonical nodes is negative if the unit, the schedule or the edits ask for it.
    """
    state = {**values_of(state), **changes}
    nodes = state["num_canonical_nodes"]
    is_extended = state["unit"] != "samples" or state["schedule"] or state["edits"]
    if "num_canonical_nodes" not in changes:
        state["num_canonical_nodes"] = -abs(nodes) if is_extended else abs(nodes)
    return {key: json.dumps(v) if key in TEXT_KEYS else v for key, v in state.items()}
