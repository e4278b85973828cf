"""mds run step, sample, diff and mixture: what a run saw or will see, by its state."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import compress, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

from mds._cli.storage_options import storage_option, with_options
from mds._cli.terminal import (
    FAULTY,
    Group,
    cell,
    console,
    errors,
    json_option,
    print_json,
    print_json_line,
    print_table,
    refuse_together,
    table,
)
from mds._preview import shorten_value
from mds._words import plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mds._dataset.rewind import RunHistory

_AT_ONCE = 16  # samples fetched in parallel
_PLOT_COLUMNS = 64
_MARGIN = 8


@click.group(cls=Group, short_help="Look up samples and steps of a training from its state.")
def run() -> None:
    """Look up samples and steps of a training, from its saved state.

    STATE is the state of a loader as JSON, a file of torch.save that contains it, or the folder of
    a run. From a folder, the newest such file is used. Every state of a run has its complete
    history.
    """


_state_type = click.Path(exists=True)


_data = click.option(
    "--data",
    "places",
    multiple=True,
    metavar="URL",
    help="Current URL or path of a stream. Repeat for each stream, in order.",
)


_select = click.option(
    "--select",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE.npy",
    help="For a selection: the file of sample numbers or the mask that was passed to select().",
)


def _open_history(
    state: str,
    places: tuple[str, ...],
    storage_options: dict[str, str],
    select: str | None = None,
) -> RunHistory:
    """Return the history of a run. For a folder, print the file that was taken to stderr."""
    from mds._dataset.rewind import RunHistory
    from mds.errors import ConfigError

    if storage_options and not places:
        raise ConfigError(
            "--storage-option is a setting of the store of a URL. Name the URL of each stream with "
            "--data."
        )
    data = with_options(storage_options, *places) if places else places
    history = RunHistory(state, data=data, select=select)
    if os.path.isdir(state):
        note = f"Note: the state is {history.path}."
        console(stderr=True).print(cell(note), soft_wrap=True)
    return history


# --------------------------------------------------------------------------------------------- step


@run.command(short_help="Show the samples of a step of a training.")
@click.argument("state", type=_state_type)
@click.argument("step", type=click.IntRange(0))
@click.option("--rank", type=click.IntRange(0), help="Show only this rank.")
@click.option(
    "--show",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of rows to fetch and show for each rank.",
)
@_data
@storage_option
@_select
@json_option("Print a JSON line for each sample.")
def step(
    state: str,
    step: int,
    rank: int | None,
    show: int,
    places: tuple[str, ...],
    storage_options: dict[str, str],
    select: str | None,
    as_json: bool,
) -> None:
    """Show the samples of global batch STEP, counted from 0 since the training began.

    STATE is a state as JSON, a file of torch.save with it inside, or the folder of a run. Ranks are
    numbered as in the run that saved the state. With --show the first rows of each rank are
    fetched, and no others.
    """
    with errors():
        history = _open_history(state, places, storage_options, select)
        epoch, inside = history.place_of(step)
        rows = [row for row in history.step(step) if rank is None or row.rank == rank]
        # One bool per row: whether it is one of the first `show` rows of its rank. Only the samples
        # of these rows are fetched, and `values` yields them in the order of the rows.
        by_rank = groupby(rows, attrgetter("rank"))
        is_shown = [number < show for _, rank_rows in by_rank for number, _ in enumerate(rank_rows)]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            numbers = [row.sample for row in compress(rows, is_shown)]
            values = iter([*pool.map(history.dataset.__getitem__, numbers)])
        has_tokens = any(row.tokens for row in rows)
        tokens_heading = ("tokens",) if has_tokens else ()
        terminal = console()
        rows_table = table(
            "rank",
            "sample",
            "stream",
            "shard",
            "row",
            *tokens_heading,
            "",
            right=("rank", "sample", "row", "tokens"),
        )
        for row, has_text in zip(rows, is_shown, strict=True):
            text = _first_value(next(values)) if has_text else ""
            if as_json:
                facts = {name: value for name, value in row._asdict().items() if value is not None}
                of_step = {"epoch": epoch, "step": step}
                print_json_line(of_step | facts | ({"text": text} if text else {}))
            elif not show or text:
                shard = f"{row.shard} {row.file}"
                piece = (f"{row.tokens[0]:,} to {row.tokens[1]:,}",) if row.tokens else ()
                each = (row.rank, row.sample, row.stream, shard, row.row, *piece, text)
                rows_table.add_row(*map(cell, each))
        if not as_json:
            terminal.print(
                f"Step {step:,} of the training is step {inside:,} of epoch {epoch}: "
                f"{plural(len(rows), 'document' if has_tokens else 'sample')}."
            )
            terminal.print(rows_table)


def _first_value(sample: Mapping[str, Any]) -> str:
    """Return the first characters of a sample: of its first text, else of its first column."""
    texts = [value for value in sample.values() if isinstance(value, str)]
    return shorten_value((texts or [*sample.values()] or [""])[0], 60)


# ------------------------------------------------------------------------------------------- sample


@run.command("sample", short_help="Show the steps in which a training sees a sample.")
@click.argument("state", type=_state_type)
@click.argument("number", type=click.IntRange(0))
@_data
@storage_option
@_select
@json_option()
def show_sample(
    state: str,
    number: int,
    places: tuple[str, ...],
    storage_options: dict[str, str],
    select: str | None,
    as_json: bool,
) -> None:
    """Show the steps and ranks that saw a sample, and those of this epoch that will.

    Samples are numbered through all streams, as in dataset[NUMBER]. STATE is a state as JSON, a
    file of torch.save with it inside, or the folder of a run. The ranks are the ranks of the state.
    """
    with errors():
        history = _open_history(state, places, storage_options, select)
        rows = table("epoch", "step", "rank", "", right=("epoch", "step", "rank"))
        visits = history.sample(number)
        epoch, step = history.position
        drops = history.drops_of(number)
        if as_json:
            visit_facts = [visit._asdict() for visit in visits]
            position = {"epoch": epoch, "step": step}
            print_json(
                {"sample": number, "position": position, "visits": visit_facts, "drops": drops}
            )
            return
        for visit in visits:
            when = "seen" if visit.is_over else "to come"
            rows.add_row(*map(cell, (visit.epoch, f"{visit.step:,}", visit.rank, when)))
        console().print(
            f"Sample {number:,} is read {plural(len(visits), 'time')} up to the end of epoch "
            f"{epoch}; the state is before step {step:,} of the training."
        )
        for text in drops:
            console().print(f"The run has {text}.")
        console().print(rows)


# --------------------------------------------------------------------------------------------- diff


@run.command(short_help="Find the first step at which two runs differ.")
@click.argument("first", metavar="STATE", type=_state_type)
@click.argument("second", metavar="STATE", type=_state_type)
@_data
@storage_option
@_select
@json_option()
def diff(
    first: str,
    second: str,
    places: tuple[str, ...],
    storage_options: dict[str, str],
    select: str | None,
    as_json: bool,
) -> None:
    """Show the first step at which two runs had other samples in their global batch, and why.

    Give a STATE of each run; steps up to the later of them are compared. The exit code is 1 where
    the runs differ.
    """
    with errors():
        histories = [
            _open_history(each, places, storage_options, select) for each in (first, second)
        ]
        difference = histories[0].diff(histories[1])
        if as_json:
            print_json(difference._asdict())
        elif difference.step is None:
            click.echo(f"The same samples in all {plural(difference.steps, 'step')}.")
        else:
            click.echo(f"Step {difference.step:,} of the training is the first with other samples.")
        if not as_json:
            for reason in difference.reasons:
                click.echo(f"- {reason}")
    if difference.step is not None:
        raise SystemExit(FAULTY)


# ------------------------------------------------------------------------------------------ mixture


_RIGHT_OF_MIXTURE = ("at first", "at last", "samples", "passes")


@run.command(short_help="Show the share of each stream in a run with a schedule.")
@click.argument("state", type=_state_type)
@click.option("--plot", is_flag=True, help="Draw the shares of the streams as a chart.")
@click.option(
    "--until",
    type=click.IntRange(1),
    metavar="STEP",
    help="Last step to show.  [a quarter after the last change of weights]",
)
@_data
@storage_option
@json_option()
def mixture(
    state: str,
    plot: bool,
    until: int | None,
    places: tuple[str, ...],
    storage_options: dict[str, str],
    as_json: bool,
) -> None:
    """Show what share of the samples each stream of a schedule has from step 0 on.

    STATE is a state as JSON, a file of torch.save with it inside, or the folder of a run; a state
    from before the first step is enough. It includes weights that were set during the run. Shares
    are counted from the samples in the order, not computed from the weights. For a run of packs
    they are shares of tokens, by windows of documents instead of steps.
    """
    refuse_together("--json", "--plot", as_json and plot)
    with errors():
        import numpy as np

        from mds._cli.plots import plot_mixture, stream_letters

        run_mixture = _open_history(state, places, storage_options).mixture(until)
        terminal = console()
        # The steps are cut into one interval for each column of the plot.
        columns = min(max(terminal.width - _MARGIN, 8), _PLOT_COLUMNS)
        edges = np.unique(np.linspace(0, run_mixture.until, columns + 1).astype(np.int64))
        # Both have shape (edges, streams) and count from step 0 up to each edge: samples, and
        # samples or tokens.
        counts = run_mixture.mixture.counts(edges)
        amounts = run_mixture.amounts(edges)
        # Amounts of each stream in the first and in the last interval.
        begin, end = (amounts[i + 1] - amounts[i] for i in (0, len(edges) - 2))
        streams = []
        rows = table(
            "", "stream", "at first", "at last", "samples", "passes", right=_RIGHT_OF_MIXTURE
        )
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
            streams.append(facts)
            shares = (f"{facts[key]:.2%}".replace("%", " %") for key in ("first", "last"))
            passes = f"{facts['passes']:.2f}"
            row = (letter, name, *shares, f"{facts['samples']:,}", passes)
            rows.add_row(*map(cell, row))
        if as_json:
            span = {"unit": run_mixture.unit, "until": run_mixture.until, "now": run_mixture.now}
            print_json({**span, "streams": streams})
            return
        if plot:
            for line in plot_mixture(amounts, edges.tolist(), run_mixture.now, run_mixture.unit):
                terminal.print(cell(line))
        else:
            terminal.print(cell(f"{run_mixture.unit} 0 to {run_mixture.until:,}"))
        print_table(terminal, rows)
