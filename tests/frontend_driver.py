"""Drives the frontend's core in tests: no sockets, time by hand, `check()` after every event."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TypeVar

import numpy as np

from frontend.core import FrontendCore
from frontend.intake import Intake
from frontend.model_text import ModelText
from protocol.logprobs import Logprobs, Scores
from protocol.messages import Attach, Attached, Chunk, Deltas, Finish, Generate, Message, Ping, Submit
from tests.stub_scheduler import deltas
from tests.word_tokenizer import EOS

ME = b"me"
SEED = 77

_Kind = TypeVar("_Kind")


class Driver:
    """A core with its schedulers attached under session 100 + index, and what it says to everyone."""

    def __init__(
        self,
        text: ModelText,
        *,
        schedulers: int = 1,
        vocab_size: int = 300,
        max_model_len: int = 64,
        eos: Sequence[int] = (EOS,),
        attach: bool = True,
        at_once: float = inf,
    ) -> None:
        self.now = 1000.0
        self.core = FrontendCore(
            Intake(text, draw_seed=lambda: SEED),
            [f"scheduler {i}" for i in range(schedulers)],
            self.now,
            at_once=at_once,
        )
        self.sessions = [100 + i for i in range(schedulers)]
        self.facts = (vocab_size, max_model_len)
        self.eos = eos
        self.slow: set[bytes] = set()  # peers that take nothing at the moment
        for index in range(schedulers if attach else 0):
            self.attach(index)
            assert self.said_to_scheduler(index) == [Attach(self.core.links[index].incarnation)]

    # ---------------------------------------------------------------- what others do

    def attach(self, index: int = 0, *, model: str = "words") -> None:
        """Let a scheduler answer the newest Attach."""
        incarnation = self.core.links[index].incarnation
        vocab_size, max_model_len = self.facts
        self.scheduler(
            index, Attached(incarnation, self.sessions[index], model, vocab_size, max_model_len, ids(*self.eos))
        )

    def generate(self, request: int = 1, peer: bytes = ME, **fields: object) -> None:
        """Let a client ask; a prompt of three tokens, streamed, unless said otherwise."""
        if not {"prompt", "messages", "token_ids"} & fields.keys():
            fields["token_ids"] = ids(1, 2, 3)
        self.client(Generate(request=request, **({"stream": True} | fields)), peer)  # type: ignore[arg-type]

    def client(self, message: Message, peer: bytes = ME) -> None:
        """Let a client say something."""
        self.core.hear_client(peer, message, self.now)
        self.core.check()

    def scheduler(self, index: int, message: Message) -> None:
        """Let a scheduler say something."""
        self.core.hear_scheduler(index, message, self.now)
        self.core.check()

    def tokens(
        self,
        submit: Submit,
        offset: int,
        tokens: Sequence[int],
        finish: Finish = Finish.RUNNING,
        *,
        index: int = 0,
        error: str = "",
        cached: int = 0,
        logprobs: Logprobs | None = None,
        scores: tuple[int, Scores] | None = None,
        timing: Sequence[float] = (-1, -1, -1, -1),
    ) -> None:
        """Let a scheduler send tokens of one request, or scores of its prompt."""
        row: Deltas = deltas(
            self.sessions[index], submit.request, offset, list(tokens), finish, error, cached, logprobs, scores, timing
        )
        self.scheduler(index, row)

    def wait(self, seconds: float, *, alive: Sequence[int] = (), peers: Sequence[bytes] = ()) -> None:
        """Let time pass, in which these schedulers and peers give signs of life."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.25)
            for index in alive:
                self.scheduler(index, Ping())
            for peer in peers:
                self.client(Ping(), peer)
            self.core.look_around(self.now)
            self.core.check()

    # ---------------------------------------------------------------- what the core says

    def said_to_scheduler(self, index: int = 0) -> list[Message]:
        """Take what waits for a scheduler."""
        said: list[Message] = []
        while (message := self.core.links[index].peek()) is not None:
            said.append(message)
            self.core.links[index].sent(self.now)
        return said

    def submitted(self, index: int = 0) -> list[Submit]:
        """Take the submissions that wait for a scheduler."""
        return only(self.said_to_scheduler(index), Submit)

    def said_to_client(self, peer: bytes = ME) -> list[Message]:
        """Take what waits for a client."""
        said: list[Message] = []
        known = self.core.peers.get(peer)
        while known is not None and peer not in self.slow and (message := known.peek()) is not None:
            said.append(message)
            known.sent(message, self.now)
            self.core.check()
        return said

    def chunks(self, peer: bytes = ME) -> list[Chunk]:
        """Take the chunks that wait for a client."""
        return only(self.said_to_client(peer), Chunk)


def only(messages: Sequence[Message], kind: type[_Kind]) -> list[_Kind]:
    """Return those of one type."""
    return [message for message in messages if isinstance(message, kind)]


def ids(*tokens: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Return a column of token ids."""
    return np.array(tokens, "<u4")


def text_of(chunks: Sequence[Chunk]) -> str:
    """Return the text of chunks in a row."""
    return "".join(chunk.text for chunk in chunks)
