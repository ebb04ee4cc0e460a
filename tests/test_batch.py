"""`python -m client batch`: every line has its answer once, whatever becomes of server, file or run."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from client.__main__ import main
from client.batch_files import BatchOutput
from client.batch_lines import ID_PREFIX, Question, answer_line

ROOT = Path(__file__).parent.parent

Answer = Callable[[str, dict[str, Any]], "tuple[int, dict[str, str], Any]"]
"""From path and body of a request to status, headers and body."""


def fine(path: str, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
    """Answer as a server does, with what was asked."""
    return 200, {}, {"object": path, "said": body.get("prompt", "chat"), "usage": {"completion_tokens": 2}}


class Server:
    """An HTTP server on a thread whose answers a test chooses; `asked` counts prompts, `most` who asked at once."""

    def __init__(self) -> None:
        self.answer: Answer = fine
        self.models = 200
        self.asked: Counter[str] = Counter()
        self.keys: set[str | None] = set()
        self.under_way = self.most = 0
        self.gate = threading.Event()
        self.gate.set()
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                assert self.path == "/v1/models"
                outer.keys.add(self.headers["authorization"])
                self._send(outer.models, {}, {"data": []})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with outer._lock:
                    outer.asked[body.get("prompt", "")] += 1
                    outer.under_way += 1
                    outer.most = max(outer.most, outer.under_way)
                outer.gate.wait(20)
                answer = outer.answer(self.path, body)
                with outer._lock:
                    outer.under_way -= 1
                self._send(*answer)

            def _send(self, status: int, headers: dict[str, str], body: Any) -> None:
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *about: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *about: object) -> None:
                pass  # a client that was killed

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def line(name: str, url: str = "/v1/completions", **body: Any) -> str:
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": {"prompt": name, **body}})


class Files:
    """The two files of a run, and the run."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.input, self.output = folder / "in.jsonl", folder / "out.jsonl"
        self._server = server

    def arguments(self, *more: str) -> list[str]:
        return ["batch", str(self.input), str(self.output), f"--url={self._server.url}", *more]

    def run(self, *more: str) -> int:
        return main(self.arguments(*more))

    def ask(self, *lines: str) -> None:
        self.input.write_text("".join(f"{each}\n" for each in lines))

    @property
    def answers(self) -> list[dict[str, Any]]:
        whole = self.output.read_text()
        assert whole.endswith("\n")
        return [json.loads(each) for each in whole.splitlines()]

    @property
    def by_name(self) -> dict[str, dict[str, Any]]:
        answers = self.answers
        names = {answer["custom_id"]: answer for answer in answers}
        assert len(names) == len(answers), "somebody was answered twice"
        return names


@pytest.fixture
def files(tmp_path: Path, server: Server) -> Files:
    return Files(tmp_path, server)


def test_each_line_is_answered_in_openais_form(files: Files, server: Server, capfd: pytest.CaptureFixture[str]) -> None:
    files.ask(line("é"), line("b", "/v1/chat/completions"), "", line("c"))
    assert files.run("--api-key=secret") == 0
    assert server.keys == {"Bearer secret"}
    assert files.by_name.keys() == {"é", "b", "c"}
    for name, path in (("é", "/v1/completions"), ("b", "/v1/chat/completions")):
        answer = files.by_name[name]
        assert answer.keys() == {"id", "custom_id", "response", "error"}
        assert answer["id"].startswith(ID_PREFIX)
        assert answer["error"] is None
        assert answer["response"].pop("request_id").startswith("req_")
        assert answer["response"] == {"status_code": 200, "body": fine(path, {"prompt": name})[2]}
    assert len({answer["id"] for answer in files.answers}) == 3
    assert "é" in files.output.read_text(), "who reads along sees letters"
    assert "3 of 3 lines answered" in capfd.readouterr().err


@pytest.mark.parametrize("suffix", ["/v1", "/v1/", "/"])
def test_the_base_url_of_openais_clients_will_do(files: Files, server: Server, suffix: str) -> None:
    files.ask(line("a"))
    server.url += suffix
    assert files.run() == 0


def test_what_is_wrong_with_a_line_is_said_in_its_answer_and_the_others_are_asked(files: Files, server: Server) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        return (400, {}, {"error": {"message": "too long"}}) if body["prompt"] == "long" else fine(path, body)

    server.answer = answer
    wrong = {
        "not json": "the line is not JSON",
        "[1]": "the line must be a JSON object",
        "[" * 100_000: "nests too deep",
        '{"custom_id": 5, "method": "POST"}': "custom_id must be a text",
        '{"custom_id": "\\ud800"}': "custom_id must be a text",
        line("get").replace("POST", "GET"): 'method must be "POST"',
        line("elsewhere", "/v1/embeddings"): "url must be /v1/completions or /v1/chat/completions",
        line("text").replace('{"prompt": "text"}', '"text"'): "body must be an object",
        line("streams", stream=True): "stream must be false",
    }
    files.ask(line("a"), *wrong, line("long"), line("b", stream=False))
    for _ in range(2):  # the second run finds nothing to do
        assert files.run() == 1
        assert server.asked == {"a": 1, "long": 1, "b": 1}
        answers = files.answers
        assert len(answers) == 3 + len(wrong)
        problems = {answer["error"]["line"]: answer for answer in answers if answer["error"]}
        for number, problem in enumerate(wrong.values(), 2):
            assert problem in problems[number]["error"]["message"]
            assert (problems[number]["error"]["code"], problems[number]["response"]) == ("invalid_line", None)
        assert problems[7]["custom_id"] == "get"
        assert problems[2]["custom_id"] is None
        (refused,) = [answer for answer in answers if answer["custom_id"] == "long"]
        assert (refused["response"]["status_code"], refused["error"]) == (400, None)
        assert refused["response"]["body"] == {"error": {"message": "too long"}}


def test_names_that_are_there_twice_are_told_before_anything_is_asked(
    files: Files, server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    files.ask(line("a"), line("b"), "nonsense", line("a"), line("b"), line("a"))
    assert files.run() == 2
    assert 'each custom_id may be there once: "a" on lines 1, 4, 6; "b" on lines 2, 5\n' in capfd.readouterr().err
    assert not server.asked
    assert not files.output.exists()


def test_what_was_answered_before_is_not_asked_again_and_half_a_line_is(files: Files, server: Server) -> None:
    files.ask(*map(line, "abcd"))
    assert files.run() == 0
    whole = files.output.read_bytes()
    first, second, third, fourth = whole.splitlines(keepends=True)
    asked = Counter(server.asked)
    for cut in (1, 15, len(fourth) // 2, len(fourth) - 2):
        files.output.write_bytes(whole[: len(whole) - len(fourth) + cut])
        assert files.run() == 0
        assert files.by_name.keys() == set("abcd")
        asked[json.loads(fourth)["custom_id"]] += 1
        assert server.asked == asked
        assert files.output.read_bytes().startswith(first + second + third)
    files.output.write_bytes(whole[:-1])  # all but the end of the last line
    assert files.run() == 0
    assert files.output.read_bytes() == whole
    assert server.asked == asked


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("precious\n", "line 1 is no answer of a batch"),
        ("precious", "line 1 is no answer of a batch"),
        (line("a") + "\n", "line 1 is no answer of a batch"),
        ("[" * 100_000 + "\n", "line 1 is no answer of a batch"),
        ('{"custom_id": "x", "response": {}, "error": null}\n', "line 1 answers 'x', which nobody asks"),
        ('{"custom_id": "a", "response": {}, "error": null}\n{"precious', "line 2 is no answer of a batch"),
    ],
)
def test_a_file_of_something_else_is_left_as_it_is(
    files: Files, server: Server, capfd: pytest.CaptureFixture[str], there: str, said: str
) -> None:
    files.ask(line("a"))
    files.output.write_text(there)
    assert files.run() == 2
    assert f"{said}; name a new file for the answers\n" in capfd.readouterr().err
    assert files.output.read_text() == there
    assert not server.asked


def test_files_that_can_not_be_used_are_one_line_and_code_2(
    files: Files, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, said in (("missing", "No such file"), (".", "is no regular file"), ("/dev/zero", "is no regular file")):
        assert main(["batch", str(tmp_path / name), "x"]) == 2
        assert said in capfd.readouterr().err
    files.ask("", "  ")
    assert files.run() == 2
    files.ask(line("a"))
    assert main(["batch", str(files.input), str(tmp_path)]) == 2
    assert main(["batch", str(files.input), "/dev/full"]) == 2
    assert main([*files.arguments(), "--url=nonsense"]) == 2
    assert main([*files.arguments(), "--url=http://a:b"]) == 2
    assert main([*files.arguments(), "--url=http://127.0.0.1:9/é"]) == 2
    with files.output.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert files.run() == 2
    said = capfd.readouterr().err
    assert len(said.splitlines()) == 7
    assert "another run writes to it" in said
    for option in ("--concurrency=0", "--concurrency=5000", "--timeout=0", "--timeout=1e7", "--patience=nan"):
        with pytest.raises(SystemExit) as end:
            files.run(option)
        assert end.value.code == 2


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_when_it_says(
    files: Files, server: Server, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(threading.Event, "wait", _noting(threading.Event.wait, pauses))
    headers = iter([{"retry-after": "7"}, {}, {"retry-after": "0"}, {"retry-after": "Mon, 01 Jan 2001 00:00:00 GMT"}])

    def answer(path: str, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        said = next(headers, None)
        return fine(path, body) if said is None else (status, said, {"error": {"message": "later"}})

    server.answer = answer
    files.ask(line("a"))
    assert files.run() == 0
    assert server.asked["a"] == 5
    assert pauses == [7.0, 1.0, 0.05, 0.05]


def _noting(wait: Callable[..., bool], pauses: list[float]) -> Callable[..., bool]:
    def noted(event: threading.Event, timeout: float | None = None) -> bool:
        if threading.current_thread().name.startswith("batch "):
            pauses.append(timeout or 0.0)
            return wait(event, 0)
        return wait(event, timeout)

    return noted


def test_a_server_that_stays_busy_ends_the_run_and_the_same_command_goes_on(
    files: Files, server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        return fine(path, body) if body["prompt"] == "a" else (503, {}, {"error": {"message": "shutting down"}})

    server.answer = answer
    files.ask(line("a"), line("b"))
    assert files.run("--patience=0") == 1
    said = capfd.readouterr().err
    assert "1 of 2 lines answered" in said
    assert "nothing was answered for 0 s: status 503: shutting down; the same command goes on from here\n" in said
    server.answer = fine
    assert files.run() == 0
    assert server.asked["a"] == 1
    assert files.by_name.keys() == {"a", "b"}


def test_nobody_there_and_nobody_for_us_are_said_at_once(
    files: Files, server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    files.ask(line("a"))
    for status, said in ((401, "status 401"), (404, "does not answer as a server of OpenAI's API")):
        server.models = status
        assert files.run() == 1
        assert said in capfd.readouterr().err
    server.models = 200
    server.answer = lambda path, body: (401, {}, {"error": {"message": "no key"}})
    assert files.run() == 1
    assert "lets us ask nothing: status 401: no key" in capfd.readouterr().err
    assert files.output.read_bytes() == b"", "another key may help"
    server.close()
    assert files.run("--url=http://no..body") == 1
    assert "no server answers at http://no..body: " in capfd.readouterr().err
    assert files.run() == 1
    assert "no server answers at" in (said := capfd.readouterr().err)
    assert "--url URL asks another" in said


def test_an_answer_that_is_late_is_an_error_of_its_line(files: Files, server: Server) -> None:
    server.gate.clear()
    files.ask(line("a"))
    assert files.run("--timeout=0.2") == 1
    assert files.by_name["a"]["error"] == {
        "code": "timeout",
        "message": "no answer came within 0.2 s",
        "param": None,
        "line": 1,
    }


def test_an_answer_that_is_no_json_is_kept_as_text(files: Files, server: Server) -> None:
    server.answer = lambda path, body: (502, {"x-request-id": "theirs"}, b"<html>Bad \xff gateway</html>" + b"." * 500)
    files.ask(line("a"))
    assert files.run() == 1
    response = files.by_name["a"]["response"]
    assert response["body"].startswith("<html>Bad \ufffd gateway</html>...")
    assert (response["status_code"], response["request_id"]) == (502, "theirs")


def test_as_many_are_under_way_as_it_is_told(files: Files, server: Server) -> None:
    server.gate.clear()
    files.ask(*[line(f"{place}") for place in range(40)])
    run = threading.Thread(target=lambda: files.run("--concurrency=7"))
    run.start()
    deadline = time.monotonic() + 20
    while server.under_way < 7 and time.monotonic() < deadline:
        time.sleep(0.01)
    server.gate.set()
    run.join(20)
    assert server.most == 7
    assert len(files.by_name) == 40


def test_a_full_disk_is_said_in_one_line(
    files: Files, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    files.ask(line("a"))
    monkeypatch.setattr("client.batch_files.os.write", full)
    assert files.run() == 1
    assert f"{files.output}: No space left on device; the same command goes on from here\n" in capfd.readouterr().err


def test_an_answer_for_which_there_was_no_room_leaves_nothing_that_the_next_would_go_on_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nearly_full(descriptor: int, data: memoryview) -> int:
        monkeypatch.setattr("client.batch_files.os.write", full)
        return write(descriptor, data[:10])

    def full(descriptor: int, data: memoryview) -> int:
        monkeypatch.setattr("client.batch_files.os.write", write)
        raise OSError(28, "No space left on device")

    write = os.write
    first, second = (answer_line(Question(1, name), "1", {"status_code": 200}, "", "") for name in ("a", "b"))
    path = tmp_path / "out.jsonl"
    with BatchOutput(path, {"a", "b"}) as output:
        monkeypatch.setattr("client.batch_files.os.write", nearly_full)
        with pytest.raises(OSError, match="No space left"):
            output.write(first, "a", good=True)
        output.write(second, "b", good=True)  # somebody has made room
    assert path.read_bytes() == second
    with BatchOutput(path, {"a", "b"}) as output:
        assert output.outcomes == {"b": True}


def test_an_input_that_is_gone_by_now_is_said_in_one_line(
    files: Files, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    files.ask(line("a"))
    monkeypatch.setattr("client.batch.BatchRun.greet", lambda _: files.input.unlink())
    assert files.run() == 1
    assert f"{files.input}: No such file or directory; the same command goes on from here\n" in capfd.readouterr().err


@pytest.mark.processes
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_ended_goes_on_where_it_was(files: Files, server: Server, how: signal.Signals) -> None:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        if len(server.asked) > 20:
            server.gate.clear()  # the others hang
        return fine(path, body)

    server.answer = answer
    names = [f"{place}" for place in range(60)]
    files.ask(*map(line, names))
    command = [sys.executable, "-m", "client", *files.arguments("--concurrency=4")]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while server.under_way < 4 or server.gate.is_set():
        time.sleep(0.01)
    process.send_signal(how)
    _, said = process.communicate(timeout=20)
    assert process.returncode == (130 if how is signal.SIGINT else -how)
    assert ("the same command goes on from here" in said) == (how is signal.SIGINT)
    assert "Traceback" not in said
    before = files.by_name
    assert 10 <= len(before) < 60
    server.answer = fine
    server.gate.set()
    server.asked.clear()
    assert files.run() == 0
    assert files.by_name.keys() == set(names)
    assert server.asked.keys() == set(names) - before.keys()
    assert max(server.asked.values()) == 1
