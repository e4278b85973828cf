"""What each link of a function chain costs in speed, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mds.transforms.chain import FunctionChain


def describe_costs(chain: FunctionChain) -> Iterator[tuple[str, str, str]]:
    """Return a row for each function: its name, when it runs, and what calling it costs."""
    goes_by_sample = False
    for link in chain.links:
        if link.kind == "map_batches":
            why = "columns as they are gathered" if not goes_by_sample else "columns of the samples"
            if link.is_keyed:
                why += "; a random key for each row"
            if link.is_ours:
                why += "; in threads as well"
            yield link.name, "once a batch", why
            continue
        costs = []
        if not goes_by_sample:
            costs.append("batches are no longer gathered by column")
        if link.is_keyed:
            costs.append("2 us a sample for random numbers of its own")
        if link.kind == "filter":
            costs.append("batches become smaller and have a mask")
        yield link.name, "once a sample", "; ".join(costs)
        goes_by_sample = True
