"""``python -m mds``: the command line."""

from __future__ import annotations

from mds.cli import main

if __name__ == "__main__":
    main()
