"""mds plan: the mixture that a run had and will have, by its checkpoint."""

from __future__ import annotations

import json

import click

from mds.cli.rewind_command import read_state
from mds.cli.terminal import cell, console, errors, print_table, table

_COLUMNS = 64
_MARGIN = 8


@click.command(short_help="The mixture of a training with a schedule.")
@click.argument("checkpoint", type=click.Path(exists=True, dir_okay=False))
@click.option("--plot", is_flag=True, help="Draw the shares of the streams.")
@click.option(
    "--until",
    type=click.IntRange(1),
    metavar="STEP",
    help="The last step.  [a quarter beyond the last change of weights]",
)
@click.option(
    "--data",
    "places",
    multiple=True,
    metavar="URL",
    help="Where the streams are now, one option each, in their order.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def plan(
    checkpoint: str, plot: bool, until: int | None, places: tuple[str, ...], as_json: bool
) -> None:
    """Show what share of the samples each stream of a schedule has from step 0 on.

    CHECKPOINT is the state of a loader as JSON, or a file of torch.save with it somewhere inside;
    one that was taken before the first step will do. Weights that were set while the run went on
    are in it. Shares are those of the samples that come, counted and not drawn from the weights; in
    a run of packs those of the tokens, by windows of documents instead of steps.
    """
    with errors():
        import numpy as np

        from mds.cli.plots import plot_mixture, stream_letters
        from mds.dataset.rewind import Rewind, read_mixture

        rewind = Rewind(read_state(checkpoint), places)
        run_mixture = read_mixture(rewind, until)
        terminal = console()
        columns = min(max(terminal.width - _MARGIN, 8), _COLUMNS)
        edges = np.unique(np.linspace(0, run_mixture.until, columns + 1).astype(np.int64))
        counts = run_mixture.mixture.counts(edges)
        amounts = run_mixture.amounts(edges)
        begin, end = (amounts[i + 1] - amounts[i] for i in (0, len(edges) - 2))
        rows = table("", "stream", "at first", "at last", "samples", "passes", right=_RIGHT)
        for i, (letter, name) in enumerate(
            zip(stream_letters(len(run_mixture.names)), run_mixture.names, strict=True)
        ):
            facts = {
                "stream": name,
                "first": float(begin[i] / max(begin.sum(), 1)),
                "last": float(end[i] / max(end.sum(), 1)),
                "samples": int(counts[-1][i]),
                "passes": float(counts[-1][i] / max(run_mixture.samples[i], 1)),
            }
            if as_json:
                click.echo(json.dumps(facts))
            shares = (f"{facts[key]:.2%}".replace("%", " %") for key in ("first", "last"))
            passes = f"{facts['passes']:.2f}"
            row = (letter, name, *shares, f"{facts['samples']:,}", passes)
            rows.add_row(*map(cell, row))
        if as_json:
            return
        if plot:
            for line in plot_mixture(amounts, edges.tolist(), run_mixture.now, run_mixture.unit):
                terminal.print(cell(line))
        else:
            terminal.print(cell(f"{run_mixture.unit} 0 to {run_mixture.until:,}"))
        print_table(terminal, rows)


_RIGHT = ("at first", "at last", "samples", "passes")
