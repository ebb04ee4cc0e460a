"""Token ids back to text, as they come."""

import codecs
from collections.abc import Iterable

from frontend.token_pieces import TokenPieces


class Detokenizer:
    """One stream's text so far is what its tokenizer would decode from all its ids; only the news is returned.

    Holds back the bytes of an unfinished character, three at most, and nothing else. Ids that the tokenizer does not
    know add nothing; bytes that are not UTF-8 become U+FFFD; no sequence of ids raises. Where a decoder with byte
    fallback would turn a whole run of bytes into U+FFFD because one of them is bad, a stream has shown the good ones.
    """

    def __init__(self, pieces: TokenPieces, *, skip_special_tokens: bool = True, continues_text: bool = False) -> None:
        """Start a stream.

        `continues_text` is for output that stands directly behind a text: some tokenizers (SentencePiece) drop the
        space in front of the first word of a text, and here it would be missing between prompt and output.
        """
        self._pieces = pieces
        self._skipped = pieces.special_ids if skip_special_tokens else frozenset()
        self._at_start = not continues_text
        self._unfinished = b""

    def push(self, ids: Iterable[int]) -> str:
        """Take the next ids and return the text that they complete, possibly none."""
        if self._at_start:
            came = b"".join([self._piece(i) for i in ids if i not in self._skipped])
        else:
            inside, skipped = self._pieces.inside, self._skipped
            came = b"".join([inside(i) for i in ids if i not in skipped])
        if self._unfinished:
            came = self._unfinished + came
        text, used = codecs.utf_8_decode(came, "replace", False)
        self._unfinished = came[used:]
        return text

    def finish(self) -> str:
        """Return what was held back, as U+FFFD: the character that it began did not come."""
        text, _ = codecs.utf_8_decode(self._unfinished, "replace", True)
        self._unfinished = b""
        return text

    def _piece(self, token_id: int) -> bytes:
        piece = self._pieces.inside(token_id)
        if self._at_start and piece:
            self._at_start = False
            return self._pieces.opening(token_id)
        return piece
