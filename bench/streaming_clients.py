"""Clients in processes of their own that read every token of their requests as it comes.

`python -m bench.streaming_clients ADDRESS` says {} once it has reached the server there, over ZeroMQ, or over HTTP if
that is a URL. It answers lines of JSON on standard input: {"prompts", "output_lengths"} with {"first", "last"}, the
seconds of the first token and the last by the host's monotonic clock, and {"pieces", "longest_gap"}, how many pieces of
text came and the longest time between two of one stream; or with {"error"}.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

from bench import http_stream
from bench.contestant import BenchmarkError
from bench.thin import Answered
from bench.workload import Workload
from client import AsyncClient, StepaheadError

CONNECT_SECONDS = 60.0
"""The first request may have to wait: a frontend is ready before its scheduler has told it what can be asked."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """What came of a workload: when, in how many pieces, and how long one stream was silent at most, in seconds."""

    answered: Answered
    pieces: int
    longest_gap: float


class StreamingClients:
    """So many processes, connected, from construction to `close`."""

    def __init__(self, address: str, count: int) -> None:
        """Start them, and wait until each has reached the server; raises `BenchmarkError`."""
        command = [sys.executable, "-m", "bench.streaming_clients", address]
        self._processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
            for _ in range(count)
        ]
        try:
            self._answers()
        except BaseException:
            self.close()
            raise

    def run(self, workload: Workload) -> Answered:
        """Have them ask for everything at once, each for its share, and wait for the last token."""
        self.ask(workload)
        return self.streamed(workload).answered

    def ask(self, workload: Workload) -> None:
        """Have them ask for everything at once, each for its share."""
        count = len(self._processes)
        for number, process in enumerate(self._processes):
            share = workload.prompts[number::count], workload.output_lengths[number::count]
            assert process.stdin is not None
            process.stdin.write(json.dumps(dict(zip(("prompts", "output_lengths"), share, strict=True))) + "\n")
            process.stdin.flush()

    def streamed(self, workload: Workload) -> Streamed:
        """Wait for the last token of what they were asked; raises `BenchmarkError`."""
        moments = [answer for answer in self._answers() if answer]
        first, last = min(each["first"] for each in moments), max(each["last"] for each in moments)
        return Streamed(
            Answered(first, last, workload.output_tokens),
            sum(each["pieces"] for each in moments),
            max(each["longest_gap"] for each in moments),
        )

    def _answers(self) -> list[dict[str, Any]]:
        found = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise BenchmarkError(f"a client's process has ended, exit code {process.wait()}")
            answer = json.loads(line)
            if "error" in answer:
                raise BenchmarkError(f"a client: {answer['error']}")
            found.append(answer)
        return found

    def close(self) -> None:
        """End them."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Watch:
    """When the pieces of one stream came."""

    def __init__(self) -> None:
        self.pieces = 0
        self.first = self.last = self.longest_gap = 0.0

    def came(self) -> None:
        """Note that one has come."""
        now = time.perf_counter()
        if self.pieces:
            self.longest_gap = max(self.longest_gap, now - self.last)
        else:
            self.first = now
        self.pieces += 1
        self.last = now


Stream = Callable[[Sequence[int], int, Callable[[], None]], Coroutine[Any, Any, int]]
"""Streams so many tokens behind a prompt, tells of each piece of text, and returns how many tokens came."""


async def _all(stream: Stream, prompts: list[list[int]], lengths: list[int]) -> dict[str, float]:
    """Return what the clients answer; nothing of no requests."""
    watches = await asyncio.gather(*(_one(stream, *each) for each in zip(prompts, lengths, strict=True)))
    if not watches:
        return {}
    return {
        "first": min(each.first for each in watches),
        "last": max(each.last for each in watches),
        "pieces": sum(each.pieces for each in watches),
        "longest_gap": max(each.longest_gap for each in watches),
    }


async def _one(stream: Stream, prompt: Sequence[int], length: int) -> _Watch:
    watch = _Watch()
    came = await stream(prompt, length, watch.came)
    if came != length:
        raise BenchmarkError(f"{came} tokens came, {length} were asked for")
    return watch


async def _over_zmq(client: AsyncClient, prompt: Sequence[int], length: int, came: Callable[[], None]) -> int:
    tokens = 0
    async for piece in client.stream(prompt, max_tokens=length, temperature=0.0, ignore_eos=True):
        came()
        tokens += len(piece.token_ids)
    return tokens


async def _serve(address: str) -> None:
    if address.startswith("http://"):
        await _answer(partial(http_stream.stream, address))
    else:
        async with AsyncClient(address, connect_seconds=CONNECT_SECONDS) as client:
            await _answer(partial(_over_zmq, client))


async def _answer(stream: Stream) -> None:
    await _one(stream, [1], 1)  # the server is there
    print("{}", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        ask = json.loads(line)
        try:
            answer: dict[str, Any] = await _all(stream, ask["prompts"], ask["output_lengths"])
        except (BenchmarkError, StepaheadError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


def main() -> None:
    """Do what the lines on standard input say until there are none."""
    try:
        asyncio.run(_serve(sys.argv[1]))
    except (BenchmarkError, StepaheadError) as error:
        print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
