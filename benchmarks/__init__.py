"""Benchmarks: ``python -m benchmarks`` compares this library, its peers and the machine's limit."""
