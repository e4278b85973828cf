"""A tiny Llama and its tokenizer, for programs of trainers that train models of transformers."""

import harness
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel


def config(**options):
    """Return the configuration of the model."""
    return transformers.LlamaConfig(
        vocab_size=harness.VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=128, bos_token_id=0, eos_token_id=0,
        pad_token_id=1, **options,
    )  # fmt: skip


def tokenizer(**options):
    """Return a tokenizer with a word for each token."""
    words = Tokenizer(WordLevel({f"w{n}": n for n in range(harness.VOCABULARY)}, unk_token="w0"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="w0", pad_token="w1", **options
    )
