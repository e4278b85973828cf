"""How many tiny samples a second: what does the machinery itself cost?"""

from __future__ import annotations

from benchmarks.questions import iterate
from benchmarks.questions.base import Bar, Case, Question

QUESTION = Question(
    name="small",
    title="Three scalars a sample",
    heading="How many tiny samples per second?",
    unit="samples/s",
    cases=(
        Case("small, in order", "small", Bar(of_limit=0.8, of_peers=1.0)),
        Case("small, shuffled", "small", Bar(of_limit=0.8, of_peers=1.0), shuffled=True),
    ),
    measure=iterate.measure,
    note=(
        "A loop as in `iterate` takes samples of three numbers, so the library's own work takes "
        "most of the time."
    ),
)
