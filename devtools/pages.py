"""Pages of the docs as programs: their code blocks, run one after the other in an empty folder.

Blocks marked ``python`` and ``bash`` run, with the commands of this interpreter's environment in
front. Blocks with any other mark, and indented ones, are for reading.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from markdown_it import MarkdownIt

RUN = ("python", "bash")  # marks of blocks that are run
_TIMEOUT = 200


class Block(NamedTuple):
    """A code block: its mark ('' where it is indented), its text, and the line it begins on."""

    mark: str
    code: str
    line: int

    @property
    def title(self) -> str:
        """Its first line, by which lists name it."""
        return self.code.strip().partition("\n")[0].strip()


def blocks(page: pathlib.Path) -> Iterator[Block]:
    """Return the code blocks of a page in order, without instructions to the site."""
    parser = MarkdownIt().enable("table")
    for token in parser.parse(page.read_text(encoding="utf-8")):
        mark = token.info.strip()
        if token.type in {"fence", "code_block"} and not mark.startswith("{"):
            yield Block(mark, token.content, token.map[0] + 1 if token.map else 0)


def run_page(
    page: pathlib.Path,
    names: dict[str, Any] | None = None,
    addresses: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run the page in the current folder; what its Python has defined at the end.

    ``addresses``: what is written in place of others, as `devtools.clouds` tells. Raises what a
    block raises, and CalledProcessError for a command that fails.
    """
    names = {} if names is None else names
    tools = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for block in blocks(page):
        code = block.code
        for address, other in (addresses or {}).items():
            code = code.replace(address, other)
        if block.mark == "python":
            lines = "\n" * block.line  # a traceback names the line of the page
            exec(compile(lines + code, str(page), "exec"), names)  # noqa: S102 - our own page
        elif block.mark == "bash":
            subprocess.run(  # noqa: S603 - our own page
                ["bash", "-euo", "pipefail", "-c", code],  # noqa: S607 - the shell of the user
                check=True, timeout=_TIMEOUT, env={**os.environ, "PATH": tools},
            )  # fmt: skip
    return names
