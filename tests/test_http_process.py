"""HTTP over real connections: streams, clients that go or don't read, and how all of it ends."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from protocol.messages import Submit
from tests.http_server import HttpServer, free_port, wait_for_health, wait_until_idle
from tests.stub_scheduler import StubScheduler
from tests.test_frontend_process import fails, start
from tests.word_model import write_word_model
from tests.word_tokenizer import EOS, word

LONG = "long" * 500
WORDS = ("Ġone", "Ġtwo", "Ġthree", LONG)
ONE, TWO, THREE, LONG_WORD = (word(i) for i in range(len(WORDS)))
CLOSED = -(10**9)
FOREVER: dict[str, Any] = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True}
MODES = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])

pytestmark = pytest.mark.processes


def script(submit: Submit) -> list[int]:
    """Three words; for ever if the end token is ignored."""
    return [ONE, TWO, THREE] * 1000 if submit.ignore_eos else [ONE, TWO, THREE, EOS]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_word_model(tmp_path / "model", *WORDS)


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[StubScheduler]:
    with StubScheduler(f"ipc://{tmp_path / 'scheduler'}", script, max_model_len=4096, eos=(EOS,)) as scheduler:
        yield scheduler


@pytest.fixture
def server(tmp_path: Path, model: Path, scheduler: StubScheduler) -> Iterator[HttpServer]:
    with HttpServer(tmp_path, model, scheduler.address) as server:
        yield server


def events(lines: Iterator[str]) -> Iterator[str]:
    """The data of events, as they come."""
    return (line.removeprefix("data: ") for line in lines if line)


@contextmanager
def streaming(server: HttpServer, **body: object) -> Iterator[Iterator[str]]:
    """The events of a stream of completions."""
    with server.client.stream("POST", "/v1/completions", json={"stream": True, **body}) as answer:
        assert answer.status_code == 200, answer.read()
        yield events(answer.iter_lines())


def test_openais_own_client_reads_the_same_text_streamed_and_not(server: HttpServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0) as client:
        chat = client.chat.completions.create(model="stub", messages=[{"role": "user", "content": "hello"}])
        with client.chat.completions.create(
            model="stub", messages=[{"role": "user", "content": "hello"}], stream=True
        ) as pieces:
            text = "".join(piece.choices[0].delta.content or "" for piece in pieces)
        assert chat.choices[0].message.content == text == " one two three"
        completion = client.completions.create(model="stub", prompt=["a", "b"])
        assert [choice.text for choice in completion.choices] == [text, text]
        assert [model.id for model in client.models.list()] == [client.models.retrieve("stub").id] == ["stub"]
        with pytest.raises(openai.NotFoundError, match="an/other"):
            client.models.retrieve("an/other")
        with pytest.raises(openai.BadRequestError, match="logprobs"):
            client.completions.create(model="stub", prompt="a", logprobs=21)


def test_openais_own_client_is_told_that_its_time_is_up_and_does_not_try_again(
    server: HttpServer, scheduler: StubScheduler
) -> None:
    scheduler.allow(CLOSED)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=2) as client:
        with pytest.raises(openai.InternalServerError, match="within its timeout") as error:
            client.completions.create(model="stub", prompt="a", extra_body={"timeout": 0.1})
        assert (error.value.status_code, error.value.code) == (504, "timeout")
        wait_until_idle(scheduler, 5.0)
        scheduler.allow(1)
        with client.completions.create(
            model="stub", prompt="a", max_tokens=3000, stream=True, extra_body={"ignore_eos": True, "timeout": 0.1}
        ) as stream:
            assert next(stream).choices[0].text == " one"
            with pytest.raises(openai.APIError, match="within its timeout"):
                list(stream)
        assert [type(each) for each in scheduler.heard.queue].count(Submit) == 2


def test_a_hundred_requests_at_once_are_all_answered(server: HttpServer) -> None:
    def ask(number: int) -> str:
        return str(server.post("completions", prompt="a", max_tokens=1 + number % 3).json()["choices"][0]["text"])

    with ThreadPoolExecutor(20) as pool:
        texts = list(pool.map(ask, range(100)))
    assert texts == [" one two three"[: (4, 8, 14)[number % 3]] for number in range(100)]


@MODES
def test_a_client_that_leaves_takes_its_request_along_within_a_second(
    server: HttpServer, scheduler: StubScheduler, stream: bool
) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        body = json.dumps({**FOREVER, "stream": stream}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        scheduler.take(Submit)
        if stream:
            came = b""
            while b" one" not in came:
                came += client.recv(2**16)
        scheduler.allow(CLOSED)
    wait_until_idle(scheduler, 1.0)


def test_text_comes_as_it_is_made(server: HttpServer, scheduler: StubScheduler) -> None:
    scheduler.allow(-(10**9))
    with ThreadPoolExecutor(1) as pool:

        def first_word() -> str:
            with streaming(server, **FOREVER) as stream:
                return str(json.loads(next(stream))["choices"][0]["text"])

        asked = pool.submit(first_word)
        scheduler.take(Submit)
        scheduler.allow(1)
        assert asked.result(10) == " one"


def test_a_stream_goes_on_while_many_long_prompts_are_read(server: HttpServer) -> None:
    def ask_long(_: int) -> float:
        assert server.post("completions", prompt="a" * 100_000).status_code == 400
        return time.monotonic()

    with streaming(server, **FOREVER) as stream, ThreadPoolExecutor(20) as pool:
        next(stream)
        asked = time.monotonic()
        answers = pool.map(ask_long, range(20))
        times = [time.monotonic() for _ in stream]
        seconds = max(answers) - asked
    gaps = [after - before for before, after in pairwise([asked, *times])]
    assert max(gaps) < seconds / 3, "all of them were read before anybody was spoken to"


def test_a_client_that_does_not_read_gets_everything_later_in_larger_pieces_and_delays_nobody(
    tmp_path: Path, model: Path
) -> None:
    def long_script(submit: Submit) -> list[int]:
        return [LONG_WORD] * 3000 if submit.ignore_eos else script(submit)

    with (
        StubScheduler(f"ipc://{tmp_path / 'scheduler'}", long_script, max_model_len=4096, eos=(EOS,)) as scheduler,
        HttpServer(tmp_path, model, scheduler.address) as server,
        streaming(server, **FOREVER) as slow,
    ):
        asked = 0
        while scheduler.running or not asked:
            asked += 1
            answer = server.post("completions", prompt="a")
            assert answer.json()["choices"][0]["text"] == " one two three"
        *pieces, done = slow
        assert done == "[DONE]"
        assert "".join(json.loads(piece)["choices"][0]["text"] for piece in pieces) == LONG * 3000
        assert len(pieces) < 3000, "nothing of it was gathered"


@pytest.mark.alone
def test_a_huge_body_is_413_at_once_and_takes_no_memory(server: HttpServer) -> None:
    began = time.monotonic()
    answer = server.post("completions", prompt="a" * 50_000_000)
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert time.monotonic() - began < 3.0
    assert server.post("completions", prompt="a").status_code == 200


def test_bytes_that_are_no_http_and_bodies_that_never_end_harm_nobody(server: HttpServer) -> None:
    for sent in (b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                 b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"):  # fmt: skip
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(sent)
            assert server.post("completions", prompt="a").status_code == 200


# ---------------------------------------------------------------- the end


@MODES
def test_sigterm_lets_what_runs_finish_and_answers_new_work_with_503(
    tmp_path: Path, model: Path, scheduler: StubScheduler, stream: bool
) -> None:
    with HttpServer(tmp_path, model, scheduler.address, "--drain-timeout=60") as server, ThreadPoolExecutor(1) as pool:
        scheduler.allow(1 - 10**9)
        asked = pool.submit(server.post, "completions", prompt="a", stream=stream)
        scheduler.take(Submit)
        server.process.send_signal(signal.SIGTERM)
        wait_for_health(server.client, 503)
        assert server.client.get("/ready").json()["reason"] == "the server is shutting down"
        refused = server.post("completions", prompt="a", stream=stream)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "shutting down" in refused.json()["error"]["message"]
        scheduler.allow(10**9)
        answer = asked.result(20)
        assert answer.status_code == 200
        assert answer.text.endswith("data: [DONE]\n\n") == stream
        assert '"finish_reason":"stop"' in answer.text
        assert server.process.wait(5) == 0


@pytest.mark.parametrize("how", ["a second signal", "the end of the grace"])
def test_what_is_cut_off_is_told_so(tmp_path: Path, model: Path, scheduler: StubScheduler, how: str) -> None:
    grace = 60 if how == "a second signal" else 0.3

    def begin_when_both_are_there() -> None:
        for _ in range(2):
            scheduler.take(Submit)
        scheduler.allow(5)

    with (
        HttpServer(tmp_path, model, scheduler.address, f"--drain-timeout={grace}") as server,
        ThreadPoolExecutor(2) as pool,
    ):
        scheduler.allow(CLOSED)
        begun = pool.submit(begin_when_both_are_there)
        whole = pool.submit(server.post, "completions", **FOREVER)
        with streaming(server, **FOREVER) as stream:
            assert " one" in next(stream)
            begun.result(20)
            server.process.send_signal(signal.SIGTERM)
            if how == "a second signal":
                wait_for_health(server.client, 503)
                server.process.send_signal(signal.SIGTERM)
            *_, error, done = stream
        assert (json.loads(error)["error"]["message"], done) == ("the server is shutting down", "[DONE]")
        assert whole.result(20).status_code == 503
        assert server.process.wait(5) == 0
        wait_until_idle(scheduler, 1.0)


def test_a_reader_that_never_reads_does_not_keep_it_from_ending(tmp_path: Path, model: Path) -> None:
    def long_script(submit: Submit) -> list[int]:
        return [LONG_WORD] * 3000

    with (
        StubScheduler(f"ipc://{tmp_path / 'scheduler'}", long_script, max_model_len=4096, eos=(EOS,)) as scheduler,
        HttpServer(tmp_path, model, scheduler.address, "--drain-timeout=0.2") as server,
        streaming(server, **FOREVER),
    ):
        wait_until_idle(scheduler, 20.0)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) == 0


def test_a_body_that_never_ends_does_not_keep_it_from_ending(server: HttpServer) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head)
        time.sleep(0.2)  # for it to begin to read
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) == 0


def test_a_busy_port_is_one_line_and_code_2(tmp_path: Path, model: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        process = start(f"ipc://{tmp_path / 'f'}", f"ipc://{tmp_path / 's'}", model, "--http", f"--port={port}")
        assert f"http://127.0.0.1:{port}: the port is in use" in fails(process)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.1"])
def test_a_host_that_is_not_ours_is_one_line_and_code_2(tmp_path: Path, model: Path, host: str) -> None:
    addresses = f"ipc://{tmp_path / 'f'}", f"ipc://{tmp_path / 's'}"
    process = start(*addresses, model, "--http", f"--port={free_port()}", f"--host={host}")
    assert host in fails(process)


# ---------------------------------------------------------------- health


def test_a_scheduler_that_falls_silent_is_named_within_two_seconds_and_until_it_speaks(
    server: HttpServer, scheduler: StubScheduler
) -> None:
    scheduler.fall_silent()
    assert wait_for_health(server.client, 503) < 2.0
    assert "silent" in server.client.get("/health").json()["reason"]
    scheduler.speak_again()
    assert wait_for_health(server.client, 200) < 2.0


def test_long_prompts_of_which_each_takes_a_second_make_nobody_silent(tmp_path: Path, model: Path) -> None:
    with (
        StubScheduler(f"ipc://{tmp_path / 'scheduler'}", script, max_model_len=2**16, eos=(EOS,)) as scheduler,
        HttpServer(tmp_path, model, scheduler.address) as server,
        ThreadPoolExecutor(3) as pool,
    ):
        asked = [pool.submit(server.post, "completions", prompt="a" * 1_500_000) for _ in range(3)]
        while not all(each.done() for each in asked):
            assert server.client.get("/health").json() == {"status": "ok"}
            time.sleep(0.005)
        assert [each.result().status_code for each in asked] == [400] * 3


def test_an_idle_frontend_with_http_uses_next_to_no_time(server: HttpServer) -> None:
    process = psutil.Process(server.process.pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(3)  # the measurement itself
    assert sum(process.cpu_times()[:2]) - before < 0.03 * 3
