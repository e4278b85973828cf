"""Which column `--tokenizer` takes: it is named in the plan, and messages are not left out."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from quickly import convert, prepare

from mds._cli import convert as command
from mds.errors import ConfigError

TURNS = [{"role": "user", "content": "Hi"}, {"role": "bot", "content": "Hello"}]
CHATS = [{"id": f"c{number}", "messages": TURNS} for number in range(3)]
JOINED = "Hi\nHello"


def as_jsonl(kit, rows):
    """Write records as JSON Lines."""
    return kit.write("chats.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def as_parquet(kit, rows):
    """Write records as Parquet."""
    path = str(kit.source / "chats.parquet")
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def as_mds(kit, rows):
    """Write records as an MDS dataset."""
    convert(rows, kit.out + "-source", overwrite=True)
    return kit.out + "-source"


def as_generator(_, rows):
    """Yield the records once."""
    return iter(rows)


def text_of(kit):
    """Decode all tokens of the tokenizer "bytes", without the ends of documents."""
    tokens = np.concatenate([sample["tokens"] for sample in kit.samples()])
    return bytes(int(token) for token in tokens if token < 256).decode()


@pytest.mark.parametrize("write", [as_jsonl, as_parquet, as_mds, as_generator])
def test_messages_are_not_left_out_and_can_be_named(kit, write):
    """The column `id` is no document; the path that the error names works as it is."""
    with pytest.raises(ConfigError, match="column of text, and the source has id, messages"):
        prepare(write(kit, CHATS), kit.out, tokenizer="bytes")
    with pytest.raises(ConfigError, match=r"messages\.content joins the texts of all messages"):
        prepare(write(kit, CHATS), kit.out, tokenizer="bytes")
    options = {"tokenizer": "bytes", "block": 4, "text_column": "messages.content"}
    plan = prepare(write(kit, CHATS), kit.out, **options)
    assert "of the column 'messages.content'" in plan.columns[0].note
    plan.run()
    assert text_of(kit) == JOINED * 3


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"text": "a", "meta": {"url": "b"}, "tags": ["c"]}, "text"),
        ({"body": "a", "n": 1, "scores": [0.5]}, "body"),
        ({"id": "a", "text": None}, "text"),
        ({"content": "a", "note": None}, "content"),
    ],
)
def test_the_column_is_named_in_the_plan(kit, row, column):
    """One that is chosen by itself, too, with the token that ends documents."""
    rows = [row, {name: "z" if value is None else value for name, value in row.items()}]
    source = as_jsonl(kit, rows)
    arguments = [source, kit.out, "--tokenizer", "bytes", "--dry-run"]
    output = CliRunner().invoke(command, arguments).output
    assert f"of the column '{column}', tokenizer bytes, end token 256" in output


@pytest.mark.parametrize(
    "row",
    [
        {"text": "a", "messages": [{"value": "b"}]},
        {"text": "a", "chat": {"turns": [{"content": [{"text": "b"}]}]}},
        {"a": "b", "c": "d"},
        {"a": "b", "paragraphs": ["c", "d"]},
    ],
)
def test_more_than_one_place_of_text_is_a_choice_of_the_user(kit, row):
    """Whatever the error lists can be named."""
    source = as_jsonl(kit, [row])
    with pytest.raises(ConfigError, match="tokens need one column of text") as error:
        prepare(source, kit.out, tokenizer="bytes")
    choices = str(error.value).partition("the source has ")[2].partition(". Name")[0].split(", ")
    assert len(choices) == 2
    for choice in choices:
        options = {"tokenizer": "bytes", "block": 2, "text_column": choice, "overwrite": True}
        convert(source, kit.out, **options)


def test_a_column_of_messages_itself_is_refused_before_anything_is_read(kit):
    """The error names the paths of text in it, and advises to leave no record out."""
    source = as_jsonl(kit, CHATS)
    with pytest.raises(ConfigError, match=r"no text at 'messages'. .*: messages.content, "):
        prepare(source, kit.out, tokenizer="bytes", text_column="messages")
    with pytest.raises(ConfigError, match=r"no text at 'messages.body'. .*: messages.content, "):
        prepare(source, kit.out, tokenizer="bytes", text_column="messages.body")
    with pytest.raises(ConfigError, match=r"the columns of text are id, messages\.content"):
        prepare(source, kit.out, tokenizer="bytes", text_column="body")
    with pytest.raises(ConfigError, match=r"the columns of text are none\."):
        prepare(as_jsonl(kit, [{"n": 1}]), kit.out, tokenizer="bytes", text_column="body")


def test_messages_without_text_and_a_column_with_a_dot(kit):
    """The call of a tool has no content; a name with a dot is no path."""
    rows = [{"a.b": "x", "m": [{"content": "y"}, {"content": None}, {"tool": 1}]}]
    options = {"tokenizer": "bytes", "block": 1, "end_token": ""}
    convert(as_jsonl(kit, rows), kit.out, text_column="m.content", **options)
    assert text_of(kit) == "y"
    convert(as_jsonl(kit, rows), kit.out, text_column="a.b", overwrite=True, **options)
    assert text_of(kit) == "x"


def test_lengths_of_a_column_without_lengths_are_refused_in_the_plan(kit):
    """The error names the column, and comes before anything is written."""
    with pytest.raises(ConfigError, match="column 'messages' has the value"):
        prepare(as_jsonl(kit, CHATS), kit.out, lengths="messages")
    late = [{"n": [1, 2]}] * 1500 + [{"n": {"a": 1}}]
    with pytest.raises(ValueError, match="line 1501, column 'n': a value of the column"):
        convert(as_jsonl(kit, late), kit.out, lengths="n")
