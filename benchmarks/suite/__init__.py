"""What every question and every system shares: material, processes, clocks, reports."""
