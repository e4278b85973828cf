"""All texts of the library that users read: ``python -m devtools.messages`` prints them.

They are collected from the source: errors, warnings, lines of the log, help of commands and
options, reports, progress lines. A value that is only known when the program runs is shown as
``{...}``.
"""

from __future__ import annotations

import ast
import pathlib
import re
import sys
from dataclasses import dataclass
from typing import Literal

ROOT = pathlib.Path(__file__).parent.parent
#: What a text shows for a value that is only known when the program runs.
VALUE = "{...}"
Kind = Literal["error", "warning", "help", "text"]

_WARNING_CALLS = {"warn", "warning", "info", "error", "debug", "log"}
#: Texts that are source code.
_CODE = re.compile(
    r"\n\s*(def|return|import|from|if|for) |^\s*(def |import |from \w+ import|return )"
)


@dataclass(frozen=True)
class Message:
    """A text of the library, with the place that has it."""

    kind: Kind
    file: str
    line: int
    name: str
    text: str

    def sentences(self) -> list[str]:
        """Return the sentences of the text, without markup."""
        plain = re.sub(r"\s+", " ", re.sub(r"[`*]", "", self.text)).strip()
        return re.split(r"(?<=[.!?])\s+(?=[A-Z{`\"'])", plain)


def collect(root: pathlib.Path = ROOT / "mds") -> list[Message]:
    """Return every message of the modules below a folder, in the order of their places."""
    messages = []
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        file = path.relative_to(root.parent).as_posix()
        messages += _Collector(file).collect(tree)
    return messages


class _Collector:
    """Collector of the messages of one module."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._messages: list[Message] = []

    def collect(self, tree: ast.Module) -> list[Message]:
        """Return the messages of a module."""
        self._visit(tree, "text", "")
        return self._messages

    def _visit(self, node: ast.AST, kind: Kind, name: str) -> None:
        """Collect the texts at or below a node; ``kind`` and ``name`` are of the call around it."""
        if isinstance(node, ast.expr) and (text := _text(node)) is not None:
            if _is_prose(text):
                self._messages.append(Message(kind, self._file, node.lineno, name, text))
            if isinstance(node, ast.Constant):
                return
            for child in ast.walk(node):  # texts inside of the values of a text
                if isinstance(child, ast.FormattedValue):
                    self._visit(child.value, kind, name)
            return
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called.endswith(("Error", "Exception")):
                kind, name = "error", called
            elif called in _WARNING_CALLS:
                kind, name = "warning", called
        if isinstance(node, ast.keyword) and node.arg in {"help", "short_help", "epilog"}:
            kind, name = "help", node.arg
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.Module)):
            docstring = ast.get_docstring(node)
            if docstring and _is_command(node):
                self._messages.append(
                    Message("help", self._file, node.lineno, node.name, docstring)
                )
            body = node.body[1:] if docstring else node.body
            children = [*body, *getattr(node, "decorator_list", []), *_defaults(node)]
        else:
            children = [*ast.iter_child_nodes(node)]
        for child in children:
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue  # the docstring of a variable
            self._visit(child, kind, name)


def _defaults(node: ast.AST) -> list[ast.expr]:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    return [*node.args.defaults, *filter(None, node.args.kw_defaults)]


def _is_command(node: ast.AST) -> bool:
    """Whether a function is a command of click, whose docstring is its help."""
    decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
    return any(re.search(r"\b(command|group)\(", each) for each in decorators)


def _text(node: ast.expr) -> str | None:
    """Return the text that an expression builds; None if it builds no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or VALUE for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        if left is not None or right is not None:
            return (left or VALUE) + (right or VALUE)
    return None


def _is_prose(text: str) -> bool:
    """Whether a text has words for a reader, and is not code or a pattern."""
    if _CODE.search(text):
        return False
    words = re.findall(r"(?<![\w/.\\])[A-Za-z][a-z']+(?![\w/\\(=])", text)
    return len(words) >= 2 and " " in text.strip()


def main() -> None:
    """Print every message: its place, its kind, its text."""
    for message in collect():
        place = f"{message.file}:{message.line}"
        sys.stdout.write(f"{place}: {message.name or message.kind}: {message.text!r}\n")


if __name__ == "__main__":
    main()
