"""launch.py as a user runs it: a real model, real processes, and every way in which they end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import psutil
import pytest

import launch
from client import Client, RequestFailedError
from client.batch import main as batch
from protocol.stop_signal import BROKEN
from tests.http_server import free_port
from tests.launched import END_SECONDS, LAUNCH, ROOT, Launched, launched
from tests.tiny_models import save, tiny_model

SMALL = ["--max-model-len=512", "--max-num-seqs=4", "--kv-cache-blocks=128"]

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(180)]


def _all_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=END_SECONDS)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


def _socket_folder(run: Launched) -> Path:
    binds = [part for child in run.children().values() for part in child.cmdline() if part.startswith("--bind=ipc")]
    return next(Path(bind.removeprefix("--bind=ipc://")).parent for bind in binds if "worker" in bind)


def _address(folder: Path) -> str:
    return f"ipc://{folder / 'clients'}"


@pytest.fixture
def handlers() -> Iterator[None]:
    """Gives signals back to whom the launcher took them from."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, BROKEN, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_prompt_is_answered_beside_another_server_and_everything_ends_with_code_0(default_model_path: Path) -> None:
    with socket.socket() as other, socket.socket() as http:
        for busy, port in ((other, 8555), (http, 8000)):
            with contextlib.suppress(OSError):  # it may really be in use
                busy.bind(("127.0.0.1", port))
                busy.listen()
        done = subprocess.run(
            [sys.executable, "launch.py", "--prompt=What is the capital of France?", *SMALL],
            cwd=ROOT, capture_output=True, text=True, timeout=150,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The capital of France is Paris.\n"
    assert "Traceback" not in done.stderr


def test_an_interrupted_prompt_ends_at_once(tmp_path: Path, default_model_path: Path) -> None:
    prompt = "Write a very long story about the sea, and do not stop."
    with launched(f"--prompt={prompt}", f"--zmq={_address(tmp_path)}", "--max-num-seqs=4") as run:
        run.wait_for("frontend: ready")
        assert run.process.stdout is not None
        assert run.process.stdout.read(1)
        children = list(run.children().values())
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 130
        _all_gone(children)
    assert "Traceback" not in run.said


def test_clients_are_served_until_sigterm(tmp_path: Path, default_model_path: Path) -> None:
    with launched(f"--zmq={_address(tmp_path)}", *SMALL) as run:
        run.wait_for("serving")
        children = list(run.children().values())
        assert len(children) == 4
        with Client(_address(tmp_path)) as client:
            prompts = ["1, 2, 3, 4, 5,", "The capital of France is", "Once upon a time"]
            first = client.generate_batch(prompts, max_tokens=8, temperature=0.0)
            second = client.generate_batch(prompts[::-1], max_tokens=8, temperature=0.0)
        assert [each.text for each in first] == [each.text for each in second[::-1]]
        assert first[0].text.startswith(" 6, 7")
        run.wait_for("to ask it: ")
        (hint,) = [line.partition("to ask it: ")[2] for line in run.lines if "to ask it: " in line]
        asked = subprocess.run(hint, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=30)
        assert asked.stdout == "The capital of France is Paris.\n", asked.stderr
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 0
        _all_gone(children)
    assert "Traceback" not in run.said
    assert not any(tmp_path.iterdir()), "a socket was left"


@pytest.mark.parametrize("moment", ["loading", "serving"])
@pytest.mark.parametrize("how", ["kill -9", "shell closed"])
def test_no_child_outlives_the_launcher(tmp_path: Path, default_model_path: Path, moment: str, how: str) -> None:
    with launched(f"--zmq={_address(tmp_path)}", *SMALL, shell=how == "shell closed") as run:
        run.wait_for("importing torch" if moment == "loading" else "serving")
        children = list(run.children().values())
        assert len(children) == 4
        if how == "kill -9":
            run.process.kill()
        else:
            os.killpg(run.process.pid, signal.SIGHUP)  # what a terminal that closes sends
        _all_gone(children)


@pytest.mark.parametrize("victim", ["gpu_worker", "scheduler_proc", "frontend"])
def test_a_child_that_dies_is_named_and_everything_ends(tmp_path: Path, default_model_path: Path, victim: str) -> None:
    with launched(f"--zmq={_address(tmp_path)}", *SMALL) as run:
        run.wait_for("serving")
        children = run.children()
        with Client(_address(tmp_path)) as client, client.stream("a", ignore_eos=True) as stream:
            next(stream)
            children[victim].kill()
            if victim != "frontend":
                with pytest.raises(
                    RequestFailedError, match="the server has broken down: one of its processes has died"
                ):
                    list(stream)
        assert run.end() == 1
        _all_gone(list(children.values()))
    name = {"gpu_worker": "worker", "scheduler_proc": "scheduler", "frontend": "frontend"}[victim]
    assert f"stepahead: {name} is gone: it was killed by signal 9" in run.said


def test_a_start_that_takes_too_long_ends_whole(tmp_path: Path, default_model_path: Path) -> None:
    with launched(f"--zmq={_address(tmp_path)}", "--start-timeout=0.9", *SMALL) as run:
        while not (children := list(run.children().values())) and run.process.poll() is None:
            time.sleep(0.02)
        assert run.end(20.0) == 1
        _all_gone(children)
    assert "not ready within 0.9 s" in run.said


@pytest.mark.alone
@pytest.mark.parametrize("where", ["tcp", "ipc", "file"])
def test_a_busy_address_is_said_before_anything_is_loaded(tmp_path: Path, default_model_path: Path, where: str) -> None:
    family = socket.AF_INET if where == "tcp" else socket.AF_UNIX
    with socket.socket(family, socket.SOCK_STREAM) as other:
        if where == "tcp":
            other.bind(("127.0.0.1", 0))
            other.listen()
            address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        elif where == "ipc":
            address = _address(tmp_path)
            other.bind(address.removeprefix("ipc://"))
            other.listen()
        else:
            address = _address(tmp_path)
            Path(address.removeprefix("ipc://")).write_text("somebody's")
        began = time.monotonic()
        done = subprocess.run([*LAUNCH, f"--zmq={address}"], cwd=ROOT, capture_output=True, text=True, timeout=20)
        assert time.monotonic() - began < 2.0
    assert done.returncode == 2
    assert address in done.stderr
    assert "worker" not in done.stderr, "a child was started"
    assert "Traceback" not in done.stderr
    if where == "file":
        assert Path(address.removeprefix("ipc://")).read_text() == "somebody's"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--model=/no/such/model"], "no such file or folder"),
        (["--model=without-tokenizer"], "tokenizer.json"),
        (["--zmq=tcp://0.0.0.0:9999"], "loopback"),
        (["--zmq=nonsense"], "nonsense"),
        (["--max-num-seqs=0"], "--max-num-seqs"),
        (["--max-num-seqs=900", "--max-batch-tokens=100"], "--max-batch-tokens"),
        (["--no-such-option"], "unrecognized"),
        (["--prompt="], "empty"),
        (["--start-timeout=inf"], "--start-timeout"),
        (["--kv-cache-gib=nan"], "--kv-cache-gib"),
        (["--kv-cache-gib=1e300"], "--kv-cache-gib"),
        (["--threads=100000000000"], "--threads"),
        (["--seed=99999999999999999999999"], "--seed"),
        (["--max-batch-tokens=5000000000"], "--max-batch-tokens"),
        (["--zmq=ipc://*"], "ipc://*"),
        (["--workers=1", "--schedulers=2"], "each scheduler needs a worker"),
        (["--frontends=1000000"], "--frontends must be at most 256"),
        (["--frontends=0"], "--frontends must be at least 1"),
        (["--max-plans-in-flight=0"], "--max-plans-in-flight"),
        (["--step-timeout=0"], "--step-timeout"),
        (["--http", "--port=0"], "--no-http"),
        (["--http", "--port=65536"], "--port"),
        (["--http", "--host="], "--host"),
        (["--api-key="], "--api-key"),
        (["--api-key=secret"], "--no-http"),
        (["--max-body-mib=0"], "--max-body-mib"),
        (["--drain-timeout=-1"], "--drain-timeout"),
        (["--dtype=float8"], "--dtype"),
        (["--served-model-name="], "--served-model-name"),
        (["--revision=main"], "only models from the hub"),
        (["--chat-template=/no/such/file"], "--chat-template: /no/such/file cannot be read: No such file or directory"),
        (["--chat-template=broken.jinja"], "broken.jinja: the chat template is broken at line 2: "),
        (["--chat-template="], "--chat-template is empty"),
        (["--chat-template=/dev/zero"], "--chat-template: /dev/zero: is no regular file"),
        (['--override-generation-config={"top_k": ' + "9" * 5000 + "}"], "not JSON: an integer has 5000 digits"),
        (["--override-generation-config=[1]"], "must be a JSON object"),
        (["--lockstep", "--max-plans-in-flight=2"], "give --lockstep, which is --max-plans-in-flight 1, or"),
        (["--max-tokens=9"], "--max-tokens is for --prompt"),
        (["--prompt=a", "--max-tokens=0"], "--max-tokens must be at least 1"),
        (["--http", "--host=203.0.113.1"], "'203.0.113.1' is no address of this machine (elsewhere: --host HOST"),
        (["--http", "--port=FREE", "--zmq=tcp://127.0.0.1:FREE"], "--zmq ADDRESS"),
        (["--zmq=tcp://127.0.0.1:FREE", "--run-dir=/dev/null/folder"], "--run-dir PATH"),
        (["--zmq=tcp://127.0.0.1:FREE", "--max-model-len=100000"], "8192 positions"),
    ],
)
@pytest.mark.usefixtures("handlers", "default_model_path")
def test_a_mistake_is_one_clear_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    save(tiny_model("grouped queries"), tmp_path / "without-tokenizer")
    (tmp_path / "broken.jinja").write_text("fine\n{% if %}")
    here = {name: str(tmp_path / name) for name in ("without-tokenizer", "broken.jinja")}
    for name, value in {**here, "FREE": str(free_port())}.items():
        arguments = [each.replace(name, value) for each in arguments]
    capsys.readouterr()  # transformers says that it saves
    try:
        code: object = launch.main(["--no-http", *arguments])
    except SystemExit as end:
        code = end.code
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert word in line


@pytest.mark.parametrize(
    ("mistake", "word"),
    [
        ("--no-such-option", "unrecognized"),
        ("--model=/no/such/model", "no such file or folder"),
        ("--zmq=nonsense", "nonsense"),
        ("--chat-template=/no/such/file", "cannot be read"),
    ],
)
def test_nothing_but_that_line_is_said_by_a_process_that_then_ends(mistake: str, word: str) -> None:
    done = subprocess.run([*LAUNCH, mistake], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert word in line


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--max-model-len=512", "--kv-cache-blocks=3"], "needs 32"),
        (["--kv-cache-gib=100000"], "does not fit"),
    ],
)
def test_what_only_the_worker_can_know_ends_the_start_with_its_words(
    tmp_path: Path, default_model_path: Path, arguments: list[str], word: str
) -> None:
    with launched(f"--zmq={_address(tmp_path)}", *arguments) as run:
        assert run.end(60.0) == 2
    assert run.said.count(word) == 1
    assert "Traceback" not in run.said


@pytest.mark.alone
def test_a_busy_port_is_said_before_anything_is_loaded(default_model_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        began = time.monotonic()
        done = subprocess.run(
            [*LAUNCH, "--http", f"--port={port}"], cwd=ROOT, capture_output=True, text=True, timeout=20
        )
        assert time.monotonic() - began < 2.0
    assert done.returncode == 2
    assert f"http://127.0.0.1:{port}: the port is in use" in done.stderr
    assert "worker" not in done.stderr, "a child was started"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("called", "program"), [("/a/folder/launch.py", "python launch.py"), ("/a/folder/bin/stepahead", "stepahead")]
)
def test_help_calls_us_what_we_were_called(
    called: str, program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    with pytest.raises(SystemExit):
        launch.main(["--help"])
    assert capsys.readouterr().out.startswith(f"usage: {program} [-h]")


STORIES = [f"Once upon a time there were {number} bears. They" for number in range(8)]


def test_http_gives_the_same_text_streamed_and_not_alone_among_others_and_in_a_batch(
    tmp_path: Path, default_model_path: Path
) -> None:
    port = free_port()
    options = ["--http", f"--port={port}", "--dtype=float32", "--max-model-len=512", "--max-num-seqs=8"]
    with (
        launched(f"--zmq={_address(tmp_path)}", *options) as run,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="-", max_retries=0) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        run.wait_for(f"serving: http://127.0.0.1:{port}/v1 and ")
        (model,) = client.models.list()

        def whole(story: str) -> str:
            done = client.completions.create(model=model.id, prompt=story, max_tokens=12, temperature=0)
            return done.choices[0].text

        def streamed(story: str) -> str:
            with client.completions.create(
                model=model.id, prompt=story, max_tokens=12, temperature=0, stream=True
            ) as pieces:
                return "".join(piece.choices[0].text for piece in pieces)

        alone = [whole(STORIES[0]), streamed(STORIES[0])]
        together = list(pool.map(whole, STORIES)), list(pool.map(streamed, STORIES))
        assert together[0] == together[1]
        assert {*alone, together[0][0]} == {alone[0]}
        chat = client.chat.completions.create(
            model=model.id, temperature=0, messages=[{"role": "user", "content": "What is the capital of France?"}]
        )
        assert chat.choices[0].message.content == "The capital of France is Paris."
        asked, answered = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        bodies = [{"prompt": story, "max_tokens": 12, "temperature": 0} for story in STORIES]
        line = {"method": "POST", "url": "/v1/completions"}
        asked.write_text(
            "".join(json.dumps({"custom_id": each["prompt"], "body": each} | line) + "\n" for each in bodies)
        )
        assert batch([str(asked), str(answered), f"--url=http://127.0.0.1:{port}/v1"]) == 0
        lines = [json.loads(each) for each in answered.read_text().splitlines()]
        batched = {each["custom_id"]: each["response"]["body"]["choices"][0]["text"] for each in lines}
        assert [batched[story] for story in STORIES] == together[0]
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 0
    assert "Traceback" not in run.said


@pytest.mark.parametrize("signals", [1, 2], ids=["in time", "a second signal"])
def test_what_runs_may_finish_after_ctrl_c_unless_it_comes_again(
    tmp_path: Path, default_model_path: Path, signals: int
) -> None:
    port = free_port()
    with (
        launched(f"--zmq={_address(tmp_path)}", "--http", f"--port={port}", *SMALL) as run,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        run.wait_for("serving")
        children = list(run.children().values())
        length = 100 if signals == 1 else 500
        body = {"prompt": "1, 2, 3,", "max_tokens": length, "ignore_eos": True, "temperature": 0}
        asked = pool.submit(client.post, "/v1/completions", json=body)
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            events = answer.iter_lines()
            assert next(events).startswith("data: ")
            run.process.send_signal(signal.SIGINT)
            run.wait_for("draining: 2 requests are running", 5.0)
            assert client.post("/v1/completions", json=body).status_code == 503
            if signals == 2:
                run.process.send_signal(signal.SIGINT)
            *_, last, _, done, _ = events
        assert done == "data: [DONE]"
        whole = asked.result(60.0)
        if signals == 1:
            assert '"finish_reason":"length"' in last
            assert whole.json()["usage"]["completion_tokens"] == length
        else:
            assert "the server is shutting down" in last
            assert whole.status_code == 503
        assert run.end(END_SECONDS + 1) == 0
        _all_gone(children)
    assert "Traceback" not in run.said
    assert "stopping: what runs has 30 s to finish; a second Ctrl-C or SIGTERM ends it at once\n" in run.said
    assert run.lines[-1].endswith("stopped: every process has ended\n")


def test_a_child_that_dies_while_requests_finish_is_no_good_end(tmp_path: Path, default_model_path: Path) -> None:
    port = free_port()
    with (
        launched(f"--zmq={_address(tmp_path)}", "--http", f"--port={port}", *SMALL) as run,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as client,
    ):
        run.wait_for("serving")
        children = run.children()
        body = {"prompt": "1, 2, 3,", "max_tokens": 500, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            events = answer.iter_lines()
            assert next(events).startswith("data: ")
            run.process.send_signal(signal.SIGINT)
            run.wait_for("draining: 1 request", 5.0)
            children["gpu_worker"].kill()
            assert run.end(END_SECONDS + 1) == 1
        _all_gone(list(children.values()))
    assert "worker is gone before all was finished: it was killed by signal 9" in run.said
    assert "Traceback" not in run.said


def test_children_that_were_stopped_end_in_order_too(tmp_path: Path, default_model_path: Path) -> None:
    with launched(f"--zmq={_address(tmp_path)}", f"--port={free_port()}", "--http", *SMALL) as run:
        run.wait_for("serving")
        children = list(run.children().values())
        for child in children:
            child.suspend()
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 0
        _all_gone(children)
    assert "Traceback" not in run.said


def test_two_servers_at_once_do_not_meet(tmp_path: Path, default_model_path: Path) -> None:
    first, second = f"ipc://{tmp_path / 'one'}", f"ipc://{tmp_path / 'two'}"
    with launched(f"--zmq={first}", *SMALL) as one, launched(f"--zmq={second}", "--lockstep", *SMALL) as two:
        one.wait_for("serving")
        two.wait_for("serving")
        with Client(first) as a, Client(second) as b:
            prompt = "Water boils at"
            answers = {client.generate(prompt, max_tokens=8, temperature=0.0).text for client in (a, b)}
        assert len(answers) == 1
        for run in (one, two):
            run.process.send_signal(signal.SIGINT)
        assert one.end() == two.end() == 0


def test_two_schedulers_and_two_workers_serve_behind_one_frontend(tmp_path: Path, default_model_path: Path) -> None:
    with launched(f"--zmq={_address(tmp_path)}", "--workers=2", "--schedulers=2", *SMALL) as run:
        run.wait_for("serving")
        with Client(_address(tmp_path)) as client:
            answers = client.generate_batch(["1, 2, 3, 4, 5,"] * 6, max_tokens=6, temperature=0.0)
        assert len({answer.text for answer in answers}) == 1
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 0


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True])
def test_several_frontends_are_one_server_until_all_have_drained_or_one_dies(
    tmp_path: Path, default_model_path: Path, killed: bool
) -> None:
    port = free_port()
    options = [f"--zmq={_address(tmp_path)}", "--http", f"--port={port}", "--frontends=2", *SMALL]
    with launched(*options) as run:
        run.wait_for("serving")
        assert "frontend 0: ready" in run.said
        assert "frontend 1: ready" in run.said
        children = psutil.Process(run.process.pid).children(recursive=True)
        frontends = [child for child in children if "frontend" in child.cmdline()]
        assert len(frontends) == 2
        second = subprocess.run([*LAUNCH, *options], cwd=ROOT, capture_output=True, text=True, timeout=20)
        assert second.returncode == 2
        assert f":{port}: the port is in use" in second.stderr
        for _ in range(6):
            body = {"prompt": "1, 2, 3, 4, 5,", "max_tokens": 3, "temperature": 0}
            assert httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=30).status_code == 200
        with Client(_address(tmp_path)) as client:
            assert client.generate("1, 2, 3, 4, 5,", max_tokens=4, temperature=0.0).text.startswith(" 6")
        if killed:
            frontends[1].kill()
            assert run.end() == 1
            assert "is gone: it was killed by signal 9" in run.said
        else:
            run.process.send_signal(signal.SIGTERM)
            assert run.end() == 0
        _all_gone(children)
    assert "Traceback" not in run.said
    assert not any(tmp_path.iterdir()), "a socket was left"


def test_a_server_starts_where_a_killed_one_left_its_socket(
    tmp_path: Path, short_path: Path, default_model_path: Path
) -> None:
    # In a folder of its own, or any other start, of another test too, would clear away what is left.
    arguments = [f"--zmq={_address(tmp_path)}", f"--run-dir={short_path}", *SMALL]
    with launched(*arguments) as first:
        first.wait_for("serving")
        children = first.children()
        left = _socket_folder(first)
        first.process.kill()
        _all_gone(list(children.values()))
    assert left.exists()
    assert Path(_address(tmp_path).removeprefix("ipc://")).exists()
    with launched(*arguments) as second:
        second.wait_for("serving")
        assert not left.exists(), "what the killed one left is still there"
        with Client(_address(tmp_path)) as client:
            assert client.generate("1, 2, 3, 4, 5,", max_tokens=4, temperature=0.0).text.startswith(" 6")
        second.process.send_signal(signal.SIGTERM)
        assert second.end() == 0


def test_sockets_lie_in_a_directory_that_fits_and_is_removed(tmp_path: Path, default_model_path: Path) -> None:
    long = tmp_path / ("ä b" * 40)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with launched(f"--zmq=tcp://127.0.0.1:{port}", f"--run-dir={long}", *SMALL) as run:
        run.wait_for("serving")
        listening = [
            connection.laddr
            for process in [run.process.pid, *[child.pid for child in run.children().values()]]
            for connection in psutil.Process(process).net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]
        assert listening == [("127.0.0.1", port)]
        folder = _socket_folder(run)
        assert folder.stat().st_mode & 0o777 == 0o700
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 0
    assert not folder.exists()


def test_an_idle_system_uses_next_to_no_time(tmp_path: Path, default_model_path: Path) -> None:
    with launched(f"--zmq={_address(tmp_path)}", *SMALL) as run:
        run.wait_for("serving")
        with Client(_address(tmp_path)) as client:
            client.generate("Hello", max_tokens=4)
        time.sleep(1.0)
        processes = [psutil.Process(run.process.pid), *run.children().values()]
        before = [sum(process.cpu_times()[:2]) for process in processes]
        time.sleep(10.0)
        for process, spent in zip(processes, before, strict=True):
            assert sum(process.cpu_times()[:2]) - spent < 0.03 * 10.0, process.cmdline()
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 0
