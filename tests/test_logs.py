"""What is logged is a line, of text or JSON, that says whose request it is about and nothing of what was said in it."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import launch
from frontend.config import ServeConfig
from frontend.request_log import RequestLog
from protocol.lifeline import Lifeline
from protocol.logs import LogConfig, json_line
from protocol.messages import Cancel, Finish
from stepahead.progress import Progress
from tests.frontend_driver import Driver, ids
from tests.http_driver import HttpDriver
from tests.http_server import HttpServer
from tests.stub_scheduler import StubScheduler
from tests.test_http import error_of
from tests.word_model import write_word_model
from tests.word_tokenizer import EOS, word, word_text

JSON = LogConfig("json")
ONE, TWO = word(0), word(1)

TROUBLED = """
import logging, sys, threading, warnings
from protocol.logs import LogConfig, about_request, set_up_logs
set_up_logs("worker 1", LogConfig(sys.argv[1]))
log = logging.getLogger("stepahead.test")
log.debug("unsaid")
logging.getLogger("somebody.else").info("unsaid")
log.info("%d%% of\\nit", 50, extra=about_request("abc", tokens=3))
logging.getLogger("somebody.else").warning("they warn")
warnings.warn("deprecated", stacklevel=1)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("it failed")
thread = threading.Thread(target=lambda: {}["nothing"])
thread.start()
thread.join()
raise RuntimeError("out of\\nluck")
"""


def said_by(format_: str) -> list[str]:
    command = [sys.executable, "-c", TROUBLED, format_]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False).stderr.splitlines()


def test_as_json_every_line_is_an_object_whatever_goes_wrong() -> None:
    lines = [json.loads(line) for line in said_by("json")]
    assert all(line["process"] == "worker 1" and line["time"].endswith("Z") for line in lines)
    levels = [line["level"] for line in lines]
    assert levels == ["info", "warning", "warning", "error", "critical", "critical"]
    told, theirs, deprecated, failed, thread, uncaught = lines
    assert (told["message"], told["request"], told["tokens"]) == ("50% of\nit", "abc", 3)
    assert theirs["message"] == "they warn"
    assert "deprecated" in deprecated["message"]
    assert (failed["message"], failed["error"]) == ("it failed", "ZeroDivisionError: division by zero")
    assert "Traceback (most recent call last)" in failed["trace"]
    assert thread["error"] == "KeyError: 'nothing'"
    assert uncaught["error"] == "RuntimeError: out of\nluck"
    assert "request" not in theirs


def test_as_text_lines_are_those_that_people_know_and_end_with_the_request() -> None:
    lines = said_by("text")
    assert lines[:2] == ["worker 1: 50% of", "it (request abc)"]
    assert "worker 1: they warn" in lines
    assert "Traceback (most recent call last):" in lines
    assert "unsaid" not in " ".join(lines)


def test_what_a_start_is_busy_with_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    tell = Progress(logs=JSON)
    tell("worker", "ready")
    tell.failed("no such model")
    by_hand = Lifeline("scheduler", None, JSON)
    by_hand.progress("waiting for a worker")
    by_hand.failed("no worker came")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["process"], line["level"], line["message"]) for line in lines] == [
        ("launch", "info", "ready"),
        ("launch", "error", "no such model"),
        ("scheduler", "info", "waiting for a worker"),
        ("scheduler", "error", "no worker came"),
    ]
    assert lines[0]["about"] == "worker"


def test_the_launcher_says_as_json_why_it_does_not_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "set_up_logs", lambda *_: None)  # it is for whole processes
    assert launch.main(["--log-format=json", "--model=/nowhere", "--port=1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["level"] == "error"


def test_a_line_has_milliseconds_of_utc() -> None:
    assert json.loads(json_line("x", "y", at=0.0)) == {
        "time": "1970-01-01T00:00:00.000Z",
        "level": "info",
        "process": "x",
        "message": "y",
    }


# ---------------------------------------------------------------- a line for each answer


def lines_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """What was said of each request, which is in the text, too."""
    records = [record for record in caplog.records if record.name == "stepahead.requests"]
    assert all(record.levelno == logging.INFO for record in records)
    return [{"request": vars(record)["request"], **vars(record)["fields"]} for record in records]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "stepahead")
    return caplog


def driver() -> Driver:
    it = Driver(word_text("Ġone", "Ġtwo"))
    it.core.request_log = RequestLog(lambda: it.now, on=True)
    return it


def test_an_answers_line_has_its_tokens_its_end_and_its_times(logged: pytest.LogCaptureFixture) -> None:
    it = driver()
    it.core.join(b"\0local", it.now, "checkout-7")
    it.generate(5, peer=b"\0local")
    (ask,) = it.submitted()
    it.now += 0.25
    it.tokens(ask, 0, [ONE], cached=2)
    it.now += 0.5
    it.tokens(ask, 1, [TWO, EOS], Finish.STOP)
    assert lines_of(logged) == [
        {
            "request": "checkout-7", "id": ask.request, "choice": 0, "finish": "stop", "prompt_tokens": 3,
            "cached_tokens": 2, "output_tokens": 3, "ttft_seconds": 0.25, "seconds": 0.75,
        }
    ]  # fmt: skip
    text = f"stop: 3 tokens for a prompt of 3, the first after 0.250 s, all after 0.750 s; id {ask.request}"
    assert text in logged.text


@pytest.mark.parametrize("how", ["cancel", "error", "busy", "refused", "samples"])
def test_whatever_ends_a_request_it_has_its_lines(how: str, logged: pytest.LogCaptureFixture) -> None:
    it = driver()
    it.generate(9, n=2 if how == "samples" else 1, token_ids=ids(*range(64 if how == "refused" else 3)))
    asks = it.submitted()
    if how == "cancel":
        it.now += 2.0
        it.client(Cancel(9))
    elif how != "refused":
        finish = {"error": Finish.ERROR, "busy": Finish.BUSY, "samples": Finish.LENGTH}[how]
        for ask in asks:
            it.tokens(ask, 0, [], finish, error="" if how == "samples" else "the prompt says: secret")
    lines = lines_of(logged)
    ends = {"cancel": ["abort"], "samples": ["length"] * 2}.get(how, [how])
    assert [line["finish"] for line in lines] == ends
    (name,) = {line["request"] for line in lines}
    assert name.startswith("zmq-")
    assert name.endswith("-9")
    assert "secret" not in logged.text
    if how == "cancel":
        assert (lines[0]["ttft_seconds"], lines[0]["seconds"]) == (None, 2.0)
    if how == "samples":
        assert [line["choice"] for line in lines] == [0, 1]


def test_nothing_is_said_of_requests_unless_it_is_wanted(logged: pytest.LogCaptureFixture) -> None:
    it = Driver(word_text("Ġone"))
    it.generate()
    it.tokens(it.submitted()[0], 0, [ONE], Finish.LENGTH)
    it.generate(2, token_ids=ids(*range(64)))
    assert lines_of(logged) == []
    assert not ServeConfig().log_requests


# ---------------------------------------------------------------- over HTTP


@pytest.fixture
async def http() -> AsyncIterator[HttpDriver]:
    it = HttpDriver(word_text("Ġone", "Ġtwo"), lambda ask: [ONE] * len(ask.prompt), config=ServeConfig(api_key="key"))
    it.client.headers["authorization"] = "Bearer key"
    it.it.core.request_log = RequestLog(lambda: it.it.now, on=True)
    yield it
    it.check()
    await it.client.aclose()


async def test_an_answer_has_the_name_that_its_request_came_with(http: HttpDriver) -> None:
    for name, kept in (
        (b"checkout-7", "checkout-7"),
        (b"a b\tc\xff\x7fd", "abcd"),
        (b"x" * 1000, "x" * 128),
        (b'"{}\\', '"{}\\'),
    ):
        answer = await http.client.post(
            "/v1/completions", json={"prompt": "hello", "stream": len(name) > 100}, headers={b"x-request-id": name}
        )
        assert answer.status_code == 200
        assert answer.headers.get_list("x-request-id") == [kept]
    drawn = [(await http.client.get("/health", headers={b"x-request-id": b" "})).headers["x-request-id"] for _ in "ab"]
    assert drawn[0] != drawn[1]
    assert all(len(name) == 32 for name in drawn)


async def test_errors_have_it_too_and_their_lines_say_no_more_than_what_was_wrong(
    http: HttpDriver, logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"x-request-id": "mine"}
    wrong = await http.client.post("/v1/completions", json={"prompt": "secret", "secret": 1, "n": "x"}, headers=named)
    error_of(wrong, 400)
    gone = await http.client.get("/v1/nowhere", headers=named)
    closed = await http.client.post("/v1/completions", json={}, headers=named | {"authorization": "Bearer wrong"})
    assert (gone.status_code, closed.status_code) == (404, 401)
    assert {answer.headers["x-request-id"] for answer in (wrong, gone, closed)} == {"mine"}
    refused = {"request": "mine", "finish": "refused", "status": 400, "param": "n", "code": "invalid_type"}
    assert lines_of(logged) == [refused]
    assert "refused with status 400, n, invalid_type" in logged.text
    assert "secret" not in logged.text


async def test_what_fails_by_itself_is_logged_with_the_request(
    http: HttpDriver, logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("frontend.stream.Stream.push", broken)
    answer = await http.client.post("/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "mine"})
    error_of(answer, 500)
    (record,) = [record for record in logged.records if record.exc_info]
    assert vars(record)["request"] == "mine"
    assert [line["request"] for line in lines_of(logged)] == ["mine"]
    monkeypatch.setattr("frontend.http.app._version", broken)
    calm = httpx.ASGITransport(http.app, raise_app_exceptions=False)  # as a server is
    async with httpx.AsyncClient(transport=calm, base_url="http://test", headers=http.client.headers) as client:
        answer = await client.get("/version", headers={"x-request-id": "mine"})
    error_of(answer, 500)
    assert answer.headers["x-request-id"] == "mine"


async def test_two_requests_of_the_same_name_are_both_right(http: HttpDriver, logged: pytest.LogCaptureFixture) -> None:
    asked = [
        http.client.post("/v1/completions", json={"prompt": "x" * count}, headers={"x-request-id": "same"})
        for count in (2, 5)
    ]
    answers = await asyncio.gather(*asked)
    assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [2, 5]
    assert {answer.headers["x-request-id"] for answer in answers} == {"same"}
    lines = lines_of(logged)
    assert [line["request"] for line in lines] == ["same"] * 2
    assert {(line["prompt_tokens"], line["output_tokens"]) for line in lines} == {(2, 2), (5, 5)}
    assert len({line["id"] for line in lines}) == 2


@pytest.mark.processes
def test_a_frontends_standard_error_is_json_from_its_first_line_to_its_last(tmp_path: Path) -> None:
    model = write_word_model(tmp_path / "model", "one")
    address = f"ipc://{tmp_path / 'scheduler'}"
    with (
        StubScheduler(address, lambda _: [ONE] * 3) as scheduler,
        HttpServer(tmp_path, model, address, "--log-format=json", "--log-requests", "--name=front 2") as server,
    ):
        server.client.headers["x-request-id"] = "mine"
        assert server.post("completions", prompt="a secret").status_code == 200
        assert server.post("completions", prompt="a secret", n="x").status_code == 400
        scheduler.restart()
        assert server.post("completions", prompt="a secret").status_code == 200
    lines = [json.loads(line) for line in server.errors.splitlines()]
    assert {line["process"] for line in lines} == {"front 2"}
    finishes = [line["finish"] for line in lines if line.get("request") == "mine"]
    assert finishes == ["length", "refused", "length"]
    assert "secret" not in server.errors
