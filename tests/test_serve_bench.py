"""The load generator keeps to its schedule, counts what came, and says so when it did not or was late itself."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import serve
from bench.__main__ import main as bench_main
from bench.contestant import BenchmarkError
from bench.http_answer import BadAnswerError, EventStream, HttpAnswer
from bench.serve_client import Errand, ServeClient, clock
from bench.serve_course import Course, refused
from bench.serve_dataset import read_dataset
from bench.serve_mix import SHAREGPT, SHAREGPT_BOUNDS, WORDS, Mix, arrivals
from bench.serve_report import figures, lateness, table
from protocol.messages import Submit
from tests.http_server import HttpServer, free_port
from tests.stub_scheduler import StubScheduler
from tests.word_model import write_word_model

MIX = Mix("uniform", 0, (3, 3), (4, 4))


def completion(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}]}


def chat(finish: str | None = None, **delta: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def usage(prompt: int, output: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}}


def course(*came: tuple[float, dict[str, Any]], due: float = 0.0, sent: float = 0.0) -> Course:
    """A request whose answer's events came at these moments."""
    it = Course(due, free=due, sent=sent)
    for now, event in came:
        assert not it.take(json.dumps(event).encode(), now)
    assert it.take(b"[DONE]", 99.0)
    it.end()
    return it


# ---------------------------------------------------------------- one request


def test_latencies_are_those_of_events_and_tokens_those_of_the_usage() -> None:
    it = course(
        (10.5, completion("")),  # not a text yet
        (11.0, completion("a")),
        (11.25, completion("b c d")),  # three tokens in one event
        (11.75, completion("e")),
        (12.0, completion("", "length")),
        (12.5, usage(7, 6)),
        sent=10.0,
    )
    assert (it.ttft, it.gaps, it.e2el, it.tpot) == (1.0, [0.25, 0.5], 2.0, 1.0 / 5)
    assert (it.prompt_tokens, it.output_tokens, it.events, it.error) == (7, 6, 3, "")


def test_a_chat_begins_with_its_first_content_and_not_with_its_role() -> None:
    it = course((1.0, chat(role="assistant", content="")), (2.0, chat(content="a")), (3.0, chat("stop")), sent=0.5)
    assert (it.ttft, it.e2el) == (1.5, 2.5)


def test_without_usage_events_stand_for_tokens_and_a_single_one_has_no_tpot() -> None:
    it = course((1.0, completion("a")), (2.0, completion("b")))
    assert (it.tokens, it.output_tokens, it.tpot) == (-1, 2, 1.0)
    assert course((1.0, completion("a", "stop")), (1.0, usage(3, 1))).tpot is None


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (b'{"error": {"message": "no more memory", "code": null}}', "error in the stream"),
        (b'{"error": "no more memory"}', "error in the stream"),
        (b"no more memory", "no JSON in an event"),
        (b'["no more memory"]', "no JSON in an event"),
        (b'{"choices": ["no more memory"]}', "an event that is not OpenAI's"),
        (b'{"choices": [], "usage": {"no more memory": 1}}', "an event that is not OpenAI's"),
    ],
)
def test_what_ends_a_stream_early_is_an_error_of_its_kind(event: bytes, kind: str) -> None:
    it = Course(0.0)
    assert not it.take(json.dumps(completion("a")).encode(), 1.0)
    assert it.take(event, 2.0)
    it.fail("another", "later")
    assert it.error == kind
    assert "no more memory" in it.about


def test_a_stream_without_an_answer_is_an_error_and_a_refusal_has_its_status_for_a_kind() -> None:
    it = Course(0.0)
    it.end()
    assert it.error == "empty answer"
    assert refused(429, b'{"error": {"message": "too many"}}') == ("status 429", "too many")
    assert refused(502, b"<html>") == ("status 502", "<html>")


# ---------------------------------------------------------------- what comes over the wire

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n, my\r\nwor\n\r\n0\r\n\r\n"
LENGTH = b"HTTP/1.1 429 Too Many\r\ncontent-length: 15\r\n\r\nhello, my\r\nwor\n"
UNTIL_END = b"HTTP/1.0 200 OK\r\n\r\nhello, my\r\nwor\n"


@pytest.mark.parametrize(("whole", "status"), [(CHUNKED, 200), (LENGTH, 429), (UNTIL_END, 200)])
def test_an_answer_is_read_whatever_pieces_it_comes_in(whole: bytes, status: int) -> None:
    for size in (1, 2, 3, 7, len(whole)):
        answer = HttpAnswer()
        body = b"".join(answer.feed(whole[at : at + size]) for at in range(0, len(whole), size))
        assert (body, answer.status) == (b"hello, my\r\nwor\n", status)
        assert answer.complete == (whole is not UNTIL_END)
        answer.end()
        assert answer.complete


def test_an_answer_that_is_cut_off_is_not_complete_and_no_http_is_none() -> None:
    for part in (CHUNKED[:-8], LENGTH[:-1], CHUNKED[:20], b""):
        answer = HttpAnswer()
        answer.feed(part)
        answer.end()
        assert not answer.complete
    for wrong in (b"SSH-2.0\r\n\r\n", b"HTTP/1.1 ok\r\n\r\n", CHUNKED.replace(b"\n5\r", b"\n-5\r"), b"x" * 70_000):
        with pytest.raises(BadAnswerError):
            HttpAnswer().feed(wrong)


def test_events_are_read_whatever_pieces_they_come_in() -> None:
    whole = b": hello\n\ndata: one\n\ndata:two\ndata: lines\n\nevent: x\n\ndata: [DONE]\r\n\r\ndata: half"
    for size in (1, 2, 3, 7, len(whole)):
        events = EventStream()
        came = [event for at in range(0, len(whole), size) for event in events.feed(whole[at : at + size])]
        assert came == [b"one", b"two\nlines", b"[DONE]"]


# ---------------------------------------------------------------- a client and a scripted server

Script = Callable[[asyncio.StreamWriter, dict[str, Any]], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"


def events(*contents: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(content).encode() + b"\n\n" for content in contents)


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[int]:
    """A server on a port of its own that answers as a script does."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        try:
            await script(writer, json.loads(await reader.readexactly(length)))
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def errand(port: int, **changes: Any) -> Errand:
    plain = Errand(
        base_url=f"http://127.0.0.1:{port}/v1",
        api_key="",
        endpoint="completions",
        parameters={"stream": True},
        mix=MIX,
        number=0,
        clients=1,
        concurrency=0,
        due=[0.0],
        seconds=0.0,
        timeout=20.0,
        warm_up=0,
    )
    return replace(plain, **changes)


async def whole(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    writer.write(HEAD + events(completion("a"), completion("b", "length"), usage(3, body["max_tokens"])))
    writer.write(b"data: [DONE]\n\n")


async def cut_off(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    writer.write(HEAD.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n"))
    content = events(completion("a"))
    writer.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")


async def turned_away(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    content = b'{"error": {"message": "too many wait"}}'
    writer.write(b"HTTP/1.1 429 Busy\r\ncontent-length: %d\r\n\r\n" % len(content) + content)


async def failing(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    writer.write(HEAD + events(completion("a"), {"error": {"message": "out of luck"}}) + b"data: [DONE]\n\n")


async def hanging(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    writer.write(HEAD + events(completion("a")))
    await writer.drain()
    await asyncio.sleep(0.5)


async def babbling(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
    writer.write(b"220 mail.example.org ESMTP\r\n\r\n")


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (whole, ""),
        (cut_off, "disconnected"),
        (turned_away, "status 429"),
        (failing, "error in the stream"),
        (hanging, "timeout"),
        (babbling, "not HTTP"),
    ],
)
async def test_each_way_to_fail_is_an_error_of_its_own_kind(script: Script, kind: str) -> None:
    async with serving(script) as port:
        client = ServeClient(errand(port, due=[0.0, 0.0], timeout=0.2 if script is hanging else 20.0))
        courses = await client.run(clock())
        assert [each.error for each in courses] == [kind] * 2
        warming = ServeClient(errand(port, warm_up=2, timeout=0.2 if script is hanging else 20.0))
        trouble = await warming.warm_up()
    assert trouble.startswith(kind)
    assert bool(trouble) == bool(kind)
    if not kind:
        assert [(each.tokens, each.events) for each in courses] == [(4, 2)] * 2
        assert all(0 < each.ttft <= each.e2el for each in courses)


async def test_a_server_that_is_not_there_is_an_error_of_every_request() -> None:
    courses = await ServeClient(errand(free_port(), due=[0.0, 0.0])).run(clock())
    assert [each.error for each in courses] == ["no connection"] * 2


async def test_nobody_is_asked_before_it_is_due() -> None:
    async with serving(whole) as port:
        begin = clock() + 0.05
        courses = await ServeClient(errand(port, due=[0.0, 0.1, 0.2])).run(begin)
    assert [each.due - begin for each in courses] == pytest.approx([0.0, 0.1, 0.2])
    assert all(each.sent >= each.due for each in courses)
    assert lateness(courses, scheduled=True)["own_ms"] == lateness(courses, scheduled=True)["behind_ms"]


async def test_what_waits_for_room_is_behind_schedule_and_the_generator_is_not_late() -> None:
    under_way = most = 0

    async def slow(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.2)
        await whole(writer, body)
        under_way -= 1

    async with serving(slow) as port:
        courses = await ServeClient(errand(port, due=[0.0, 0.01, 0.02], concurrency=1)).run(clock())
    late = lateness(courses, scheduled=True)
    assert most == 1
    assert late["behind_ms"]["max"] > 350
    assert late["own_ms"]["max"] < 150
    assert late["ttft_from_due_ms"]["max"] > 550
    assert lateness(courses, scheduled=False).keys() == {"own_ms"}
    assert [each.due for each in courses] == sorted(each.due for each in courses)


async def test_without_a_schedule_requests_follow_each_other_until_the_time_is_over() -> None:
    asked = []

    async def quick(writer: asyncio.StreamWriter, body: dict[str, Any]) -> None:
        asked.append(body["prompt"])
        await asyncio.sleep(0.02)
        await whole(writer, body)

    async with serving(quick) as port:
        began = time.perf_counter()
        courses = await ServeClient(errand(port, due=None, seconds=0.3, concurrency=2, clients=3, number=1)).run(
            clock()
        )
        assert 0.3 <= time.perf_counter() - began < 3.0
    assert len(courses) == len(asked) > 2
    assert not any(each.error for each in courses)
    assert sorted(asked) == sorted(MIX.ask(1 + 3 * number).prompt for number in range(len(asked)))


def test_an_errand_survives_its_line() -> None:
    rows = ((5, 6), ("hello", 7))
    it = errand(1, mix=replace(MIX, pool=(4, 5), rows=rows), api_key="secret")
    assert Errand.from_json(it.to_json()) == it


# ---------------------------------------------------------------- what is asked


def test_lengths_are_drawn_from_the_ranges_and_every_client_draws_the_same() -> None:
    mix = Mix("uniform", 7, (2, 4), (10, 12), pool=(50, 60, 70))
    asks = [mix.ask(number) for number in range(100)]
    assert {len(ask.prompt) for ask in asks} == {2, 3, 4}
    assert {ask.max_tokens for ask in asks} == {10, 11, 12}
    assert {token for ask in asks for token in ask.prompt} == {50, 60, 70}
    assert mix.ask(63) == asks[63]
    assert replace(mix, seed=8).ask(63) != asks[63]
    text = Mix("uniform", 7, (5, 5), (1, 1)).ask(0).prompt
    assert isinstance(text, str)
    assert len(text.split(" ")) == 5
    assert {*text.split(" ")} <= {*WORDS}


def test_prompts_share_as_many_beginnings_as_there_are_to_be() -> None:
    mix = Mix("uniform", 1, (8, 8), (1, 1), prefix_length=20, prefixes=3, pool=tuple(range(100)))
    prompts = [mix.ask(number).prompt for number in range(60)]
    assert {len(prompt) for prompt in prompts} == {28}
    assert len({tuple(prompt[:20]) for prompt in prompts}) == 3
    assert len({tuple(prompt) for prompt in prompts}) == 60


def test_log_normal_lengths_have_about_the_published_means() -> None:
    mix = Mix("sharegpt", 0, (1, 1), (1, 1))
    asks = [mix.ask(number) for number in range(1500)]
    for lengths, (mean, _) in (
        ([len(str(ask.prompt).split()) for ask in asks], SHAREGPT["input"]),
        ([ask.max_tokens for ask in asks], SHAREGPT["output"]),
    ):
        assert 0.75 * mean < np.mean(lengths) < 1.05 * mean
        assert np.median(lengths) < 0.8 * np.mean(lengths)
        assert (min(lengths) >= SHAREGPT_BOUNDS[0], max(lengths)) == (True, SHAREGPT_BOUNDS[1])


def test_arrivals_have_the_rate_and_the_burstiness_that_they_should() -> None:
    def variation(burstiness: float) -> float:
        gaps = np.diff(arrivals(4000, 50.0, burstiness, 3))
        return float(np.std(gaps) / np.mean(gaps))

    for burstiness in (0.25, 1.0, 4.0):
        assert variation(burstiness) == pytest.approx(burstiness**-0.5, rel=0.1)
    at = arrivals(4000, 50.0, 1.0, 3)
    assert at == sorted(at) == arrivals(4000, 50.0, 1.0, 3)
    assert at[-1] == pytest.approx(80.0)
    assert arrivals(4, 2.0, inf, 0) == [0.5, 1.0, 1.5, 2.0]
    assert arrivals(3, inf, 1.0, 0) == [0.0] * 3


def test_a_file_of_lengths_or_of_chats_is_asked_row_by_row(tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.jsonl"
    lengths.write_text('{"prompt": 5, "output": 6, "at": 0.5}\n\n{"prompt": 7, "output": 8}\n')
    rows = tuple(read_dataset(str(lengths), None, len))
    assert rows == ((5, 6), (7, 8))
    mix = Mix("dataset", 0, (1, 1), (1, 1), rows=rows, pool=(3,))
    assert [(len(mix.ask(n).prompt), mix.ask(n).max_tokens) for n in range(3)] == [(5, 6), (7, 8), (5, 6)]

    def turns(*texts: str) -> dict[str, Any]:
        return {"conversations": [{"from": "human", "value": text} for text in texts]}

    chats = tmp_path / "chats.json"
    said = [turns("what is it?", "a chat, then"), turns("alone"), turns("a", "b"), {}, turns("x" * 9000, "too long")]
    chats.write_text(json.dumps([*said, turns("and again", "more of it")]))
    assert read_dataset(str(chats), None, len) == [("what is it?", 12), ("and again", 10)]
    assert read_dataset(str(chats), 1, lambda _: 5) == [("what is it?", 5)]
    chats.write_text(json.dumps([turns("x" * 20, "y" * 17)]))
    assert read_dataset(str(chats), None, lambda _: None) == [("x" * 20, 5)], "four characters a token"
    asked = Mix("dataset", 0, (1, 1), (1, 1), prefix_length=2, rows=(("what is it?", 12),)).ask(0).prompt
    assert isinstance(asked, str)
    assert len(asked.split(" ")) == 5
    assert asked.endswith(" what is it?")


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.jsonl", '{"prompt": 5}', r"a\.jsonl:1: must be"),
        ("a.jsonl", '{"prompt": 5, "output": 1}\n{"prompt": true, "output": 1}', r"a\.jsonl:2: must be"),
        ("a.jsonl", "", "no request is in it"),
        ("a.json", "{", "is not JSON"),
        ("a.json", "{}", "no list of chats"),
        ("a.json", "[]", "no request is in it"),
    ],
)
def test_a_file_that_is_none_is_told_in_a_line(tmp_path: Path, name: str, content: str, why: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BenchmarkError, match=why):
        read_dataset(str(tmp_path / name), None, len)
    with pytest.raises(BenchmarkError, match="No such file"):
        read_dataset(str(tmp_path / "none.json"), None, len)


# ---------------------------------------------------------------- what is said


def test_figures_are_those_of_the_answered_and_errors_are_counted_by_kind() -> None:
    good = course((1.0, completion("a")), (2.0, completion("b")), (2.0, usage(10, 3)), due=0.0, sent=0.5)
    slow = course((4.0, completion("a")), (5.0, completion("b")), (5.0, usage(20, 5)), due=1.0, sent=1.0)
    single = course((3.0, completion("a")), (3.0, usage(5, 1)), due=2.0, sent=2.0)
    failed = [Course(0.5, sent=0.5) for _ in range(3)]
    for each, kind in zip(failed, ("status 429", "timeout", "status 429"), strict=True):
        each.fail(kind, f"{kind} it was")
    found = figures([good, slow, single, *failed], {"ttft": 1500.0, "tpot": 500.0})
    assert (found["requests"], found["completed"], found["duration_seconds"]) == (6, 3, 5.0)
    assert (found["input_tokens"], found["output_tokens"]) == (35, 9)
    assert (found["requests_per_second"], found["output_tokens_per_second"]) == (3 / 5, 9 / 5)
    assert found["total_tokens_per_second"] == 44 / 5
    assert found["ttft_ms"] == {"mean": 1500.0, "median": 1000.0, "p99": pytest.approx(2960.0), "max": 3000.0}
    assert found["tpot_ms"]["mean"] == pytest.approx((500 + 250) / 2)
    assert found["itl_ms"]["mean"] == 1000.0
    assert found["e2el_ms"]["max"] == 4000.0
    assert found["tokens_an_event"] == 9 / 5
    assert found["goodput"]["requests"] == 2
    assert found["goodput"]["requests_per_second"] == 2 / 5
    assert [(each["kind"], each["requests"]) for each in found["errors"]] == [("status 429", 2), ("timeout", 1)]
    lines = table(found | {"lateness": lateness([good], scheduled=False)})
    assert "2 failed, status 429: status 429 it was" in lines
    assert any(line.startswith("goodput 0.40 /s: 2 requests within TTFT 1500 ms, TPOT 500 ms") for line in lines)


def test_where_all_failed_there_are_zeros_and_reasons() -> None:
    failed = Course(0.0)
    failed.fail("no connection", "refused")
    found = figures([failed], {})
    assert (found["completed"], found["output_tokens_per_second"], found["ttft_ms"]["max"]) == (0, 0.0, 0.0)
    assert "1 failed, no connection: refused" in table(found | {"lateness": lateness([failed], scheduled=True)})


def test_an_answer_without_usage_is_pointed_out() -> None:
    found = figures([course((1.0, completion("a")))], {})
    assert any("1 answers had no usage" in line for line in table(found | {"lateness": lateness([], scheduled=False)}))


# ---------------------------------------------------------------- the whole of it


@pytest.mark.processes
def test_a_server_of_ours_is_asked_by_token_ids_from_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_word_model(tmp_path / "model", "one", "two")
    address = f"ipc://{tmp_path / 'scheduler'}"
    with (
        StubScheduler(address, lambda ask: [257] * ask.max_tokens) as scheduler,
        HttpServer(tmp_path, model, address, "--api-key=secret") as server,
    ):
        server.client.headers["authorization"] = "Bearer secret"
        options = [f"--base-url={server.url}", "--api-key=secret", "--num-prompts=6", "--request-rate=100"]
        lengths = ["--input-lengths", "3", "5", "--output-lengths", "4", "4", "--prefix-length=2"]
        more = ["--clients=2", "--goodput", "ttft:20000", "tpot:20000", "--json"]
        monkeypatch.setattr("sys.argv", ["bench", "serve", *options, *lengths, *more])
        assert bench_main() == 0
        report = json.loads(capsys.readouterr().out)
        monkeypatch.setattr("sys.argv", ["bench", "serve", options[0], "--num-prompts=1"])
        assert bench_main() == 2
        assert capsys.readouterr().err.endswith("/v1/models: status 401\n")
    submits = [scheduler.take(Submit) for _ in range(1 + 2 + 6)]  # to see whether it takes token ids; to warm up
    assert {len(each.prompt) for each in submits[1:] if isinstance(each, Submit)} <= {5, 6, 7}
    assert (report["model"], report["prompts"], report["clients"]) == ("stub", "token ids", 2)
    assert (report["requests"], report["completed"], report["output_tokens"]) == (6, 6, 24)
    assert report["without_usage"] == 0
    assert report["goodput"]["requests"] == 6
    assert 0 < report["ttft_ms"]["median"] <= report["e2el_ms"]["max"]
    assert "behind_ms" in report["lateness"]
    assert f"output {report['output_tokens_per_second']:,.1f} tok/s" in serve.text(report)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--base-url=ftp://x"], "--base-url must be like"),
        (["--base-url=http://x:99999"], "--base-url must be like"),
        (["--num-prompts=0"], "--num-prompts must be at least 1, not 0"),
        (["--concurrency=1", "--clients=2"], "leaves some of 2 --clients without work"),
        (["--clients=100000"], "--clients must be at most 256, not 100000"),
        (["--seconds=3"], "--seconds needs a --request-rate or a --concurrency"),
        (["--request-rate=nan"], "--request-rate must be more than 0"),
        (["--input-lengths", "5", "4"], "--input-lengths must be two numbers"),
        (["--prefix-length=-1"], "--prefix-length must be at least 0"),
        (["--api-key=a\nb"], "--api-key must be printable ASCII"),
    ],
)
def test_a_mistake_is_told_in_a_line_before_anybody_is_asked(
    options: list[str], why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "serve", f"--base-url=http://127.0.0.1:{free_port()}", *options])
    assert bench_main() == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.startswith("bench: ")
    assert "Traceback" not in error


@pytest.mark.parametrize("goal", ["ttft", "itl:5", "tpot:0", "e2el:inf", "ttft:x"])
def test_a_goal_that_is_none_is_refused(
    goal: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "serve", "--goodput", goal])
    with pytest.raises(SystemExit):
        bench_main()
    assert "must be NAME:MILLISECONDS with a name of ttft, tpot, e2el" in capsys.readouterr().err


def test_a_course_survives_its_way_to_the_parent() -> None:
    it = course((1.0, completion("a")), (2.0, completion("b")), (2.0, usage(3, 2)))
    assert Course(**json.loads(json.dumps(asdict(it)))) == it
