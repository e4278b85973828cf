"""Explanation of a dataset's settings in plain text: their values, the reasons and the costs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from mds._dataset.pack_counts import count_packs
from mds._dataset.run import run_of, source_of
from mds._index.table import column_encodings
from mds._iteration.worker_epoch import WorkerEpoch
from mds._preview import Explanation
from mds._units import format_bytes
from mds._words import plural
from mds.errors import ConfigError
from mds.plan._edits import drops_of, skips_of
from mds.plan._mixture import MAX_STEPS
from mds.plan._pack_filling import packs_of
from mds.plan._packers import BEST_FIT
from mds.plan._partition import Gaps
from mds.transforms._chain import describe_costs
from mds.world import World, find_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mds._dataset.run import Run
    from mds._index.table import Index
    from mds._iteration.reading import SampleSource
    from mds._iteration.shard_map import ShardMap
    from mds.formats._facts import FileCosts
    from mds.plan import EpochPlan
    from mds.transforms._chain import FunctionChain
    from mds.world import Ranks

_AS_GIVEN = "as given"
_MUCH_PADDING = 0.02  # of the steps of an epoch


def describe(dataset: Any) -> str:
    """Describe a dataset (a `Samples`) in one line, without secrets and without reading samples."""
    first, *other_streams = dataset.streams
    place = first.remote or first.local
    place_text = (
        plural(len(other_streams) + 1, "stream")
        if other_streams
        else " ".join(filter(None, (place, first.split)))
    )
    source, run = source_of(dataset), run_of(dataset)
    indexes, chain = source.shards.indexes, source.filter.chain
    size = sum(int(index.raw_size.sum()) for index in indexes)
    order = f"{dataset.shuffle_algo} shuffled" if dataset.shuffle else "in order"
    functions = f"{chain}, " if chain.links else ""
    batches = f"batches of {dataset.batch_size}" if dataset.batch_size else "no batch size"
    return (
        f"<{type(dataset).__name__} of {place_text}: {plural(dataset.num_samples, 'sample')} in "
        f"{dataset.num_shards:,} shard{'s' * (dataset.num_shards != 1)}, "
        f"{format_bytes(size)}, {_describe_columns(source)}, {order}, {batches}, {functions}"
        f"{_describe_rank(run)}, {_describe_position(run)}>"
    )


def _describe_columns(source: SampleSource) -> str:
    """Name the first columns as stored, such as "columns image, label"."""
    names = [name for name in column_encodings(source.shards.indexes) if name in source.columns]
    suffix = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"column{'s' * (len(names) != 1)} {', '.join(names[:8])}{suffix}"


def _describe_rank(run: Run) -> str:
    """Describe the rank of this process, such as "rank 0 of 8"."""
    if run.ranks is None and _is_function(run.topology):
        return "rank by topology="
    try:
        # Not stored in the run: the process group may be made after this line is printed.
        ranks = run.ranks or find_ranks(run.topology)
    except ConfigError:
        return "rank unknown"
    return f"rank {ranks.rank} of {ranks.world_size}"


def _is_function(topology: Any) -> bool:
    return callable(topology) and not isinstance(topology, World)


def _describe_position(run: Run) -> str:
    """Describe how far the run is: a loaded state, a loader's position, or this iteration's."""
    epochs, iteration = run.order.epochs, run.iteration
    if epochs.pending is not None:
        position = epochs.pending.position
        return f"epoch {position.epoch} from {position.unit[:-1]} {position.place} next"
    loop = run.order.find_loop()
    if loop is not None and loop.is_under_way and loop.position is not None:
        position = loop.position
        return f"epoch {position.epoch} at {position.unit[:-1]} {position.place}"
    if not isinstance(iteration, WorkerEpoch) or not iteration.is_under_way:
        return f"epoch {epochs.next_epoch} next"
    begin, ranks = iteration.begin, iteration.world.num_ranks
    return f"epoch {begin.epoch} at sample {begin.place + iteration.index * ranks}"


def explain(
    name: str,
    shards: ShardMap,
    plan: EpochPlan,
    ranks: Ranks,
    predownload: int,
    cache_limit: int | None,
    chain: FunctionChain,
    *,
    fetched: Sequence[Index],
    unpacked: Sequence[Index],
    has_batches: bool,
    costs: Sequence[FileCosts] = (),
) -> Explanation:
    """Return the resolved configuration of a dataset as a text of some twenty lines.

    Args:
        name: Name of the class.
        shards: Shards of the dataset.
        plan: Plan of the samples of an epoch.
        ranks: Ranks, and how they were found.
        predownload: Samples ahead of each worker.
        cache_limit: Bytes, or None.
        chain: Functions of the user.
        fetched: Indexes of the streams whose shards come from a remote.
        unpacked: Indexes of the streams whose local files are unpacked into the cache. Shards of
            all other streams are read in place.
        has_batches: Whether a batch size was given.
        costs: Costs of files of another format than MDS.
    """
    raw = sum(int(index.raw_size.sum()) for index in shards.indexes)
    zipped = sum(int(index.zip_size.sum()) for index in shards.indexes)
    head = (
        f"{name}: {plural(shards.num_samples, 'sample')} in {shards.num_shards:,} "
        f"shard{'s' * (shards.num_shards != 1)}, "
        f"{format_bytes(raw)}" + (f", compressed {format_bytes(zipped)}" if zipped else "")
    )
    rows = [
        *_settings(shards, plan, ranks, predownload, has_batches),
        *_mixture(plan),
        *_edits(plan),
        *_costs(shards, plan, cache_limit, fetched, unpacked),
        *(row for each in costs for row in _file_costs(each)),
        *describe_costs(chain),
    ]
    return Explanation.of(head, rows)


def _settings(
    shards: ShardMap,
    plan: EpochPlan,
    ranks: Ranks,
    predownload: int,
    has_batches: bool,
) -> list[tuple[str, str, str]]:
    """Return a row (setting, value, reason) for each setting of the order and of its batches.

    The arguments are those of `explain`.
    """
    spec, world = plan.spec, plan.world
    nodes = f"{world.num_nodes} node{'s' * (world.num_nodes > 1)}"
    rows = [
        ("ranks", f"{world.num_ranks} on {nodes}", f"found: {ranks.source}"),
        *_BATCHES[spec.unit](plan, has_batches),
        (
            "epoch_size",
            f"{plan.epoch_size:,}",
            _describe_draws(plan),
        ),
        ("shuffle", spec.shuffle_algo if spec.shuffle else "off", f"seed {plan.shuffle_seed}"),
        ("num_canonical_nodes", f"{plan.num_canonical_nodes}", _canonical_nodes(plan)),
    ]
    if spec.shuffle:
        rows.append(
            (
                "shuffle_block_size",
                f"{plan.inputs.params.block:,}",
                _AS_GIVEN
                if spec.shuffle_block_size is not None
                else "samples; the larger of 4,000,000 / canonical nodes and 262,144",
            )
        )
    streams = len(shards.indexes)
    rows.append(("batching_method", spec.batching_method, f"{streams} stream{'s' * (streams > 1)}"))
    rows.append(("predownload", f"{predownload:,}", "samples ahead of each worker"))
    return rows


def _canonical_nodes(plan: EpochPlan) -> str:
    """Describe where the number of canonical nodes is from, and what it costs."""
    canonical, nodes = plan.num_canonical_nodes, plan.world.num_nodes
    if canonical % nodes and nodes % canonical:
        return f"no multiple of the {nodes} nodes, so each node fetches shards of all of them"
    if plan.spec.num_canonical_nodes:
        return _AS_GIVEN
    if plan.spec.canonical_nodes(1) > 1:
        return f"{plan.spec.canonical_nodes(1)} for each node"
    return "one for each node; keep this value when the number of nodes changes"


def _describe_draws(plan: EpochPlan) -> str:
    """Describe which samples an epoch has, and how often."""
    if plan.schedule is not None:
        return "samples drawn by the schedule"
    if tuple(plan.choose) != tuple(plan.inputs.stream_samples):
        return (
            f"of {plural(sum(plan.inputs.stream_samples), 'sample')}, {plan.spec.sampling_method}"
        )
    if plan.spec.batching_method != "random":
        return "each sample once, except samples that do not fill a batch"
    return "all samples once"


def _mixture(plan: EpochPlan) -> list[tuple[str, str, str]]:
    """Return rows about each stream of a schedule: its share in this epoch, and its passes.

    A pass is over when all samples of the stream were given once more. Without a schedule, or in an
    epoch without steps, there are no rows. A row is (name, share, explanation), such as ``("  web",
    "70.000% to 50.000%", "1.25 passes by the end of the epoch; ...")``.
    """
    # The schedule of the whole run, and the steps of it that this epoch has.
    run, epoch = plan.schedule, plan.scheduled
    if run is None or epoch is None or epoch.first == epoch.last:
        return []
    unit = run.unit[:-1]  # "step", or "window" with packing
    rows = [("schedule", f"{unit} {epoch.first:,} to {epoch.last - 1:,}", "of the training, now")]
    first, last = (epoch.mixture.shares(step) for step in (epoch.first, epoch.last - 1))
    # ``samples`` are those of a pass; the range counts samples of the stream since the run began.
    for i, (name, samples, (_, samples_by_end)) in enumerate(
        zip(run.names, plan.choose, epoch.sample_ranges(), strict=True)
    ):
        begin, end = f"{first[i]:.3%}", f"{last[i]:.3%}"
        share = begin if begin == end else f"{begin} to {end}"
        step = epoch.mixture.steps_of(i, samples)
        # Each canonical node goes through its own part, and some get to the end a little earlier.
        has_rows = epoch.rows is not None and epoch.rows.has_rows[i]
        after = "after about" if has_rows else "after"
        once = (
            f"all seen once {after} {unit} {step:,}" if step < MAX_STEPS - 1 else "never all seen"
        )
        passes = samples_by_end / samples if samples else 0.0
        rows.append((f"  {name}", share, f"{passes:.2f} passes by the end of the epoch; {once}"))
    return rows


#: What comes in the place of dropped samples, by `OrderSpec.unit`.
_REPLACEMENTS = {
    "samples": "other samples of their streams replace them",
    "packs": "no samples replace them",
}


def _edits(plan: EpochPlan) -> list[tuple[str, str, str]]:
    """Return rows about samples that were dropped and steps that were skipped during the run."""
    drops, rows = drops_of(plan.inputs.edits), []
    if drops:
        count = len(np.unique(np.concatenate([drop.ids for drop in drops])))
        replacement = _REPLACEMENTS[plan.spec.unit]
        rows.append(("dropped samples", f"{count:,}", f"each from its own step; {replacement}"))
    skipped = Gaps(skips_of(plan.inputs.edits, plan.epoch))
    if len(skipped.firsts):
        count = int((skipped.ends - skipped.firsts).sum())
        rows.append(
            ("skipped", f"{count:,}", f"{plan.spec.unit} of this epoch, in whole global batches")
        )
    return rows


def _batches_of_samples(plan: EpochPlan, has_batches: bool) -> list[tuple[str, str, str]]:
    """Return a row about batches of samples: their size, and how many steps make an epoch."""
    why = f"not set: single samples, {plan.steps:,} for each rank in an epoch"
    if has_batches:
        why = _describe_batches(plan, plural(plan.steps, "step"))
    return [("batch_size", f"{plan.inputs.microbatch:,}", why)]


def _batches_of_packs(plan: EpochPlan, has_batches: bool) -> list[tuple[str, str, str]]:
    """Return rows about batches of packs, and about packs: capacity, kind, number, long documents.

    Packs have a batch size, so ``has_batches`` is not used.
    """
    del has_batches
    settings, count = packs_of(plan.filling).packing, count_packs(plan)
    about = "" if count.is_exact else "about "
    kind = "tokens a pack" if settings.capacity else "tokens a padded batch"
    long_documents = {
        "split": "longer documents are cut into pieces",
        "truncate": "longer documents lose their end",
        "drop": "longer documents are left out",
        "error": "a longer document is an error",
    }[settings.overflow]
    kind += f" by {settings.packer}" if settings.packer != BEST_FIT else ""
    alike = f", equal {settings.balance} on all ranks" if settings.balance else ""
    why = f"{kind}, {about}{plural(count.packs, 'pack')} an epoch, "
    why += f"filled to {count.filled:.2%}; {long_documents}{alike}".replace("%", " %")
    more_steps = count.steps - -(-count.packs // plan.shape.global_batch)
    if more_steps > _MUCH_PADDING * count.steps + 1:
        why += (
            f"; {plural(more_steps, 'step')} more than full steps, because canonical nodes have "
            "different numbers of packs (fewer of them would differ less)"
        )
    batches = _describe_batches(plan, f"{about}{plural(count.steps, 'step')}")
    return [
        ("batch_size", f"{plan.inputs.microbatch:,}", batches),
        ("packing", f"{settings.room:,}", why),
    ]


#: Functions that return the rows about batches, by `OrderSpec.unit`.
_BATCHES = {"samples": _batches_of_samples, "packs": _batches_of_packs}


def _describe_batches(plan: EpochPlan, steps: str) -> str:
    """Describe the batch size: of what, over all ranks, and the number of ``steps`` of an epoch."""
    parts = plan.spec.microbatches
    of_step = "for each rank" if parts == 1 else f"times {parts} microbatches for each rank"
    batch = f"{plan.shape.global_batch:,}"
    return f"{plan.spec.unit} {of_step}; {batch} for all ranks, {steps} an epoch"


def _costs(
    shards: ShardMap,
    plan: EpochPlan,
    cache_limit: int | None,
    fetched: Sequence[Index],
    unpacked: Sequence[Index],
) -> list[tuple[str, str, str]]:
    """Return rows about shards: how many are needed at a time, fetched, and kept in the cache.

    The arguments are those of `explain`.
    """
    at_once = shards_at_once(shards, plan)
    size = sum(int(i.raw_size.sum()) for i in shards.indexes)
    window = at_once * size // max(shards.num_shards, 1)
    rows = [
        (
            "shards at once",
            f"{at_once:,}",
            f"a node reads from these at one time: {format_bytes(window)}",
        ),
    ]
    nodes = plan.world.num_nodes
    if fetched:
        # Files are fetched compressed; ``zip_size`` is 0 for shards without a compressed file.
        fetched_bytes = sum(
            int((i.zip_size + (i.zip_size == 0) * i.raw_size).sum()) for i in fetched
        )
        when = "for each node and epoch, if every shard is fetched once"
        rows.append(("fetched", format_bytes(fetched_bytes / nodes), when))
    elif unpacked:
        is_compressed = any(i.zip_size.any() for i in unpacked)
        work = (
            "compressed local shards are decompressed"
            if is_compressed
            else "local files are decoded"
        )
        rows.append(("fetched", "nothing", f"{work} in the cache"))
    else:
        rows.append(("fetched", "nothing", "the files are read where they are"))
        if cache_limit is not None:
            why = "no effect: there is no cache"
            rows.append(("cache_limit", format_bytes(cache_limit), why))
        return rows
    on_disk = sum(int(i.raw_size.sum()) for i in (*fetched, *unpacked))
    share = on_disk / nodes
    if cache_limit is None:
        rows.append(("cache_limit", "none", f"the folder grows to about {format_bytes(share)}"))
    elif cache_limit >= on_disk:
        rows.append(("cache_limit", format_bytes(cache_limit), "the whole dataset fits"))
    elif cache_limit >= window:
        rows.append(
            (
                "cache_limit",
                format_bytes(cache_limit),
                ("large enough: each shard is fetched once an epoch"),
            )
        )
    else:
        rows.append(
            (
                "cache_limit",
                format_bytes(cache_limit),
                f"too small: shards are fetched again; {format_bytes(window)} would avoid that",
            )
        )
    return rows


def _file_costs(costs: FileCosts) -> list[tuple[str, str, str]]:
    """Return rows about files of another format: their space in the cache, and slow columns."""
    files = f"{costs.files:,} file{'s' * (costs.files != 1)}, {format_bytes(costs.size)}"
    why = f"decoded about {format_bytes(costs.decoded)} in the cache folder"
    rows = [(costs.format, files, "read in place" if costs.is_in_place else why)]
    if costs.whole_file_reason and not costs.is_in_place:
        rows.append(("whole files", "all bytes are fetched", costs.whole_file_reason))
    if costs.slow_columns:
        names = ", ".join(costs.slow_columns)
        rows.append(("slow columns", names, "nested values, decoded one by one"))
    rows += [
        ("left out", f"{count:,}", f"{reason}, such as {example}")
        for reason, (count, example) in costs.left_out.items()
    ]
    rows += [
        ("followed", f"{count:,}", f"{kind}, such as {example}")
        for kind, (count, example) in costs.followed.items()
    ]
    return rows


def shards_at_once(shards: ShardMap, plan: EpochPlan) -> int:
    """Estimate the number of shards from which a node draws samples at one moment.

    The canonical nodes of a node are read side by side. Each reads shard by shard without a
    shuffle, and from all shards of a block with one that moves samples within blocks.
    """
    spec = plan.spec
    if not plan.epoch_size:
        return 0
    per_node = math.ceil(shards.num_shards / plan.world.num_nodes)
    parallel_reads = max(1, math.ceil(plan.num_canonical_nodes / plan.world.num_nodes))
    algorithm = spec.algorithm if spec.shuffle else None
    if algorithm is not None and algorithm.needs_all_samples:
        return shards.num_shards
    if algorithm is None or not algorithm.uses_blocks:
        return min(per_node, parallel_reads)
    mean_samples = shards.num_samples / max(shards.num_shards, 1)
    # A block may begin and end inside a shard, so it touches one shard more than it would fill.
    shards_per_block = math.ceil(plan.inputs.params.block / mean_samples) + 1
    return min(per_node, parallel_reads * shards_per_block)
