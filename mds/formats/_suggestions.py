"""Remedies for a value that does not fit its column: the options with which the column takes it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import numpy as np

from mds.encodings import parse_encoding
from mds.errors import MdsError
from mds.formats._columns import infer_columns
from mds.formats._encode import Fitting
from mds.formats._fit import FLOATS, INTEGERS, fill_missing, find_coercer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mds._shardfile.layout import Columns

#: Texts of cells that usually mean a missing value, in lower case.
_MISSING_TEXTS = frozenset(("", "na", "n/a", "nan", "null", "none", "nil", "-", "--", "?", "."))


def suggest_options(
    name: str,
    encoding: str,
    value: Any,
    parses: bool | None,
    nulls: frozenset[str],
    fill: str | None,
    is_json: bool,
) -> str:
    """Return a sentence with the options with which a column takes a value, or '' for none.

    - ``name``, ``encoding`` (str): The column and its encoding.
    - ``value`` (Any): The value that it does not take.
    - ``parses`` (bool | None): Whether text is parsed; None if values are encoded already.
    - ``nulls`` (frozenset[str]): Texts that count as missing.
    - ``fill`` (str | None): The replacement for missing values.
    - ``is_json`` (bool): Whether all values came from JSON.
    """
    if parses is None:
        return ""
    cell = value if parses and isinstance(value, str) else None
    is_null = value is None or (isinstance(value, str) and value in nulls)
    if not is_null and (cell is None or cell.strip().lower() not in _MISSING_TEXTS):
        wider = wider_encoding(encoding, value, is_cell=cell is not None, is_json=is_json)
        return f". Add {as_options(encodings={name: wider})}" if wider else ""
    # An empty cell counts as missing without --null, unless that has other texts.
    null = "" if cell is None or is_null or (not cell and not nulls) else cell
    if fill is not None or encoding.startswith("optional["):
        return f". Add {as_options(null=[null])}" if null or cell == "" else ""
    texts = {"null": [null]} if null or (cell == "" and nulls and not is_null) else {}
    optional = as_options(**texts, encodings={name: f"optional[{encoding}]"})
    filled = as_options(**texts, fill={name: "VALUE"})
    return f". Add {filled} to replace it, or {optional} to store None"


def suggest_remedy(
    format_name: str,
    name: str,
    encoding: str,
    value: Any,
    nulls: frozenset[str] = frozenset(),
    *,
    parses: bool,
    is_cell: bool,
) -> str:
    """Return sentences on how a column takes a value, converted and in place; '' for none.

    - ``format_name`` (str): Name of the class of the format, for the sentence about reading in
      place.
    - ``name``, ``encoding``, ``value``, ``nulls``, ``parses``: As those of `suggest_options`.
    - ``is_cell`` (bool): Whether all values are texts; else they come from JSON.
    """
    words = suggest_options(name, encoding, value, parses, nulls, None, not is_cell)
    wider = wider_encoding(encoding, value, is_cell=is_cell, is_json=not is_cell)
    if value is None and not encoding.startswith("optional["):
        wider = f"optional[{encoding}]"
    in_place = f"format={format_name}(encodings={{{name!r}: {wider!r}}})"
    return words.removeprefix(". ") + (f". In place, write {in_place}." if wider else "")


def fit_chosen(
    columns: Columns, chosen: Mapping[str, str] | None, format_name: str
) -> Fitting | None:
    """Return the functions that fit values to the encodings that the user chose; None for none.

    Texts are parsed as the type of such a column, and an empty text is a missing value of an
    optional one. Values of other columns stay as they are.

    - ``columns`` (Columns): All columns of a shard.
    - ``chosen`` (Mapping[str, str] | None): The encodings that the user gave, by column.
    - ``format_name`` (str): Name of the class of the format, for remedies.
    """
    coercers = {}
    for name, encoding in zip(columns.names, columns.encodings, strict=True):
        if name in (chosen or {}):
            fit = find_coercer(encoding, from_text=True)
            if encoding.startswith("optional["):
                fit = fill_missing(fit, encoding, frozenset([""]), None)
            coercers[name] = fit

    def suggest(name: str, encoding: str, value: Any) -> str:
        """Return the remedy for a value of a column that does not fit."""
        return suggest_remedy(format_name, name, encoding, value, parses=True, is_cell=True)

    return Fitting(coercers, suggest) if coercers else None


def as_options(**options: Any) -> str:
    """Return options of a new conversion as they are written in a shell and in Python.

    ``as_options(fill={"age": "-1"})`` is "--overwrite --fill age=-1 (overwrite=True,
    fill={'age': '-1'})". An unfinished conversion may be in the output, so it is replaced.
    """
    words, arguments = ["--overwrite"], ["overwrite=True"]
    for option, value in options.items():
        separator = {"encodings": ":", "fill": "="}.get(option)
        pairs = value if separator is None else [f"{n}{separator}{v}" for n, v in value.items()]
        words += [f"--{option} {shlex.quote(text)}" for text in pairs]
        arguments.append(f"{option}={value!r}")
        if separator and not {*",:="}.isdisjoint("".join(value)):
            return f"{', '.join(arguments)} in Python"  # no option can have such a name
    return f"{' '.join(words)} ({', '.join(arguments)})"


def wider_encoding(encoding: str, value: Any, *, is_cell: bool, is_json: bool) -> str:
    """Return an encoding that holds a value besides those of a column, or '' if none is known.

    - ``is_cell`` (bool): Whether the value is the text of a cell in a table.
    - ``is_json`` (bool): Whether all values came from JSON.
    """
    is_optional = encoding.startswith("optional[")
    inner = encoding[len("optional[") : -1] if is_optional else encoding
    family, *parts = inner.split(":")
    try:
        if family == "audio" and isinstance(value, bytes):
            wider = "bytes"
        elif family == "json" and isinstance(value, str):
            wider = "str"
        elif family == "ndarray":
            dtype = np.result_type(np.dtype(parts[0]), np.asarray(value))
            wider = f"ndarray:{dtype.name}"
        else:
            kind = (
                "int"
                if family in {*INTEGERS, "int", "str_int"}
                else "float"
                if family in FLOATS
                else family
            )
            # A typical value of the column, as a value and as the text of a cell.
            typical = {"int": (1, "1"), "float": (0.5, "0.5"), "str": ("", "a")}[kind][is_cell]
            wider = infer_columns([{"": typical}, {"": value}], is_text=is_cell)[0].encoding
        # As it is when the user names this encoding.
        fit = find_coercer(wider, from_text=True, plain=is_json)
        parse_encoding(wider).pack_checked(value if fit is None else fit(value))
    except (KeyError, IndexError, MdsError, ValueError, TypeError, OverflowError):
        return ""  # no encoding holds both, or this one is not for numbers and text
    if wider == inner:
        return ""
    return f"optional[{wider}]" if is_optional and wider != "json" else wider
