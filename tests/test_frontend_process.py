"""The frontend as a process of its own, between real sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import psutil
import pytest
import zmq

from protocol.codec import MAX_FRAME_BYTES, decode, encode
from protocol.lifeline import ChildPipes
from protocol.messages import Abort, Cancel, Chunk, Finish, Generate, Message, Ping, Pong, Submit
from protocol.sockets import bind_router
from protocol.stop_signal import BROKEN
from tests.frontend_driver import ids, text_of
from tests.stub_scheduler import StubScheduler
from tests.test_protocol_document import example
from tests.word_model import write_word_model
from tests.word_tokenizer import EOS, word

ROOT = Path(__file__).parent.parent
LONG = "long" * 500
WORDS = ("Ġone", "Ġtwo", "Ġthree", LONG)
ONE, TWO, THREE, LONG_WORD = (word(i) for i in range(len(WORDS)))
ANSWER = [ONE, TWO, THREE, EOS]

pytestmark = pytest.mark.processes


def script(submit: Submit) -> list[int]:
    """An answer of three words; one that goes on for ever if the end token is ignored."""
    return [ONE, TWO, THREE] * 1000 if submit.ignore_eos else ANSWER


class RawClient:
    """A text client that is only a socket."""

    def __init__(self, address: str, *, reads_ahead: int | None = None) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        if reads_ahead is not None:
            self.socket.rcvhwm = reads_ahead
        self.socket.connect(address)

    def say(self, message: Message) -> None:
        self.socket.send(encode(message))

    def hear(self, seconds: float = 20.0) -> Message:
        """Return the next message that is no Ping."""
        while True:
            assert self.socket.poll(int(1000 * seconds)), "nothing came"
            message = decode(self.socket.recv())
            if not isinstance(message, Ping):
                return message

    def chunk(self) -> Chunk:
        message = self.hear()
        assert isinstance(message, Chunk)
        return message

    def answer(self, message: Generate) -> list[Chunk]:
        """Ask, and return all chunks."""
        self.say(message)
        chunks = [self.chunk()]
        while not chunks[-1].finish:
            chunks.append(self.chunk())
        return chunks

    def close(self) -> None:
        self.context.destroy(linger=0)


class Running:
    """A frontend process in front of a stub scheduler."""

    def __init__(self, folder: Path, model: Path, scheduler: StubScheduler, *more: str) -> None:
        self.scheduler = scheduler
        self.address = f"ipc://{folder / 'frontend'}"
        self.process = start(self.address, scheduler.address, model, *more)
        self.clients: list[RawClient] = []

    def client(self, **options: int) -> RawClient:
        """Return a client whose Ping was answered: the frontend serves."""
        self.clients.append(RawClient(self.address, **options))
        self.clients[-1].say(Ping())
        assert isinstance(self.clients[-1].hear(), Pong)
        return self.clients[-1]

    def close(self) -> None:
        for client in self.clients:
            client.close()
        if self.process.poll() is None:
            self.process.terminate()
        _, self.errors = self.process.communicate(timeout=10)


def start(bind: str, scheduler: str, model: Path, *more: str, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "frontend", "--bind", bind, "--scheduler", scheduler, "--model", str(model)]
    command += ["--no-http", "--drain-timeout=0", *more]  # the last one counts
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_word_model(tmp_path / "model", *WORDS)


@pytest.fixture
def running(tmp_path: Path, model: Path) -> Iterator[Running]:
    with StubScheduler(f"ipc://{tmp_path / 'scheduler'}", script, max_model_len=4096, eos=(EOS,)) as scheduler:
        running = Running(tmp_path, model, scheduler)
        yield running
        running.close()
        assert running.process.returncode == 0
        assert "Traceback" not in running.errors
        assert not (tmp_path / "frontend").exists(), "its socket was left"


def test_prompts_chats_and_ids_are_answered_streamed_or_whole(running: Running) -> None:
    client = running.client()
    prompt = client.answer(Generate(1, prompt="hello", stream=True))
    chat = client.answer(Generate(2, messages=({"role": "user", "content": "hello"},), stream=True))
    whole = client.answer(Generate(3, token_ids=ids(1, 2), stream=False))
    assert text_of(prompt) == text_of(chat) == text_of(whole) == " one two three"
    assert len(whole) == 1
    for chunks in (prompt, chat, whole):
        assert (chunks[-1].finish, chunks[-1].output_tokens) == (Finish.STOP, 4)
    assert prompt[-1].prompt_tokens == 5


def test_the_example_client_of_the_document_talks_to_it(running: Running, tmp_path: Path) -> None:
    program = tmp_path / "example.py"
    program.write_text(example(), encoding="utf-8")
    command = [sys.executable, str(program), running.address, "hello"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == " one two three\n"


def test_a_hundred_requests_one_after_the_other_and_a_hundred_at_once(running: Running) -> None:
    client = running.client()
    for request in range(100):
        assert text_of(client.answer(Generate(request, prompt="a"))) == " one two three"
    for request in range(100, 200):
        client.say(Generate(request, prompt="a", max_tokens=1 + request % 3))
    texts = {chunk.request: chunk.text for chunk in (client.chunk() for _ in range(100))}
    assert texts == {request: " one two three"[: (4, 8, 14)[request % 3]] for request in range(100, 200)}


def test_it_tells_its_parent_when_it_serves_and_ends_with_its_parent(tmp_path: Path, model: Path) -> None:
    address = f"ipc://{tmp_path / 'scheduler'}"
    with ChildPipes() as pipes:
        process = start(f"ipc://{tmp_path / 'f'}", address, model, *pipes.arguments, pass_fds=pipes.pass_fds)
        pipes.started()
        with os.fdopen(os.dup(pipes.status)) as status:
            lines = []
            for line in status:
                lines.append(line.strip())
                if lines[-1] == "progress waiting for a scheduler":
                    break
            with StubScheduler(address, script, eos=(EOS,)):
                lines.append(next(status).strip())
            assert lines[-1] == "ready"
    process.communicate(timeout=5)
    assert process.returncode != 0


def test_nothing_is_read_from_clients_before_a_scheduler_is_there(tmp_path: Path, model: Path) -> None:
    address = f"ipc://{tmp_path / 'scheduler'}"
    process = start(f"ipc://{tmp_path / 'frontend'}", address, model)
    client = RawClient(f"ipc://{tmp_path / 'frontend'}")
    client.say(Generate(1, prompt="early"))
    with StubScheduler(address, script, eos=(EOS,)):
        assert client.chunk().text == " one two three"
    client.close()
    process.terminate()
    process.communicate(timeout=5)
    assert process.returncode == 0


@pytest.mark.slow
def test_an_idle_frontend_uses_less_than_three_percent_of_a_core_and_answers_at_once_after_it(running: Running) -> None:
    client = running.client()
    client.answer(Generate(1, prompt="a"))
    process = psutil.Process(running.process.pid)
    before, started = process.cpu_times(), time.monotonic()
    time.sleep(3)  # the measurement itself
    after = process.cpu_times()
    busy = after.user + after.system - before.user - before.system
    assert busy / (time.monotonic() - started) < 0.03
    asked = time.monotonic()
    client.say(Ping())
    client.hear()
    assert time.monotonic() - asked < 0.1


def test_many_long_prompts_are_answered_while_more_of_them_wait(running: Running) -> None:
    client = running.client()
    asked = time.monotonic()
    for request in range(20):
        client.say(Generate(request, prompt="a" * 100_000))
    seconds = []
    for request in range(20):
        chunk = client.chunk()
        seconds.append(time.monotonic() - asked)
        assert (chunk.request, chunk.finish) == (request, Finish.REFUSED)
    assert seconds[0] < seconds[-1] / 2, "all of them were read before anybody was spoken to"


def test_ten_thousand_refusals_at_once_all_arrive(running: Running) -> None:
    client = running.client()
    frame = encode(Generate(7, prompt=""))
    for _ in range(10_000):
        client.socket.send(frame)
    assert all(client.chunk().finish == Finish.REFUSED for _ in range(10_000))


GARBAGE = [
    [b""],
    [b"\xc1"],
    [os.urandom(100)],
    [b"\x81\xa4type"],
    [msgpack.packb([1, 2])],
    [msgpack.packb({"type": "Nonsense"})],
    [msgpack.packb({"type": "Generate"})],
    [msgpack.packb({"type": "Generate", "request": -1, "prompt": "a"})],
    [msgpack.packb({"type": "Attach", "incarnation": 5})],
    [b"\x91" * 10000],
    [b"two", b"frames"],
    [bytes(MAX_FRAME_BYTES + 1)],
]


def test_garbage_is_dropped_and_everybody_else_is_served(running: Running) -> None:
    good = running.client()
    for request, frames in enumerate(GARBAGE):
        bad = running.client()
        bad.socket.send_multipart(frames)
        assert text_of(good.answer(Generate(request, prompt="a"))) == " one two three"
    bad = running.client()
    for _ in range(200):
        bad.socket.send(b"")
    bad.answer(Generate(1, prompt="a"))
    running.close()
    assert 0 < running.errors.count("broke the protocol") < 10, "a flood of garbage is no flood of log lines"


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("max_tokens", 0, "max_tokens: must be at least 1 without prompt_logprobs, got 0"),
        ("max_tokens", -1, "max_tokens: -1 is outside of"),
        ("max_tokens", 2**40, "max_tokens: "),
        ("max_tokens", "5", "max_tokens: expected an integer, got str"),
        ("seed", 2**63, "seed: "),
        ("temperature", float("nan"), "temperature: nan is not a finite number"),
        ("token_ids", b"abcd", "exactly one"),
        ("prompt", None, "exactly one"),
        ("colour", "blue", "unknown fields"),
    ],
)
def test_a_request_that_breaks_the_protocol_is_refused_in_words(
    running: Running, field: str, value: object, reason: str
) -> None:
    client = running.client()
    client.socket.send(msgpack.packb({"type": "Generate", "request": 7, "prompt": "a", field: value}))
    chunk = client.chunk()
    assert (chunk.request, chunk.finish) == (7, Finish.REFUSED)
    assert reason in chunk.error
    if ":" in reason:  # a field is called as its client wrote it
        assert chunk.error.startswith(reason)
        assert chunk.at_fault == field


def test_half_a_surrogate_pair_is_refused_in_words(running: Running) -> None:
    client = running.client()
    frame = msgpack.packb({"type": "Generate", "request": 7, "prompt": "\ud800"}, unicode_errors="surrogatepass")
    client.socket.send(frame)
    chunk = client.chunk()
    assert (chunk.request, chunk.finish) == (7, Finish.REFUSED)
    assert "UTF-8" in chunk.error


def test_the_requests_of_a_client_that_vanished_are_aborted_within_seconds(running: Running) -> None:
    client = running.client()
    client.say(Generate(1, prompt="a", ignore_eos=True, stream=False, max_tokens=3000))
    submit = running.scheduler.take(Submit)
    assert isinstance(submit, Submit)
    running.scheduler.allow(-(10**9))
    client.close()
    abort = running.scheduler.take(Abort, seconds=5)
    assert isinstance(abort, Abort)
    assert abort.request.tolist() == [submit.request]


def test_a_cancel_reaches_the_scheduler(running: Running) -> None:
    client = running.client()
    client.say(Generate(1, prompt="a", ignore_eos=True, stream=True))
    client.chunk()
    client.say(Cancel(1))
    running.scheduler.take(Abort)
    chunk = client.chunk()
    while not chunk.finish:
        chunk = client.chunk()
    assert chunk.finish == Finish.ABORT


def test_a_stream_goes_on_through_a_restart_of_the_scheduler(running: Running) -> None:
    client = running.client()
    running.scheduler.allow(5 - 10**9)
    client.say(Generate(1, prompt="a", ignore_eos=True, stream=True, max_tokens=12))
    chunks = [client.chunk()]
    while chunks[-1].output_tokens < 5:
        chunks.append(client.chunk())
    running.scheduler.take(Submit)
    running.scheduler.restart()
    again = running.scheduler.take(Submit)
    assert isinstance(again, Submit)
    assert len(again.output) == 5
    running.scheduler.allow(10)
    while not chunks[-1].finish:
        chunks.append(client.chunk())
    assert text_of(chunks) == " one two three" * 4


def test_a_client_that_does_not_read_gets_everything_later_and_delays_nobody(tmp_path: Path, model: Path) -> None:
    """More than its sockets hold; the frontend keeps the rest as text."""

    def long_script(submit: Submit) -> list[int]:
        return [LONG_WORD] * 1000 if submit.ignore_eos else ANSWER

    with StubScheduler(f"ipc://{tmp_path / 'scheduler'}", long_script, max_model_len=4096, eos=(EOS,)) as scheduler:
        running = Running(tmp_path, model, scheduler)
        slow, good = running.client(reads_ahead=1), running.client()
        slow.say(Generate(1, prompt="a", ignore_eos=True, stream=True))
        request = 0
        while scheduler.running or not request:
            request += 1
            assert text_of(good.answer(Generate(request, prompt="a"))) == " one two three"
            slow.say(Ping())
        chunks: list[Chunk] = []
        while not chunks or not chunks[-1].finish:
            message = slow.hear()  # a Pong may come before the first of them
            chunks += [message] if isinstance(message, Chunk) else []
        assert text_of(chunks) == LONG * 1000
        assert len(chunks) < 1000, "some of it came in larger pieces"
        running.close()
        assert running.process.returncode == 0


@pytest.fixture
def draining(tmp_path: Path, model: Path) -> Iterator[Running]:
    """A frontend that gives its requests a minute, with one that gets no token until the scheduler is allowed to."""
    address = f"ipc://{tmp_path / 'scheduler'}"
    with StubScheduler(address, script, max_model_len=4096, eos=(EOS,), allowance=0) as scheduler:
        running = Running(tmp_path, model, scheduler, "--drain-timeout=60")
        client = running.client()
        client.say(Generate(1, prompt="a", stream=False))
        scheduler.take(Submit)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.stderr is not None
        while "draining: 1 request is running" not in running.process.stderr.readline():
            pass
        client.say(Generate(2, prompt="a"))
        refusal = client.chunk()
        assert (refusal.request, refusal.finish) == (2, Finish.REFUSED)
        assert refusal.error == "the server is shutting down and takes no new requests"
        yield running
        running.close()
        assert running.process.returncode == 0
        assert "Traceback" not in running.errors


def test_after_sigterm_nothing_new_is_taken_and_what_runs_finishes(draining: Running) -> None:
    draining.scheduler.allow(10**6)
    assert draining.clients[0].chunk().text == " one two three"
    assert draining.process.wait(5) == 0


def test_a_second_signal_ends_what_runs_in_words(draining: Running) -> None:
    draining.process.send_signal(signal.SIGTERM)
    chunk = draining.clients[0].chunk()
    assert (chunk.finish, chunk.error) == (Finish.ERROR, "the server is shutting down")
    draining.scheduler.take(Abort)
    assert draining.process.wait(5) == 0


def test_when_another_process_has_died_what_runs_ends_at_once_in_other_words(running: Running) -> None:
    client = running.client()
    client.say(Generate(1, prompt="a", ignore_eos=True, stream=False))
    running.scheduler.take(Submit)
    running.scheduler.allow(-(10**9))
    running.process.send_signal(BROKEN)
    chunk = client.chunk()
    assert chunk.error == "the server has broken down: one of its processes has died"
    assert chunk.finish == Finish.ERROR
    assert running.process.wait(5) == 0


def test_the_end_of_the_grace_ends_what_runs_in_words(running: Running) -> None:
    client = running.client()
    client.say(Generate(1, prompt="a", ignore_eos=True, stream=False))
    running.scheduler.take(Submit)
    running.scheduler.allow(-(10**9))
    running.process.send_signal(signal.SIGTERM)
    chunk = client.chunk()
    assert (chunk.finish, chunk.error) == (Finish.ERROR, "the server is shutting down")
    running.scheduler.take(Abort)
    assert running.process.wait(5) == 0


def test_an_idle_frontend_ends_at_once(tmp_path: Path, model: Path) -> None:
    with StubScheduler(f"ipc://{tmp_path / 'scheduler'}", script, eos=(EOS,)) as scheduler:
        running = Running(tmp_path, model, scheduler, "--drain-timeout=60")
        running.client()
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(2) == 0
        running.close()


def test_a_frontend_with_a_parent_says_that_it_is_drained_and_waits_for_the_last_word(
    tmp_path: Path, model: Path
) -> None:
    address = f"ipc://{tmp_path / 'scheduler'}"
    with ChildPipes() as pipes, StubScheduler(address, script, eos=(EOS,)):
        process = start(f"ipc://{tmp_path / 'f'}", address, model, *pipes.arguments, pass_fds=pipes.pass_fds)
        pipes.started()
        with os.fdopen(os.dup(pipes.status)) as status:
            while next(status).strip() != "ready":
                pass
            process.send_signal(signal.SIGTERM)
            assert next(status).strip() == "drained"
            client = RawClient(f"ipc://{tmp_path / 'f'}")
            client.say(Generate(1, prompt="a"))
            assert client.chunk().finish == Finish.REFUSED
            client.close()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=5)
    assert process.returncode == 0


def fails(process: subprocess.Popen[str]) -> str:
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 2
    assert len(errors.strip().splitlines()) == 1, errors
    return errors


def test_a_model_that_is_not_there_is_one_line_and_code_2(tmp_path: Path) -> None:
    process = start(f"ipc://{tmp_path / 'f'}", f"ipc://{tmp_path / 's'}", tmp_path / "nothing")
    assert "no such file" in fails(process)


def test_a_busy_address_is_one_line_and_code_2(tmp_path: Path, model: Path) -> None:
    context = zmq.Context()
    router = bind_router(context, f"ipc://{tmp_path / 'f'}")
    assert "in use" in fails(start(f"ipc://{tmp_path / 'f'}", f"ipc://{tmp_path / 's'}", model))
    router.close()
    context.term()


def test_the_users_template_and_sampling_go_before_the_models(tmp_path: Path, model: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("one {{ messages[0].content }}")
    (model / "generation_config.json").write_text(
        '{"temperature": 0.5, "top_k": 7, "repetition_penalty": 1.3, "typical_p": 0.5}'
    )
    with StubScheduler(f"ipc://{tmp_path / 'scheduler'}", script, max_model_len=4096, eos=(EOS,)) as scheduler:
        options = ["--chat-template", str(template), "--override-generation-config", '{"temperature": 0.25}']
        process = start(f"ipc://{tmp_path / 'f'}", scheduler.address, model, *options)
        client = RawClient(f"ipc://{tmp_path / 'f'}")
        client.answer(Generate(1, messages=({"role": "user", "content": "hello"},)))
        client.answer(Generate(2, prompt="one hello", temperature=1.0, top_k=2))
        chat, prompt = scheduler.take(Submit), scheduler.take(Submit)
        assert isinstance(chat, Submit)
        assert isinstance(prompt, Submit)
        assert chat.prompt.tolist() == prompt.prompt.tolist()
        assert (chat.temperature, chat.top_k, chat.repetition_penalty) == (0.25, 7, 1.3)
        assert (prompt.temperature, prompt.top_k) == (1.0, 2)
        client.close()
        process.terminate()
        _, errors = process.communicate(timeout=5)
    assert "frontend: generation_config.json asks for what is not honoured: typical_p 0.5\n" in errors


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--chat-template", "broken.jinja", "broken.jinja: the chat template is broken at line 2: "),
        ("--chat-template", "missing.jinja", "missing.jinja cannot be read: "),
        ("--override-generation-config", "{", "--override-generation-config: not JSON: "),
        ("--revision", "v1", "--revision v1: only models from the hub"),
    ],
)
def test_a_mistake_in_what_is_to_be_different_is_one_line_and_code_2(
    option: str, value: str, words: str, tmp_path: Path, model: Path
) -> None:
    (tmp_path / "broken.jinja").write_text("fine\n{% if %}")
    value = str(tmp_path / value) if value.endswith("jinja") else value
    process = start(f"ipc://{tmp_path / 'f'}", f"ipc://{tmp_path / 's'}", model, option, value)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 2
    assert words in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_garbage_from_a_scheduler_is_dropped(tmp_path: Path, model: Path) -> None:
    address = f"ipc://{tmp_path / 's'}"
    context = zmq.Context()
    router = bind_router(context, address)
    process = start(f"ipc://{tmp_path / 'f'}", address, model)
    peer, _ = router.recv_multipart()
    for frames in GARBAGE[:-1]:
        router.send_multipart([peer, *frames])
    router.send_multipart([peer, encode(Ping())])
    while not isinstance(decode(router.recv_multipart()[1]), Pong):
        pass
    router.close()
    context.term()
    process.terminate()
    process.communicate(timeout=5)
    assert process.returncode == 0


def test_no_torch_is_imported_here() -> None:
    program = "import frontend.process, client, stepahead, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_two_schedulers_serve_one_frontend(tmp_path: Path, model: Path) -> None:
    addresses = [f"ipc://{tmp_path / name}" for name in ("a", "b")]
    with (
        StubScheduler(addresses[0], script, eos=(EOS,), allowance=0) as a,
        StubScheduler(addresses[1], script, eos=(EOS,), allowance=0) as b,
    ):
        process = start(f"ipc://{tmp_path / 'f'}", addresses[0], model, "--scheduler", addresses[1])
        client = RawClient(f"ipc://{tmp_path / 'f'}")
        # The second may attach later than the first: ask until it has been given work.
        asked = 0
        while not b.running or not a.running:
            asked += 1
            client.say(Generate(asked, prompt="a"))
            client.say(Ping())
            client.hear()
        a.allow(10**6)
        b.allow(10**6)
        assert {client.chunk().request for _ in range(asked)} == set(range(1, asked + 1))
        client.close()
        process.terminate()
        process.communicate(timeout=5)
