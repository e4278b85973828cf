"""Counts of a schedule over hundreds of thousands of steps."""

import numpy as np
import pytest
from ordertools import drawn_shares

from mds.plan._mixture import Mixture, ShareSpan


@pytest.mark.parametrize(("streams", "batch"), [(1, 5), (2, 8), (2, 1024), (40, 840)])
def test_two_hundred_thousand_steps(streams, batch):
    """Counts never fall and fill each batch; they stay near the integral; any step stands alone."""
    rng = np.random.default_rng(streams * batch)
    a, b, c = (drawn_shares(rng, streams) for _ in range(3))
    mixture = Mixture(
        [
            ShareSpan(0, a),
            ShareSpan(50_000, a, b, 50_000, "cosine"),
            ShareSpan(100_000, b, c, 70_000),
            ShareSpan(170_000, c),
        ],
        batch,
    )
    steps = np.arange(200_001)
    counts = np.concatenate([mixture.counts(part) for part in np.array_split(steps, 100)])
    assert (counts.sum(axis=1) == steps * batch).all()
    assert (np.diff(counts, axis=0) >= 0).all()
    integrals = mixture.integrals(steps)
    assert np.abs(counts - integrals).max() < (1 if streams <= 2 else 3)
    for step in rng.integers(0, 200_000, 200).tolist():
        assert mixture.counts(np.array([step]))[0].tolist() == counts[step].tolist()
