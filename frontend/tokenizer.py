"""Text to token ids, and back."""

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

from frontend.readers import LONG_CHARACTERS
from frontend.text_error import TextError, require_unicode


class TextTokenizer:
    """Encodes the texts of requests as transformers does by default, and decodes whole ones.

    The name of a special token inside a text ("<|im_end|>") becomes that token, in prompts and in chat messages
    alike: users of completion endpoints write templates by hand. Who serves untrusted text inside a template
    must strip these names first.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Take a loaded tokenizer; it is shared, never changed."""
        self.tokenizer = tokenizer

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the ids of `text`.

        With `add_special`, what the tokenizer itself puts around a text (BOS, EOS) is added. Turn it off for a
        rendered chat: its template has written these already. The list may be empty. A lone surrogate raises
        `TextError`, and so does a text for which this tokenizer has no ids.
        """
        require_unicode(text, "the text")
        try:
            if len(text) <= LONG_CHARACTERS:
                return self.tokenizer.encode(text, add_special_tokens=add_special).ids
            # The same ids. Only this one lets go of the interpreter.
            return self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special)[0].ids
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic inside of the library is no Exception; neither may end the server
            raise TextError(f"the model's tokenizer cannot read this text: {error}") from error

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids below 2**32, special tokens by their names; ids that it does not know add nothing."""
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def names(self, ids: Iterable[int]) -> list[str | None]:
        """Return what each token is called in the vocabulary, None for ids that are not in it."""
        return [self.tokenizer.id_to_token(token) for token in ids]
