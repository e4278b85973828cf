"""State of one process: locks, shared objects, memory maps, a stopwatch."""
