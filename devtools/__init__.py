"""Servers for our tests and benchmarks, and the count of a read's way; not in the wheel."""
