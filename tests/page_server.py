"""The HTTP application on a real port, in a thread: a script answers for the scheduler, a desk for the collector."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from frontend.http.server import serving
from frontend.model_text import ModelText
from protocol.endpoints import listen
from tests.fake_desk import FakeDesk
from tests.http_driver import HttpDriver, Script
from tests.http_server import free_port

_Value = TypeVar("_Value")


class PageServer:
    """One server that may go away and come back at the same port."""

    def __init__(self, text: ModelText, script: Script, desk: FakeDesk, **settings: Any) -> None:
        """Begin to serve."""
        self.port = free_port()
        self.desk = desk
        self._make: Callable[[], HttpDriver] = lambda: HttpDriver(text, script, desk=desk, **settings)
        self._up = threading.Event()
        self.come_back()

    @property
    def url(self) -> str:
        """Of the page."""
        return f"http://127.0.0.1:{self.port}/timeline"

    def inside(self, look: Callable[[HttpDriver], _Value]) -> _Value:
        """Return what somebody sees who looks between two turns of the server."""

        async def looking() -> _Value:
            return look(self._driver)

        return asyncio.run_coroutine_threadsafe(looking(), self._loop).result(10)

    def go_away(self) -> None:
        """Serve no longer."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def come_back(self) -> None:
        """Serve, as another process would: nothing is remembered."""
        self._up.clear()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="page server")
        self._thread.start()
        assert self._up.wait(10)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self._driver = self._make()
        async with serving(self._driver.app, listen("127.0.0.1", self.port)):
            self._up.set()
            await self._end.wait()
        await self._driver.client.aclose()

    def __enter__(self) -> Self:
        """Enter."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Serve no longer."""
        if self._thread.is_alive():
            self.go_away()
