"""What each token id adds to a text, as bytes.

A stream cannot decode its ids alone (a character may span tokens) nor all of them again at each step (quadratic).
Decoding the last few again, as `tokenizers.decoders.DecodeStream` does, raises on some byte sequences and keeps
collecting ids on others. But for the decoders of language models the text is a plain concatenation: each token
contributes the same bytes wherever it stands, except that some decoders drop the space in front of the first one.
So a token's bytes are worked out once, and UTF-8 is decoded incrementally over them.
"""

import json
import re
from typing import Any

from tokenizers import Tokenizer

_HEX_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenPieces:
    """The bytes of every token, worked out when first met; one per tokenizer, shared by all its streams."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Read the kind of decoder; the cache grows to the size of the vocabulary at most."""
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        kinds = _decoder_kinds(tokenizer)
        self._byte_level = kinds - {"Fuse"} == {"ByteLevel"}
        self._byte_fallback = "ByteFallback" in kinds
        self._anchor = tokenizer.encode("a", add_special_tokens=False).ids[:1]
        self._inside: dict[int, bytes] = {}

    def inside(self, token_id: int) -> bytes:
        """Return what a token adds in the middle of a text; nothing for an id that the tokenizer lacks."""
        piece = self._inside.get(token_id)
        if piece is None:
            token = self._token(token_id)
            if token is None:
                return b""  # not kept: a model's ids may reach far beyond the tokenizer's
            piece = self._inside[token_id] = self._work_out(token_id, token)
        return piece

    def opening(self, token_id: int) -> bytes:
        """Return what a token adds as the first of a text, where some decoders drop a leading space."""
        piece = self.inside(token_id)
        if self._byte_level or not piece:
            return piece
        alone = self._decode([token_id])
        # One byte of a character decodes to a replacement character when alone: only its absence says something.
        if self._byte_of(self._token(token_id) or "") is not None:
            return piece if alone else b""
        return alone.encode("utf-8")

    def _work_out(self, token_id: int, token: str) -> bytes:
        if self._byte_level:
            # A token with any character outside the byte alphabet stands for itself (an added token with a space).
            known = [_BYTE_OF_CHAR.get(char) for char in token]
            return bytes(b for b in known if b is not None) if None not in known else token.encode("utf-8")
        byte = self._byte_of(token)
        if byte is not None:
            return bytes([byte])
        before = self._decode(self._anchor)
        both = self._decode([*self._anchor, token_id])
        return (both.removeprefix(before) if both.startswith(before) else self._decode([token_id])).encode("utf-8")

    def _byte_of(self, token: str) -> int | None:
        match = _HEX_BYTE.fullmatch(token) if self._byte_fallback else None
        return int(match[1], 16) if match else None

    def _token(self, token_id: int) -> str | None:
        return self._tokenizer.id_to_token(token_id) if 0 <= token_id < 2**32 else None

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def _byte_alphabet() -> dict[str, int]:
    # Byte-level BPE writes a printable Latin-1 byte as its own character and the others from U+0100 on, in order.
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE_OF_CHAR = _byte_alphabet()


def _decoder_kinds(tokenizer: Tokenizer) -> set[str]:
    decoder = tokenizer.decoder
    if decoder is None:
        return set()
    state: dict[str, Any] = json.loads(decoder.__getstate__())
    return {part["type"] for part in state.get("decoders", [state])}
