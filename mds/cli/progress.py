"""The progress bar of a conversion, fitted to the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from mds.cli.terminal import plural
from mds.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

    from mds.writers.convert.run import Progress


@contextlib.contextmanager
def showing(
    where: Console | None, limit: int | None = None
) -> Iterator[Callable[[Progress], None] | None]:
    """Draw progress on a console, or nowhere for None; gives what a conversion tells it to.

    With a ``limit`` of samples progress is counted in them, else in bytes of the source.
    """
    if where is None:
        yield None
        return
    bar = _bar(where)
    with bar:
        task = bar.add_task("converting", total=limit, what="")
        yield lambda progress: _update(bar, task, progress, limit)


def _bar(where: Console) -> Bar:
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(bar_width=max(5, min(40, where.width - 50))),
        TaskProgressColumn(),
        TextColumn("{task.fields[what]}"),
        TimeRemainingColumn(compact=True),
    )
    # The summary says what was done; a bar that stays would say it twice.
    return Progress(*columns, console=where, transient=True)


def _update(bar: Bar, task: int, progress: Progress, limit: int | None) -> None:
    from rich.progress import TaskID

    this = TaskID(task)
    speed = bar.tasks[0].speed
    words = [plural(progress.samples, "sample")]
    if bar.console.width >= 80:
        words.append(plural(progress.shards, "shard"))
        if speed and not limit:
            words.append(f"{format_bytes(speed)}/s")
    if progress.bad:
        words.append(f"{progress.bad:,} bad")
    done = progress.samples if limit else progress.size
    whole = limit or progress.whole or None
    bar.update(this, completed=done, total=whole, what=", ".join(words))
