"""One answer while it comes."""

from __future__ import annotations

from client.completion import Completion, Piece, PromptToken, TokenLogprob, logprobs_of, prompt_logprobs_of
from protocol.messages import Chunk, Finish


class Answer:
    """Gathers the chunks of one answer; afterwards `completion` is there."""

    def __init__(self) -> None:
        self.completion: Completion | None = None
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None
        self._prompt: tuple[PromptToken, ...] | None = None

    def take(self, chunk: Chunk) -> Piece:
        """Take the next chunk; return what it brings."""
        piece = Piece(chunk.text, tuple(chunk.token_ids.tolist()), logprobs_of(chunk), chunk.index)
        if piece.logprobs is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += piece.logprobs
        self._prompt = self._prompt or prompt_logprobs_of(chunk)
        self._text.append(piece.text)
        self._token_ids += piece.token_ids
        if chunk.finish != Finish.RUNNING:
            self.completion = Completion(
                text="".join(self._text),
                token_ids=tuple(self._token_ids),
                finish_reason=Finish(chunk.finish).name.lower(),
                prompt_tokens=chunk.prompt_tokens,
                output_tokens=chunk.output_tokens,
                cached_tokens=chunk.cached_tokens,
                logprobs=None if self._logprobs is None else tuple(self._logprobs),
                prompt_logprobs=self._prompt,
            )
        return piece
