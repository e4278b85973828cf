"""Checks of the types and values of arguments, and suggestions for misspelled names.

A constructor compares its arguments with a table of rules, one for each name, before it uses them,
so a wrong argument is an error in the caller's line. The error names the class, the argument, its
value and what is expected, and for common slips how to write it. The tables are beside the
constructors: `_dataset/settings.py`, `_loader/checks.py`, `writers/_spec.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from mds._redaction import is_telling, mask_foreign
from mds.errors import ArgumentError, ConfigError

#: The largest number that counts something; sums and products of a few of them fit into 64 bits.
LARGEST = 1 << 48
_MAX_SHOWN = 120  # characters of a value

F = TypeVar("F", bound=Callable[..., Any])


class Rule(NamedTuple):
    """Rule for the values of an argument.

    For example, ``whole(1)`` expects "a whole number of at least 1". Its `is_kind` is False for the
    text "3" (a wrong type: ArgumentError), and its `fits` is False for 0 (a wrong value:
    ConfigError). Its `fix` returns '3' for the text "3", so the error ends with "Write NAME=3.".

    Attributes:
        expected: Description of valid values for errors, such as "a whole number".
        is_kind: Function that tells whether a value has a valid type.
        fits: Function that tells whether a value of a valid type is valid.
        fix: Function that returns, as Python code, the valid value that was probably meant by an
            invalid one, or ''.
        most: Largest valid number.
        takes_none: Whether None is valid, for which the functions are not called.
    """

    expected: str
    is_kind: Callable[[Any], bool]
    fits: Callable[[Any], bool] = lambda _: True
    fix: Callable[[Any], str] = lambda _: ""
    most: float = math.inf
    takes_none: bool = False

    def or_none(self, meaning: str = "") -> Rule:
        """Return this rule with None allowed as well.

        ``meaning`` is what None means, for errors: "..., or None for all samples".
        """
        return Rule(
            f"{self.expected}, or None{f' for {meaning}' if meaning else ''}",
            self.is_kind,
            self.fits,
            self.fix,
            self.most,
            takes_none=True,
        )


class ShuffleFlag(int):
    """Value of the setting ``shuffle`` of a dataset: a bool that raises an error if it is called.

    It equals and prints as the bool, is accepted as one, and is pickled as one. In other libraries
    ``dataset.shuffle()`` is a method.
    """

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        """Raise ArgumentError (a TypeError) that says how samples are shuffled."""
        del args
        seed = options.get("seed")
        seeded = f", shuffle_seed={shown(seed)}" if seed is not None else ""
        is_same = options.get("reshuffle_each_iteration") is False
        same = " dataset.next_epoch = 0 before a loop gives the first order again." * is_same
        raise ArgumentError(
            f"dataset.shuffle is a setting with the value {self!r}, not a method. Write "
            f"StreamingDataset(..., shuffle=True{seeded}): it needs no buffer, and each epoch has "
            f"a different order.{same}"
        )

    def __repr__(self) -> str:
        return repr(bool(self))

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return bool, (int(self),)


def plain_scalar(value: Any) -> Any:
    """Return a NumPy scalar as Python's own number, bool or text, and any other value as it is.

    Settings go into states, which hold what JSON and ``torch.load(weights_only=True)`` know.
    """
    if isinstance(value, ShuffleFlag):
        return bool(value)
    return value.item() if isinstance(value, np.generic) else value


def plain_fields(settings: Any) -> None:
    """Replace NumPy scalars among the fields of a frozen dataclass by Python's own values."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, (np.generic, ShuffleFlag)):
            object.__setattr__(settings, field.name, plain_scalar(value))


def check_arguments(owner: str, arguments: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Raise an error for the first of the ``arguments`` that breaks its rule.

    Args:
        owner: Name of the class or function in errors.
        arguments: Values by argument.
        rules: Rules by argument; other arguments are not checked.

    Raises ArgumentError (a TypeError and ValueError) for another type and ConfigError (a
    ValueError) for another value.
    """
    for fault in find_faults(owner, arguments, rules):
        raise fault


def find_faults(
    owner: str, arguments: Mapping[str, Any], rules: Mapping[str, Rule]
) -> Iterator[ConfigError]:
    """Yield the error of each of the ``arguments`` that breaks its rule, see `check_arguments`."""
    for name, rule in rules.items():
        if name not in arguments:
            continue
        value = arguments[name]
        if value is None and rule.takes_none:
            continue
        if _is_beyond(value, rule.most):  # huge numbers could overflow in the checks below
            yield ConfigError(
                f"{owner}({name}={shown(value)}): {name} must be {rule.expected}, and at most "
                f"{rule.most:,}."
            )
            continue
        if isinstance(value, (str, os.PathLike)) and _has_raw_bytes(os.fspath(value)):
            yield ConfigError(
                f"{owner}({name}={shown(value)}): {name} is not UTF-8. Rename the file or folder, "
                "or give a link to it."
            )
            continue
        is_kind = rule.is_kind(value)
        if is_kind and rule.fits(value):
            continue
        kind = ConfigError if is_kind else ArgumentError
        fix = rule.fix(value)
        way_out = f" Write {name}={fix}." if fix else ""
        yield kind(f"{owner}({name}={shown(value)}): {name} must be {rule.expected}.{way_out}")


def shown(value: Any) -> str:
    """Return a value as an error message shows it: in one line, without secrets."""
    try:
        text = mask_foreign(repr(value)) if type(value) in _PLAIN else _describe(value)
    except ValueError:  # Python refuses to print numbers of thousands of digits
        text = f"<{type(value).__name__} with a number of thousands of digits>"
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


_PLAIN = (bool, int, float, str, bytes, list, tuple, dict, set, range, type(None))


def _describe(value: Any) -> str:
    """Return a path, number, class or function by its text or name, and others by their class."""
    if isinstance(value, (type, os.PathLike)) or inspect.isroutine(value):
        return mask_foreign(repr(value)) if isinstance(value, os.PathLike) else value.__name__
    if isinstance(value, numbers.Number):
        return repr(value)
    return f"<{type(value).__name__}>"


def takes_names(function: F) -> F:
    """Decorate a method so that calls with unknown or missing arguments raise ArgumentError.

    The errors name the class of the object (also a subclass), and for other methods than
    ``__init__`` the method, too. They suggest what to write; Python's own error would only name the
    function ``__init__``.
    """
    parameters = list(inspect.signature(function).parameters.values())[1:]  # without self
    # Parameters that can be given by name, those that can be given by position, and those that
    # must be given.
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    by_name = {p.name: p for p in parameters if p.kind in kinds}
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, kinds[0])]
    required = [name for name, p in by_name.items() if p.default is p.empty]
    is_open = any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)
    method = "" if function.__name__ == "__init__" else f".{function.__name__}"
    kind = function.__qualname__.partition(".")[0] + method

    @functools.wraps(function)
    def checked(self: Any, *args: Any, **keywords: Any) -> Any:
        owner = type(self).__name__ + method
        # Check the arguments in this order: too many, unknown, missing.
        if len(args) > len(positional):
            names = [name for name in by_name if name not in positional]
            raise _positional(owner, args, len(positional), names, required, kind)
        if not is_open:
            refuse_unknown(owner, keywords, by_name, kind)
        missing = [n for n in required if n not in keywords and n not in positional[: len(args)]]
        if missing:
            from mds._foreign_words import argument_advice, missing_advice

            advice = [argument_advice(kind, owner, n, shown(keywords[n])) for n in keywords]
            advice += [missing_advice(kind, owner, n) for n in missing]
            listed = _listed([*positional[: len(args)], *keywords])
            raise ArgumentError(
                f"{owner}() needs {_listed(missing)}, but got {listed}: see "
                f"help({owner}).{''.join(advice)}"
            )
        return function(self, *args, **keywords)

    return checked  # type: ignore[return-value]


def refuse_unknown(
    owner: str, arguments: Mapping[str, Any], names: Sequence[str] | Any, kind: str = ""
) -> None:
    """Raise ArgumentError for the first of ``arguments`` that is not among ``names``.

    Args:
        owner: Name of the user's class or of the function, for the error.
        arguments: Values by argument.
        names: Names of all arguments.
        kind: Class of `mds` from which the user's class is derived, such as "StreamingDataset". The
            error then says what to write in place of words of other libraries.
    """
    unknown_names = [name for name in arguments if name not in names]
    if not unknown_names:
        return
    from mds._foreign_words import argument_advice  # on the way to an error only

    values = {
        name: "..."
        if isinstance(arguments[name], str) and is_telling(name)
        else shown(arguments[name])
        for name in unknown_names
    }
    advice = {
        name: argument_advice(kind, owner, name, value) or did_you_mean(name, names, "{}=")
        for name, value in values.items()
    }
    name, *further_names = unknown_names
    near = advice[name] or ("" if further_names else f" It takes {', '.join(sorted(names))}.")
    near += "".join(
        f" There is no argument {other!r}, either.{advice[other]}" for other in further_names
    )
    raise ArgumentError(f"{owner}({name}={values[name]}): there is no argument {name!r}.{near}")


def no_attribute(owner: object, name: str, kind: str) -> AttributeError:
    """Return the error for an attribute that an object lacks, with what to write in its place.

    ``kind`` is the class of `mds` from which the object's class is derived, see `refuse_unknown`.
    """
    own = type(owner).__name__
    message = f"{own!r} object has no attribute {name!r}"
    if not name.startswith("_"):
        from mds._foreign_words import attribute_advice

        advice = attribute_advice(kind, own, name)
        if advice:
            return AttributeError(f"{message}.{advice}")
    # With `name` and `obj`, Python suggests the nearest name.
    return AttributeError(message, name=name, obj=owner)


def _listed(names: Iterable[str]) -> str:
    return " and ".join(f"{name}=" for name in names) or "nothing"


def _positional(
    owner: str,
    args: Sequence[Any],
    max_positional: int,
    names: Sequence[str],
    required: Sequence[str],
    kind: str,
) -> ArgumentError:
    """Return the error for arguments that were given by position but need a name.

    It shows how to write the first one if its name is clear: ``JSONWriter("/data")`` should be
    ``JSONWriter(out="/data")``.

    Args:
        owner: Name of the class.
        args: All values without a name.
        max_positional: Number of them that need no name, which is less.
        names: Names that the others may have had. A path gets ``local``, ``remote`` or ``out`` if
            it is one of them; any other value gets the first one that is required.
        required: Names of arguments that must be given.
        kind: Class of `mds`, and method, see `refuse_unknown`.
    """
    from mds._foreign_words import surplus_advice

    value = args[max_positional]
    if advice := surplus_advice(kind, shown(list(args))):
        return ArgumentError(f"{owner}({', '.join(map(shown, args))}):{advice}")
    likely = [name for name in names if name in required]
    if isinstance(value, (str, os.PathLike)):
        place = "remote" if "://" in str(value) else "local"
        likely = [name for name in (place, "out") if name in names] + likely
    first = [shown(each) for each in args[:max_positional]]
    allowed = f"; {max_positional} may be without" if max_positional else ""
    if not likely:
        way_out = f"See help({owner})."
    elif first and likely[0] == "remote":  # StreamingDataset("cache", "s3://...")
        way_out = f"Write {owner}({shown(value)}, local={first[0]})."
    else:
        way_out = f"Write {owner}({', '.join((*first, f'{likely[0]}={shown(value)}'))})."
    return ArgumentError(
        f"{owner}({', '.join((*first, shown(value)))}): arguments must be given by name, got "
        f"{len(args)} without one{allowed}. {way_out}"
    )


# ----------------------------------------------------------------------------------- kinds of rules


def flag() -> Rule:
    """Return the rule of a bool."""
    return Rule("True or False", _is_bool, fix=_as_bool)


def whole(least: int | None = None, *, unit: str = "", most: int = LARGEST) -> Rule:
    """Return the rule of a whole number from ``least`` (None: no bound) to ``most``.

    ``unit`` is named in errors: with "bytes" and least=1 the rule is "a whole number of bytes, of
    at least 1".
    """
    # `unit and TEXT` is TEXT if there is a unit, else ''.
    expected = f"a whole number{unit and f' of {unit}'}"
    if least is None:
        return Rule(expected, _is_whole, fix=_as_whole, most=most)
    span = f"{unit and ','} of at least {least:,}"
    return Rule(
        expected + span,
        _is_whole,
        fits=lambda value: value >= least,
        fix=lambda value: _as_whole(value, least),
        most=most,
    )


def amount(
    parse: Callable[[Any], int],
    example: str,
    *,
    least: int = 0,
    unit: str = "",
    most: int = LARGEST,
) -> Rule:
    """Return the rule of a whole number from ``least`` to ``most``, also as a text with a unit.

    Args:
        parse: Function that returns the number in such a text, or raises ConfigError.
        example: A text that is valid, for errors, such as "64mb".
        least, most: Bounds, which are valid themselves.
        unit: What is counted, for errors, such as "bytes".
    """

    def is_kind(value: Any) -> bool:
        is_real = isinstance(value, numbers.Real) and not _is_bool(value)
        return isinstance(value, str) or is_real

    def fits(value: Any) -> bool:
        if not isinstance(value, str):
            return bool(value >= least and float(value).is_integer())
        try:
            return least <= parse(value) <= most
        except ConfigError:
            return False

    expected = f"a number of {unit} of at least {least}, also as a text such as {example!r}"
    return Rule(expected, is_kind, fits, most=most)


def number(*, above: float, unit: str = "", reaches: bool = False) -> Rule:
    """Return the rule of a real number above ``above``; with ``reaches`` it may also be equal.

    ``unit`` is named in errors: with above=0 and "seconds" the rule is "a number above 0, in
    seconds".
    """

    def fits(value: Any) -> bool:
        return bool(value > above or (reaches and value == above))

    def is_kind(value: Any) -> bool:
        return isinstance(value, numbers.Real) and not _is_bool(value)

    span = f"of at least {above:g}" if reaches else f"above {above:g}"
    return Rule(
        f"a number {span}{unit and f', in {unit}'}",
        is_kind,
        fits,
        # A number that is too small has no obvious fix, but a text such as "0.5" has.
        fix=lambda value: _as_number(value) if not is_kind(value) else "",
        most=LARGEST,
    )


def one_of(*words: str) -> Rule:
    """Return the rule of a text that is one of ``words``; errors suggest the nearest one."""
    return Rule(
        " or ".join(map(repr, words)),
        is_kind=lambda value: isinstance(value, str),
        fits=lambda value: value in words,
        fix=lambda value: _nearest(value, words),
    )


def text(expected: str) -> Rule:
    """Return the rule of a text or a path."""
    return Rule(expected, lambda value: isinstance(value, (str, os.PathLike)))


def names(content: str, example: str) -> Rule:
    """Return the rule of several names in a list or other iterable; a single text is refused.

    ``content`` is what the names are in errors, such as "names of columns", and ``example`` shows a
    valid value, such as "['image', 'label']".
    """

    def is_kind(value: Any) -> bool:
        # The names are checked in collections only: an iterator can be read once.
        if isinstance(value, (str, bytes, Mapping)) or not hasattr(type(value), "__iter__"):
            return False
        return not isinstance(value, (list, tuple, set)) or all(isinstance(v, str) for v in value)

    return Rule(
        f"a list of {content}, as in {example}",
        is_kind,
        fix=lambda value: f"[{value!r}]" if isinstance(value, str) else "",
    )


def mapping(content: str, example: str) -> Rule:
    """Return the rule of a dict."""
    return Rule(f"a dict of {content}, as in {example}", lambda value: isinstance(value, Mapping))


def instance(kind: type, example: str, fix: Callable[[Any], str] = lambda _: "") -> Rule:
    """Return the rule of an instance of ``kind``; ``fix`` is that of `Rule`."""
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    expected = f"{article} {kind.__name__}, as in {example}"
    return Rule(expected, lambda value: isinstance(value, kind), fix=fix)


def function(expected: str) -> Rule:
    """Return the rule of a function."""
    return Rule(expected, callable)


def _is_beyond(value: Any, limit: Any) -> bool:
    is_text = isinstance(value, str)  # asked first, because it takes less time
    is_number = not is_text and isinstance(value, numbers.Real)
    return is_number and bool(value < -limit or value > limit)


def _has_raw_bytes(text: Any) -> bool:
    """Whether a text contains bytes that are not UTF-8, as file names may."""
    if not isinstance(text, str) or text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _is_bool(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_, ShuffleFlag))


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not _is_bool(value)


def _as_bool(value: Any) -> str:
    """Return "True" or "False" for a value such as "yes" or 0 that means one of them, else ''."""
    # None means False, too.
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False}
    words |= {"off": False, "0": False, "none": False}
    bool_value = words.get(str(value).strip().lower())
    return "" if bool_value is None else str(bool_value)


def _as_whole(value: Any, minimum: float = -math.inf) -> str:
    """Return '3' for a value such as "3" or 3.0 that means a whole number of at least ``minimum``.

    Return '' for all others, and for whole numbers themselves: they have the right type, so the
    fault is their value.
    """
    try:
        parsed = float(value)
    except (TypeError, ValueError):
        return ""
    is_fitting = parsed.is_integer() and parsed >= minimum
    return str(int(parsed)) if is_fitting and not _is_whole(value) else ""


def _as_number(value: Any) -> str:
    """Return the number in a value such as "0.5" as Python writes it, or ''."""
    try:
        return f"{float(value):g}"
    except (TypeError, ValueError):
        return ""


def _nearest(value: Any, words: Sequence[str]) -> str:
    return did_you_mean(value, words).removeprefix(" Did you mean ").removesuffix("?")


def did_you_mean(name: object, names: Iterable[object], form: str = "{!r}") -> str:
    """Return the question " Did you mean ...?" with the nearest of ``names``; '' if none is near.

    ``form`` is the format of the name in the question.

    >>> did_you_mean("shufle", ["shuffle", "batch_size"])
    " Did you mean 'shuffle'?"
    """
    import difflib  # on the way to an error only

    spellings = {str(each).lower(): str(each) for each in names}
    matches = difflib.get_close_matches(str(name).lower(), spellings, 1, 0.6)
    return f" Did you mean {form.format(spellings[matches[0]])}?" if matches else ""
