"""Command `mds-convert`: it shows the plan, the progress and the summary of a conversion."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from mds._cli.standard_input import NAME, spooled
from mds._cli.storage_options import storage_option, without_secrets
from mds._cli.terminal import (
    Command,
    cell,
    console,
    duration,
    errors,
    is_lively,
    json_option,
    limit_option,
    print_command,
    print_datasets,
    print_prose,
    print_table,
    rate,
    table,
)
from mds._units import format_bytes
from mds._words import plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from mds.writers.convert._conversion import Conversion
    from mds.writers.convert._run import Progress, Summary


#: Number of listed files between two lines, if the output is a log and no terminal.
_FILES_BETWEEN_LINES = 100_000
#: Bytes of a source below which one process is faster than starting several.
_SMALL_SOURCE = 64 << 20


class _FormatOption(click.Option):
    """Option ``--format``, whose help lists the registered inputs.

    Looking them up takes time, so the help is a property that is computed when it is shown.
    """

    def _list_inputs(self) -> str:
        from mds.writers.convert._inputs.registry import source_names

        return f"Format of SOURCE, if mds-convert cannot detect it: {', '.join(source_names())}."

    def _ignore(self, text: str | None) -> None:
        """Ignore the help that Click sets, which is None."""

    help = property(_list_inputs, _ignore)


@click.command(
    cls=Command,
    short_help="Convert images, text, tables, tars, datasets to MDS.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.argument("source")
@click.argument("out")
@click.option("--format", cls=_FormatOption, metavar="NAME")
@click.option(
    "--include",
    multiple=True,
    metavar="PATTERN",
    help=("Include only files that match this pattern ('*.py')."),
)
@click.option(
    "--exclude", multiple=True, metavar="PATTERN", help=("Exclude files that match this pattern.")
)
@click.option("--labels", metavar="FILE", help="Table of labels inside a folder of images.")
@click.option("--config", metavar="NAME", help="Configuration of a Hugging Face dataset.")
@click.option("--source-split", metavar="NAME", help="Split of a Hugging Face dataset.")
@click.option("--encoding", metavar="NAME", help="Encoding of text: cp1252, ...  [utf-8]")
@click.option(
    "--no-header",
    is_flag=True,
    help=("Read the first line of a table as a record, not as a header."),
)
@click.option(
    "--columns",
    "-c",
    multiple=True,
    metavar="NAME,...",
    help="Write these columns and no others (repeat, or separate by commas).",
)
@click.option(
    "--encodings",
    multiple=True,
    metavar="NAME:ENCODING,...",
    help="Encodings of columns instead of the inferred ones.",
)
@click.option(
    "--null",
    multiple=True,
    metavar="TEXT",
    help="Cells of a table with this text ('', NA) are missing: the column is optional.",
)
@click.option(
    "--fill",
    multiple=True,
    metavar="NAME=VALUE",
    help="Value that replaces missing values of a column.",
)
@click.option(
    "--describe",
    multiple=True,
    metavar="NAME=TEXT",
    help="Description of a column, stored with the dataset and shown by mds info.",
)
@click.option(
    "--lengths",
    metavar="NAME",
    help="Store the lengths of the arrays of a column with the dataset, for packing.",
)
@click.option("--drop", multiple=True, metavar="NAME", help="Leave out these columns.")
@click.option(
    "--split",
    multiple=True,
    metavar="NAME=SHARE,...",
    help="Write splits: train=0.98,val=0.02. May be repeated. Samples are "
    "assigned by a hash of their content or path, the same on every machine and run.",
)
@click.option(
    "--merge-splits",
    is_flag=True,
    help="Merge the files or folders named train, test, ... into one dataset.",
)
@click.option("--split-key", metavar="NAME", help="Column whose value selects the split.")
@limit_option("Stop after N samples (1000, 10k).")
@click.option(
    "--tokenizer",
    metavar="NAME",
    help="Write blocks of tokens: bytes, tiktoken:NAME, a "
    "tokenizer.json, or a name on the Hugging Face hub.",
)
@click.option("--block", type=int, metavar="N", help="Number of tokens in a block.  [2048]")
@click.option(
    "--end-token", metavar="TOKEN", help=("Token at the end of each document; '' for none.")
)
@click.option(
    "--text-column",
    metavar="NAME",
    help="Column with the text to tokenize, or a path inside it: messages.content.",
)
@click.option("--drop-last", is_flag=True, help="Drop the last tokens if they do not fill a block.")
@click.option("--compression", metavar="NAME", help="zstd, zstd:7, gz, bz2, br, snappy.")
@click.option(
    "--hash",
    "hashes",
    multiple=True,
    metavar="NAME",
    help="Digests in the index: xxh3_64, sha1, ..., none.  [xxh3_64]",
)
@click.option(
    "--size-limit",
    default="64mb",
    metavar="BYTES",
    show_default=True,
    help="Largest size of a shard; none for a single shard.",
)
@click.option(
    "--num-workers",
    "-j",
    type=int,
    metavar="N",
    help="Number of processes; 0 for one per core. The number does not change the output.  [one "
    "per core; 1 for small sources]",
)
@click.option(
    "--engine",
    default="local",
    metavar="NAME",
    help=("Engine that runs the conversion: local, spark, ray."),
)
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="skip: leave out and list records that cannot be converted.",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted conversion.")
@click.option("--overwrite", is_flag=True, help="Replace an existing dataset at OUT.")
@click.option("--work", metavar="FOLDER", help="Folder for unfinished work.  [OUT/.mds-convert]")
@click.option(
    "--no-durable",
    is_flag=True,
    help=("Do not wait until the disk has stored shards and index (no fsync)."),
)
@click.option(
    "--keep-shards",
    is_flag=True,
    help="Write one MDS shard for each shard of the source, such as a Parquet row group. The order "
    "of training and saved states stay valid.",
)
@click.option(
    "--portable",
    is_flag=True,
    help="Write only encodings that mosaicml-streaming reads: json instead of optional, bool, ...",
)
@storage_option
@click.option("--dry-run", is_flag=True, help="Show the plan and stop.")
@click.option("--quiet", "-q", is_flag=True, help="Print only errors and the output of --json.")
@json_option("Print the result as one JSON document; with --dry-run, print the columns.")
def convert(
    source: str, out: str, dry_run: bool, quiet: bool, as_json: bool, **options: Any
) -> None:
    """Convert SOURCE to a dataset of MDS shards at OUT.

    SOURCE is a folder of images, sound, text or any files. Or it is a file, or a folder of files,
    of JSON lines, CSV, TSV, Parquet, Arrow or WebDataset tars. Or it is a Hugging Face dataset (a
    folder, or hf:NAME), an MDS dataset (a folder or URL), or - (standard input), with --format. OUT
    is a folder or URL.

    Columns and encodings are inferred and shown first. After an interruption, --resume continues
    the conversion and gives the same bytes.
    """
    with errors(), spooled(source, options) as path:
        _plan_and_run(source, path, out, dry_run, quiet, as_json, options)


#: Options that may be repeated, and have values that are separated by commas.
_COMMA_SEPARATED = {"columns", "drop", "include", "exclude", "hashes", "split"}


def _plan_and_run(
    source: str,
    path: str,
    out: str,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    """Prepare a conversion, show its plan, run it and print a summary.

    - ``source`` (str): The source as the user gave it, for messages.
    - ``path`` (str): The source to read; for standard input a temporary file with its bytes.
    - ``options`` (dict[str, Any]): The values of all other options, by name.
    """
    from mds.storage._url import redact_text
    from mds.writers.convert import prepare

    stderr = console(stderr=True)
    lively = is_lively(stderr) and not quiet
    if options.pop("no_durable"):
        options["durable"] = False
    # Keep only the options that were given. `is` False, because 0 equals False: --num-workers 0
    # is an option that was given.
    options = {
        name: value
        for name, value in options.items()
        if not (value is None or value in ((), {}) or (value is False and name != "durable"))
    }
    for name in _COMMA_SEPARATED & {*options}:
        options[name] = ",".join(options[name])
    with _show_listing(stderr if not quiet else None, source):
        conversion = prepare(path, out, **options)
    if source == NAME:
        conversion.source.name = "standard input"
    keeps_shards = conversion.spec.keep_shards
    if "num_workers" not in options and not keeps_shards:
        conversion = _with_workers(conversion)
    if not quiet:
        show_plan(conversion, stderr)
    conversion.check_disk_space()
    columns = {column.name: column.encoding for column in conversion.columns}
    if dry_run:
        if as_json:
            print_datasets([{"url": redact_text(conversion.out), "columns": columns}])
        return
    try:
        with show_progress(stderr if lively else None, conversion.spec.limit) as progress:
            summary = conversion.run(progress)
    except KeyboardInterrupt:
        # One that keeps shards cannot be resumed, nor one that has not finished any part.
        if keeps_shards or conversion.checkpoint().load_plan() is None:
            raise
        arguments = without_secrets(_own_arguments())
        command = redact_text(shlex.join(["mds-convert", *arguments, "--resume"]))
        stderr.print(cell("Interrupted. Finished work is kept; continue with"))
        print_command(stderr, command)
        sys.exit(130)
    if not quiet:
        # Those of the source were printed with the plan.
        own_notes = summary.notes[len(conversion.source.notes) :]
        show_notes(dataclasses.replace(summary, notes=own_notes), stderr)
    if as_json:
        _print_summary_json(summary, columns)
    elif not quiet:
        show_summary(summary, console())


@contextlib.contextmanager
def _show_listing(stderr: Console | None, source: str) -> Iterator[None]:
    """Show how many files were found while a large folder is listed.

    - ``stderr`` (Console | None): The console to print to; None for no output.
    """
    if stderr is None:
        yield
        return
    from mds.events import Listed, subscribe
    from mds.storage._url import redact

    source = redact(source)

    lively = is_lively(stderr)
    with stderr.status(f"Inspecting {source}") if lively else contextlib.nullcontext() as status:

        def show(event: object) -> None:
            if not isinstance(event, Listed):
                return
            text = f"Inspecting {source}: {plural(event.files, 'file')}"
            if status is not None:
                status.update(text)
            elif event.files % _FILES_BETWEEN_LINES == 0:
                stderr.print(cell(text))

        with subscribe(show):
            yield


def show_plan(conversion: Conversion, stderr: Console) -> None:
    """Print the plan to standard error: the source, its columns and what will be written."""
    source, spec = conversion.source, conversion.spec
    stderr.print(cell(f"{source.name}: {source.title}, {source.describe()}"))
    column_table = table("column", "encoding", "first value", "")
    for column in conversion.columns:
        column_table.add_row(
            *map(cell, (column.name, column.encoding, column.example, column.note))
        )
    print_table(stderr, column_table)
    for note in source.notes:
        print_prose(stderr, cell(f"Note: {note}."))
    limit = format_bytes(spec.size_limit) if spec.size_limit else "any size"
    shards = "the shards of the source" if spec.keep_shards else f"shards of up to {limit}"
    settings = [shards, spec.compression or "no compression"]
    if spec.hashes:
        settings.append(", ".join(spec.hashes))
    if spec.split:
        settings.append(", ".join(f"{name} {share:.4g}" for name, share in spec.split.items()))
    if spec.limit:
        settings.append(f"the first {plural(spec.limit, 'sample')}")
    if not spec.keep_shards:
        settings.append(plural(spec.num_workers, "process"))
    stderr.print(cell(f"to {conversion.out}: {'; '.join(settings)}"))
    if disk_space := conversion.describe_disk_space():
        stderr.print(cell(disk_space))


def show_notes(summary: Summary, stderr: Console) -> None:
    """Print which records were left out, and other notes, to standard error."""
    for each in summary.bad:
        print_prose(stderr, cell(f"Left out: {each}"))
    if summary.bad_count > len(summary.bad):
        stderr.print(cell(f"... and {summary.bad_count - len(summary.bad):,} more"))
    for note in summary.notes:
        print_prose(stderr, cell(f"Note: {note}."))
    if summary.resumed_parts:
        stderr.print(
            cell(f"Note: {plural(summary.resumed_parts, 'part')} had been converted before.")
        )
    for split in summary.splits:
        if not split.samples:
            stderr.print(
                cell(f"Note: the split {split.name} got no samples; it cannot be streamed.")
            )


def _print_summary_json(summary: Summary, columns: dict[str, str]) -> None:
    """Print what was written as JSON; ``columns`` maps the written columns to encodings."""
    from mds.storage._url import redact

    datasets = [
        {
            "url": redact(os.path.join(summary.out, split.name) if split.name else summary.out),
            "columns": columns,
            "samples": split.samples,
            "shards": split.shards,
            "raw_size": split.raw_size,
            "zip_size": split.zip_size,
        }
        for split in summary.splits
    ]
    seconds = round(summary.seconds, 3)
    print_datasets(
        datasets,
        seconds=seconds,
        bad_records=summary.bad_count,
        first_bad=[*summary.bad],
        notes=[*summary.notes],
    )


def show_summary(summary: Summary, stdout: Console) -> None:
    """Print what was written and how to read the dataset to standard output."""
    from mds.storage._url import is_local

    raw = sum(split.raw_size for split in summary.splits)
    for split in summary.splits:
        name = f"{split.name}: " if split.name else ""
        zipped = f", {format_bytes(split.zip_size)} compressed" if split.zip_size else ""
        line = f"{plural(split.samples, 'sample')} in {plural(split.shards, 'shard')}, "
        stdout.print(cell(f"{name}{line}{format_bytes(split.raw_size)}{zipped}"))
    bad = f", {plural(summary.bad_count, 'record')} left out" if summary.bad_count else ""
    if summary.is_new:  # else an earlier run had finished it, so there is no speed
        speed = f"{summary.samples / max(summary.seconds, 1e-9):,.0f} samples/s"
        stdout.print(
            cell(f"{duration(summary.seconds)}, {speed}, {rate(raw, summary.seconds)}{bad}")
        )
    elif bad:
        stdout.print(cell(bad.removeprefix(", ")))
    first = summary.splits[0].name
    place = os.path.join(summary.out, first) if first else summary.out
    stdout.print(cell(f"Look at it: mds head {shlex.quote(place)}"), soft_wrap=True)
    argument = "local" if is_local(place) else "remote"
    stdout.print(cell(f"Read it:    mds.StreamingDataset({argument}={place!r})"), soft_wrap=True)


def _with_workers(conversion: Conversion) -> Conversion:
    """Return the conversion with the default number of processes: 1 if it is small, else 1 a core.

    A conversion to tokens takes long even for a small source.
    """
    small = conversion.source.size < _SMALL_SOURCE and conversion.spec.tokens is None
    num_workers = 1 if small else os.cpu_count() or 1
    return dataclasses.replace(
        conversion, spec=dataclasses.replace(conversion.spec, num_workers=num_workers)
    )


def _own_arguments() -> list[str]:
    """Return the arguments of the command line, to print a command that resumes the conversion."""
    arguments = [each for each in sys.argv[1:] if each not in ("--resume", "--overwrite")]
    # `mds convert` and `mds-convert` are the same command.
    return arguments[1:] if arguments[:1] == ["convert"] else arguments


@contextlib.contextmanager
def show_progress(
    terminal: Console | None, limit: int | None = None
) -> Iterator[Callable[[Progress], None] | None]:
    """Draw a progress bar, and yield the function that a conversion calls with its progress.

    - ``terminal`` (Console | None): The console to draw on; None: no bar, and None is yielded.
    - ``limit`` (int | None): The number of samples that is the goal; None: the bytes of the source.
    """
    if terminal is None:
        yield None
        return
    bar = _make_bar(terminal)
    with bar:
        task = bar.add_task("converting", total=limit, what="")
        yield lambda progress: _show_on_bar(bar, task, progress, limit)


def _make_bar(terminal: Console) -> Bar:
    """Return a progress bar that is not shown yet."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(bar_width=max(5, min(40, terminal.width - 50))),
        TaskProgressColumn(),
        TextColumn("{task.fields[what]}"),
        TimeRemainingColumn(compact=True),
    )
    # The bar disappears at the end, because the summary follows.
    return Progress(*columns, console=terminal, transient=True)


def _show_on_bar(bar: Bar, task: int, progress: Progress, limit: int | None) -> None:
    """Show the progress of a conversion on a bar, in samples if it has a limit, else in bytes.

    - ``task`` (int): The number of the task of the bar.
    """
    from rich.progress import TaskID

    speed = bar.tasks[0].speed
    words = [plural(progress.samples, "sample")]
    if bar.console.width >= 80:
        words.append(plural(progress.shards, "shard"))
        if speed and not limit:
            words.append(f"{format_bytes(speed)}/s")
    if progress.bad:
        words.append(f"{progress.bad:,} bad")
    completed = progress.samples if limit else progress.size
    total = limit or progress.whole or None
    bar.update(TaskID(task), completed=completed, total=total, what=", ".join(words))
