"""A client that keeps to a schedule and notes when what came; it may run in a process of its own.

`python -m bench.serve_client` reads a line of JSON, an `Errand`, on standard input, makes its warm-up requests, and
says {} or {"error"}. With the next line, {"begin"}, the moment by the host's monotonic clock at which the schedule
begins, it does its errand and says {"courses", "seconds", "cpu_seconds"}.
"""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count, islice
from math import inf
from typing import Any
from urllib.parse import urlsplit

from bench.http_answer import BadAnswerError, EventStream, HttpAnswer
from bench.serve_course import Course, refused
from bench.serve_mix import Ask, Mix
from protocol.descriptors import allow_many_descriptors

READ_BYTES = 2**16

MOST_REFUSAL = 2**16
"""Bytes of the body of a refusal that are read."""

clock = time.perf_counter
"""The host's monotonic clock: other processes' moments can be compared."""


@dataclass(frozen=True, slots=True)
class Errand:
    """Whom to ask for what, and when.

    Of the schedule this client has every `clients`-th request, from its `number` on: as many as `due` says when, in
    seconds from the beginning; or, without `due`, one after the other until `seconds` have passed. `concurrency` of
    them are under way at a time, at most, if it is not 0.
    """

    base_url: str
    api_key: str
    endpoint: str  # "completions" or "chat"
    parameters: dict[str, Any]  # of every body
    mix: Mix
    number: int
    clients: int
    concurrency: int
    due: list[float] | None
    seconds: float
    timeout: float
    warm_up: int

    def to_json(self) -> str:
        """Return it as one line; of its key nobody is told, as they would be on a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Errand:
        """Return what `to_json` has made a line of."""
        said = json.loads(line)
        mix = said.pop("mix")
        for name in ("input_lengths", "output_lengths", "pool"):
            mix[name] = tuple(mix[name])
        mix["rows"] = tuple((prompt, output) for prompt, output in mix["rows"])
        return cls(mix=Mix(**mix), **said)


class ServeClient:
    """Asks one server, each request on a connection of its own."""

    def __init__(self, errand: Errand) -> None:
        """Make the requests ready that are known by now; nothing is asked yet."""
        self._errand = errand
        url = urlsplit(errand.base_url)
        self._host, self._tls = url.hostname or "", url.scheme == "https"
        self._port = url.port or (443 if self._tls else 80)
        path = url.path + ("/completions" if errand.endpoint == "completions" else "/chat/completions")
        key = f"authorization: Bearer {errand.api_key}\r\n" if errand.api_key else ""
        self._head = (
            f"POST {path} HTTP/1.1\r\nhost: {url.netloc}\r\n{key}content-type: application/json\r\n"
            "accept: text/event-stream\r\nconnection: close\r\ncontent-length: "
        )
        numbers = count(errand.number, errand.clients)
        self._asked: Iterator[bytes] = map(self._request, map(errand.mix.ask, numbers))
        if errand.due is not None:
            self._asked = iter(list(islice(self._asked, len(errand.due))))

    def _request(self, ask: Ask) -> bytes:
        body: dict[str, Any] = {"max_tokens": ask.max_tokens, **self._errand.parameters}
        if self._errand.endpoint == "completions":
            body["prompt"] = ask.prompt
        else:
            body["messages"] = [{"role": "user", "content": ask.prompt}]
        content = json.dumps(body, separators=(",", ":")).encode()
        return f"{self._head}{len(content)}\r\n\r\n".encode() + content

    async def warm_up(self) -> str:
        """Do some requests that are in no figure; return what went wrong, or nothing."""
        asks = [self._errand.mix.ask(2**32 + self._errand.number + n) for n in range(self._errand.warm_up)]
        courses = [Course(clock()) for _ in asks]
        await asyncio.gather(*(self._do(self._request(ask), one) for ask, one in zip(asks, courses, strict=True)))
        return next((f"{one.error}: {one.about}" for one in courses if one.error), "")

    async def run(self, begin: float) -> list[Course]:
        """Do the errand, whose schedule begins at that moment; return what became of each request."""
        errand = self._errand
        slots: asyncio.Queue[float] = asyncio.Queue()  # when each became free
        for _ in range(errand.concurrency):
            slots.put_nowait(-inf)
        courses: list[Course] = []
        async with asyncio.TaskGroup() as under_way:
            for request, due in zip(self._asked, self._schedule(begin), strict=False):
                if (early := due - clock()) > 0:
                    await asyncio.sleep(early)
                course = Course(due, free=due)
                if errand.concurrency:
                    course.free = max(due, await slots.get())
                    if errand.due is None and clock() >= begin + errand.seconds:
                        break
                courses.append(course)
                under_way.create_task(self._do(request, course, slots))
        return courses

    def _schedule(self, begin: float) -> Iterator[float]:
        if self._errand.due is not None:
            yield from (begin + each for each in self._errand.due)
        while self._errand.due is None:
            yield begin

    async def _do(self, request: bytes, course: Course, slots: asyncio.Queue[float] | None = None) -> None:
        course.sent = clock()
        try:
            async with asyncio.timeout(self._errand.timeout):
                await self._ask(request, course)
            course.end()
        except TimeoutError:
            course.fail("timeout", f"not complete within {self._errand.timeout:g} s")
        except BadAnswerError as error:
            course.fail("not HTTP", str(error))
        except OSError as error:
            course.fail("disconnected", str(error))
        finally:
            if slots is not None:
                slots.put_nowait(clock())

    async def _ask(self, request: bytes, course: Course) -> None:
        tls = ssl.create_default_context() if self._tls else None
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=tls)
        except OSError as error:
            course.fail("no connection", str(error))
            return
        try:
            writer.write(request)
            await writer.drain()
            await self._read(reader, course)
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, course: Course) -> None:
        answer, events, refusal = HttpAnswer(), EventStream(), b""
        while not answer.complete:
            data = await reader.read(READ_BYTES)
            now = clock()
            if not data:
                answer.end()
                break
            body = answer.feed(data)
            if answer.status not in (0, 200):
                refusal = (refusal + body)[:MOST_REFUSAL]
            elif any(course.take(event, now) for event in events.feed(body)):
                return
        if answer.status not in (0, 200):
            course.fail(*refused(answer.status, refusal))
        elif not answer.complete:
            raise ConnectionResetError("the connection ended within the answer")


async def _serve() -> None:
    client = ServeClient(Errand.from_json(sys.stdin.readline()))
    trouble = await client.warm_up()
    print(json.dumps({"error": trouble} if trouble else {}), flush=True)
    if trouble or not (line := await asyncio.to_thread(sys.stdin.readline)):
        return
    gc.collect()
    gc.freeze()  # requests are many, and none of them is garbage
    began, cpu = clock(), time.process_time()
    courses = await client.run(json.loads(line)["begin"])
    said = {"seconds": clock() - began, "cpu_seconds": time.process_time() - cpu}
    print(json.dumps(said | {"courses": [asdict(each) for each in courses]}), flush=True)


def main() -> None:
    """Do one errand."""
    allow_many_descriptors()
    asyncio.run(_serve())


if __name__ == "__main__":
    main()
