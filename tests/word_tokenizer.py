"""A tokenizer whose tokens are whatever words a test wants to see."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from frontend.chat import ChatTemplate
from frontend.model_text import ModelText

EOS = 256
"""The id of `</s>`, which is special."""

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def word_text(*words: str, template: str | None = TEMPLATE) -> ModelText:
    """Return a model's text where ids 0 … 255 are single bytes, 256 is `</s>`, and 257 … are `words`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, "</s>", *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    assert tokenizer.token_to_id("</s>") == EOS
    return ModelText(tokenizer, ChatTemplate(template))


def word(index: int) -> int:
    """Return the id of the word at `index`."""
    return EOS + 1 + index
