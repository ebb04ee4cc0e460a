"""Drives the HTTP API in tests: requests reach the application without a socket, a script answers for the scheduler."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np

from frontend.callers import Callers
from frontend.config import ServeConfig
from frontend.http.app import make_app
from frontend.http.timeline import Desk
from frontend.model_text import ModelText
from protocol.awake_clock import AwakeClock
from protocol.logprobs import Scores
from protocol.messages import Abort, Finish, ResetPrefixCache, Submit
from tests.fake_desk import FakeDesk
from tests.frontend_driver import Driver
from tests.stub_scheduler import listed, listing
from tests.word_tokenizer import EOS

Script = Callable[[Submit], Sequence[int]]
"""All tokens that a request would get, the end token last if it comes to that."""


class HttpDriver:
    """A core behind the application. Tokens come one by one; `submitted`, `aborted`, `resets` have what was asked.

    `fails` ends each request with that error, `fails_as`, as soon as it has had `fails_after` tokens; `pace` is in
    seconds a token. Of each prompt `cached` tokens were not computed. `desk` is the timeline's.
    """

    def __init__(self, text: ModelText, script: Script, *, fails: str = "", fails_after: int = 0, **facts: Any) -> None:
        config = facts.pop("config", ServeConfig())
        desk: Desk = facts.pop("desk", None) or FakeDesk(collector=False)
        self._pace: float = facts.pop("pace", 0.0)
        self._cached: int = facts.pop("cached", 0)
        self.it = Driver(text, **facts)
        self.script = script
        self.fails, self.fails_after = fails, fails_after
        self.fails_as = Finish.ERROR
        self.submitted: list[Submit] = []
        self.aborted: list[int] = []
        self.resets: list[int] = []
        self._running: dict[int, tuple[Submit, list[int], int]] = {}
        clock = AwakeClock(1.0, lambda: self.it.now)
        self.callers = Callers(self.it.core, clock, self._later)
        self.app = make_app(self.it.core, self.callers, clock, config, desk)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test")

    async def post(self, path: str, **body: Any) -> httpx.Response:
        """Ask an endpoint."""
        return await self.client.post(f"/v1/{path}", json=body)

    async def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """Ask for a stream and return what its events hold; it must end as OpenAI's do."""
        answer = await self.post(path, stream=True, **body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        *events, done, nothing = answer.text.split("\n\n")
        assert (done, nothing) == ("data: [DONE]", "")
        assert all(event.startswith("data: ") for event in events)
        return [json.loads(event.removeprefix("data: ")) for event in events]

    async def idle(self) -> None:
        """Let everything be said that waits to be."""
        for _ in range(3):
            await asyncio.sleep(0)

    def check(self) -> None:
        """Assert that nothing is left of all requests."""
        assert not self.callers
        assert not self.it.core.peers
        assert not self.it.core.resets
        assert not self._running
        self.it.core.check()

    def _later(self, seconds: float = 0.0) -> None:
        asyncio.get_running_loop().call_later(seconds, self._turn)

    def _turn(self) -> None:
        while self.callers.do_next():
            pass
        for message in self.it.said_to_scheduler():
            if isinstance(message, Submit):
                self.submitted.append(message)
                tokens = list(self.script(message))[: message.max_tokens]
                end = next((at for at, token in enumerate(tokens, 1) if token in _ends(message)), len(tokens))
                self._running[message.request] = (message, tokens[:end], 0)
            elif isinstance(message, Abort):
                self.aborted += message.request.tolist()
                for request in message.request.tolist():
                    self._running.pop(request, None)
            elif isinstance(message, ResetPrefixCache):
                self.resets.append(message.request)
        for submit, tokens, at in list(self._running.values()):
            self._step(submit, tokens, at)
        for identity in list(self.it.core.speak_to):
            del self.it.core.speak_to[identity]
            assert self.callers.tell(identity)
        if self._running:
            self._later(self._pace)

    def _step(self, submit: Submit, tokens: list[int], at: int) -> None:
        if not at and submit.prompt_logprobs is not None:
            scores = self.scored(submit)
            half = len(scores) // 2
            for first, some in ((1, scores.part(0, half)), (1 + half, scores.part(half, len(scores)))):
                self.it.tokens(submit, 0, [], cached=self._cached, scores=(first, some))
        few = tokens[at : at + 1] if at + 1 < len(tokens) else tokens[at:]
        told = None if submit.logprobs is None else listing(*[self.listed(submit, token) for token in few])
        if self.fails and at == self.fails_after:
            del self._running[submit.request]
            self.it.tokens(submit, at, [], self.fails_as, error=self.fails)
        elif at + 1 < len(tokens):
            self._running[submit.request] = (submit, tokens, at + 1)
            self.it.tokens(submit, at, few, cached=self._cached, logprobs=told)
        else:
            del self._running[submit.request]
            finish = Finish.STOP if tokens[-1] in _ends(submit) else Finish.LENGTH
            self.it.tokens(submit, at, few, finish, cached=self._cached, logprobs=told)

    @staticmethod
    def listed(submit: Submit, token: int) -> list[tuple[int, float]]:
        """What the scheduler knows of a token."""
        return listed(token, submit.logprobs or 0)

    @staticmethod
    def scored(submit: Submit) -> Scores:
        """What the scheduler knows of a prompt: each token is the third likeliest, and less so than the one before."""
        rest = [(32 + rank, -1.0 - rank) for rank in range(submit.prompt_logprobs or 0)]
        known = listing(*[[(token, -at / 4), *rest] for at, token in enumerate(submit.prompt.tolist()[1:], 1)])
        return Scores(known, np.full(len(known), 3, "<u4"))


def _ends(submit: Submit) -> set[int]:
    return {*submit.stop_token_ids.tolist(), *(() if submit.ignore_eos else (EOS,))}
