"""The scheduler as a process of its own, between thin clients and workers that are threads of the test."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import msgpack
import psutil
import pytest

from protocol.messages import Attach, Attached, Finish, Ping, Pong, Unattached
from tests.core_loop import solo, submit
from tests.stub_model import opened
from tests.stub_worker import StubWorker
from tests.thin_client import ThinClient

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.processes


@contextmanager
def scheduler(folder: Path, *workers: str, options: Sequence[str] = ()) -> Iterator[str]:
    """A scheduler process at the address that is returned; it must end with code 0 when told to, and leave nothing."""
    address = f"ipc://{folder / 'scheduler'}"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "scheduler_proc",
            "--bind",
            address,
            *[f"--worker={each}" for each in workers],
            *options,
        ],
        cwd=ROOT,
    )
    try:
        yield address
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
        assert not (folder / "scheduler").exists(), "its socket was left"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("credit", [1, 2, 3])
def test_each_plan_leaves_before_the_result_of_the_one_before_it_and_credit_is_kept(
    tmp_path: Path, credit: int
) -> None:
    total = 40

    def may_answer(stub: StubWorker) -> bool:
        # Unless all rows of the newest plan are the last of their requests, there must be as many plans as credit.
        newest = stub.unanswered[-1][0]
        return len(stub.unanswered) == credit or bool((newest.position + newest.count == total - 1).all())

    address = f"ipc://{tmp_path / 'worker'}"
    asks = [submit(request, [request] * 8, total - 8, ignore_eos=True) for request in range(3)]
    with (
        StubWorker(address, may_answer=may_answer) as worker,
        scheduler(tmp_path, address, options=["--max-plans-in-flight", str(credit)]) as bound,
        ThinClient(bound) as client,
    ):
        for ask in asks:
            client.submit(ask)
            client.finish(ask.request)
        assert worker.credit == credit
        assert worker.most_unanswered == credit
        assert len(worker.plans) == 3 * (total - 8)
    for ask in asks:
        assert client.received[ask.request].tokens == solo(ask)


def test_lockstep_never_has_two_plans_unanswered(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    ask = submit(1, [1, 2, 3], 20, ignore_eos=True)
    with (
        StubWorker(address) as worker,
        scheduler(tmp_path, address, options=["--lockstep"]) as bound,
        ThinClient(bound) as client,
    ):
        client.submit(ask)
        client.finish(1)
        assert worker.most_unanswered == 1
    assert client.received[1].tokens == solo(ask)


def test_how_to_schedule_is_told_on_the_command_line(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    options = ["--scheduling-policy=priority", "--max-waiting=2", "--max-prefill-tokens=3"]
    held = [True]
    asks = [submit(request, [request] * 7, 2, ignore_eos=True, priority=-request) for request in range(1, 5)]
    with (
        StubWorker(address, opened(slots=1), may_answer=lambda stub: not held[0]) as worker,
        scheduler(tmp_path, address, options=options) as bound,
        ThinClient(bound) as client,
    ):
        client.submit(asks[0])
        while not worker.plans:
            client.hear(0.05)
        client.submit(*asks[1:])
        client.finish(4)
        held[0] = False
        client.finish(1, 2, 3)
    assert client.received[4].finish is Finish.BUSY
    assert [plan.token.tolist() for plan in worker.plans if len(plan.token)] == [
        [request] * count for request in (1, 3, 2) for count in (3, 3, 1)
    ]
    for ask in asks[:3]:
        assert client.received[ask.request].tokens == solo(ask)


@pytest.mark.parametrize(("options", "cached"), [([], 16), (["--no-enable-prefix-caching"], 0)])
def test_a_prompt_sent_twice_is_computed_once_unless_that_is_turned_off(
    tmp_path: Path, options: list[str], cached: int
) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    asks = [submit(request, list(range(6, 26)), 5, ignore_eos=True) for request in (1, 2)]
    with StubWorker(address), scheduler(tmp_path, address, options=options) as bound, ThinClient(bound) as client:
        for ask in asks:
            client.submit(ask)
            client.finish(ask.request)
            assert client.received[ask.request].tokens == solo(ask)
        assert [client.received[ask.request].cached for ask in asks] == [0, cached]


def test_requests_of_many_clients_share_two_workers(tmp_path: Path) -> None:
    addresses = [f"ipc://{tmp_path / f'worker-{number}'}" for number in range(2)]
    asks = [submit(request, [request, 5], 10, ignore_eos=True) for request in range(8)]
    with ExitStack() as stack:
        workers = [stack.enter_context(StubWorker(address)) for address in addresses]
        bound = stack.enter_context(scheduler(tmp_path, *addresses))
        clients = [stack.enter_context(ThinClient(bound)) for _ in range(3)]
        _wait_until(lambda: all(worker.sessions for worker in workers))
        for client in clients:
            client.submit(*asks)
        for client in clients:
            client.finish(*[ask.request for ask in asks])
            assert [client.received[ask.request].tokens for ask in asks] == [solo(ask) for ask in asks]
        assert all(worker.plans for worker in workers), "one worker did everything"


def test_a_worker_that_was_restarted_costs_time_and_no_token(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    gate = {"plans": 6}
    ask = submit(1, [1, 2, 3], 20, ignore_eos=True)
    with (
        StubWorker(address, may_answer=lambda stub: len(stub.plans) < gate["plans"]) as worker,
        scheduler(tmp_path, address) as bound,
        ThinClient(bound) as client,
    ):
        client.submit(ask)
        _wait_until(lambda: len(worker.plans) >= 6)
        worker.restart()
        gate["plans"] = 1000
        client.finish(1)
        assert worker.sessions == 2
    assert client.received[1].tokens == solo(ask)


def test_a_worker_with_another_model_is_not_used(tmp_path: Path) -> None:
    addresses = [f"ipc://{tmp_path / f'worker-{number}'}" for number in range(2)]
    asks = [submit(request, [request, 5], 10, ignore_eos=True) for request in range(4)]
    with ExitStack() as stack:
        right = stack.enter_context(StubWorker(addresses[0]))
        bound = stack.enter_context(scheduler(tmp_path, *addresses))
        client = stack.enter_context(ThinClient(bound))
        wrong = stack.enter_context(StubWorker(addresses[1], worker=replace(opened(), model="another")))
        _wait_until(lambda: wrong.sessions > 0 and wrong.claim is None)
        client.submit(*asks)
        client.finish(*[ask.request for ask in asks])
        assert right.plans
        assert not wrong.plans


def test_a_client_that_says_goodbye_by_vanishing_leaves_nothing_running(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    with StubWorker(address) as worker, scheduler(tmp_path, address) as bound:
        with ThinClient(bound) as client:
            client.submit(submit(1, [1], 60, ignore_eos=True))
            _wait_until(lambda: len(worker.plans) > 2)
        _wait_until(lambda: _still(worker))
        with ThinClient(bound) as other:
            ask = submit(1, [3], 5, ignore_eos=True)
            other.submit(ask)
            other.finish(1)
            assert other.received[1].tokens == solo(ask)


def test_an_abort_ends_a_running_request_and_unknown_ones_are_dropped(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    with (
        StubWorker(address, may_answer=lambda stub: len(stub.plans) < 5) as worker,
        scheduler(tmp_path, address) as bound,
        ThinClient(bound) as client,
    ):
        client.submit(submit(1, [1], 60, ignore_eos=True))
        _wait_until(lambda: len(worker.plans) >= 5)
        client.abort(1, 99, 1)
        client.finish(1)
        assert client.received[1].finish is Finish.ABORT
        worker.may_answer = lambda stub: True


def test_a_stranger_is_told_to_attach_and_a_known_client_gets_pong(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    with StubWorker(address), scheduler(tmp_path, address) as bound, ThinClient(bound) as client:
        client.say(Ping())
        assert client.expect(Pong).session == client.attached.session
        client.socket.disconnect(bound)
        client.socket.connect(bound)  # a new connection is a new peer
        client.say(Ping())
        assert client.expect(Unattached).session == client.attached.session


def test_a_step_that_hangs_is_said_with_every_pong_until_it_ends(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    gate = {"open": False}
    options = ["--step-timeout=0.2"]
    with (
        StubWorker(address, may_answer=lambda stub: gate["open"]),
        scheduler(tmp_path, address, options=options) as bound,
        ThinClient(bound) as client,
    ):

        def trouble() -> str:
            client.say(Ping())
            pong = client.expect(Pong)
            assert pong.serves == (not pong.trouble)
            return pong.trouble

        assert trouble() == ""
        client.submit(submit(1, [1], 10, ignore_eos=True))
        _wait_until(lambda: "has not finished a step for more than 0.2 s" in trouble())
        gate["open"] = True
        client.finish(1)
        assert trouble() == ""


def test_a_second_worker_that_never_came_is_said_and_the_first_one_serves(tmp_path: Path) -> None:
    addresses = [f"ipc://{tmp_path / f'worker-{number}'}" for number in range(2)]
    with StubWorker(addresses[0]), scheduler(tmp_path, *addresses) as bound, ThinClient(bound) as client:
        client.say(Ping())
        pong = client.expect(Pong)
        assert (pong.trouble, pong.serves) == (f"the worker at {addresses[1]} has no session", True)


def test_a_new_incarnation_ends_the_requests_of_the_old_one(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    with StubWorker(address) as worker, scheduler(tmp_path, address) as bound, ThinClient(bound) as client:
        worker.may_answer = lambda stub: len(stub.plans) < 4
        client.submit(submit(1, [1], 60, ignore_eos=True))
        _wait_until(lambda: len(worker.plans) >= 4)
        client.say(Attach(client.incarnation + 1))
        client.expect(Attached)
        worker.may_answer = lambda stub: True
        ask = submit(1, [9], 4, ignore_eos=True)  # the same number, another request
        client.submit(ask)
        client.finish(1)
        assert client.received[1].tokens == solo(ask)


@pytest.mark.parametrize(
    "frame",
    [b"", b"\xc1", b"\x00" * 1000, msgpack.packb({"type": "Plan"}), msgpack.packb([1, 2]),
     msgpack.packb({"type": "Submit", "request": "x"}), msgpack.packb({"type": "Ping"})[:-2]],
)  # fmt: skip
def test_garbage_is_dropped_and_the_scheduler_lives(tmp_path: Path, frame: bytes) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    ask = submit(1, [1, 2], 5, ignore_eos=True)
    with StubWorker(address), scheduler(tmp_path, address) as bound, ThinClient(bound) as client:
        client.socket.send(frame)
        client.socket.send_multipart([b"a", b"b", b"c"])
        client.submit(ask)
        client.finish(1)
        assert client.received[1].tokens == solo(ask)


def test_a_frame_over_the_limit_ends_its_connection_and_nothing_else(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    ask = submit(1, [1, 2], 5, ignore_eos=True)
    with StubWorker(address), scheduler(tmp_path, address) as bound, ThinClient(bound) as rude:
        rude.socket.send(b"x" * 100_000_000)
        with ThinClient(bound) as client:
            client.submit(ask)
            client.finish(1)
            assert client.received[1].tokens == solo(ask)


def test_it_works_when_nobody_came_for_a_while_and_again_when_all_have_gone(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    with StubWorker(address), scheduler(tmp_path, address) as bound, ThinClient(bound) as client:
        for request in range(100):
            ask = submit(request, [request % 90, 3], 3, ignore_eos=True)
            client.submit(ask)
            client.finish(request)  # drained to empty each time
            assert client.received[request].tokens == solo(ask)


def test_an_idle_scheduler_uses_next_to_no_time(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    with StubWorker(address), scheduler(tmp_path, address) as bound, ThinClient(bound) as client:
        (process,) = psutil.Process().children()
        before = sum(process.cpu_times()[:2])
        began = time.monotonic()
        while time.monotonic() - began < 4.0:
            client.hear(1.0)
        assert sum(process.cpu_times()[:2]) - before < 0.03 * 4.0


def test_a_pool_that_holds_no_request_is_said_in_one_line_with_numbers(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    with StubWorker(address, worker=opened(blocks=3, max_model_len=64)):
        done = subprocess.run(
            [sys.executable, "-m", "scheduler_proc", f"--bind=ipc://{tmp_path / 's'}", f"--worker={address}"],
            cwd=ROOT, capture_output=True, text=True, timeout=20,
        )  # fmt: skip
    assert done.returncode == 2
    assert "3 blocks of 4 = 12" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_that_has_another_scheduler_is_named_in_the_error(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'worker'}"
    with StubWorker(address) as worker, scheduler(tmp_path, address):
        _wait_until(lambda: worker.sessions > 0)
        done = subprocess.run(
            [sys.executable, "-m", "scheduler_proc", f"--bind=ipc://{tmp_path / 's'}", f"--worker={address}",
             "--start-timeout=1.5"],
            cwd=ROOT, capture_output=True, text=True, timeout=20,
        )  # fmt: skip
    assert done.returncode == 2
    assert "another scheduler" in done.stderr


def _still(worker: StubWorker) -> bool:
    before = len(worker.plans)
    time.sleep(0.1)
    return len(worker.plans) == before


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.005)
