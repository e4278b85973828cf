"""Terminal output of all commands: consoles, errors and exit codes, sizes and times."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from mds.errors import MdsError
from mds.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_NO_WRAP_COLUMNS = 10_000


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
    """End the command with a sentence and exit code 1 if the block raises an expected error.

    Expected are errors of this library and OSErrors. All others keep their traceback.
    """
    try:
        yield
    except BrokenPipeError:
        # The reader of a pipe has ended (`mds head ... | head -1`). Output is closed here, because
        # Python would print an error when it flushes the rest at exit.
        with contextlib.suppress(OSError):
            sys.stdout.close()
        sys.exit(1)
    except KeyboardInterrupt:
        fail("interrupted.", 130)
    except (MdsError, OSError) as error:
        fail(
            str(error)
            if isinstance(error, MdsError) or not error.filename
            else _describe_os_error(error)
        )


def fail(sentence: str, code: int = 1) -> None:
    """Print an error without the secrets of URLs to standard error, and exit with ``code``."""
    from rich.text import Text

    from mds.storage.url import redact_text

    terminal = console(stderr=True)
    terminal.print(Text.assemble(("Error: ", "bold red"), redact_text(sentence)), soft_wrap=True)
    sys.exit(code)


@contextlib.contextmanager
def _hidden_secrets() -> Iterator[None]:
    """Mask the secrets of URLs in click's errors about the command line."""
    try:
        yield
    except click.UsageError as error:
        from mds.storage.url import redact_text

        error.message = redact_text(error.message)  # type: ignore[misc]  # is not read before
        raise


class Command(click.Command):
    """A command of click whose errors about its arguments show no secret of a URL."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the arguments of a command line."""
        with _hidden_secrets():
            return super().make_context(*args, **extra)


class Group(click.Group):
    """A group of commands whose usage errors show no secret of a URL."""

    command_class = Command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that the arguments name."""
        with _hidden_secrets():
            return super().invoke(ctx)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the options before the command."""
        with _hidden_secrets():
            return super().make_context(*args, **extra)


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


def plural(count: int, word: str) -> str:
    """Return a count with its noun: ``plural(1, "shard") == "1 shard"``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _describe_os_error(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}"
