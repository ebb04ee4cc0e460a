"""The timeline of a whole system: what its file tells, and how recording starts, stops and ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from client import Client
from protocol.messages import SpanKind
from tests.http_server import free_port
from tests.launched import ROOT, Launched, launched
from tests.trace_rules import broken_rules, read
from tests.word_model import write_word_model
from timeline.trace import COMPUTE, HOST, Trace, read_trace

SMALL = ["--max-model-len=256", "--max-num-seqs=4", "--kv-cache-blocks=64", "--device=cpu", "--threads=1",
         "--load-format=dummy", "--seed=1"]  # fmt: skip
TOKENS = 20
PROMPT = list(range(5, 20))

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose steps take longer than to plan them."""
    folder = write_word_model(tmp_path_factory.mktemp("model"), "one", "two", "three")
    config = json.loads((folder / "config.json").read_text())
    larger = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 4}
    (folder / "config.json").write_text(json.dumps(config | larger))
    return str(folder)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'clients'}"


def ask(address: str, requests: int = 6, tokens: int = TOKENS) -> list[list[int]]:
    with Client(address, connect_seconds=30) as client, ThreadPoolExecutor(requests) as pool:
        prompts = [PROMPT + list(range(20, 20 + number)) for number in range(requests)]
        answers = pool.map(lambda p: client.generate(p, max_tokens=tokens, temperature=0, ignore_eos=True), prompts)
        return [list(answer.token_ids) for answer in answers]


def timeline(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "timeline", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


def within(seconds: float, happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def spans_of(trace: Trace, role: str, tid: int, *kinds: SpanKind) -> np.ndarray:
    """Return (session, step) of the spans, in the order of their start."""
    lanes = [lane for lane in trace.lanes if (lane.role, lane.tid) == (role, tid)]
    return np.concatenate([lane.step[np.isin(lane.kind, kinds)] for lane in lanes])


def started(address: str, model: str, directory: Path, *arguments: str) -> list[str]:
    return [f"--zmq={address}", f"--model={model}", *SMALL, f"--run-dir={directory}", *arguments]


def stopped(run: Launched) -> None:
    run.process.send_signal(signal.SIGTERM)
    assert run.end(20) == 0, run.said
    assert "Traceback" not in run.said


@pytest.mark.parametrize("lockstep", [False, True])
def test_a_file_from_start_to_end_tells_of_every_step_in_every_process(
    tmp_path: Path, address: str, model: str, lockstep: bool
) -> None:
    file = tmp_path / "trace.json.gz"
    options = [f"--timeline={file}", *(["--lockstep"] if lockstep else [])]
    with launched(*started(address, model, tmp_path, *options)) as run:
        run.wait_for("serving")
        answers = ask(address)
        stop = answers[0][5]
        with Client(address) as client:
            client.generate(PROMPT, max_tokens=TOKENS, temperature=0, ignore_eos=True, stop_token_ids=[stop])
            client.generate(PROMPT, max_tokens=1)  # comes behind the row that is wasted, so that is over, too
        stopped(run)
    assert broken_rules(read(file)) == []
    trace = read_trace(file)
    assert trace.complete
    assert not trace.lost
    assert {lane.process for lane in trace.lanes} == {"worker", "scheduler", "frontend"}
    planned = spans_of(trace, "scheduler", HOST, SpanKind.PLAN).tolist()
    assert planned == list(range(1, len(planned) + 1))
    assert len(planned) >= TOKENS
    for role, tid, kind in (
        ("scheduler", HOST, SpanKind.SEND),
        ("worker", HOST, SpanKind.RECEIVE),
        ("worker", HOST, SpanKind.STAGE),
        ("worker", HOST, SpanKind.LAUNCH),
        ("worker", COMPUTE, SpanKind.FORWARD),
        ("worker", COMPUTE, SpanKind.SAMPLE),
        ("worker", HOST, SpanKind.REPLY),
        ("scheduler", HOST, SpanKind.RECEIVE),
        ("scheduler", HOST, SpanKind.SETTLE),
    ):
        assert spans_of(trace, role, tid, kind).tolist() == planned, (role, kind)
    for lane in trace.lanes:
        assert (lane.start[1:] >= lane.end[:-1]).all(), f"spans of {lane.process} {lane.tid} overlap"
    (compute,) = [lane for lane in trace.lanes if lane.tid == COMPUTE]
    (scheduler,) = [lane for lane in trace.lanes if lane.role == "scheduler"]
    (worker,) = [lane for lane in trace.lanes if (lane.role, lane.tid) == ("worker", HOST)]
    for lane, begins, done in ((scheduler, SpanKind.SEND, SpanKind.SETTLE), (worker, SpanKind.LAUNCH, SpanKind.REPLY)):
        in_flight = np.cumsum(lane.kind == begins) - np.cumsum(lane.kind == done)
        assert (in_flight[lane.kind == SpanKind.IDLE] == 0).all(), lane.process
        assert (in_flight[lane.kind == SpanKind.WAIT] > 0).all(), lane.process
        assert {SpanKind.IDLE, SpanKind.WAIT} < set(lane.kind.tolist()), lane.process
    assert scheduler.tokens[scheduler.kind == SpanKind.SETTLE].sum() == 6 * TOKENS + answers[0].index(stop) + 2
    assert scheduler.wasted.sum() == (0 if lockstep else 1), "the row behind the one that met the stop token"
    ends = {
        int(s): int(e) for s, e, k in zip(compute.step, compute.end, compute.kind, strict=True) if k == SpanKind.SAMPLE
    }
    plans = scheduler.kind == SpanKind.PLAN
    ahead = [
        start < ends[step - 1]
        for step, start in zip(scheduler.step[plans].tolist(), scheduler.start[plans].tolist(), strict=True)
        if step > 1
    ]
    # In lockstep nothing is planned before the step ahead has ended; else almost everything is.
    assert not any(ahead) if lockstep else sum(ahead) > len(ahead) / 2


def test_recording_starts_and_stops_while_serving_and_says_clearly_what_is_wrong(
    tmp_path: Path, address: str, model: str
) -> None:
    directory = tmp_path / "timelines"
    port = free_port()
    url = f"http://127.0.0.1:{port}/timeline"
    options = ["--http", f"--port={port}", f"--timeline-dir={directory}"]
    with launched(*started(address, model, tmp_path, *options)) as run:
        run.wait_for("serving")
        before = ask(address)
        assert "nothing is recorded" in timeline("status", f"--address={address}").stdout
        refused = timeline("stop", f"--address={address}")
        assert (refused.returncode, refused.stderr) == (2, "timeline: nothing is being recorded\n")
        assert not directory.exists()
        assert timeline("start", "one.json", f"--address={address}").returncode == 0
        assert httpx.post(f"{url}/start", json={"file": "two.json"}).status_code == 409
        assert timeline("start", "two.json", f"--address={address}").returncode == 2
        with ThreadPoolExecutor() as pool:  # it is stopped under load
            running = pool.submit(ask, address, 6, 60)
            within(30, lambda: httpx.get(f"{url}/status").json()["spans"] > 100)
            done = httpx.post(f"{url}/stop")
            assert done.status_code == 200
            assert httpx.post(f"{url}/stop").status_code == 409
            assert httpx.post(f"{url}/start").status_code == 200
            running.result()
        assert ask(address) == before, "recording has changed an answer"
        told = timeline("status", f"--address={address}").stdout
        assert "is being recorded" in told
        stopped(run)  # in the middle of a recording
    files = sorted(directory.iterdir())
    assert [file.name for file in files[:1]] == ["one.json"]
    assert files[1].name.startswith("timeline-")
    for file in files:
        trace = read_trace(file)
        assert trace.complete
        assert len(spans_of(trace, "worker", COMPUTE, SpanKind.FORWARD)) > 10
        assert timeline("report", str(file)).returncode == 0


def test_a_collector_that_dies_takes_nothing_along_but_the_timeline(tmp_path: Path, address: str, model: str) -> None:
    file = tmp_path / "trace.json"
    with launched(*started(address, model, tmp_path, f"--timeline={file}")) as run:
        run.wait_for("serving")
        before = ask(address)
        time.sleep(1.0)
        run.children()["timeline"].kill()
        run.wait_for("timeline: is gone")
        assert ask(address) == before
        refused = timeline("start", f"--address={address}")
        assert refused.returncode == 2
        assert "collector is not there" in refused.stderr
        stopped(run)
    trace = read_trace(file)
    assert trace.complete, "the file is valid at every moment"
    assert len(spans_of(trace, "worker", COMPUTE, SpanKind.FORWARD)) >= TOKENS


def test_what_cannot_be_written_is_said_before_anything_starts(tmp_path: Path, address: str, model: str) -> None:
    for file, why in ((tmp_path / "none" / "a.json", "No such file"), (tmp_path / "a.txt", "must end in .json")):
        began = time.monotonic()
        with launched(*started(address, model, tmp_path, f"--timeline={file}")) as run:
            assert run.end(60) == 2, run.said
            assert why in run.said
            assert "loading" not in run.said
        assert time.monotonic() - began < 30


def test_a_start_that_fails_leaves_no_recording(tmp_path: Path, address: str, model: str) -> None:
    file = tmp_path / "trace.json"
    with launched(*started(address, model, tmp_path, f"--timeline={file}", "--kv-cache-blocks=1")) as run:
        assert run.end(60) == 2, run.said
        assert "recorded" not in run.said
    assert not file.exists()


def test_nothing_is_recorded_unless_it_is_wanted(tmp_path: Path, address: str, model: str) -> None:
    with launched(*started(address, model, tmp_path)) as run:
        run.wait_for("serving")
        ask(address)
        collector = run.children()["timeline"]
        busy = psutil.Process(collector.pid).cpu_times()
        time.sleep(2.0)
        after = psutil.Process(collector.pid).cpu_times()
        assert after.user + after.system - busy.user - busy.system < 0.06 * 2, "an idle collector is busy"
        stopped(run)
    assert not list(tmp_path.glob("**/*.json*"))
