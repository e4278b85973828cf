"""The command line: `mds-convert`, and `mds` with what one asks of a dataset.

Commands print what they found to standard output, everything on the way (plans, progress, notes)
to standard error. Where that is no terminal there is no progress bar, no colour, and no control
character. Exit codes: 0 done, 1 it did not work or faults were found, 2 asked wrongly, 130 Ctrl-C.
"""

from __future__ import annotations

import click

from mds._version import __version__
from mds.cli.clean_command import clean
from mds.cli.convert_command import convert
from mds.cli.head_command import head
from mds.cli.index_command import index
from mds.cli.info_command import info
from mds.cli.lengths_command import lengths
from mds.cli.merge_command import merge
from mds.cli.plan_command import plan
from mds.cli.rewind_command import compare, find, step
from mds.cli.terminal import Group
from mds.cli.verify_command import verify

__all__ = ["convert", "main"]


@click.group(
    cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="mds")
def main() -> None:
    """Write, look into and check datasets of MDS shards."""


for _command in (
    *(convert, info, head, verify, index, merge, clean, lengths),
    *(step, find, compare, plan),
):
    main.add_command(_command)
