"""The command line: `mds-convert`, and `mds` with commands that inspect and repair datasets.

Commands print results to standard output, and plans, progress and notes to standard error. Progress
bars, colours and control characters are printed to a terminal only. Exit codes: 0 success, 1 faults
of a dataset or a difference of two runs, 2 all errors, 130 Ctrl-C (`mds._cli.terminal.errors`).
"""

from __future__ import annotations

import click

from mds._cli.clean_command import clean
from mds._cli.convert_command import convert
from mds._cli.index_commands import index, merge
from mds._cli.inspect_commands import head, info, lengths
from mds._cli.run_commands import run
from mds._cli.terminal import Group
from mds._cli.verify_command import verify


@click.group(
    cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
def main() -> None:
    """Write, look into and check datasets of MDS shards."""


for _command in (convert, info, head, verify, index, merge, clean, lengths, run):
    main.add_command(_command)
