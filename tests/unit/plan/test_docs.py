"""What docs/order.md shows runs as it stands."""

import pathlib
import re

from mds.shuffle._registry import algos

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "order.md"


def test_the_examples_of_the_page_run():
    """One after the other, as a reader would type them."""
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    try:
        for block in blocks:
            exec(block, names)
        contract = names["TestRotate"]()
        for law in (name for name in dir(contract) if name.startswith("test_")):
            getattr(contract, law)()
        settings = {"batch_size": 4, "shuffle": True, "shuffle_algo": "rotate"}
        plan = names["EpochPlan"]([{"shards": [4, 4]}], names["World"](1, 1, 1, 0), **settings)
        assert sorted(plan.batch(0)[0].tolist() + plan.batch(1)[0].tolist()) == [*range(8)]
    finally:
        algos.pop("rotate", None)
    own = next(block for block in blocks if "Rotate" in block)
    assert len(own.splitlines()) <= 30


def test_the_pictures_of_the_page_are_there():
    """Drawn by the script beside them, and small."""
    for name in re.findall(r"\]\((pictures/[^)]+)\)", PAGE.read_text(encoding="utf-8")):
        assert 1_000 < (PAGE.parent / name).stat().st_size < 150_000
