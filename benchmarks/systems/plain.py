"""A plain map-style dataset: see limit.py, whose files it reads."""

from benchmarks.systems.limit import Plain

SYSTEM = Plain()
