"""`make run` in a terminal, with a stand-in for the environment that it would make."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PYTHON = f"""#!{sys.executable}
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("called with", *sys.argv[1:], flush=True, file=sys.stdout)
if sys.argv[1] == "launch.py":
    signal.sigwait([signal.SIGINT])
    print("launch.py has ended", flush=True)
"""

IN_A_TERMINAL = "import pty, sys; pty.spawn(sys.argv[1:])"

pytestmark = pytest.mark.processes


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A folder that looks like an environment in which all is installed; its Python is the stand-in."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    (tmp_path / ".installed-from-pyproject").touch()
    return tmp_path


def make_run_until_ctrl_c(environment: Path, *arguments: str) -> str:
    """Return what a terminal shows of `make run` when Ctrl-C is pressed as soon as launch.py runs."""
    command = [sys.executable, "-c", IN_A_TERMINAL, "make", "run", f"VENV={environment}", *arguments]
    # What runs the tests may be a make, whose child would say that it is one.
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))}
    with subprocess.Popen(
        command, cwd=ROOT, env=outer, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as terminal:
        assert terminal.stdin is not None
        assert terminal.stdout is not None
        shown = b""
        while b"launch.py --first-prompt" not in shown:
            shown += (more := terminal.stdout.read(4096))
            assert more, shown
        terminal.stdin.write(b"\x03")
        while more := terminal.stdout.read(4096):
            shown += more
    return shown.decode().replace("\r\n", "\n")


def test_ctrl_c_is_launchs_to_answer_and_make_does_not_complain(environment: Path) -> None:
    shown = make_run_until_ctrl_c(environment)
    shown = shown.replace("^C", "")  # the terminal's echo comes when it comes
    assert shown == "called with launch.py --first-prompt What is the capital of France?\nlaunch.py has ended\n"


def test_the_default_model_is_fetched_unless_another_one_is_asked_for(environment: Path) -> None:
    python = environment / "bin" / "python"
    python.write_text(PYTHON.replace("sys.stdout", "sys.stderr"))  # what is fetched is no news, but errors are
    assert "called with -m checkpoint\n" in make_run_until_ctrl_c(environment, "ARGS=--max-model-len 99")
    assert "checkpoint" not in make_run_until_ctrl_c(environment, "ARGS=--max-model-len 99 --model=mine")


def test_a_prompt_of_the_users_own_takes_the_place_of_the_first_one(environment: Path) -> None:
    python = environment / "bin" / "python"
    python.write_text(PYTHON.replace("signal.sigwait([signal.SIGINT])", "pass"))
    command = ["make", "run", f"VENV={environment}", "ARGS=--prompt hi"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert "called with launch.py --prompt hi\n" in run.stdout
