"""The interference benchmark does the same requests offline and streamed, and says what streaming costs."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from bench import interference
from bench.__main__ import main as bench_main
from bench.contestant import BenchmarkError
from bench.continuous_peer import SYNC, encoder, modes_on
from bench.shapes import SHAPES
from bench.streaming_clients import Stream, _all, _over_zmq
from bench.thin import ThinClient
from bench.workload import Workload
from client import AsyncClient, Piece
from protocol.endpoints import PrivateDirectory
from tests.stub_scheduler import StubScheduler
from tests.word_model import write_word_model

TINY = {
    **SHAPES["qwen3-0.6b"],
    "vocab_size": 300, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "eos_token_id": 3, "bos_token_id": 2,
}  # fmt: skip
WORK = Workload(((5, 6), (7,)), (3, 4))


@pytest.mark.processes
@pytest.mark.slow
def test_requests_are_done_offline_and_streamed_to_several_clients(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    sizes = ["--requests=3", "--tokens=10", "--runs=1", "--clients=2", "--frontends=2", "--http"]
    options = ["--model=tiny", "--device=cpu", "--dtype=float32", *sizes, "--json", "--", "--threads=1"]
    monkeypatch.setattr("sys.argv", ["bench", "interference", *options])
    assert bench_main() == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["clients"], report["frontends"], report["over"]) == (2, 2, "HTTP")
    assert report["output_tokens"] == 30
    streamed, offline = (report["runs"][name][0] for name in (interference.STREAMED, interference.OFFLINE))
    for one in (streamed, offline):
        assert one["steps"] >= 5
        assert 0 <= one["idle_share"] < 1
    ratio = streamed["tokens_per_second"] / offline["tokens_per_second"]
    assert report["ratios"] == {f"{interference.STREAMED} / {interference.OFFLINE}": [ratio]}
    assert f"{ratio:.3f}" in interference.text(report)


def test_streaming_is_compared_with_its_absence_on_each_side() -> None:
    assert interference.pairs(["a streamed", "a", "b streamed", "b"]) == [("a streamed", "a"), ("b streamed", "b")]
    assert modes_on("cpu") == (SYNC,)


def test_a_thread_encodes_every_token_of_every_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    dumps = json.dumps

    def counted(value: Any) -> str:
        made.append(dumps(value))
        return made[-1]

    monkeypatch.setattr(json, "dumps", counted)
    with encoder(3) as computed:
        computed()
        computed()
    assert len(made) == 6
    assert json.loads(made[0])["choices"][0]["delta"]["content"] == " word"


class Talker:
    """Streams as many pieces as it was told, whatever was asked for."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def stream(self, prompt: list[int], **_: Any) -> AsyncIterator[Piece]:
        for _number in range(self._count):
            await asyncio.sleep(0)
            yield Piece("word", (prompt[0],))


def test_a_stream_of_another_length_is_no_figure() -> None:
    three: Stream = partial(_over_zmq, cast(AsyncClient, Talker(3)))
    moments = asyncio.run(_all(three, [[1], [2]], [3, 3]))
    assert moments["first"] <= moments["first"] + moments["longest_gap"] <= moments["last"]
    assert moments["pieces"] == 6
    assert asyncio.run(_all(three, [], [])) == {}
    with pytest.raises(BenchmarkError, match="3 tokens came, 4 were asked for"):
        asyncio.run(_all(three, [[1], [2]], [3, 4]))


@pytest.mark.parametrize(("made", "problem"), [(9, ""), (2, "2 tokens came, 3 were asked for")])
def test_an_answer_of_another_length_is_no_figure(made: int, problem: str) -> None:
    directory = PrivateDirectory()
    try:
        with (
            StubScheduler(directory.address("stub"), lambda ask: [1] * min(made, ask.max_tokens)),
            ThinClient(directory.address("stub")) as client,
        ):
            if problem:
                with pytest.raises(BenchmarkError, match=problem):
                    client.run(WORK)
            else:
                answered = client.run(WORK)
                assert answered.output_tokens == 7
                assert answered.seconds > 0
    finally:
        directory.remove()


def test_a_client_that_was_forgotten_says_so() -> None:
    directory = PrivateDirectory()
    try:
        with (
            StubScheduler(directory.address("stub"), lambda ask: [1] * ask.max_tokens) as scheduler,
            ThinClient(directory.address("stub")) as client,
        ):
            scheduler.restart()
            with pytest.raises(BenchmarkError, match="did not hear from its client"):
                client.run(WORK)
    finally:
        directory.remove()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--clients", "0"], "--clients must be at least 1"),
        (["--frontends", "0"], "--frontends must be at least 1"),
        (["--tokens", "1"], "--tokens must be at least 2"),
        (["--model", "{tmp}"], "has no tokenizer.json"),
    ],
)
def test_a_mistake_is_one_line_before_anything_starts(
    arguments: list[str],
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (write_word_model(tmp_path) / "tokenizer.json").unlink()
    own = [argument.format(tmp=tmp_path) for argument in arguments]
    monkeypatch.setattr("sys.argv", ["bench", "interference", *own])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert bench_main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert word in line
