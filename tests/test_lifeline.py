"""Parent and child: no child outlives its parent, whatever it is doing, and the parent hears how the start goes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from protocol.lifeline import FLAG, ChildPipes, Lifeline

pytestmark = pytest.mark.processes

CHILD = """
import os, signal, sys, time
from protocol.lifeline import Lifeline
lifeline = Lifeline("child", sys.argv[2] if len(sys.argv) > 2 else None)
"""

# Starts one child, prints its id once it has said ready, then waits to be killed.
PARENT = """
import subprocess, sys
from protocol.lifeline import ChildPipes
pipes = ChildPipes()
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], *pipes.arguments], pass_fds=pipes.pass_fds)
pipes.started()
with open(pipes.status) as status:
    assert status.readline().strip() == "ready"
    print(child.pid, flush=True)
    sys.stdin.read()
"""

BUSY = {
    "asleep in C": "time.sleep(600)",
    "in a tight loop": "while True: pass",
    "in C without letting go of the interpreter": "sum(iter(int, 1))",
    "in a read that never comes": "os.read(os.pipe()[0], 1)",
    "deaf to polite signals": "for s in (15, 1, 29): signal.signal(s, signal.SIG_IGN)\ntime.sleep(600)",
}


def ended(process: psutil.Process) -> bool:
    """Whether it ended; nobody may be there to collect an orphan's exit status, so a zombie counts."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def eventually(holds: Callable[[], bool], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("doing", BUSY.values(), ids=BUSY)
def test_a_child_ends_when_its_parent_is_killed(doing: str) -> None:
    code = f"{CHILD}lifeline.ready()\n{doing}"
    command = [sys.executable, "-c", PARENT, code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        time.sleep(0.1)  # so that it is busy
        assert not ended(child)
        parent.kill()
        assert eventually(lambda: ended(child))


class Started:
    """A child of the test itself, and the lines it has said."""

    def __init__(self, code: str) -> None:
        self.pipes = ChildPipes()
        command = [sys.executable, "-c", CHILD + code, *self.pipes.arguments]
        self.process = subprocess.Popen(command, pass_fds=self.pipes.pass_fds)
        self.pipes.started()

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.pipes.close()

    def heard(self, lines: int) -> list[str]:
        """Return the lines said, once there are so many or the child has ended."""
        text = b""
        deadline = time.monotonic() + 10
        while text.count(b"\n") < lines and select.select([self.pipes.status], [], [], deadline - time.monotonic())[0]:
            piece = os.read(self.pipes.status, 4096)
            if not piece:
                break
            text += piece
        return [line.rstrip() for line in text.decode().split("\n")[:-1]]


def test_the_parent_hears_how_the_start_goes() -> None:
    with Started(
        "lifeline.progress('1 of 2'); lifeline.progress('2 of 2'); lifeline.ready(); time.sleep(600)"
    ) as child:
        assert child.heard(3) == ["progress 1 of 2", "progress 2 of 2", "ready"]


def test_the_parent_hears_how_much_of_it_is_done() -> None:
    with Started("lifeline.share(1 / 3, 'a  third\\nof it'); lifeline.ready(); time.sleep(600)") as child:
        assert child.heard(2) == ["share 0.3333 a third of it", "ready"]


def test_a_failure_is_one_line_whatever_its_text() -> None:
    with Started(r"lifeline.failed('no\nsuch\r\n\tmodel \udcff é')") as child:
        assert child.heard(2) == ["failed no such model ? é"]


def test_the_parent_hears_of_a_death_without_words() -> None:
    with Started("lifeline.progress('x'); os.kill(os.getpid(), signal.SIGKILL)") as child:
        assert child.heard(5) == ["progress x"]
        assert child.process.wait(5) == -signal.SIGKILL


def test_letting_go_ends_the_child() -> None:
    with Started("lifeline.ready(); time.sleep(600)") as child:
        assert child.heard(1) == ["ready"]
        child.pipes.close()
        assert child.process.wait(5) != 0


def test_a_child_of_a_child_does_not_keep_the_lifeline() -> None:
    code = """
import subprocess
command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
subprocess.Popen(command, stdin=subprocess.PIPE, close_fds=False)
lifeline.progress(str([os.get_inheritable(int(fd)) for fd in sys.argv[2].split(",")]))
lifeline.ready()
os._exit(3)
"""
    with Started(code) as child:
        assert child.heard(99) == ["progress [False, False]", "ready"]  # and no more: nobody else holds the pipe
        assert child.process.wait(5) == 3


def test_ctrl_c_is_for_the_parent_to_decide() -> None:
    with Started("lifeline.ready(); time.sleep(0.3); lifeline.progress('still here'); time.sleep(600)") as child:
        assert child.heard(1) == ["ready"]
        child.process.send_signal(signal.SIGINT)
        assert child.heard(1) == ["progress still here"]


def test_a_parent_that_stopped_listening_is_no_error() -> None:
    with Started("time.sleep(0.3); lifeline.ready(); sys.exit(7)") as child:
        os.close(child.pipes.status)
        child.pipes.status = -1
        assert child.process.wait(10) == 7


def test_a_process_started_by_hand_needs_no_lifeline(capsys: pytest.CaptureFixture[str]) -> None:
    lifeline = Lifeline("worker", None)
    lifeline.progress("x")
    lifeline.ready()
    lifeline.failed("y")
    assert capsys.readouterr().err == "worker: x\nworker: ready\nworker: y\n"
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def test_pipes_leak_no_descriptors() -> None:
    before = os.listdir("/proc/self/fd")
    with ChildPipes() as pipes:
        assert pipes.arguments == [FLAG, ",".join(map(str, pipes.pass_fds))]
    with ChildPipes() as pipes:
        pipes.started()
        pipes.close()
    assert os.listdir("/proc/self/fd") == before


def test_pipes_are_inherited_by_no_other_child() -> None:
    with ChildPipes() as pipes:
        assert not any(os.get_inheritable(fd) for fd in (*pipes.pass_fds, pipes.status))


def test_importing_costs_next_to_nothing() -> None:
    code = "import sys, protocol.lifeline; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"zmq", "numpy", "msgpack", "torch"} & set(loaded)
