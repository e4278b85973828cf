"""What a schedule of the mixture costs and keeps to, beside batching by stratified shares.

    python -m benchmarks.schedule [--rounds 5] [--smoke] [--other PYTHON]

counts     milliseconds to count what one global batch, anywhere in 200,000, has of each stream
row        milliseconds for the sample ids of one global batch of 256 of 100 million samples in
           5,000 shards, `seekable`: in the passes that are at hand; and anywhere in ten million
           steps, where streams are in other passes than in the step that was asked for before
edits      nanoseconds an id that 100 edits of ten dropped samples add to the plan of a worker, and
           the loader below with them over the same without, in turns
deviation  the most samples by which a stream is away from the integral of its share, at each of
           200,000 steps along a line, a cosine and three knots
stops      200 resumes on other worlds, with five changes of weights: global batches that differ
           from those of an undisturbed run
loader     samples a second of processor time through a loader without workers, of two streams with
           40,000 samples of 8 KB, and with 400,000 of 260 bytes: scheduled, over stratified, in
           turns; of whole epochs, since streams are shuffled anew on the way, and by `stratified`
           before the first batch
changed    two streams of 10,000 samples, whose weights change at a resume after 4,000: how many
           samples came twice before one of their stream had to, and how many of the stream that was
           used up first never; the same of the mixtures of others, with a Python that has them

Bias: `stratified` has the same counts in each batch and repeats nothing, so it need not look up how
many samples of each stream come; samples of 260 bytes make that as visible as it gets.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.peers.mixtures import AFTER, BEFORE, DRAWN, SAMPLES, judge
from mds import MDSWriter, Schedule, Stream, StreamingDataLoader, StreamingDataset, World
from mds.plan import EpochPlan
from mds.plan._schedule import ScheduledRun

STEPS = 200_000
KNOTS = (0, 50_000, 120_000)


def run_of(streams: int, seed: int = 0, between: str = "linear") -> ScheduledRun:
    """A schedule with random weights at three knots."""
    rng, names = np.random.default_rng(seed), tuple(f"s{i}" for i in range(streams))
    knots = {}
    for milestone in KNOTS:
        knots[milestone] = dict(zip(names, (rng.random(streams) ** 3).tolist(), strict=True))
    return ScheduledRun(Schedule(knots, between), names)


def plan_of(
    run: ScheduledRun, world: tuple[int, int, int], batch: int, **other_options: object
) -> EpochPlan:
    """A plan of streams of 4,000 shards of 1,000 samples each."""
    streams = [{"shards": np.full(4000, 1000)} for _ in run.names]
    nodes, ranks, _ = world
    return EpochPlan(
        streams,
        World(*world, 0),
        schedule=run,
        batch_size=batch // (nodes * ranks),
        shuffle=True,
        shuffle_algo="seekable",
        **other_options,
    )


def batch_milliseconds(streams: int, batch: int, rounds: int) -> float:
    """Milliseconds to count a global batch anywhere, the median of batches and rounds."""
    run, rng = run_of(streams), np.random.default_rng(1)
    plan = plan_of(run, (1, 1, 1), batch, epoch_size=STEPS * batch)
    plan.batch(0)
    found = []
    for step in rng.integers(0, plan.steps, 30 * rounds).tolist():
        begin = time.perf_counter()
        plan.scheduled.mixture.counts(np.array([step, step + 1]))
        found.append(time.perf_counter() - begin)
    return statistics.median(found) * 1e3


def row_milliseconds(streams: int, rounds: int, *, is_anywhere: bool) -> float:
    """Milliseconds of processor time for the ids of a global batch, the median of many."""
    run, batch = run_of(streams), 256
    plan = EpochPlan(
        [{"shards": np.full(5000 // streams, 20_000)} for _ in run.names],
        World(1, 1, 1, 0),
        schedule=run,
        batch_size=batch,
        epoch_size=50 * STEPS * batch,
        shuffle=True,
        shuffle_algo="seekable",
    )
    rng = np.random.default_rng(1)
    steps = rng.integers(0, plan.steps, 30 * rounds) if is_anywhere else range(5000, 5000 + 30)
    plan.batch(5000)
    found = []
    for step in steps:
        begin = time.process_time()
        plan.batch(int(step))
        found.append(time.process_time() - begin)
    return statistics.median(found) * 1e3


def drops(count: int, samples: int) -> list[dict[str, object]]:
    """Return a number of edits, each of which drops ten samples."""
    rng = np.random.default_rng(2)
    return [
        {"epoch": 0, "from": 0, "drop": np.unique(rng.integers(0, samples, 10)).tolist(), "why": ""}
        for _ in range(count)
    ]


def edit_nanoseconds(ids: int, rounds: int) -> float:
    """Nanoseconds of processor time that 100 edits add to each id of a worker, the median."""
    streams, found = [{"shards": np.full(4000, 1000)}], []
    order = {"batch_size": 64, "shuffle": True, "shuffle_algo": "seekable"}
    for _ in range(rounds):
        spent = []
        for edits in ((), drops(100, 4_000_000)):
            plan = EpochPlan(streams, World(1, 1, 1, 0), edits=edits, **order)
            begin, count = time.process_time(), 0
            for block in plan.blocks(0, 0, 0):
                count += len(block)
                if count >= ids:
                    break
            spent.append((time.process_time() - begin) / count)
        found.append(spent[1] - spent[0])
    return statistics.median(found) * 1e9


def deviation(streams: int, batch: int, steps: int) -> float:
    """The most samples away from the integral, at every step, of two shapes of ramps."""
    max_deviation = 0.0
    for seed, between in enumerate(("linear", "cosine")):
        mixture = run_of(streams, seed, between).mixture([1] * streams, batch)
        for part in np.array_split(np.arange(steps + 1), 200):
            counts, integral = mixture.counts(part), mixture.integrals(part)
            max_deviation = max(max_deviation, float(np.abs(counts - integral).max()))
    return max_deviation


def differing_batches(stops: int) -> int:
    """Global batches that differ after so many resumes on other worlds with five changes."""
    run = run_of(3)
    for step in (20, 333, 334, 600, 777):
        run = run.with_weights(step, dict(zip(run.names, (step % 7, 2, step % 3), strict=True)))
    undisturbed, batch = plan_of(run, (1, 1, 1), 48, num_canonical_nodes=8), 48
    rng, differ = np.random.default_rng(3), 0
    for stop in np.sort(rng.integers(0, 1000, stops)).tolist():
        nodes, ranks = ((1, 1), (1, 4), (2, 3), (4, 2), (1, 8))[int(rng.integers(5))]
        state = undisturbed.state(stop * batch)
        plan = plan_of(run, (nodes, ranks, 2), batch, resume=state, num_canonical_nodes=8)
        for step in range(3):
            resumed, expected = plan.batch(step), undisturbed.batch(stop + step)
            differ += not np.array_equal(
                np.sort(resumed.reshape(-1)), np.sort(expected.reshape(-1))
            )
    return differ


def write_streams(folder: pathlib.Path, samples: int, tokens: int) -> None:
    """Two streams of samples of so many tokens."""
    columns = {"x": f"ndarray:int32:{tokens}", "id": "int", "stream": "int"}
    for stream, name in enumerate(("a", "b")):
        with MDSWriter(out=str(folder / name), columns=columns) as writer:
            for number in range(samples):
                writer.write(
                    {"x": np.full(tokens, number, np.int32), "id": number, "stream": stream}
                )


def samples_per_second(
    folder: pathlib.Path, *, is_scheduled: bool = False, edits: int = 0
) -> float:
    """Samples a second of processor time in an epoch, its shuffles included."""
    order = {"batch_size": 64, "shuffle": True, "shuffle_algo": "py1e"}
    places = {name: str(folder / name) for name in ("a", "b")}
    if is_scheduled:
        knots = {0: {"a": 1, "b": 2}, 3000: {"a": 2, "b": 1}}
        streams = {name: Stream(local=place) for name, place in places.items()}
        dataset = StreamingDataset(streams=streams, schedule=Schedule(knots, "linear"), **order)
    else:
        shares = zip(places.values(), (1.0, 2.0), strict=True)
        listed = [Stream(local=place, proportion=share) for place, share in shares]
        dataset = StreamingDataset(streams=listed, batching_method="stratified", **order)
    for edit in drops(edits, dataset.num_samples):
        dataset.edits.replace_samples(edit["drop"])
    begin, count = time.process_time(), 0
    for batch in StreamingDataLoader(dataset):
        count += len(batch["id"])
    return count / (time.process_time() - begin)


def loader_rates(tokens: int, samples: int, rounds: int) -> dict[str, float]:
    """Throughput of a schedule over that of `stratified`, and with 100 edits over without."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_streams(folder, samples, tokens)
        rates = [
            {
                "stratified": samples_per_second(folder),
                "scheduled": samples_per_second(folder, is_scheduled=True),
                "edited": samples_per_second(folder, edits=100),
            }
            for _ in range(rounds)
        ]
    size = f"{tokens} tokens"
    found = {f"loader, {size}, scheduled/s": statistics.median(r["scheduled"] for r in rates)}
    for kind in ("scheduled", "edited"):
        ratio = statistics.median(each[kind] / each["stratified"] for each in rates)
        found[f"loader, {size}, {kind} over stratified"] = ratio
    return found


def changed_weights(folder: pathlib.Path) -> dict[str, object]:
    """Measure a schedule as `benchmarks/peers/mixtures.py` measures other systems."""
    write_streams(folder, SAMPLES, 1)
    batch, drawn_samples = 8, []

    def begin() -> tuple[StreamingDataset, StreamingDataLoader]:
        dataset = StreamingDataset(
            streams={name: Stream(local=str(folder / name)) for name in ("a", "b")},
            schedule=Schedule({0: dict(zip("ab", BEFORE, strict=True))}),
            batch_size=batch,
            shuffle=True,
        )
        return dataset, StreamingDataLoader(dataset)

    def take(batches: Iterator[dict[str, torch.Tensor]], count: int) -> None:
        for mixed_batch in itertools.islice(batches, count):
            streams, ids = mixed_batch["stream"].tolist(), mixed_batch["id"].tolist()
            drawn_samples.extend(zip(streams, ids, strict=True))

    _, loader = begin()
    take(iter(loader), DRAWN // batch)
    dataset, following = begin()
    following.load_state_dict(loader.state_dict())
    dataset.edits.set_weights(dict(zip("ab", AFTER, strict=True)))
    batches = iter(following)
    while sum(stream == 1 for stream, _ in drawn_samples) < SAMPLES:
        take(batches, 1)
    # The last batch has the first of the next pass beside the last of this one: these had to.
    found = judge(drawn_samples)
    again = sum(stream == 1 for stream, _ in drawn_samples) - SAMPLES
    return {"name": "mds Schedule", "twice": found["twice"] - again, "never": found["never"]}


def print_mixtures(other: str | None) -> None:
    """Lost and repeated samples of mixtures whose weights change."""
    with tempfile.TemporaryDirectory() as name:
        lines = [changed_weights(pathlib.Path(name))]
        if other is None:
            print("mixtures of others: skipped, --other names no Python that has them")
        else:
            program = pathlib.Path(__file__).parent / "peers" / "mixtures.py"
            command = [other, str(program), f"{name}/others"]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            lines += [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        for line in lines:
            quantity = line.get("skipped") or f"{line['twice']:,} twice, {line['never']:,} never"
            print(f"{line['name']:<60} {quantity}")


def main() -> None:
    """Measure and print, as lines and as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--other", metavar="PYTHON", help="with datasets, litdata, megatron-core")
    settings = parser.parse_args()
    steps, samples, stops = (2000, 2000, 5) if settings.smoke else (STEPS, 200_000, 200)
    found: dict[str, float] = {}
    for streams in (2, 40):
        found[f"counts, {streams} streams, ms"] = batch_milliseconds(streams, 840, settings.rounds)
        for is_anywhere, name in ((False, "at hand"), (True, "anywhere")):
            value = row_milliseconds(streams, settings.rounds, is_anywhere=is_anywhere)
            found[f"row {name}, {streams} streams, ms"] = value
        found[f"deviation, {streams} streams, samples"] = deviation(streams, 840, steps)
    found[f"stops, {stops}, batches that differ"] = differing_batches(stops)
    for tokens, count in ((2048, max(samples // 10, 2000)), (64, samples)):
        found.update(loader_rates(tokens, count, settings.rounds))
    found["100 edits, ns an id"] = edit_nanoseconds(20_000 if settings.smoke else 10**6, 3)
    print_mixtures(settings.other)
    for quantity, value in found.items():
        print(f"{quantity:<40} {value:,.3f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
