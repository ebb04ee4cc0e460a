"""All that a frontend has to know of a model's text: how to read it and how to write it."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from checkpoint.tokenizer import load_text
from frontend.chat import ChatTemplate
from frontend.text_error import TextError
from frontend.token_pieces import TokenPieces
from frontend.tokenizer import TextTokenizer


class ModelText:
    """A model's tokenizer, its tokens' bytes and its chat template; loaded once, shared by all requests."""

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate) -> None:
        """Take a loaded tokenizer and a template, possibly an empty one."""
        self.tokenizer = TextTokenizer(tokenizer)
        self.pieces = TokenPieces(tokenizer)
        self.chat = chat
        # In characters. A text longer than this times the context can't fit: known without encoding it.
        self.longest_token = max((len(token) for token in tokenizer.get_vocab()), default=1)

    @classmethod
    def load(cls, path: Path, chat_template: str | None = None) -> ModelText:
        """Read a model folder or a GGUF file, and the file `chat_template` in place of its own template.

        Raises `CheckpointError`, or `TextError` for a broken template.
        """
        files = load_text(path, chat_template)
        try:
            chat = ChatTemplate(files.chat_template, files.special_tokens)
        except TextError as error:
            raise TextError(f"{chat_template or path}: {error}") from error
        return cls(files.tokenizer, chat)
