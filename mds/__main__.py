"""``python -m mds``: the command line."""

from __future__ import annotations

from mds._cli import main

if __name__ == "__main__":
    main()
