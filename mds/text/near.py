"""Suggestions for a name that does not exist: the one that is spelled most alike."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: object, names: Iterable[object], form: str = "{!r}") -> str:
    """Return a question that offers the nearest of ``names`` after a space; '' if none is near.

    >>> did_you_mean("shufle", ["shuffle", "batch_size"])
    " Did you mean 'shuffle'?"
    """
    import difflib  # on the way to an error only

    spellings = {str(each).lower(): str(each) for each in names}
    matches = difflib.get_close_matches(str(name).lower(), spellings, 1, 0.6)
    return f" Did you mean {form.format(spellings[matches[0]])}?" if matches else ""
