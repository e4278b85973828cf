"""Registry of inputs: from a name (``--as NAME``) to the class that reads such an input.

`register_input` adds one; so does an entry point of the group ``mds.inputs``.
"""

from __future__ import annotations

import inspect
import re

from mds.arguments import did_you_mean
from mds.errors import ConfigError
from mds.lazy_imports import load_plugin, plugin_names
from mds.writers.convert.inputs.base import Input
from mds.writers.convert.inputs.csv import DelimitedTextInput
from mds.writers.convert.inputs.files import AudioInput, TextFilesInput, WholeFilesInput
from mds.writers.convert.inputs.format_files import (
    JsonLinesInput,
    TablesInput,
    TextLinesInput,
    WebDatasetInput,
)
from mds.writers.convert.inputs.huggingface import HuggingFaceInput
from mds.writers.convert.inputs.images import ImagesInput
from mds.writers.convert.inputs.mds import MdsInput
from mds.writers.convert.inputs.metadata import MetadataInput
from mds.writers.convert.inputs.pairs import PairedFilesInput

ENTRY_POINTS = "mds.inputs"

inputs: dict[str, type[Input]] = {
    "images": ImagesInput,
    "audio": AudioInput,
    "paired": PairedFilesInput,
    "metadata": MetadataInput,
    "text": TextFilesInput,
    "lines": TextLinesInput,
    "jsonl": JsonLinesInput,
    "csv": DelimitedTextInput,
    "parquet": TablesInput,
    "webdataset": WebDatasetInput,
    "hf": HuggingFaceInput,
    "mds": MdsInput,
    "files": WholeFilesInput,
}
_BUILT_IN = frozenset(inputs)


def register_input(name: str, kind: type[Input]) -> None:
    """Register an input under the name that ``--as`` takes.

    Only the process that plans a conversion must register it; for the commands name it in an entry
    point of the group ``mds.inputs``. Endings of built-in inputs stay theirs. Raises ConfigError
    for a name of ours, for other characters than letters, digits, `_`, `-` and `.`, and for a class
    that is no `Input`.
    """
    if not re.fullmatch(r"[\w.-]+", name):
        raise ConfigError(f"{name!r} cannot name an input: use letters, digits, '_', '-' and '.'.")
    if name in _BUILT_IN:
        raise ConfigError(f"the input {name!r} is built in: take another name.")
    inputs[name] = _checked_input(name, kind)


def input_names() -> list[str]:
    """Return the names of all inputs; those of installed packages come last."""
    return list(dict.fromkeys([*inputs, *plugin_names(ENTRY_POINTS)]))


def find_input(name: str) -> type[Input]:
    """Return the input of a name. Raises ConfigError if there is none."""
    if name in inputs:
        return inputs[name]
    loaded = load_plugin(ENTRY_POINTS, name, "input")
    if loaded is not None:
        return inputs.setdefault(name, _checked_input(name, loaded))
    names = input_names()
    raise ConfigError(
        f"there is no kind {name!r} of source.{did_you_mean(name, names)} Known are "
        f"{', '.join(names)}."
    )


def all_inputs() -> dict[str, type[Input]]:
    """Return every input by its name, with those of installed packages. Raises ConfigError."""
    return {name: find_input(name) for name in input_names()}


def _checked_input(name: str, kind: object) -> type[Input]:
    if not (isinstance(kind, type) and issubclass(kind, Input)) or inspect.isabstract(kind):
        raise ConfigError(
            f"the input {name!r} is {kind!r}: inherit mds.writers.convert.Input or FileInput, and "
            "define its abstract methods."
        )
    return kind
