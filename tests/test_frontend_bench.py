"""The benchmark of frontends counts every token that its clients read, and says what each has cost."""

from __future__ import annotations

import asyncio
import json

import pytest

from bench import frontend, http_stream
from bench.__main__ import main as bench_main
from bench.contestant import BenchmarkError
from bench.shapes import SHAPES
from tests.test_interference_bench import TINY


@pytest.mark.processes
@pytest.mark.slow
def test_every_token_is_streamed_at_the_pace_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    sizes = ["--streams=8", "--tokens=20", "--rate=400", "--runs=1", "--clients=1", "--frontends=2"]
    monkeypatch.setattr("sys.argv", ["bench", "frontend", "--model=tiny", *sizes, "--json"])
    assert bench_main() == 0
    report = json.loads(capsys.readouterr().out)
    (run,) = report["runs"]
    assert 200 < run["tokens_per_second"] < 600
    assert 0.2 < run["pieces_per_token"] < 1.2
    assert run["longest_gap_seconds"] > 0.0
    assert "8 streams of 20 tokens over ZeroMQ" in frontend.text(report)


def test_a_mistake_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "frontend", "--rate=0"])
    assert bench_main() == 2
    assert "--rate must be more than 0" in capsys.readouterr().err


EVENT = b'data: {"choices":[{"text":" a"}]}\n\n'
LAST = b'data: {"usage":{"completion_tokens":3}}\n\n'


@pytest.mark.parametrize("cut", [1, 7, 10_000])
async def test_pieces_are_counted_however_they_are_cut(cut: int) -> None:
    said = b"HTTP/1.1 200 OK\r\n\r\n" + 3 * EVENT + LAST + http_stream.DONE
    assert await _read(said, cut) == (3, 4)


@pytest.mark.parametrize("said", [b"HTTP/1.1 503 Service Unavailable\r\n\r\n{}", b"HTTP/1.1 200 OK\r\n\r\n" + EVENT])
async def test_a_stream_that_does_not_end_is_no_figure(said: bytes) -> None:
    with pytest.raises(BenchmarkError, match="did not end as it should"):
        await _read(said, 100)


async def _read(said: bytes, cut: int) -> tuple[int, int]:
    """Return (tokens, events) of what a server says, so many bytes at a time."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for at in range(0, len(said), cut):
            writer.write(said[at : at + cut])
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    pieces: list[None] = []
    async with server:
        port = server.sockets[0].getsockname()[1]
        tokens = await http_stream.stream(f"http://127.0.0.1:{port}", [1], 3, lambda: pieces.append(None))
    return tokens, len(pieces)
