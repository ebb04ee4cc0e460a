"""The worker's side of the protocol: whose it is, what it takes, and that nothing it is sent ends it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import zmq

import gpu_worker.process
from gpu_worker.cpu_device import CPUDevice
from gpu_worker.engine import Engine
from gpu_worker.process import WorkerProcess
from protocol.codec import decode
from protocol.identity import new_session
from protocol.messages import Close, Failed, Joined, Message, Open, Opened, Ping, Plan, Pong, Refused, Result
from protocol.sockets import bind_router, connect_dealer, send
from scheduler_proc.core import Scheduler
from tests.core_loop import CLIENT, submit
from tests.real_loop import alone, poisoned_engine
from tests.stub_stop import Stop
from tests.tiny_models import save, tiny_model
from timeline.link import TimelineLink

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Peer:
    """A scheduler's end of a connection, by hand."""

    dealer: zmq.Socket[bytes]

    def say(self, message: Message) -> None:
        assert send(self.dealer, message)

    def hear(self, seconds: float = 20.0) -> Message:
        assert self.dealer.poll(int(1000 * seconds)), "nothing came"
        return decode(self.dealer.recv())

    def ask(self, message: Message) -> Message:
        self.say(message)
        return self.hear()

    def open(self, plans_in_flight: int = 2) -> Opened:
        nonce = new_session()
        opened = self.ask(Open(nonce, plans_in_flight))
        assert isinstance(opened, Opened), opened
        assert opened.nonce == nonce
        return opened


Connect = Callable[[], Peer]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    model = save(tiny_model("grouped queries"), tmp_path_factory.mktemp("tiny"))
    engine = poisoned_engine(
        model, max_num_seqs=4, max_model_len=64, block_size=4, max_batch_tokens=24, kv_cache_blocks=40
    )
    yield engine
    engine.device.close()


@pytest.fixture(scope="module")
def tokens(engine: Engine) -> list[int]:
    """What [5, 6, 7] is continued with; computed while no worker has the engine."""
    return alone(engine, submit(1, [5, 6, 7], 12, ignore_eos=True))


@pytest.fixture
def address(engine: Engine, tokens: list[int], tmp_path: Path) -> Iterator[str]:
    """A worker's loop in a thread, which must end without an error."""
    address = f"ipc://{tmp_path / 'worker'}"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = bind_router(context, address)
    stop = Stop()
    timeline = TimelineLink(context, None, Joined("worker", "worker", 1, "here"))
    worker = WorkerProcess(engine, router, stop, timeline)  # type: ignore[arg-type]
    errors: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield address
    stop.set()
    thread.join(20.0)
    router.close()
    context.term()
    stop.close()
    assert not thread.is_alive()
    assert not errors, errors


@pytest.fixture
def connect(address: str) -> Iterator[Connect]:
    """Makes peers of the worker, and closes them."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peers: list[Peer] = []

    def connect() -> Peer:
        peers.append(Peer(connect_dealer(context, address)))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.dealer.close()
    context.term()


def serve(peer: Peer, opened: Opened, prompt: list[int], max_tokens: int) -> list[int]:
    """One request through a real scheduler core over the connection."""
    core = Scheduler(opened, 2, new_session())
    core.submit(CLIENT, submit(1, prompt, max_tokens, ignore_eos=True), 0.0)
    tokens: list[int] = []
    while core.running or core.waiting:
        while (plan := core.plan(0.0)) is not None:
            peer.say(plan)
        answer = peer.hear()
        assert isinstance(answer, Result)
        assert core.settle(answer, 0.0)
        for _, deltas in core.take_deltas():
            tokens += deltas.token.tolist()
    return tokens


def first_plan(opened: Opened) -> Plan:
    core = Scheduler(opened, 2, new_session())
    core.submit(CLIENT, submit(1, [5, 6, 7], 4), 0.0)
    plan = core.plan(0.0)
    assert plan is not None
    return plan


def test_a_session_gives_the_models_tokens(connect: Connect, tokens: list[int]) -> None:
    peer = connect()
    opened = peer.open()
    assert (opened.slots, opened.blocks, opened.block_size, opened.max_model_len) == (4, 40, 4, 64)
    assert serve(peer, opened, [5, 6, 7], 12) == tokens[:12]


def test_a_worker_has_one_scheduler_at_a_time_and_is_free_after_close(connect: Connect) -> None:
    first, second = connect(), connect()
    opened = first.open()
    refused = second.ask(Open(9, 2))
    assert isinstance(refused, Refused)
    assert refused.nonce == 9
    assert "another scheduler" in refused.reason
    assert first.ask(Ping()) == Pong(opened.session, 0)
    pong = second.ask(Ping())
    assert isinstance(pong, Pong)
    assert pong.session != opened.session
    first.say(Close(opened.session))
    _until_opened(second)


def test_a_scheduler_that_falls_silent_loses_the_worker(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_worker.process, "SILENCE_SECONDS", 0.3)
    connect().open()
    _until_opened(connect())


def test_a_second_open_of_the_same_scheduler_begins_a_new_session(
    engine: Engine, connect: Connect, tokens: list[int]
) -> None:
    peer = connect()
    old = peer.open(3)
    gate = threading.Event()
    assert isinstance(engine.device, CPUDevice)
    engine.device.compute.run(lambda: _wait(gate))
    peer.say(first_plan(old))  # still computing when the next session is asked for
    peer.say(Open(11, 2))
    assert isinstance(peer.ask(Ping()), Pong)
    gate.set()
    opened = peer.hear()
    assert isinstance(opened, Opened), "an answer of the old session came"
    assert opened.session != old.session
    assert serve(peer, opened, [5, 6, 7], 6) == tokens[:6]


def test_plans_of_another_session_are_dropped(connect: Connect) -> None:
    peer = connect()
    opened = peer.open()
    peer.say(replace(first_plan(opened), session=opened.session + 1))
    assert peer.ask(Ping()) == Pong(opened.session, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 2},
        {"slot": np.array([4], np.uint32)},
        {"position": np.array([62], np.uint32)},
        {"table_block": np.array([41], np.uint32)},
        {"table_block": np.array([0], np.uint32)},
        {"table_index": np.array([16], np.uint32)},
        {"table_slot": np.array([4], np.uint32)},
        {"begin_slot": np.array([4], np.uint32)},
        {"token": np.array([5, 6, 131], np.uint32)},
        {name: np.ones(5000, np.uint32) for name in ("table_slot", "table_index", "table_block")},
        {name: np.ones(2, np.uint32) for name in ("table_slot", "table_index", "table_block")},
        {
            "begin_slot": np.zeros(2, np.uint32),
            "temperature": np.zeros(2, np.float32),
            "top_k": np.zeros(2, np.uint32),
            "top_p": np.ones(2, np.float32),
            "min_p": np.zeros(2, np.float32),
            "seed": np.zeros(2, np.uint64),
        },
    ],
    ids=lambda change: f"{next(iter(change))} of {len(change)}",
)
def test_a_plan_that_reaches_past_the_end_of_something_ends_its_session_and_not_the_worker(
    connect: Connect, tokens: list[int], change: dict[str, object]
) -> None:
    peer = connect()
    opened = peer.open()
    peer.say(replace(first_plan(opened), **change))  # type: ignore[arg-type]
    pong = peer.ask(Ping())
    assert isinstance(pong, Pong), "the plan was answered"
    assert pong.session != opened.session, "the scheduler would wait for its answer for ever"
    assert serve(peer, peer.open(), [5, 6, 7], 4) == tokens[:4]


def test_more_plans_than_credit_end_the_session(engine: Engine, connect: Connect) -> None:
    peer = connect()
    opened = peer.open(1)
    gate = threading.Event()
    assert isinstance(engine.device, CPUDevice)
    engine.device.compute.run(lambda: _wait(gate))
    plan = first_plan(opened)
    peer.say(plan)
    peer.say(replace(plan, step=2))
    pong = peer.ask(Ping())
    gate.set()
    assert isinstance(pong, Pong)
    assert pong.session != opened.session


def test_plan_n_plus_2_is_launched_while_n_plus_1_computes(engine: Engine, connect: Connect) -> None:
    peer = connect()
    opened = peer.open(2)
    core = Scheduler(opened, 2, new_session())
    core.submit(CLIENT, submit(1, [5, 6, 7], 6, ignore_eos=True), 0.0)
    first, second = core.plan(0.0), core.plan(0.0)
    assert first is not None
    assert second is not None
    gate = threading.Event()
    assert isinstance(engine.device, CPUDevice)
    peer.say(first)
    answer = peer.hear()  # step 1 is over
    engine.device.compute.run(lambda: _wait(gate))
    peer.say(second)  # it computes, behind the gate
    assert isinstance(answer, Result)
    assert core.settle(answer, 0.0)
    third = core.plan(0.0)
    assert third is not None
    peer.say(third)
    pong = peer.ask(Ping())
    assert isinstance(pong, Pong)
    assert (pong.session, pong.step) == (opened.session, 1), "the third was taken in; the second has no answer yet"
    assert pong.busy > 0.0
    gate.set()
    steps = []
    for _ in range(2):
        answer = peer.hear()
        assert isinstance(answer, Result | Failed)
        steps.append(answer.step)
    assert steps == [2, 3]


@pytest.mark.parametrize("frame", [b"", b"\xc1", b"\x81", b"\x00" * 500], ids=["empty", "invalid", "cut", "zeros"])
def test_garbage_from_a_stranger_is_dropped(connect: Connect, frame: bytes) -> None:
    peer, stranger = connect(), connect()
    opened = peer.open()
    stranger.dealer.send(frame)
    stranger.dealer.send_multipart([b"a", b"b"])
    assert isinstance(stranger.ask(Ping()), Pong)
    assert peer.ask(Ping()) == Pong(opened.session, 0)


def _until_opened(peer: Peer) -> None:
    deadline = time.monotonic() + 20.0
    while not isinstance(peer.ask(Open(new_session(), 2)), Opened):
        assert time.monotonic() < deadline, "the worker never becomes free"
        time.sleep(0.05)


def _wait(gate: threading.Event) -> None:
    gate.wait(20.0)


@pytest.mark.processes
def test_a_worker_that_is_told_to_end_leaves_no_socket(tmp_path: Path) -> None:
    path = tmp_path / "worker"
    model = save(tiny_model("grouped queries"), tmp_path / "model")
    command = [sys.executable, "-m", "gpu_worker", f"--bind=ipc://{path}", f"--model={model}", "--device=cpu"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert any("worker: ready" in line for line in process.stderr)
        assert path.exists()
        process.terminate()
        assert process.wait(10) == 0
        assert not path.exists()
    finally:
        process.kill()
        process.communicate()
