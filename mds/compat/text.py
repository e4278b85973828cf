"""The incumbent's datasets of text: C4 and the Pile tokenized sample by sample, and EnWiki."""

from __future__ import annotations

from typing import Any

import numpy as np

from mds.compat.dataset import StreamingDataset
from mds.compat.options import keywords
from mds.errors import ConfigError, need


class _Tokenized(StreamingDataset):
    """The ``text`` column, tokenized to ``max_seq_len`` tokens, cut or padded."""

    def __init__(
        self, *, tokenizer_name: str, max_seq_len: int, group_method: str, **options: Any
    ) -> None:
        if group_method != "truncate":
            raise ConfigError(f"group_method is 'truncate', got {group_method!r}.")
        super().__init__(**options)
        self.tokenizer_name, self.max_seq_len = tokenizer_name, max_seq_len
        self.group_method = group_method
        self.tokenizer = _tokenizer(tokenizer_name, max_seq_len)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """What the tokenizer makes of the text of that number."""
        return self._tokenize(super().get_item(sample_id, retry))

    def _tokenize(self, text_sample: dict[str, Any]) -> Any:
        return self.tokenizer(
            text_sample["text"], truncation=True, padding="max_length", max_length=self.max_seq_len
        )


@keywords(("tokenizer_name", "max_seq_len", "group_method"))
class StreamingC4(_Tokenized):
    """C4: columns text, timestamp and url."""


@keywords(("tokenizer_name", "max_seq_len", "group_method"))
class StreamingPile(_Tokenized):
    """The Pile: columns text and pile_set_name."""


@keywords()
class StreamingEnWiki(StreamingDataset):
    """English Wikipedia as BERT's inputs: every column an array, of int32 or (weights) float32."""

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """The tensors of that number."""
        import torch

        return {
            name: torch.from_numpy(_array(name, value))
            for name, value in super().get_item(sample_id, retry).items()
        }


def _array(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return np.frombuffer(value, np.float32 if name.endswith("weights") else np.int32).copy()
    return np.array(value)


def _tokenizer(name: str, max_seq_len: int) -> Any:
    try:
        from transformers import AutoTokenizer  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise need("transformers", None, "tokenizers by name") from None
    tokenizer = AutoTokenizer.from_pretrained(name)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    # Longer texts are cut by us; without this every one of them is a warning.
    tokenizer.model_max_length = max(max_seq_len, tokenizer.model_max_length)
    return tokenizer
