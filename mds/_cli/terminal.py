"""Terminal output of all commands: consoles, JSON, errors and exit codes, sizes and times."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mds._cli.other_words import hint_of_command, hint_of_option, hint_of_value
from mds._units import format_bytes
from mds._version import __version__
from mds.errors import MdsError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_NO_WRAP_COLUMNS = 10_000

F = TypeVar("F", bound=Callable[..., Any])


# --------------------------------------------------------------------------------------- exit codes

#: Exit code of a command that found faults in a dataset, or a difference of two runs.
FAULTY = 1
#: Exit code of wrong usage (as click has it), a missing file, a failed request, a bug: all errors.
TROUBLE = 2
_INTERRUPTED = 130
_CLOSED_PIPE = 141  # 128 + SIGPIPE, as of other programs whose reader has ended


# ----------------------------------------------------------------------------- consoles and errors


def console(*, stderr: bool = False) -> Console:
    """Return a console for standard output or error; it prints plain text unless to a terminal."""
    from rich.console import Console, ConsoleDimensions

    # Without highlighting: numbers in paths and errors would be coloured at random.
    stream = sys.stderr if stderr else sys.stdout
    if not (getattr(stream, "encoding", None) or "").lower().startswith("utf"):
        # Characters that an ASCII terminal or log cannot show are printed as numbers.
        with contextlib.suppress(AttributeError, ValueError):  # not a text file of Python's own
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    terminal = Console(stderr=stderr, highlight=False)
    if not terminal.is_terminal:
        # A log has no width, so no line is wrapped. COLUMNS has no meaning for it: a Python that
        # has loaded readline sets it for all of its children. TERM=dumb makes the width 80 unless
        # both numbers are given.
        terminal.size = ConsoleDimensions(_NO_WRAP_COLUMNS, terminal.height)
    return terminal


def is_lively(terminal: Console) -> bool:
    """Whether a console is a terminal that can redraw lines."""
    return terminal.is_terminal and not terminal.is_dumb_terminal


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """End the command with a sentence and an exit code if the block raises an error.

    Errors of this library and OSErrors are expected: they are printed without a traceback. The exit
    code is `TROUBLE` for all errors, because `FAULTY` means that a comparison or check has ended.
    """
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise  # click prints it and ends the command
    except BrokenPipeError:
        # The reader of a pipe has ended (`mds head ... | head -1`). Output is closed here, because
        # Python would print an error when it flushes the rest at exit.
        with contextlib.suppress(OSError):
            sys.stdout.close()
        sys.exit(_CLOSED_PIPE)
    except KeyboardInterrupt:
        fail("interrupted.", _INTERRUPTED)
    except (MdsError, OSError) as error:
        fail(
            str(error)
            if isinstance(error, MdsError) or not error.filename
            else _describe_os_error(error)
        )
    except Exception:  # noqa: BLE001 - a bug; Python's own exit code 1 would mean a fault of data
        sys.excepthook(*sys.exc_info())
        sys.exit(TROUBLE)


def fail(sentence: str, code: int = TROUBLE) -> None:
    """Print an error without the secrets of URLs to standard error, and exit with ``code``."""
    from rich.text import Text

    from mds.storage._url import redact_text

    terminal = console(stderr=True)
    error = Text.assemble(("Error: ", "bold red"), redact_text(sentence))
    command = _COMMAND_AT_END.search(error.plain)
    if command is None or len(error) <= terminal.width:
        print_prose(terminal, error)
    else:
        print_prose(terminal, error[: command.start()])
        print_command(terminal, command[0].strip())
    sys.exit(code)


#: A command at the end of an error, as in "... Merge them with: mds merge data".
_COMMAND_AT_END = re.compile(r"(?<=:) (mds|mds-convert) [^.]\S*( \S+)*$")


def print_prose(terminal: Console, text: Text) -> None:
    """Print sentences whose lines end between words; a longer word, such as a path, stays whole."""
    for line in text.split(allow_blank=True):
        words = textwrap.TextWrapper(
            terminal.width,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        ).wrap(line.plain)
        start = 0
        for piece in words or [""]:
            start = line.plain.index(piece, start)
            terminal.print(line[start : start + len(piece)], soft_wrap=True)


def print_command(terminal: Console, command: str) -> None:
    """Print a command that can be copied: lines of a terminal end with a backslash, as in a shell.

    - ``command`` (str): The command as it is typed, with its quotes.
    """
    try:
        words = [shlex.quote(word) for word in shlex.split(command)]
    except ValueError:  # it goes on with a sentence that has a single quote
        words = [command]
    lines = ["  "]
    for word in words:
        # Two cells for the backslash.
        if len(lines[-1]) + len(word) + 2 > terminal.width and lines[-1].strip():
            lines[-1] += "\\"
            lines.append("    ")
        lines[-1] += f"{word} "
    for line in lines:
        terminal.print(cell(line.rstrip(" ")), soft_wrap=True)


# ----------------------------------------------------------------------------------------- commands


@contextlib.contextmanager
def _hidden_secrets() -> Iterator[None]:
    """Mask the secrets of URLs in click's errors about the command line."""
    try:
        yield
    except click.UsageError as error:
        from mds.storage._url import redact_text

        error.message = redact_text(error.message)  # type: ignore[misc]  # is not read before
        raise


class Command(click.Command):
    """A command of click with ``--version``, whose usage errors tell what to write.

    They show no secret of a URL, and know options of other programs.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters of the command, ``--help`` and ``--version``."""
        return [*super().get_params(ctx), _VERSION]

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the arguments of a command line."""
        with _hidden_secrets():
            return super().make_context(*args, **extra)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``args``. Raises UsageError with the option to write for one of other programs."""
        options = {name for each in self.get_params(ctx) for name in each.opts}
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = hint_of_option(error.option_name, ctx.command_path, options)
            if not hint:
                raise
            raise click.UsageError(f"No such option '{error.option_name}'. {hint}", ctx) from error
        except click.BadOptionUsage as error:
            raise click.BadOptionUsage(
                error.option_name, error.message + hint_of_value(error.option_name, options), ctx
            ) from error


class Group(Command, click.Group):
    """A group of commands; its usage errors are those of a `Command`."""

    command_class = Command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that the arguments name."""
        with _hidden_secrets():
            return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that ``args`` name. Raises UsageError for one of other programs."""
        name = args[0]
        is_known = self.get_command(ctx, name) is not None or name.startswith("-")
        hint = "" if is_known else hint_of_command(name, args[1:], ctx.command_path)
        if hint and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command '{name}'. {hint}", ctx)
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    """Print the version and end the command, if the option ``--version`` is given."""
    if is_given and not ctx.resilient_parsing:
        click.echo(f"mds, version {__version__}")
        ctx.exit()


_VERSION = click.Option(
    ["--version"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)


class SampleCount(click.ParamType):  # type: ignore[type-arg]
    """The value of an option ``-n``: a number of samples such as 1000 or 10k."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of a text. Raises BadParameter with the option that was meant."""
        from mds._units import parse_count

        try:
            return parse_count(value)
        except MdsError as error:
            options = {} if ctx is None else {name for p in ctx.command.params for name in p.opts}
            self.fail(f"{error}{hint_of_value('-n', options)}", param, ctx)


def limit_option(text: str, default: int | None = None) -> Callable[[F], F]:
    """Return the decorator that adds the option ``--limit`` (``-n``) to a command.

    - ``text`` (str): The help.
    - ``default`` (int | None): The number of samples without the option; None: all of them.
    """
    return click.option(
        "--limit",
        "-n",
        type=SampleCount(),
        metavar="N",
        default=default,
        show_default=default is not None,
        help=text,
    )


# --------------------------------------------------------------------------------------------- JSON


def format_option(command: F) -> F:
    """Decorate a command: it gets ``file_format``, the format of files that are read in place."""
    add_option = click.option(
        "--format",
        "file_format",
        metavar="FORMAT",
        help="Format of the files of a dataset that is read in place, such as images.",
    )
    return add_option(command)


def json_option(text: str = "Print one JSON document.") -> Callable[[F], F]:
    """Return the decorator that adds the option ``--json``, the parameter ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def refuse_together(first: str, second: str, is_refused: bool) -> None:
    """Raise UsageError if two options that contradict each other are both given."""
    if is_refused:
        raise click.UsageError(f"{first} and {second} exclude each other: leave out one of them.")


def print_json(document: Any) -> None:
    """Print a JSON document to standard output. It may have no nan and no infinity."""
    click.echo(json.dumps(document, indent=1, allow_nan=False))


def print_json_line(value: Any) -> None:
    """Print a value as one of several JSON lines."""
    click.echo(json.dumps(value, allow_nan=False))


def print_datasets(datasets: Iterable[dict[str, Any]], **facts: Any) -> None:
    """Print the JSON document of a command on datasets.

    - ``datasets`` (Iterable[dict[str, Any]]): The facts of each dataset, with "url" and "samples".
    - ``facts`` (Any): Facts about all of them.

    The document has the sums of samples and shards, so that those of a single dataset are on top.
    """
    datasets = [*datasets]
    sums = {
        name: sum(each[name] for each in datasets)
        for name in ("samples", "shards")
        if all(name in each for each in datasets)
    }
    print_json({**sums, **facts, "datasets": datasets})


# --------------------------------------------------------------------------------- tables and words


def table(*headings: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table with these headings; columns in ``right`` are right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    empty_table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in headings:
        empty_table.add_column(
            heading, justify="right" if heading in right else "left", overflow="fold"
        )
    return empty_table


def print_table(terminal: Console, rows: Table) -> None:
    """Print a table; without lines and trailing spaces unless to a terminal."""
    if terminal.is_terminal:
        terminal.print(rows)
        return
    rows.box = None
    with terminal.capture() as captured:
        terminal.print(rows)
    terminal.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")) + "\n")


def cell(value: Any) -> Any:
    """Return a value as text for a console, with markup and control characters escaped."""
    from rich.text import Text

    text = str(value)
    return Text("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))


def duration(seconds: float) -> str:
    """Return a number of seconds in words: ``duration(4000) == "1 h 6 min"``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes, seconds_left = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds_left} s"
    return f"{minutes // 60} h {minutes % 60} min"


def rate(amount: float, seconds: float) -> str:
    """Return bytes per second in words."""
    return f"{format_bytes(amount / max(seconds, 1e-9))}/s"


def _describe_os_error(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}"
