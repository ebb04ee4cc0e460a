"""The Python client against a stub of the frontend."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import client.connection
import stepahead
from client import (
    AsyncClient,
    Client,
    Completion,
    PromptToken,
    RequestFailedError,
    RequestRefusedError,
    ServerBusyError,
    ServerLostError,
    TokenLogprob,
)
from client.ask import Settings
from client.loop_thread import LoopThread
from protocol.messages import Cancel, Chunk, Finish, Generate
from tests.stub_frontend import StubFrontend, chunk, echo
from tests.stub_scheduler import listing

ROOT = Path(__file__).parent.parent


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'frontend'}"


@pytest.fixture
def server(address: str) -> Iterator[StubFrontend]:
    with StubFrontend(address) as server:
        yield server


@pytest.fixture
def quick_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.connection, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(client.connection, "SILENCE_SECONDS", 0.5)


def endless(ask: Generate) -> list[Chunk]:
    """Begin an answer, and never end it."""
    return [chunk(ask.request, "on ", [1]), chunk(ask.request, "and ", [2])]


def test_a_completion_has_text_tokens_counts_and_why_it_ended(server: StubFrontend) -> None:
    with Client(server.address) as it:
        assert it.generate("hey") == Completion("hey", (104, 101, 121), "length", 3, 3, 2)


def test_all_settings_reach_the_server(server: StubFrontend) -> None:
    with Client(server.address) as it:
        it.generate(
            "a",
            max_tokens=5,
            temperature=0.5,
            top_k=4,
            top_p=0.9,
            min_p=0.1,
            seed=-3,
            stop="x",
            stop_token_ids=[7],
            ignore_eos=True,
            include_stop=True,
            timeout=9.0,
            repetition_penalty=1.3,
            presence_penalty=-0.5,
            frequency_penalty=2,
            logit_bias={5: -100, 300: 2.5},
            allowed_token_ids=[5, 6],
            bad_words=["x", "y"],
            min_tokens=2,
            logprobs=3,
        )
        ask = server.take(Generate)
        assert isinstance(ask, Generate)
        assert (ask.max_tokens, ask.temperature, ask.top_k, ask.top_p, ask.min_p) == (5, 0.5, 4, 0.9, 0.1)
        assert (ask.seed, ask.stop, ask.ignore_eos, ask.include_stop, ask.timeout) == (-3, ("x",), True, True, 9.0)
        assert ask.stop_token_ids is not None
        assert ask.stop_token_ids.tolist() == [7]
        assert (ask.repetition_penalty, ask.presence_penalty, ask.frequency_penalty) == (1.3, -0.5, 2.0)
        assert ask.bias_token_ids is not None
        assert ask.bias is not None
        assert dict(zip(ask.bias_token_ids.tolist(), ask.bias.tolist(), strict=True)) == {5: -100.0, 300: 2.5}
        assert ask.allowed_token_ids is not None
        assert (ask.allowed_token_ids.tolist(), ask.bad_words, ask.min_tokens) == ([5, 6], ("x", "y"), 2)
        assert ask.logprobs == 3
        assert not ask.stream


def test_log_probabilities_come_with_the_tokens_whole_and_in_pieces(tmp_path: Path) -> None:
    known = listing([(7, -0.5), (8, -1.0)], [(9, -0.25), (9, -0.25)])
    told = (TokenLogprob(7, -0.5, ((8, -1.0),)), TokenLogprob(9, -0.25, ((9, -0.25),)))

    def answer(ask: Generate) -> list[Chunk]:
        assert ask.logprobs == 1
        parts = [known] if not ask.stream else [known.part(0, 1), known.part(1, 2)]
        ends = [Finish.LENGTH] if not ask.stream else [Finish.RUNNING, Finish.LENGTH]
        return [
            Chunk(
                ask.request, "x", part.token[:: len(part.token) // len(part)], finish, "", 1, len(part),
                listed=part.count, listed_token=part.token, logprob=part.logprob,
            )
            for part, finish in zip(parts, ends, strict=True)
        ]  # fmt: skip

    with StubFrontend(f"ipc://{tmp_path / 'f'}", answer) as server, Client(server.address) as it:
        assert it.generate("a", logprobs=1).logprobs == told
        assert [piece.logprobs for piece in it.stream("a", logprobs=1)] == [told[:1], told[1:]]


def test_what_is_said_of_the_prompt_is_there_in_the_end(tmp_path: Path) -> None:
    known = listing([], [(8, -1.0), (9, -0.5)])
    told = (PromptToken(5, None, None, ()), PromptToken(8, -1.0, 2, ((9, -0.5),)))

    def answer(ask: Generate) -> list[Chunk]:
        assert (ask.prompt_logprobs, ask.max_tokens) == (1, 0)
        none, prompt = np.zeros(0, "<u4"), np.array([5, 8], "<u4")
        return [
            Chunk(
                ask.request, "", none, Finish.LENGTH, "", 2, 0, prompt_token_ids=prompt, scored=known.count,
                scored_token=known.token, scored_logprob=known.logprob, scored_rank=np.array([0, 2], "<u4"),
            )
        ]  # fmt: skip

    with StubFrontend(f"ipc://{tmp_path / 'f'}", answer) as server, Client(server.address) as it:
        assert it.generate("a", prompt_logprobs=1, max_tokens=0).prompt_logprobs == told
        stream = it.stream("a", prompt_logprobs=1, max_tokens=0)
        assert list(stream) == []
        assert stream.completion.prompt_logprobs == told


def test_settings_of_none_are_the_servers_choice(server: StubFrontend) -> None:
    with Client(server.address) as it:
        nothing: dict[str, Any] = dict.fromkeys(Settings.__annotations__.keys() - {"ignore_eos", "include_stop"})
        it.generate("a", **nothing)
        assert server.take(Generate) == Generate(1, prompt="a")


def test_token_ids_and_chats_can_be_asked_for_too(server: StubFrontend) -> None:
    with Client(server.address) as it:
        it.generate(np.array([5, 6]))
        ids = server.take(Generate)
        it.chat([{"role": "user", "content": "hi"}], stop=["a", "b"])
        chat = server.take(Generate)
        assert isinstance(ids, Generate)
        assert isinstance(chat, Generate)
        assert ids.token_ids is not None
        assert ids.token_ids.tolist() == [5, 6]
        assert chat.messages == ({"role": "user", "content": "hi"},)
        assert chat.stop == ("a", "b")


@pytest.mark.parametrize(
    ("prompt", "settings"),
    [
        ([-1], {}),
        ([2**62], {}),
        ([1.5], {}),
        (["a"], {}),
        ([True], {}),
        ("\ud800", {}),
        ("a", {"stop": "\ud800"}),
        ("a", {"seed": 2**63}),
        ("a", {"seed": -(2**63) - 1}),
        ("a", {"seed": 2**64}),
        ("a", {"max_tokens": 0}),
        ("a", {"max_tokens": -1}),
        ("a", {"max_tokens": 2**70}),
        ("a", {"max_tokens": "5"}),
        ("a", {"stop_token_ids": [2**65]}),
        ("a", {"temperature": float("nan")}),
        ("a", {"temperature": float("inf")}),
        ("a", {"top_p": 1.5}),
        ("a", {"min_p": 2}),
        ("a", {"repetition_penalty": 0}),
        ("a", {"logprobs": 21}),
        ("a", {"logprobs": True}),
        ("a", {"presence_penalty": 2.1}),
        ("a", {"frequency_penalty": float("nan")}),
        ("a", {"min_tokens": -1}),
        ("a", {"min_tokens": 2**70}),
        ("a", {"logit_bias": {-1: 5}}),
        ("a", {"logit_bias": {2**65: 5}}),
        ("a", {"logit_bias": {"1": 5}}),
        ("a", {"logit_bias": {1: 101}}),
        ("a", {"logit_bias": {1: float("nan")}}),
        ("a", {"logit_bias": {1: "5"}}),
        ("a", {"allowed_token_ids": [2**65]}),
        ("a", {"bad_words": ["\ud800"]}),
    ],
    ids=repr,
)
def test_what_no_message_can_carry_is_refused_and_the_client_goes_on(
    server: StubFrontend, prompt: object, settings: dict[str, object]
) -> None:
    with Client(server.address) as it:
        with pytest.raises(RequestRefusedError):
            it.generate(prompt, **settings)  # type: ignore[arg-type]
        assert it.generate("ok", seed=2**63 - 1).text == "ok"


@pytest.mark.parametrize(
    "message",
    [{"meta": {1: 2}}, {"meta": [{b"x": 1}]}, {"content": [{"type": "text", "text": "a"}] * 100_000}],
    ids=lambda it: repr(it)[:20],
)
def test_a_chat_that_no_server_could_read_is_refused_and_not_waited_for(
    server: StubFrontend, message: dict[str, object]
) -> None:
    with Client(server.address) as it:
        with pytest.raises(RequestRefusedError, match="text keys|entries"):
            it.chat([{"role": "user", "content": "hi"} | message], timeout=1.0)
        assert it.generate("ok").text == "ok"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_tokens": 0}, "max_tokens: must be at least 1 without prompt_logprobs, got 0"),
        ({"temperature": "hot"}, "temperature: expected a number, got str"),
        ({"logit_bias": {1: 101}}, "logit_bias: 101 is not from -100 to 100"),
        ({"stop": ["a", 5]}, "stop: expected text, got int"),
        ({"stop": 5}, "stop: 5 is neither a text nor a list of texts"),
        ({"bad_words": 5}, "bad_words: 5 is neither a text nor a list of texts"),
        ({"stop_token_ids": 5}, "stop_token_ids: 5 is no list of token ids"),
    ],
    ids=str,
)
def test_what_is_wrong_is_called_as_the_caller_wrote_it(
    server: StubFrontend, settings: dict[str, Any], reason: str
) -> None:
    with Client(server.address) as it, pytest.raises(RequestRefusedError) as error:
        it.generate("a", **settings)
    assert str(error.value) == reason


def test_a_setting_that_does_not_exist_is_an_error(server: StubFrontend) -> None:
    with Client(server.address) as it, pytest.raises(TypeError, match="colour"):
        it.generate("a", colour="blue")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("finish", "error"),
    [
        (Finish.REFUSED, RequestRefusedError),
        (Finish.ERROR, RequestFailedError),
        (Finish.BUSY, ServerBusyError),
    ],
    ids=str,
)
def test_refusals_and_failures_are_raised_in_the_servers_words(
    address: str, finish: Finish, error: type[Exception]
) -> None:
    with (
        StubFrontend(address, lambda ask: [chunk(ask.request, finish=finish, error="because")]),
        Client(address) as it,
    ):
        with pytest.raises(error, match="because"):
            it.generate("a")
        with pytest.raises(error, match="because"):
            list(it.stream("a"))


@pytest.mark.parametrize(("finish", "reason"), [(Finish.STOP, "stop"), (Finish.TIMEOUT, "timeout")], ids=str)
def test_the_finish_reason_is_a_word(address: str, finish: Finish, reason: str) -> None:
    with StubFrontend(address, lambda ask: [chunk(ask.request, "a", [1], finish)]), Client(address) as it:
        assert it.generate("a").finish_reason == reason


def test_answers_of_a_batch_belong_to_their_prompts_however_they_come_in_the_second_call_too(address: str) -> None:
    prompts = [f"{i}" * (1 + i % 7) for i in range(40)]
    with StubFrontend(address, hold=len(prompts)), Client(address) as it:
        for _ in range(2):
            random.Random(5).shuffle(prompts)
            assert [answer.text for answer in it.generate_batch(prompts)] == prompts
        assert it.generate_batch([]) == []


def test_a_batch_with_a_refused_prompt_names_it_and_aborts_the_others(address: str) -> None:
    def answer(ask: Generate) -> list[Chunk]:
        return [chunk(ask.request, finish=Finish.REFUSED, error="bad")] if ask.prompt == "bad" else endless(ask)

    with StubFrontend(address, answer) as server, Client(address) as it:
        with pytest.raises(RequestRefusedError, match="prompt 2: bad"):
            it.generate_batch(["a", "b", "bad"])
        assert {server.take(Cancel), server.take(Cancel)} == {Cancel(1), Cancel(2)}


def test_many_threads_share_one_client(server: StubFrontend) -> None:
    with Client(server.address) as it:
        wrong: list[str] = []

        def work(name: str) -> None:
            for i in range(20):
                if it.generate(f"{name}{i}").text != f"{name}{i}":
                    wrong.append(name)

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcdefgh"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_a_stream_yields_pieces_and_then_has_the_completion(server: StubFrontend) -> None:
    with Client(server.address) as it:
        stream = it.stream("abc")
        with pytest.raises(RuntimeError):
            _ = stream.completion
        assert [(piece.text, piece.token_ids) for piece in stream] == [("a", (97,)), ("b", (98,)), ("c", (99,))]
        assert stream.completion.text == "abc"
        assert list(stream) == []
        assert server.heard.qsize() == 1, "an answer that ended is not cancelled"


@pytest.mark.parametrize("way", ["close", "with", "break", "drop"])
def test_a_stream_that_is_left_early_is_aborted(address: str, way: str) -> None:
    with StubFrontend(address, endless) as server, Client(address) as it:
        stream = it.stream("a")
        if way == "close":
            next(stream)
            stream.close()
        elif way == "with":
            with stream:
                next(stream)
        elif way == "break":
            del stream
            for _ in it.stream("a"):
                break
        else:
            next(stream)
            del stream
            gc.collect()
        assert server.take(Cancel) == Cancel(1)


async def test_the_async_client_does_the_same(address: str) -> None:
    with StubFrontend(address) as server:
        async with AsyncClient(address) as it:
            assert (await it.generate("hey")).text == "hey"
            assert [piece.text async for piece in it.stream("abc")] == ["a", "b", "c"]
            assert [answer.text for answer in await it.generate_batch(["x", "y"])] == ["x", "y"]
            async for _ in it.stream("abc"):
                break
            await asyncio.to_thread(server.take, Cancel)


async def test_a_cancelled_task_aborts_its_request(address: str) -> None:
    with StubFrontend(address, endless) as server:
        async with AsyncClient(address) as it:
            task = asyncio.create_task(it.generate("a"))
            await asyncio.to_thread(server.take, Generate)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(server.take, Cancel) == Cancel(1)


async def test_a_task_that_is_cancelled_before_it_has_begun_to_wait_ends(address: str) -> None:
    with StubFrontend(address, lambda ask: echo(ask) if ask.prompt == "a" else endless(ask)):
        async with AsyncClient(address) as it:
            await it.generate("a")  # there is a connection, and the server has answered
            task = asyncio.create_task(it.generate("never"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task], timeout=2)
            assert task.cancelled()


async def test_closing_an_async_client_ends_a_call_that_is_just_about_to_be_sent(address: str) -> None:
    with StubFrontend(address):
        for turns in range(8):
            it = AsyncClient(address)
            task = asyncio.create_task(it.generate("a"))
            while it._connection is None or not it._connection._session.done():
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            await it.aclose()
            with contextlib.suppress(ServerLostError):
                assert (await asyncio.wait_for(task, 5)).text == "a"


def test_an_async_client_says_that_it_belongs_to_another_loop(server: StubFrontend) -> None:
    it = AsyncClient(server.address)
    with asyncio.Runner() as own:
        own.run(it.generate("a"))
        with asyncio.Runner() as other, pytest.raises(RuntimeError, match="another event loop"):
            other.run(it.generate("a"))
        own.run(it.aclose())


def test_ctrl_c_in_a_blocking_call_aborts_its_request(address: str) -> None:
    with StubFrontend(address, endless) as server, Client(address) as it:

        def interrupt() -> None:
            server.take(Generate)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            it.generate("a")
        thread.join()
        assert server.take(Cancel) == Cancel(1)


def test_a_chunk_of_a_request_that_is_over_disturbs_nobody(address: str) -> None:
    def answer(ask: Generate) -> list[Chunk]:
        return [chunk(999, "late", [1]), *echo(ask)]

    with StubFrontend(address, answer), Client(address) as it:
        assert it.generate("a").text == "a"
        assert it.generate("b").text == "b"


def test_closing_the_client_ends_what_is_under_way(address: str) -> None:
    with StubFrontend(address, endless) as server:
        it = Client(address)
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                it.generate("a")
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        server.take(Generate)
        it.close()
        thread.join(5)
        assert isinstance(errors[0], ServerLostError)
        it.close()
        with pytest.raises(RuntimeError, match="closed"):
            it.generate("a")


def test_no_thread_hangs_when_another_one_closes_the_client(server: StubFrontend) -> None:
    """The closing meets calls in every state: not handed in yet, connecting, waiting, just answered."""
    for trial in range(20):
        it = Client(server.address)
        ends: list[str] = []

        def use(kind: int, it: Client = it, ends: list[str] = ends) -> None:
            try:
                while True:
                    if kind == 0:
                        it.generate("a")
                    elif kind == 1:
                        it.generate_batch(["a"] * 5)
                    elif kind == 2:
                        list(it.stream("ab"))
                    else:
                        with it.stream("ab") as stream:
                            next(stream)
            except (ServerLostError, RuntimeError) as error:
                ends.append(str(error))

        threads = [threading.Thread(target=use, args=(i % 4,), daemon=True) for i in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(0.003 * trial)
        it.close()
        for thread in threads:
            thread.join(5)
        assert len(ends) == len(threads), "a thread hangs, or died of something else"
        assert set(ends) <= {"the client is closed", "the client was closed"}


def test_closing_a_stream_after_its_client_does_nothing(address: str) -> None:
    with StubFrontend(address, endless):
        it = Client(address)
        with it.stream("a") as begun, it.stream("a") as unused:
            next(begun)
            it.close()
        begun.close()
        unused.close()
        with pytest.raises(RuntimeError, match="closed"):
            next(begun)


def test_a_client_may_be_dropped_by_the_collector_on_its_own_thread(server: StubFrontend) -> None:
    it = Client(server.address)
    it.generate("a")
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "stepahead client"]
    it._thread._loop.call_soon_threadsafe(it._close)
    thread.join(5)
    assert not thread.is_alive()


def test_a_client_that_is_dropped_ends_its_thread(server: StubFrontend) -> None:
    it = Client(server.address)
    it.generate("a")
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "stepahead client"]
    del it
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


def test_an_absent_server_is_told_within_the_deadline(address: str) -> None:
    started = time.monotonic()
    with Client(address, connect_seconds=0.3) as it, pytest.raises(ServerLostError, match="no server answered"):
        it.generate("a")
    assert time.monotonic() - started < 3


def test_a_server_that_comes_within_the_deadline_is_found(address: str) -> None:
    with Client(address) as it:
        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.append(it.generate("a").text))
        thread.start()
        with StubFrontend(address):
            thread.join(10)
        assert answers == ["a"]


@pytest.mark.usefixtures("quick_heartbeat")
def test_a_server_that_falls_silent_ends_every_request(address: str) -> None:
    with StubFrontend(address, endless) as server, Client(address) as it:
        stream = it.stream("a")
        next(stream)
        server.silent.set()
        with pytest.raises(ServerLostError, match="silent"):
            list(stream)


@pytest.mark.usefixtures("quick_heartbeat")
def test_a_restarted_server_ends_old_requests_and_serves_new_ones(address: str) -> None:
    with Client(address) as it:
        with StubFrontend(address, endless):
            stream = it.stream("a")
            next(stream)
        with StubFrontend(address, echo):
            with pytest.raises(ServerLostError, match="restarted"):
                list(stream)
            assert it.generate("again").text == "again"


@pytest.mark.usefixtures("quick_heartbeat")
def test_a_client_in_long_silence_stays_known(address: str) -> None:
    with StubFrontend(address) as server, Client(address) as it:
        it.generate("a")
        before = server.pings
        while server.pings < before + 3:
            time.sleep(0.01)  # an event of the stub would be the same poll
        assert it.generate("b").text == "b"


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:5", "nonsense", "ipc://" + "a" * 200])
def test_an_address_that_can_not_be_is_refused_at_once(address: str) -> None:
    with pytest.raises(ValueError, match="address|path"):
        AsyncClient(address)


def test_the_version_is_the_projects() -> None:
    assert f'version = "{stepahead.__version__}"' in (ROOT / "pyproject.toml").read_text()


# ---------------------------------------------------------------- the command line


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "client", *arguments]
    return subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=20, check=False)


def say_hello(ask: Generate) -> list[Chunk]:
    kind = "chat" if ask.messages else "raw"
    text = ask.messages[0]["content"] if ask.messages else ask.prompt
    return [chunk(ask.request, f"{kind}: "), chunk(ask.request, f"{text}", [1]), chunk(ask.request, finish=Finish.STOP)]


@pytest.mark.processes
def test_the_command_streams_an_answer(address: str) -> None:
    with StubFrontend(address, say_hello):
        assert run("hello", "--address", address).stdout == "chat: hello\n"
        assert run("hello", "--address", address, "--raw").stdout == "raw: hello\n"
        assert run("-", "--address", address, "--chat", stdin="from a pipe").stdout == "chat: from a pipe\n"


@pytest.mark.processes
def test_the_command_says_in_one_line_that_no_server_is_there(address: str) -> None:
    done = run("hello", "--address", address)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "no server answered" in done.stderr
    assert "--address" in done.stderr


@pytest.mark.processes
def test_the_command_says_in_one_line_what_was_refused(server: StubFrontend) -> None:
    done = run("hello", "--address", server.address, "--max-tokens", "0")
    assert (done.returncode, done.stderr) == (
        1,
        "client: max_tokens: must be at least 1 without prompt_logprobs, got 0\n",
    )


@pytest.mark.processes
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_command_says_in_one_line_that_its_answer_could_not_be_written(address: str) -> None:
    command = [sys.executable, "-m", "client", "hello", "--address", address]
    with StubFrontend(address, say_hello), open("/dev/full", "w") as full:
        done = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=20, check=False
        )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "No space left" in done.stderr


@pytest.mark.processes
def test_the_command_is_quiet_when_nobody_reads_its_answer_any_more(address: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "client", "hello", "--address", address]
    with StubFrontend(address, say_hello):
        done = subprocess.run(
            command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=20, check=False
        )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.processes
def test_the_command_replaces_what_its_output_can_not_show(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    with StubFrontend(address, lambda ask: [chunk(ask.request, "caf\u00e9", [1], Finish.STOP)]):
        done = run("hello", "--address", address)
    assert (done.returncode, done.stdout, done.stderr) == (0, "caf?\n", "")


@pytest.mark.processes
def test_ctrl_c_aborts_the_request_and_exits_with_130(address: str) -> None:
    with StubFrontend(address, endless) as server:
        command = [sys.executable, "-m", "client", "hello", "--address", address]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 3) == b"on "
        process.send_signal(signal.SIGINT)
        assert server.take(Cancel) == Cancel(1)
        _, errors = process.communicate(timeout=5)
        assert (process.returncode, errors) == (130, b"")


@pytest.mark.processes
def test_a_program_that_never_closes_its_client_ends(address: str) -> None:
    program = f"import stepahead; it = stepahead.Client({address!r}); print(next(it.stream('abc')).text)"
    with StubFrontend(address):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True
        )
    assert (done.stdout, done.stderr) == ("a\n", "")


@pytest.mark.processes
def test_a_client_made_before_a_fork_says_so_in_the_child_and_another_one_works_there(address: str) -> None:
    program = f"""
import os, stepahead
before = stepahead.Client({address!r})
print(before.generate("parent").text, flush=True)
if not (child := os.fork()):
    try:
        before.generate("x")
    except RuntimeError as error:
        print(error, flush=True)
    with stepahead.Client({address!r}) as own:
        print(own.generate("child").text, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(before.generate("parent again").text)
"""
    with StubFrontend(address):
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True
        )
    first, said, second, third = done.stdout.splitlines()
    assert (first, second, third) == ("parent", "child", "parent again")
    assert "before a fork" in said


def test_a_call_that_ends_in_the_very_turn_of_the_closing_returns() -> None:
    thread = LoopThread()
    waits, goes_on = threading.Event(), asyncio.Event()
    results: list[str] = []

    async def call() -> str:
        waits.set()
        await goes_on.wait()
        return "done"

    async def farewell() -> None:
        goes_on.set()
        await asyncio.sleep(0)  # the call ends now, and nobody has been told

    caller = threading.Thread(target=lambda: results.append(thread.wait(call())), daemon=True)
    caller.start()
    assert waits.wait(5)
    thread.close(farewell)
    caller.join(5)
    assert results == ["done"]
