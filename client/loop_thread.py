"""An event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from client.errors import ServerLostError

_Result = TypeVar("_Result")

LOOK_SECONDS = 0.1
"""How often somebody who waits may look at how far it is."""


class ClosedError(RuntimeError):
    """The client was closed before the call."""


class LoopThread:
    """Runs coroutines for any number of other threads until it is closed; every call returns, by then at the latest."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()  # what is handed in under it, before `_closed`, comes before the closing
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="stepahead client", daemon=True)
        self._thread.start()

    def wait(self, call: Coroutine[Any, Any, _Result], look: Callable[[], None] | None = None) -> _Result:
        """Return what `call` does; meanwhile `look` is called now and then, on the caller's thread.

        Raises `ClosedError` after `close`, `ServerLostError` if that comes meanwhile, `RuntimeError` in a forked child.
        """
        try:
            future = self._submit(call)
        except BaseException:
            call.close()
            raise
        try:
            while look is not None and not concurrent.futures.wait((future,), LOOK_SECONDS).done:
                look()
            return future.result()
        except concurrent.futures.CancelledError:
            raise ServerLostError("the client was closed") from None
        except BaseException:  # Ctrl-C comes to the caller's thread: the call has to be told
            future.cancel()
            raise

    def close(self, farewell: Callable[[], Awaitable[None]]) -> None:
        """Await `farewell()`, cancel the calls that it leaves under way, and end the thread."""
        if os.getpid() != self._process:  # the thread is in the parent
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            asyncio.run_coroutine_threadsafe(self._end(farewell), self._loop)
        if threading.current_thread() is not self._thread:  # the garbage collector may call us anywhere
            self._thread.join()

    def _submit(self, call: Coroutine[Any, Any, _Result]) -> concurrent.futures.Future[_Result]:
        if os.getpid() != self._process:
            raise RuntimeError("the client was made before a fork, and its thread is in the parent: make another one")
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed")
            return asyncio.run_coroutine_threadsafe(call, self._loop)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _end(self, farewell: Callable[[], Awaitable[None]]) -> None:
        try:
            await farewell()
        finally:
            while calls := asyncio.all_tasks() - {asyncio.current_task()}:
                for call in calls:
                    call.cancel()
                await asyncio.wait(calls)
            # A call that ended just now, by itself, is no task any more, but its result is only handed to the waiting
            # thread by the loop's next turn.
            await asyncio.sleep(0)
            self._loop.stop()
