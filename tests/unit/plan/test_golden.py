"""Orders recorded from the incumbent, which running jobs rely on to go on where they stopped."""

import hashlib
import json
import pathlib

import numpy as np
import pytest

from mds.plan import EpochPlan, epoch_order, get_partitions, get_sampling
from mds.shuffle import get_shuffle
from mds.world import World

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "order" / "manifest.json"
ENTRIES = json.loads(GOLDEN.read_text(encoding="utf-8"))
KINDS = sorted({(e["config"].get("family") or e["config"]["kind"]) for e in ENTRIES})

pytestmark = pytest.mark.filterwarnings("ignore")


def plan_arguments(config):
    shape = config["world"]
    world = World(shape["nodes"], shape["ranks_per_node"], shape["workers_per_rank"], 0)
    rest = {key: config[key] for key in ("epoch", "resume", "epoch_size")}
    return (config["streams"], world), {**rest, **config["dataset"]}


def compute(config):
    rest = {k: v for k, v in config.items() if k not in {"kind", "id", "family"}}
    if config["kind"] == "plan":
        args, kwargs = plan_arguments(config)
        return epoch_order(*args, **kwargs)
    if config["kind"] == "shuffle":
        sizes = np.array(rest.pop("shard_sizes"), np.int64)
        return get_shuffle(shard_sizes=sizes, **rest)
    if config["kind"] == "partition":
        return get_partitions(**rest)
    return get_sampling(**rest)


def of(kind):
    return [e for e in ENTRIES if (e["config"].get("family") or e["config"]["kind"]) == kind]


@pytest.mark.parametrize("kind", KINDS)
def test_every_recorded_order_is_equal_id_by_id(kind):
    """Shape and digest of each recorded array are met."""
    for entry in of(kind):
        config, result = entry["config"], entry["result"]
        if "raises" in result:
            continue
        order = compute(config)
        assert order.dtype == np.int64, config["id"]
        assert list(order.shape) == result["shape"], config["id"]
        digest = hashlib.sha256(np.ascontiguousarray(order, "<i8")).hexdigest()
        assert digest == result["sha256"], config["id"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_refused_is_refused_or_has_every_sample(kind):
    """A refusal is a ValueError; where the incumbent stumbled, a sane plan is as good."""
    for entry in of(kind):
        if "raises" not in entry["result"]:
            continue
        try:
            order = compute(entry["config"])
        except ValueError:
            continue
        assert entry["config"]["kind"] == "plan", entry["config"]["id"]
        samples = sum(sum(s["shards"]) for s in entry["config"]["streams"])
        assert np.unique(order[order >= 0]).tolist() == list(range(samples))


def test_each_stream_gives_the_recorded_share():
    """How many samples each stream gives, and how many an epoch has."""
    for entry in ENTRIES:
        if "choose" in entry["result"] and "raises" not in entry["result"]:
            args, kwargs = plan_arguments(entry["config"])
            plan = EpochPlan(*args, **kwargs)
            assert list(plan.choose) == entry["result"]["choose"]
            assert plan.epoch_size == entry["result"]["epoch_size"]
            assert -(-plan.epoch_size // plan.world.num_ranks) == entry["result"]["len"]


def test_a_refusal_says_what_to_change():
    """The sentence has both numbers and the way out."""
    with pytest.raises(
        ValueError,
        match=r"num_canonical_nodes 3 does not fit 4 physical nodes\. Make one number a mult",
    ):
        epoch_order([{"shards": [100]}], World(4, 1, 1, 0), num_canonical_nodes=3, batch_size=1)
