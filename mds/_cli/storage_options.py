"""Option ``--storage-option K=V`` of all commands that read or write a URL.

    @click.command()
    @click.argument("place")
    @storage_option
    def info(place: str, storage_options: dict[str, str]) -> None:
        with errors():
            (url,) = with_options(storage_options, place)
            store = open_store(url)

A `Url` carries the options to every store that is opened for it. Values of secrets are masked in
all later messages.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

import click

from mds._redaction import MASK, is_telling, remember_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from mds.storage._url import Url

F = TypeVar("F", bound="Callable[..., Any]")

_FLAG = "--storage-option"


def storage_option(command: F) -> F:
    """Decorate a command: it gets ``storage_options``, a dict of the texts that were given."""
    add_option = click.option(
        _FLAG,
        "storage_options",
        multiple=True,
        metavar="K=V",
        callback=_parse,
        help="Setting for the store of a URL, such as endpoint_url=https://... May be repeated. "
        "Other users of the machine can see command lines, so pass secrets in the environment.",
    )
    return add_option(command)


def with_options(options: Mapping[str, str], *places: str) -> list[Url]:
    """Return the places of a command as URLs that carry the options of their store.

    Raises ConfigError for options beside paths only, where they would have no effect.
    """
    from mds.errors import ConfigError
    from mds.storage._url import Url, is_local, redact

    if options and all(map(is_local, places)):
        raise ConfigError(
            "--storage-option is a setting of the store of a URL, and "
            f"{redact(places[0])} is a path. Leave the option out."
        )
    # A path has no options, also beside a URL.
    return [Url(place, None if is_local(place) else options) for place in places]


def _parse(context: click.Context, parameter: click.Parameter, pairs: Sequence[str]) -> Any:
    """Return the options as a dict. Raises click.BadParameter, which shows no value."""
    del context, parameter
    options: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not re.fullmatch(r"\w+", name):
            raise click.BadParameter("write NAME=VALUE, as in endpoint_url=https://host.")
        if name in options:
            raise click.BadParameter(f"{name} is given twice.")
        options[name] = value
    remember_secrets(options)
    return options


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command line with the values of secret storage options masked.

    >>> without_secrets(["--storage-option", "secret=abc", "--storage-option=region=eu"])
    ['--storage-option', 'secret=***', '--storage-option=region=eu']
    """
    masked = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        flag = f"{_FLAG}=" if argument.startswith(f"{_FLAG}=") else ""
        is_pair = flag or before == _FLAG
        name, _, _ = argument.removeprefix(flag).partition("=")
        is_secret = is_pair and is_telling(name)
        masked.append(f"{flag}{name}={MASK}" if is_secret else argument)
    return masked
