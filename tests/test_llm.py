"""LLM: what goes in, what comes out and in which order, and every way in which a call or the whole can end."""

from __future__ import annotations

import doctest
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import stepahead.llm
import stepahead.system
from client import BatchError, Completion, RequestFailedError, RequestRefusedError, ServerLostError, StepaheadError
from frontend.config import ServeConfig
from protocol.messages import Cancel, Chunk, Finish, Generate
from protocol.options import parse_options
from stepahead.family import Family, StartError
from stepahead.llm import LLM
from stepahead.offline_options import Parts, parts_of
from stepahead.progress import Progress
from stepahead.system import System
from tests.stub_frontend import Answer, StubFrontend, chunk, echo
from tests.test_progress_lines import Terminal
from tests.word_model import write_word_model

ROOT = Path(__file__).parent.parent


class FakeSystem:
    """Processes that a stub stands in for."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.failure = ""
        self.over: Future[None] = Future()

    def close(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def die(self, why: str) -> None:
        self.failure = why
        self.close()


class Made:
    """LLMs whose systems are stubs at one address."""

    def __init__(self, server: StubFrontend) -> None:
        self.server = server
        self.systems: list[FakeSystem] = []

    def system(self, parts: Parts, tell: Progress) -> FakeSystem:
        self.systems.append(FakeSystem(self.server.address))
        return self.systems[-1]


Make = Callable[[Answer], Made]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    servers: list[StubFrontend] = []

    def make(answer: Answer, hold: int = 1) -> Made:
        servers.append(StubFrontend(f"ipc://{tmp_path / 'frontend'}", answer, hold=hold))
        made = Made(servers[-1])
        monkeypatch.setattr(stepahead.llm, "System", made.system)
        monkeypatch.setattr(stepahead.llm, "find_model", lambda engine, tell: engine)
        return made

    yield make
    for server in servers:
        server.close()


def asked(ask: Generate) -> str:
    """The prompt of a request, whichever form it has."""
    if ask.messages is not None:
        return " ".join(str(message["content"]) for message in ask.messages)
    return str(ask.token_ids.tolist()) if ask.token_ids is not None else str(ask.prompt)


def say(ask: Generate, *texts: str) -> list[Chunk]:
    """Give as many answers as are wanted."""
    return [
        Chunk(ask.request, text, np.array([7, 8], "<u4"), Finish.LENGTH, "", 3, 2, index=index)
        for index, text in enumerate(texts)
    ]


def repeat(ask: Generate) -> list[Chunk]:
    """Answer with the prompt, each time with another number behind it."""
    return say(ask, *(f"{asked(ask)}/{index}" for index in range(ask.n)))


def texts(answers: list[Completion]) -> list[str]:
    return [answer.text for answer in answers]


# ---------------------------------------------------------------- in and out


def test_the_examples_in_the_docstrings_run(make: Make) -> None:
    known = {
        "The capital of France is": [" Paris.\n\nThe"],
        "1, 2, 3,": [" 4,"],
        "[1, 2, 3]": ["x"],
        "Once": [" upon a time", " there was a"],
        "What is the capital of France?": ["The capital of France is Paris."],
    }
    made = make(lambda ask: say(ask, *known[asked(ask)]))
    given: dict[str, Any] = {"LLM": LLM}
    runner = doctest.DocTestRunner()
    for where in (LLM, LLM.generate, LLM.chat):
        (example,) = doctest.DocTestFinder(recurse=False).find(where, globs=given)
        assert example.examples
        runner.run(example, clear_globs=False)
        given |= example.globs
    assert runner.summarize().failed == 0
    assert len(made.systems) == 1
    given["llm"].close()


def test_one_prompt_has_one_answer_and_a_list_a_list_in_its_order(make: Make) -> None:
    make(repeat)
    with LLM() as llm:
        assert llm.generate("a") == Completion("a/0", (7, 8), "length", 3, 2)
        assert llm.generate([5, 6]).text == "[5, 6]/0"
        assert llm.generate(np.array([5, 6])).text == "[5, 6]/0"
        assert texts(llm.generate(["a", [5, 6], np.array([7]), (8, 9)])) == ["a/0", "[5, 6]/0", "[7]/0", "[8, 9]/0"]
        assert texts(llm.generate(["a"])) == ["a/0"]
        assert texts(llm.generate(letter for letter in "ab")) == ["a/0", "b/0"]
        nothing: list[Any] = []
        assert [llm.generate(nothing), llm.chat(nothing)] == [[], []]
        hello, bye = ([{"role": "user", "content": text}] for text in ("hello", "bye"))
        assert llm.chat(hello).text == "hello/0"
        assert texts(llm.chat([hello, bye])) == ["hello/0", "bye/0"]


def test_with_n_each_prompt_has_a_list_be_it_of_one(make: Make) -> None:
    make(repeat)
    with LLM() as llm:
        assert texts(llm.generate("a", n=1)) == ["a/0"]
        assert texts(llm.generate("a", n=2)) == ["a/0", "a/1"]
        assert [texts(answers) for answers in llm.generate(["a", "b"], n=2)] == [["a/0", "a/1"], ["b/0", "b/1"]]
        chats = [[{"role": "user", "content": text}] for text in "ab"]
        assert texts(llm.chat(chats[0], n=2)) == ["a/0", "a/1"]
        assert [texts(answers) for answers in llm.chat(chats, n=1)] == [["a/0"], ["b/0"]]


def test_settings_reach_the_server(make: Make) -> None:
    made = make(echo)
    with LLM() as llm:
        llm.generate(["a"], max_tokens=5, temperature=0.5, seed=3, logprobs=2, stop="x")
        ask = made.server.take(Generate)
        assert isinstance(ask, Generate)
        assert (ask.max_tokens, ask.temperature, ask.seed, ask.logprobs, ask.stop) == (5, 0.5, 3, 2, ("x",))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda llm: llm.generate(5), "prompts must be a text, token ids, or a list of those, got int"),
        (lambda llm: llm.generate({"prompt": "a"}), "got dict"),
        (lambda llm: llm.generate(b"a"), "got bytes"),
        (lambda llm: llm.generate(["a", None]), "prompt 1 must be a text or token ids, got NoneType"),
        (lambda llm: llm.generate(["a", b"b"]), "prompt 1 must be a text or token ids, got bytes"),
        (lambda llm: llm.chat("hello"), "a chat must be a list of messages such as"),
        (lambda llm: llm.chat(["hello"]), "chat 0 must be a list of messages"),
        (lambda llm: llm.chat([[{"role": "user", "content": "a"}, "b"]]), "one of its messages is str"),
        (lambda llm: llm.generate("a", colour="blue"), "unknown settings: colour"),
        (lambda llm: llm.generate(["a", "b"], colour="blue"), "unknown settings: colour"),
    ],
)
def test_what_is_no_prompt_and_no_setting_is_said_in_one_line(
    make: Make, call: Callable[[Any], object], said: str
) -> None:
    make(echo)
    with LLM() as llm:
        with pytest.raises(TypeError) as wrong:
            call(llm)
        assert said in str(wrong.value)
        assert llm.generate("ok").text == "ok"


@pytest.mark.parametrize("n", [0, -1, 129, 10**6, 2.5, "2"])
def test_a_number_of_answers_that_nobody_gives_is_refused(make: Make, n: Any) -> None:
    make(echo)
    with LLM() as llm:
        with pytest.raises(RequestRefusedError, match="n: "):
            llm.generate("a", n=n)
        assert llm.generate("ok").text == "ok"


# ---------------------------------------------------------------- many


def test_answers_belong_to_their_prompts_however_they_come_in_the_second_call_and_from_every_thread(
    tmp_path: Path, make: Callable[[Answer, int], Made]
) -> None:
    made = make(repeat, 8)  # eight at a time are held and answered in reverse
    with LLM() as llm, ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            prompts = [f"{place}" for place in range(520)]
            assert texts(llm.generate(prompts)) == [f"{prompt}/0" for prompt in prompts]
        calls = [[f"{name}{place}" for place in range(50)] for name in "abcd"]
        running = [pool.submit(lambda each: llm.generate(each), prompts) for prompts in calls]
        for prompts, call in zip(calls, running, strict=True):
            assert texts(call.result()) == [f"{prompt}/0" for prompt in prompts]
    numbers = [ask.request for ask in list(made.server.heard.queue) if isinstance(ask, Generate)]
    assert len(numbers) == len(set(numbers)) == 1240


def test_a_prompt_that_fails_ends_no_other_and_the_error_has_all_answers(make: Make) -> None:
    def answer(ask: Generate) -> list[Chunk]:
        if asked(ask) == "bad":
            return [chunk(ask.request, finish=Finish.REFUSED, error="it is bad")]
        if asked(ask) == "broken":
            return [chunk(ask.request, finish=Finish.ERROR, error="it is broken")]
        return repeat(ask)

    make(answer)
    with LLM() as llm:
        with pytest.raises(BatchError, match=r"^prompt 1: it is bad \(of 4 prompts 2 failed\)$") as failed:
            llm.generate(["a", "bad", "b", "broken"])
        first, second, third, fourth = failed.value.answers
        assert (first.text, second, third.text, fourth) == ("a/0", None, "b/0", None)
        assert [(place, type(error)) for place, error in failed.value.errors.items()] == [
            (1, RequestRefusedError),
            (3, RequestFailedError),
        ]
        with pytest.raises(BatchError, match="it alone failed") as failed:
            llm.generate(["a", "bad"], n=2)
        assert texts(failed.value.answers[0]) == ["a/0", "a/1"]
        with pytest.raises(RequestRefusedError, match="^it is bad$"):
            llm.generate("bad")
        assert llm.generate("ok").text == "ok/0"


def test_ctrl_c_aborts_what_is_under_way_which_is_not_all_and_there_may_be_other_calls(make: Make) -> None:
    made = make(lambda ask: repeat(ask) if asked(ask) == "ok" else [])
    with LLM(max_num_seqs=4) as llm:

        def interrupt() -> None:
            for _ in range(stepahead.llm.LEAST_WINDOW):
                made.server.take(Generate)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["never"] * 2000)
        thread.join()
        cancelled = {made.server.take(Cancel) for _ in range(stepahead.llm.LEAST_WINDOW)}
        assert cancelled == {Cancel(number + 1) for number in range(stepahead.llm.LEAST_WINDOW)}
        assert made.server.heard.empty(), "more than the window has room for was asked"
        assert texts(llm.generate(["ok", "ok"])) == ["ok/0", "ok/0"]


def test_progress_of_a_list_is_told_to_whoever_wants_it(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    make(repeat)
    with LLM() as llm:
        llm.generate(["a", "b"])
        llm.generate("a", progress=True)
        assert capfd.readouterr().err == "", "nobody looks on, or there is nothing to look at"
        llm.generate(["a", "b"], progress=True)
        assert capfd.readouterr().err.startswith("2 of 2 prompts answered, ")
    with LLM(progress=True) as llm:
        capfd.readouterr()
        llm.generate(["a", "b"], progress=False)
        assert capfd.readouterr().err == ""


def test_a_terminal_sees_how_far_a_list_is(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()

    def answer(ask: Generate) -> list[Chunk]:
        deadline = time.monotonic() + 10
        while asked(ask) == "late" and "1 of 2 prompts answered" not in screen.getvalue():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return repeat(ask)

    make(answer)
    with LLM(progress=True) as llm:
        monkeypatch.setattr(sys, "stderr", screen)  # as another cell of a notebook may have another
        assert texts(llm.generate(["early", "late"])) == ["early/0", "late/0"]
    assert " left [############............]" in screen.getvalue()
    *_, last, nothing = screen.screen()
    assert last.startswith("2 of 2 prompts answered, ")
    assert nothing == ""


# ---------------------------------------------------------------- ends


def test_a_process_that_dies_ends_calls_under_way_and_later_ones_with_what_has_happened(make: Make) -> None:
    made = make(lambda ask: repeat(ask) if asked(ask) == "ok" else [])
    with LLM() as llm, ThreadPoolExecutor(2) as pool:
        one, many = pool.submit(llm.generate, "never"), pool.submit(llm.generate, ["ok", "never", "never"])
        for _ in range(4):
            made.server.take(Generate)
        made.systems[0].die("worker is gone: it was killed by signal 9; everything is stopped")
        for failed in (one.exception(10), many.exception(10)):
            assert isinstance(failed, StepaheadError)
            assert "worker is gone: it was killed by signal 9" in str(failed)
        failed = many.exception()
        assert isinstance(failed, BatchError)
        assert failed.answers[0].text == "ok/0", "what was answered before is not lost"
        assert {type(error) for error in failed.errors.values()} == {ServerLostError}
        with pytest.raises(ServerLostError, match="worker is gone"):
            llm.generate("ok")


def test_a_closed_one_says_so_and_one_that_is_dropped_is_closed(make: Make) -> None:
    made = make(lambda ask: repeat(ask) if asked(ask) == "ok" else [])
    llm = LLM()
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(llm.generate, "never")
        made.server.take(Generate)
        llm.close()
        with pytest.raises(ServerLostError, match="closed"):
            waits.result(10)
    llm.close()
    assert made.systems[0].over.done()
    with pytest.raises(RuntimeError, match="the LLM is closed"):
        llm.generate("ok")

    dropped = LLM()
    assert dropped.generate("ok").text == "ok/0"
    del dropped
    gc.collect()
    assert made.systems[1].over.done()
    assert not [thread for thread in threading.enumerate() if thread.name == "stepahead client"]


# ---------------------------------------------------------------- options


def test_options_are_launchs_with_underscores() -> None:
    given = {
        "model": "org/name",
        "max_num_seqs": 4,
        "kv_cache_gib": 0.5,
        "lockstep": True,
        "enable_prefix_caching": False,
        "enforce_eager": False,
        "workers": 2,
        "dtype": "float32",
        "chat_template": None,
        "override_generation_config": {"temperature": 0.5},
    }
    command = [
        *("--model=org/name", "--max-num-seqs=4", "--kv-cache-gib=0.5", "--lockstep", "--no-enable-prefix-caching"),
        *("--workers=2", "--dtype=float32", '--override-generation-config={"temperature": 0.5}'),
    ]
    parts = parts_of(given)
    kinds = [type(each) for each in (parts.launch, parts.engine, parts.scheduling, parts.text, parts.timeline)]
    made = (parts.launch, parts.engine, parts.scheduling, parts.text, parts.timeline)
    assert made == parse_options("test", "A test.", *kinds, arguments=command)
    assert parts.serve == ServeConfig(http=False, drain_timeout=0.0)


@pytest.mark.parametrize(
    ("option", "kind", "said"),
    [
        ({"max_num_seq": 4}, TypeError, "unrecognized arguments: --max-num-seq"),
        ({"tensor_parallel_size": 2, "x": 1}, TypeError, "unrecognized arguments: --tensor-parallel-size --x"),
        ({"help": True}, TypeError, "unrecognized arguments: --help"),
        ({"port": 8000, "zmq": "x"}, TypeError, "only a server has --port and --zmq: python launch.py starts one"),
        ({"log_format": "json"}, TypeError, "only a server has --log-format: python launch.py starts one"),
        ({"max_num_seqs": 0}, ValueError, "--max-num-seqs must be from 1 to 65536, got 0"),
        ({"max_num_seqs": "four"}, ValueError, "argument --max-num-seqs: invalid int value: 'four'"),
        ({"max_num_seqs": 2.5}, ValueError, "invalid int value: '2.5'"),
        ({"dtype": "float8"}, ValueError, "argument --dtype: invalid choice: 'float8'"),
        ({"lockstep": "yes"}, ValueError, "--lockstep"),
        ({"workers": 1, "schedulers": 2}, ValueError, "each scheduler needs a worker"),
        ({"workers": 10**9}, ValueError, "--workers must be at most 256, got 1000000000"),
    ],
)
def test_what_can_not_be_is_said_in_the_command_lines_words(option: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind) as wrong:
        LLM(**option)
    assert said in str(wrong.value)
    assert "launch.py --help" in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_a_model_that_is_not_there_is_a_start_that_fails(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no such file or folder"):
        LLM(tmp_path / "nothing")
    (tmp_path / "broken.jinja").write_text("{% if %}")
    with pytest.raises(StartError, match="the chat template is broken"):
        LLM(chat_template=str(tmp_path / "broken.jinja"))


# ---------------------------------------------------------------- processes


@pytest.fixture
def children() -> Callable[[], list[psutil.Process]]:
    """What returns the processes that have been started since, and live."""
    before = set(psutil.Process().children())
    return lambda: [each for each in psutil.Process().children() if each not in before]


def stand_in(*modules: str) -> Callable[..., None]:
    """What starts processes of the tests in place of the real ones."""

    def start(family: Family, *rest: object) -> None:
        for module in modules:
            family.start(module.split()[0].rpartition(".")[2], "tests." + module.split()[0], module.split()[1:])

    return start


@pytest.mark.processes
def test_a_system_ends_its_processes_and_says_which_one_died(
    monkeypatch: pytest.MonkeyPatch, children: Callable[[], list[psutil.Process]]
) -> None:
    monkeypatch.setattr(stepahead.system, "start_all", stand_in("waiting_child", "waiting_child"))
    system = System(parts_of({}), Progress())
    folder = Path(system.address.removeprefix("ipc://")).parent
    assert folder.exists()
    system.close()
    assert system.over.done()
    assert not children()
    assert not folder.exists()
    system.close()

    system = System(parts_of({}), Progress())
    children()[0].kill()
    system.over.result(10)
    system.close()
    assert system.failure == "waiting_child is gone: it was killed by signal 9; everything is stopped"
    assert not children()


@pytest.mark.processes
def test_a_start_that_is_interrupted_or_takes_too_long_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, children: Callable[[], list[psutil.Process]]
) -> None:
    monkeypatch.setattr(stepahead.system, "start_all", stand_in("never_ready_child"))
    with pytest.raises(StartError, match=r"not ready within 0\.2 s: never_ready_child"):
        System(parts_of({"start_timeout": 0.2}), Progress())
    interrupt = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        System(parts_of({}), Progress())
    interrupt.join()
    assert not children()


@pytest.mark.processes
def test_a_program_that_never_closes_it_ends_and_a_forked_child_that_ends_leaves_it_alone() -> None:
    program = """
import os, sys, time, psutil
import stepahead, stepahead.llm, stepahead.system
stepahead.system.start_all = lambda family, *rest: family.start("frontend", "tests.waiting_child", [])
stepahead.llm.find_model = lambda engine, tell: engine
llm = stepahead.LLM()
(served,) = psutil.Process().children()
if not (child := os.fork()):
    sys.exit()
os.waitpid(child, 0)
began = time.process_time()
time.sleep(0.5)
print(served.is_running() and served.status() != psutil.STATUS_ZOMBIE, time.process_time() - began < 0.03)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr, done.returncode) == ("True True\n", "", 0)


@pytest.mark.processes
@pytest.mark.slow
def test_a_model_answers_until_its_worker_dies(tmp_path: Path, children: Callable[[], list[psutil.Process]]) -> None:
    folder = write_word_model(tmp_path / "model", "Ġone", "Ġtwo")
    llm = LLM(
        folder, load_format="dummy", seed=1, device="cpu", threads=1, max_num_seqs=16, max_model_len=64, dtype="float32"
    )
    assert len(children()) == 4
    greedy: Any = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
    prompts = [[1 + place % 200, 1 + place % 7] for place in range(200)]
    answers = llm.generate(prompts, **greedy)
    assert [answer.token_ids for answer in llm.generate(prompts[::-1], **greedy)] == [
        answer.token_ids for answer in reversed(answers)
    ]
    assert len({answer.token_ids for answer in answers}) > 1, "all prompts are answered alike, and nothing is shown"
    assert {(answer.output_tokens, answer.prompt_tokens, answer.finish_reason) for answer in answers} == {
        (4, 2, "length")
    }
    twice = [llm.generate("one", n=3, seed=5, max_tokens=8, logprobs=1, temperature=1.0) for _ in range(2)]
    assert [answer.token_ids for answer in twice[0]] == [answer.token_ids for answer in twice[1]]
    assert len({answer.token_ids for answer in twice[0]}) == 3
    assert all(len(answer.logprobs or ()) == answer.output_tokens for answer in twice[0])
    assert llm.chat([{"role": "user", "content": "one"}], max_tokens=2, ignore_eos=True).output_tokens == 2
    with pytest.raises(BatchError, match="prompt 1: the prompt is empty"):
        llm.generate(["a", "", "b"], **greedy)
    with pytest.raises(RequestRefusedError, match="leaves no room"):
        llm.generate([1] * 64)

    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(llm.generate, [[5]] * 400, max_tokens=60, ignore_eos=True)
        (worker,) = [each for each in children() if "gpu_worker" in each.cmdline()]
        worker.kill()
        failed = waits.exception(30)
        assert isinstance(failed, StepaheadError)
        assert "worker is gone: it was killed by signal 9" in str(failed)
    with pytest.raises(ServerLostError, match="worker is gone"):
        llm.generate("one")
    llm.close()
    assert not children()
