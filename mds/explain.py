"""What a dataset's settings became, why, and what they will cost; for people, in plain text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mds.units import format_bytes

if TYPE_CHECKING:
    from mds.contents import Contents
    from mds.plan import EpochPlan
    from mds.topology import Ranks

# Shards of a canonical node that samples are drawn from at once, by shuffle, when the block is not
# what decides.
_WHOLE_SHARDS = ("py1s", "py2s")


def explain(
    name: str,
    contents: Contents,
    plan: EpochPlan,
    ranks: Ranks,
    predownload: int,
    cache_limit: int | None,
) -> str:
    """The resolved configuration of a dataset as a text of some twenty lines."""
    raw, zipped = (sum(int(getattr(i, s).sum()) for i in contents.indexes) for s in _SIZES)
    head = (
        f"{name}: {contents.num_samples:,} samples in {contents.num_shards:,} shards, "
        f"{format_bytes(raw)}" + (f", compressed {format_bytes(zipped)}" if zipped else "")
    )
    rows = [*_settings(contents, plan, ranks, predownload), *_costs(contents, plan, cache_limit)]
    width = max(len(label) for label, _, _ in rows)
    values = max(len(value) for _, value, _ in rows)
    lines = [f"  {label:<{width}}  {value:<{values}}  {why}".rstrip() for label, value, why in rows]
    return "\n".join([head, *lines])


_SIZES = ("raw_size", "zip_size")


def _settings(
    contents: Contents, plan: EpochPlan, ranks: Ranks, predownload: int
) -> list[tuple[str, str, str]]:
    spec, world = plan.spec, plan.world
    given = "as given"
    nodes = f"{world.num_nodes} node{'s' * (world.num_nodes > 1)}"
    batch = spec.batch()
    rows = [
        ("ranks", f"{world.num_ranks} on {nodes}", f"found: {ranks.source}"),
        (
            "batch_size",
            f"{batch:,}",
            f"of one rank; {batch * world.num_ranks:,} of all, {plan.steps:,} steps an epoch",
        ),
        (
            "epoch_size",
            f"{plan.epoch_size:,}",
            "all samples once"
            if plan.epoch_size == contents.num_samples
            else f"of {contents.num_samples:,} samples, {spec.sampling_method}",
        ),
        ("shuffle", spec.shuffle_algo if spec.shuffle else "off", f"seed {plan.shuffle_seed}"),
        (
            "num_canonical_nodes",
            f"{plan.num_canonical_nodes}",
            given
            if spec.num_canonical_nodes
            else "64 for each node"
            if spec.shuffle_algo in _WHOLE_SHARDS
            else "one for each node; keep it when the number of nodes changes",
        ),
    ]
    if spec.shuffle:
        rows.append(
            (
                "shuffle_block_size",
                f"{plan.shuffle_block_size:,}",
                given
                if spec.shuffle_block_size is not None
                else "samples; the larger of 4,000,000 / canonical nodes and 262,144",
            )
        )
    streams = len(contents.indexes)
    rows.append(("batching_method", spec.batching_method, f"{streams} stream{'s' * (streams > 1)}"))
    rows.append(("predownload", f"{predownload:,}", "samples ahead of each worker"))
    return rows


def _costs(
    contents: Contents, plan: EpochPlan, cache_limit: int | None
) -> list[tuple[str, str, str]]:
    shards = shards_at_once(contents, plan)
    on_disk = sum(int(i.raw_size.sum()) for i in contents.indexes)
    fetched = sum(
        int((i.zip_size + (i.zip_size == 0) * i.raw_size).sum()) for i in contents.indexes
    )
    nodes = plan.world.num_nodes
    window = shards * on_disk // max(contents.num_shards, 1)
    rows = [
        (
            "shards at once",
            f"{shards:,}",
            f"a node draws samples from these: {format_bytes(window)}",
        ),
        ("fetched", format_bytes(fetched / nodes), "a node and epoch, when every shard comes once"),
    ]
    share = on_disk / nodes
    if cache_limit is None:
        rows.append(("cache_limit", "none", f"the folder grows to about {format_bytes(share)}"))
    elif cache_limit >= on_disk:
        rows.append(("cache_limit", format_bytes(cache_limit), "everything fits"))
    elif cache_limit >= window:
        rows.append(
            ("cache_limit", format_bytes(cache_limit), "enough: each shard comes once an epoch")
        )
    else:
        rows.append(
            (
                "cache_limit",
                format_bytes(cache_limit),
                f"costs fetching again; {format_bytes(window)} would avoid that",
            )
        )
    return rows


def shards_at_once(contents: Contents, plan: EpochPlan) -> int:
    """About how many shards a node draws samples from at one moment."""
    spec = plan.spec
    per_node = math.ceil(contents.num_shards / plan.world.num_nodes)
    walks = max(1, math.ceil(plan.num_canonical_nodes / plan.world.num_nodes))
    if not spec.shuffle or spec.shuffle_algo in _WHOLE_SHARDS:
        return min(per_node, walks)
    if spec.shuffle_algo == "naive":
        return contents.num_shards
    mean = contents.num_samples / max(contents.num_shards, 1)
    return min(per_node, walks * (math.ceil(plan.shuffle_block_size / mean) + 1))
