"""Options of a conversion, with several processes and with a server."""

import os

from mds.writers.convert import convert
from tests.unit.writers.convert.test_options import numbers


def test_limit_takes_the_first_samples(kit):
    """A limit counts good samples in the order of the source, over all splits."""
    path = numbers(kit, 30000)
    convert(path, kit.out, limit="12k", num_workers=2, size_limit=50_000)
    assert [s["n"] for s in kit.samples()] == list(range(12000))
    summary = convert(path, kit.out + "2", limit=100, split="a=0.5,b=0.5")
    assert summary.samples == 100


def test_output_may_be_a_url(kit):
    """Shards go to the store as they are made, the index last, and nothing stays behind."""
    path = numbers(kit, 3000)
    url = "file://" + kit.out
    work = str(kit.source.parent / "work")
    convert(path, url, work=work, size_limit=20_000, num_workers=2)
    assert len(kit.samples()) == 3000
    assert not os.path.exists(work)
