"""mds verify: check all of a dataset, and list its faults."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from mds._cli.storage_options import storage_option, with_options
from mds._cli.terminal import (
    FAULTY,
    Command,
    cell,
    console,
    duration,
    errors,
    format_option,
    is_lively,
    json_option,
    print_datasets,
    refuse_together,
)
from mds._units import format_bytes
from mds._words import plural

if TYPE_CHECKING:
    from rich.console import Console

    from mds._cli.verification import Report


@click.command(cls=Command, short_help="Check all sizes, digests and samples; list all faults.")
@click.argument("dataset")
@click.option(
    "--no-decode", is_flag=True, help=("Check only sizes, digests and offsets, not values.")
)
@click.option(
    "-j", "--num-workers", type=click.IntRange(0), default=1, show_default=True,
    help="Number of processes; 0 for one per core.",
)  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Print only faults.")
@format_option
@storage_option
@json_option()
def verify(
    dataset: str,
    no_decode: bool,
    num_workers: int,
    quiet: bool,
    file_format: str | None,
    storage_options: dict[str, str],
    as_json: bool,
) -> None:
    """Check every size, digest and sample of DATASET, and list all faults.

    DATASET is the folder or URL of a dataset, or the folder of its splits. The exit code is 1
    when there are faults, and 2 when the check cannot be done.
    """
    refuse_together("--json", "--quiet", as_json and quiet)
    with errors():
        import os

        from mds._cli.datasets import find_datasets
        from mds._cli.verification import verify as check

        progress_terminal, is_faulty, facts = console(stderr=True), False, []
        (place,) = with_options(storage_options, dataset)
        for url in find_datasets(place, file_format):
            began = time.monotonic()
            has_bar = is_lively(progress_terminal) and not quiet
            with _show_progress(progress_terminal if has_bar else None) as progress:
                count = num_workers or os.cpu_count() or 1
                report = check(
                    url,
                    decode=not no_decode,
                    workers=count,
                    progress=progress,
                    file_format=file_format,
                )
            seconds = time.monotonic() - began
            is_faulty = is_faulty or bool(report.faults)
            if as_json:
                facts.append(_facts(url, report, seconds))
                continue
            for fault in report.faults:
                click.echo(fault)
            if not quiet:
                _show(url, report, seconds, console())
        if as_json:
            print_datasets(facts)
        sys.exit(FAULTY if is_faulty else 0)


def _facts(url: str, report: Report, seconds: float) -> dict[str, Any]:
    """Return what was and what was not checked, and the faults, as values of JSON."""
    from mds.storage._url import redact

    return {
        "url": redact(url),
        "samples": report.samples,
        "shards": report.shards,
        "read_size": report.size,
        "seconds": round(seconds, 3),
        "faults": report.faults,
        "unchecked_columns": sorted(report.unopened),
        "shards_without_digest": report.undigested,
    }


def _show(url: str, report: Report, seconds: float, terminal: Console) -> None:
    """Print what was and what was not checked, and the number of faults."""
    for name in sorted(report.unopened):
        terminal.print(cell(f"column {name!r} holds pickles, which were not loaded"))
    if report.undigested:
        lacking = f"{report.undigested} of {plural(report.shards, 'shard')}"
        lacking += " has" if report.undigested == 1 else " have"
        terminal.print(
            cell(
                f"not checked: {lacking} no digest in the index, so a changed byte that still "
                "decodes is not noticed. Write with hashes=['xxh3_64'], or convert with mds-convert"
            ),
            soft_wrap=True,
        )
    faults = plural(len(report.faults), "fault") if report.faults else "no faults"
    checked = f"{plural(report.samples, 'sample')} in {plural(report.shards, 'shard')}"
    line = f"{url}: {checked}, {format_bytes(report.size)} read in {duration(seconds)}: {faults}"
    terminal.print(cell(line), soft_wrap=True)


@contextlib.contextmanager
def _show_progress(terminal: Console | None) -> Iterator[Callable[[Report, int], None] | None]:
    """Show a progress bar during the block; yield the ``progress`` of `verify` that moves it.

    Without a terminal there is no bar, and None is yielded.
    """
    if terminal is None:
        yield None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("shards"))
    with Progress(
        *columns, TimeRemainingColumn(compact=True), console=terminal, transient=True
    ) as bar:
        task = bar.add_task("verifying", total=None)
        yield lambda report, shards: bar.update(task, completed=report.shards, total=shards)
