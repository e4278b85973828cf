"""What is hidden of a URL and of the text of foreign code."""

import pytest

from mds._redaction import mask_foreign
from mds.storage._url import redact


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://:secret@h/x", "https://***@h/x"),
        ("https://token@h/x", "https://***@h/x"),
        ("https://u:p@ss@h/x", "https://***@h/x"),
        ("https://u:p/ss@h/x", "https://***@h/x"),
        ("https://h/pkg@1.0/x?", "https://h/pkg@1.0/x"),
        ("sftp://anna@h/x", "sftp://anna@h/x"),
        ("sftp://anna:p@ss@h:22/x", "sftp://anna:***@h:22/x"),
        ("ftp://u:p@h/x?y=1", "ftp://u:***@h/x?..."),
        ("azure-dl://box@me.dfs.core.windows.net/x", "azure-dl://box@me.dfs.core.windows.net/x"),
        ("oci://bucket@namespace/x", "oci://bucket@namespace/x"),
        ("s3://b/what?", "s3://b/what?"),
        ("s3://b/x?X-Amz-Signature=1f", "s3://b/x?..."),
        ("thing://token@h/x?k=v", "thing://***@h/x?..."),
    ],
)
def test_what_is_hidden_of_a_url(url, text):
    """Passwords, tokens and queries; never what names a container, a bucket or a revision."""
    assert redact(url) == text


def test_what_is_hidden_of_foreign_text():
    """Logins, queries, and values after telling names, in whatever is around them."""
    said = (
        "('Connection broken', url: /x/index.json?X-Amz-Signature=caNary&y=1) Authorization: Basic "
        "caNaryBase64== {'aws_secret_access_key': 'caNary'} token=caNary; http://a:caNary@h/x"
    )
    masked = mask_foreign(said)
    assert "caNary" not in masked
    for word in ("Connection broken", "/x/index.json", "Authorization", "aws_secret_access_key"):
        assert word in masked


@pytest.mark.parametrize(
    "text",
    [
        "SignatureDoesNotMatch: The request signature we calculated does not match",
        "ExpiredToken: The provided token has expired",
        "InvalidToken: No such token is known",
        "Authorization: your account may not do this",
    ],
)
def test_the_first_word_of_a_sentence_is_no_secret(text):
    """The name of an error may hold a telling word, and a sentence follows it."""
    assert mask_foreign(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "columns={'tokens': 'ndarray:int32', 'input_ids': 'ndarray:int32'}",
        "tokenizer='gpt2', max_tokens=4096, tokens_per_second: 12",
        "eos_token_id=50256, token_type_ids: 3",
    ],
)
def test_tokens_of_a_language_model_are_no_secrets(text):
    """Columns and settings of a language model are shown."""
    assert mask_foreign(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "token: hunter",
        "password='The hunter'",
        "secret: hunter22",
        "token=no",
        "access_tokens=hf_hunter",
        "refresh-tokens: hunter22",
    ],
)
def test_a_value_behind_a_telling_name_stays_masked(text):
    """A word alone, in quotes or with digits is taken for a secret."""
    assert "***" in mask_foreign(text)
