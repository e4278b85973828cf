"""Run the full test of a trainer, and write its results into the docs: ``.ci/trainers NAME``.

``python tests/trainers/full.py NAME`` runs its cases with the loader of mds, and those that the
trainer's own loader can run with it too. It ends with 1 if a batch of mds differs.
``python tests/trainers/full.py`` only writes the table of docs/trainers.md anew.
"""

import dataclasses
import datetime as dt
import importlib.metadata
import json
import pathlib
import sys
import tempfile

import harness
from harness import Case, World

ROOT = harness.HERE.parents[1]
RESULTS = ROOT / "docs" / "benchmarks" / "trainers.json"
PAGE = ROOT / "docs" / "trainers.md"
BEGIN, END = "<!-- trainers -->\n", "<!-- end of trainers -->\n"

CASES = (
    Case(World(4, 6), World(2, 12, workers=1)),
    Case(World(4, 2), World(2, 4, workers=2), packing=True, seed=1),
    Case(World(4, 2), World(2, 2, 2), packing=True, seed=2),
    Case(World(4, 2, workers=1), World(8, 1), packing=True, drop=True, seed=3),
    Case(World(8, 1), World(4, 2, workers=1), schedule=True, drop=True, seed=4),
    Case(World(4, 2), World(2, 2, 2), packing=True, schedule=True, seed=5),
    Case(World(2, 2, 2, workers=1), World(8, 1), drop=True, seed=6),
    Case(
        World(4, 2), World(2, 4, workers=1), packing=True, seed=1, save_every=11, steps=15,
        at_epoch_end=True,
    ),
)  # fmt: skip
#: Trainer -> its title, the class that trains, the packages whose versions count.
TRAINERS = {
    "trl": ("TRL", "trl.SFTTrainer", ("trl", "transformers", "accelerate")),
    "transformers": ("transformers", "transformers.Trainer", ("transformers", "accelerate")),
    "torchtitan": ("torchtitan", "torchtitan.trainer.Trainer", ("torchtitan",)),
    "olmo_core": ("OLMo-core", "olmo_core.train.Trainer", ("ai2-olmo-core",)),
    "axolotl": ("axolotl", "axolotl.core.trainers.AxolotlTrainer", ("axolotl", "transformers")),
    "lightning": ("Lightning", "lightning.Trainer", ("lightning",)),
    "composer": ("Composer", "composer.Trainer", ("mosaicml",)),
    "accelerate": ("Accelerate", "accelerate.Accelerator", ("accelerate",)),
    "automodel": (
        "NeMo Automodel",
        "nemo_automodel.recipes.llm.train_ft.TrainFinetuneRecipeForNextTokenPrediction",
        ("nemo-automodel", "transformers"),
    ),
}
PACKS = {"trl", "olmo_core"}  # what can pack documents itself
WHOLE_STEPS = {"olmo_core"}  # what leaves out the last step of an epoch if it is not full


def run(name):
    """Return the results of all cases of a trainer."""
    results = []
    for case in CASES:
        is_own_too = not (case.schedule or case.drop) and (name in PACKS or not case.packing)
        for loader in ["mds", "own"] if is_own_too else ["mds"]:
            changed = dataclasses.replace(case, loader=loader)
            if case.at_epoch_end and name in WHOLE_STEPS:
                changed = dataclasses.replace(changed, save_every=10, steps=14)
            with tempfile.TemporaryDirectory() as folder:
                results.append(harness.run_case(name, changed, f"{folder}/run"))
            print(json.dumps(results[-1]), flush=True)
    return {
        "when": dt.datetime.now(dt.timezone.utc).date().isoformat(),
        "class": TRAINERS[name][1],
        "device": "cpu, gloo",
        "versions": {
            package: importlib.metadata.version(package)
            for package in (*TRAINERS[name][2], "torch", "mds-streaming")
        },
        "cases": results,
    }


def table(results):
    """Return the table of the docs."""
    lines = [
        (
            "| trainer | date | kills | equal steps with mds | equal steps with its own loader "
            "| documents that its own loader lost, added |\n"
        ),
        "|---|---|---:|---:|---:|---:|\n",
    ]
    for name, result in results.items():
        title, _, packages = TRAINERS[name]
        ours, theirs = (
            [case for case in result["cases"] if case["loader"] == loader]
            for loader in ("mds", "own")
        )
        lines.append(
            f"| {title} {result['versions'][packages[0]]} | {result['when']} | {len(ours)} | "
            f"{_sum(ours, 'equal_steps')} of {_sum(ours, 'steps')} | "
            f"{_sum(theirs, 'equal_steps')} of {_sum(theirs, 'steps')} | "
            f"{_losses(theirs)} |\n"
        )
    return "".join(lines)


def _losses(cases):
    refused = sum(case["refused"] for case in cases)
    if refused == len(cases):
        return "refused"
    losses = f"{_sum(cases, 'lost')}, {_sum(cases, 'added')}"
    return f"{losses}; {refused} refused" if refused else losses


def _sum(cases, key):
    return sum(case[key] for case in cases)


def page_with_table(text, results):
    """Return the text of the page with the table of these results."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(results)}\n{END}{rest.partition(END)[2]}"


def main(names):
    """Run trainers, and write results and table; return the exit status."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in names:
        results[name] = run(name)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    page = page_with_table(PAGE.read_text(encoding="utf-8"), results)
    pathlib.Path(PAGE).write_text(page, encoding="utf-8")
    ours = [case for name in names for case in results[name]["cases"] if case["loader"] == "mds"]
    return int(any(case["equal_steps"] != case["steps"] for case in ours))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
