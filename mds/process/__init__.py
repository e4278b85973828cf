"""What belongs to one process: locks, singletons, mapped memory."""
