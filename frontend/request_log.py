"""A line in the log for each answer that has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable

from frontend.stream import Stream
from protocol.logs import about_request
from protocol.messages import Finish

_log = logging.getLogger("stepahead.requests")


class RequestLog:
    """Says of whose request an answer was, how it ended, how long it was and took; nothing of what was said in it."""

    def __init__(self, clock: Callable[[], float], *, on: bool) -> None:
        """Say nothing unless `on`; `clock` shows the seconds of the clock by which streams are timed."""
        self._clock = clock
        self._on = on

    def ended(self, stream: Stream) -> None:
        """Note that an answer has ended."""
        if not self._on:
            return
        prompt, tokens, whole = len(stream.submit.prompt), len(stream.output), self._clock() - stream.arrived
        first = stream.first - stream.arrived if tokens else None
        finish = Finish(stream.finish).name.lower()
        _log.info(
            "%s: %d tokens for a prompt of %d%s, all after %.3f s; id %d",
            finish,
            tokens,
            prompt,
            "" if first is None else f", the first after {first:.3f} s",
            whole,
            stream.request,
            extra=about_request(
                stream.name,
                id=stream.request,
                choice=stream.index,
                finish=finish,
                prompt_tokens=prompt,
                cached_tokens=stream.cached_tokens,
                output_tokens=tokens,
                ttft_seconds=None if first is None else round(first, 6),
                seconds=round(whole, 6),
            ),
        )

    def unserved(
        self, name: str, finish: Finish, status: int = 0, param: str | None = None, code: str | None = None
    ) -> None:
        """Note that a request has ended and never came to be served.

        What HTTP refuses has a status, and where its error names them the parameter that was wrong and a code.
        """
        if self._on:
            ended = finish.name.lower()
            fields = {"status": status or None, "param": param, "code": code}
            why = "".join(f", {each}" for each in (param, code) if each)
            how = f" with status {status}{why}" if status else ""
            known = {each: value for each, value in fields.items() if value is not None}
            _log.info("%s%s", ended, how, extra=about_request(name, finish=ended, **known))
