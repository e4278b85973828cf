"""Plays many random scenarios.

``python tests/programs/distributed/nightly.py [--count 100] [--seed 0]``

Ends with a line that counts them, and with status 1 at the first that does not hold, whose folder
and seed it names.
"""

import argparse
import os
import tempfile
import traceback

from scenarios import Ranks, draw, play, write_streams


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    settings = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="mds-nightly-")
    write_streams(folder)
    with Ranks() as ranks:
        for seed in range(settings.seed, settings.seed + settings.count):
            home = os.path.join(folder, f"seed{seed}")
            try:
                scenario = play(seed, folder, home, ranks)
            except Exception:  # noqa: BLE001 - whatever it is, the seed must be told
                traceback.print_exc()
                print(f"seed {seed} does not hold; see {home}\n{draw(seed)}")
                raise SystemExit(1) from None
            kills = sum(phase.kill is not None for phase in scenario.phases)
            method = scenario.order["batching_method"]
            print(
                f"seed {seed}: {method}, {len(scenario.phases)} phases, {kills} kills", flush=True
            )
    print(f"{settings.count} scenarios hold")


if __name__ == "__main__":
    main()
