"""The texts that users read are plain English with short sentences."""

import re

from devtools.messages import VALUE, collect
from tests.test_language import IDIOMS

MESSAGES = collect()
MAX_WORDS = 30
#: An argument, a call, an option or an environment variable of a message.
CODE = re.compile(r"\w=|\w\(|--\w|[A-Z]+_[A-Z]")


def test_all_kinds_are_collected():
    """Errors, warnings, help of commands, and reports, of every large package."""
    kinds = [message.kind for message in MESSAGES]
    assert {kind for kind in kinds if kinds.count(kind) > 30} == {
        "error",
        "help",
        "text",
        "warning",
    }
    packages = {message.file.split("/")[1] for message in MESSAGES}
    assert {"_cli", "report", "plan", "storage", "writers", "formats", "_cache"} <= packages


def test_messages_have_no_idiom():
    """No phrase that only readers of other texts of this project understand."""
    places = [
        f"{message.file}:{message.line}: {sentence}"
        for message in MESSAGES
        if not message.file.startswith("mds/compat/")  # repeats the words of 0.13
        for sentence in message.sentences()
        if IDIOMS.search(sentence)
    ]
    assert places == []


def test_sentences_of_messages_are_short():
    """Lists of names for others to import are not sentences; compat repeats 0.13's warnings."""
    places = [
        f"{message.file}:{message.line}: {sentence}"
        for message in MESSAGES
        if not message.file.startswith("mds/compat/")
        for sentence in message.sentences()
        if len(sentence.split()) > MAX_WORDS and "." in sentence
    ]
    assert places == []


def test_config_errors_name_a_value_or_an_argument():
    """A message of a ConfigError has a value, an argument or the name of a setting."""
    names = re.compile(r"proportion|epoch_size|batch_size|repeat|mds_kwargs|udf_iterable|\bout\b")
    places = [
        f"{message.file}:{message.line}: {message.text}"
        for message in MESSAGES
        if message.name == "ConfigError" and not message.file.startswith("mds/compat/")
        if VALUE not in message.text and not CODE.search(message.text)
        if not names.search(message.text)
    ]
    assert len(places) <= 5, "\n".join(places)


def test_config_errors_end_with_a_full_stop():
    """The text of a ConfigError is a complete sentence, unless it ends with another text."""
    places = [
        f"{message.file}:{message.line}: {message.text}"
        for message in MESSAGES
        if message.name == "ConfigError" and not message.file.startswith("mds/compat/")
        if not message.text.rstrip().endswith((".", "?", VALUE)) and len(message.text.split()) > 5
    ]
    assert places == []
