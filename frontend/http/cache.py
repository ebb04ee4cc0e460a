"""POST /reset_prefix_cache: nothing that was computed up to now serves later requests."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from frontend.callers import Callers
from frontend.core import FrontendCore
from frontend.http.errors import unavailable
from frontend.http.gate import Gate
from frontend.http.own_page import check_own_page
from protocol.awake_clock import AwakeClock

ANSWER_SECONDS = 1.0
"""How long the schedulers may take."""

MOST_RESETS = 64
"""Resets that wait for their answers: whoever asks more has lost count of them."""


class CacheApi:
    """Answers of the endpoint."""

    def __init__(self, core: FrontendCore, callers: Callers, clock: AwakeClock, gate: Gate) -> None:
        """Ask the schedulers of `core` in its turn; `clock` shows the time of the process's last one."""
        self._core = core
        self._callers = callers
        self._clock = clock
        self._gate = gate

    async def reset(self, request: Request) -> Response:
        """Have every scheduler forget what is cached, and say how many blocks that were. A body is not looked at."""
        check_own_page(request, "reset the prefix cache")
        self._gate.check_open()
        missing = [link for link in self._core.links if link.attached is None]
        if missing:
            raise unavailable("; ".join(link.trouble(self._clock.now) for link in missing))
        if len(self._core.resets) >= MOST_RESETS:
            raise unavailable(f"{MOST_RESETS} resets of the prefix cache wait for their answers already")
        answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def done(blocks: int) -> None:
            if not answered.done():
                answered.set_result(blocks)

        reset = await self._callers.in_turn(lambda: self._core.reset_prefix_cache(done))
        try:
            blocks = await asyncio.wait_for(answered, ANSWER_SECONDS)
        except TimeoutError:
            late = ", ".join(reset.missing)
            text = (
                f"no answer within {ANSWER_SECONDS:g} s from the scheduler at {late}: what it has cached may be there"
            )
            raise unavailable(text) from None
        finally:
            self._core.give_up_reset(reset)
        return JSONResponse({"blocks": blocks})


def add_cache(app: FastAPI, core: FrontendCore, callers: Callers, clock: AwakeClock, gate: Gate) -> None:
    """Add the endpoint to `app`."""
    app.post("/reset_prefix_cache", response_model=None)(CacheApi(core, callers, clock, gate).reset)
