"""mds step, find and compare: what a run saw, by its checkpoint."""

from __future__ import annotations

import json
from itertools import compress, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

from mds.cli.terminal import cell, console, errors, plural, table
from mds.errors import StateError
from mds.preview import shorten_value

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_BYTES = 1 << 30  # of a checkpoint in JSON
_MAX_DEPTH = 8  # of the state in a checkpoint

_data = click.option(
    "--data",
    "places",
    multiple=True,
    metavar="URL",
    help="Where the streams are now, one option each, in their order.",
)
_select = click.option(
    "--select",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE.npy",
    help="For a part of a dataset: the numbers or the mask that select() was given.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")


@click.command(short_help="What came in a step of a training.")
@click.argument("checkpoint", type=click.Path(exists=True, dir_okay=False))
@click.argument("step", type=click.IntRange(0))
@click.option("--rank", type=click.IntRange(0), help="Only this rank.")
@click.option(
    "--show",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Rows that each rank fetches.",
)
@_data
@_select
@_json
def step(
    checkpoint: str,
    step: int,
    rank: int | None,
    show: int,
    places: tuple[str, ...],
    select: str | None,
    as_json: bool,
) -> None:
    """Show the samples of global batch STEP, counted from 0 since the training began.

    CHECKPOINT is the state of a loader as JSON, or a file of torch.save with it somewhere inside.
    Which rank gets a sample is told for the ranks of the state. With --show the first rows of each
    rank are fetched, and nothing else.
    """
    with errors():
        from mds.dataset.rewind import Rewind

        rewind = Rewind(read_state(checkpoint), places, select)
        epoch, inside = rewind.place_of(step)
        rows = [row for row in rewind.rows(step) if rank is None or row.rank == rank]
        by_rank = groupby(rows, attrgetter("rank"))
        is_shown = [number < show for _, mine in by_rank for number, _ in enumerate(mine)]
        values = iter(rewind.samples([row.sample for row in compress(rows, is_shown)]))
        is_packed = any(row.tokens for row in rows)
        tokens = ("tokens",) * is_packed
        terminal = console()
        found = table("rank", "sample", "stream", "shard", "row", *tokens, "", right=_RIGHT)
        for row, has_text in zip(rows, is_shown, strict=True):
            text = _first_value(next(values)) if has_text else ""
            if as_json:
                facts = {name: value for name, value in row._asdict().items() if value is not None}
                click.echo(json.dumps(facts | ({"text": text} if text else {})))
            elif not show or text:
                shard = f"{row.shard} {row.file}"
                piece = (f"{row.tokens[0]:,} to {row.tokens[1]:,}",) if row.tokens else ()
                each = (row.rank, row.sample, row.stream, shard, row.row, *piece, text)
                found.add_row(*map(cell, each))
        if not as_json:
            terminal.print(
                f"Step {step:,} of the training is step {inside:,} of epoch {epoch}: "
                f"{plural(len(rows), 'document' if is_packed else 'sample')}."
            )
            terminal.print(found)


_RIGHT = ("rank", "sample", "row", "tokens")


@click.command(short_help="When a sample comes in a training.")
@click.argument("checkpoint", type=click.Path(exists=True, dir_okay=False))
@click.option("--sample", required=True, type=click.IntRange(0), help="Its number.")
@_data
@_select
@_json
def find(
    checkpoint: str, sample: int, places: tuple[str, ...], select: str | None, as_json: bool
) -> None:
    """Show the steps and ranks that saw a sample, and those of this epoch that will.

    Samples are numbered through all streams, as dataset[NUMBER] takes them. Ranks are those of the
    state.
    """
    with errors():
        from mds.dataset.rewind import Rewind

        rewind = Rewind(read_state(checkpoint), places, select)
        rows = table("epoch", "step", "rank", "", right=("epoch", "step", "rank"))
        seen = rewind.find(sample)
        for place in seen:
            if as_json:
                click.echo(json.dumps(place._asdict()))
            when = "seen" if place.is_over else "to come"
            rows.add_row(*map(cell, (place.epoch, f"{place.step:,}", place.rank, when)))
        if not as_json:
            epoch, step = rewind.position
            console().print(
                f"Sample {sample:,} comes {plural(len(seen), 'time')} up to the end of epoch "
                f"{epoch}; the state is before step {step:,} of the training."
            )
            for text in rewind.drops_of(sample):
                console().print(f"The run has {text}.")
            console().print(rows)


@click.command(short_help="Where two runs differ, and why.")
@click.argument("first", type=click.Path(exists=True, dir_okay=False))
@click.argument("second", type=click.Path(exists=True, dir_okay=False))
@_data
@_select
@_json
def compare(
    first: str, second: str, places: tuple[str, ...], select: str | None, as_json: bool
) -> None:
    """Show the first step at which two runs had other samples in their global batch, and why.

    FIRST and SECOND are checkpoints; steps up to the later of them are compared. The exit code is 1
    where the runs differ.
    """
    with errors():
        from mds.dataset.rewind import compare as compare_states

        difference = compare_states(read_state(first), read_state(second), places, select)
        if as_json:
            click.echo(json.dumps(difference._asdict()))
        elif difference.step is None:
            click.echo(f"The same samples in all {difference.steps:,} steps.")
        else:
            click.echo(f"Step {difference.step:,} of the training is the first with other samples.")
        if not as_json:
            for reason in difference.reasons:
                click.echo(f"- {reason}")
    if difference.step is not None:
        raise SystemExit(1)


def read_state(path: str) -> Mapping[str, Any]:
    """Return the state in a checkpoint file. Raises StateError when there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            read: Any = json.loads(file.read(_MAX_BYTES))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        read = _read_torch(path)
    states = _states_in(read, 0)
    if len(states) != 1:
        raise StateError(
            f"{path} has {plural(len(states), 'state')} of a loader; expected one, as "
            "loader.state_dict() gives it. Save it as JSON: json.dump(loader.state_dict(), file)."
        )
    return states[0]


def _read_torch(path: str) -> Any:
    import pickle
    import warnings

    import torch

    broken = (ArithmeticError, AttributeError, EOFError, LookupError, RuntimeError, TypeError)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about files of another kind
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, ValueError, *broken) as error:
        raise StateError(
            f"{path} is neither JSON nor a file of torch.save with nothing but plain values and "
            "tensors. Save the state as JSON: json.dump(loader.state_dict(), file)."
        ) from error


def _states_in(value: Any, depth: int) -> list[Mapping[str, Any]]:
    if not isinstance(value, dict) or depth > _MAX_DEPTH:
        return []
    if "num_canonical_nodes" in value and "shuffle_seed" in value:
        return [value]
    return [state for item in value.values() for state in _states_in(item, depth + 1)]


def _first_value(sample: Mapping[str, Any]) -> str:
    """Return the first characters of a sample: of its first text, else of its first column."""
    texts = [value for value in sample.values() if isinstance(value, str)]
    return shorten_value((texts or [*sample.values()] or [""])[0], 60)
