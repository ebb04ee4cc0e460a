"""The guard over tests that start processes: it must catch what it is there for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

FORGETFUL = """
import subprocess, sys
import pytest

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]
ORPHAN = f"import subprocess; print(subprocess.Popen({SLEEP!r}, stdout=2, start_new_session=True).pid)"

@pytest.mark.processes
def test_leaves_a_child():
    child = subprocess.Popen(SLEEP)
    print("left", child.pid)
    child.returncode = 0  # so that nothing else complains

@pytest.mark.processes
def test_leaves_an_orphan():
    print("left", subprocess.run([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True).stdout)

@pytest.mark.processes
def test_leaves_nothing():
    subprocess.run([sys.executable, "-c", ""], check=True)
"""


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.slow
@pytest.mark.processes
def test_children_and_orphans_are_found_and_killed(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    processes: x\n    gpu: x\n")
    (tmp_path / "test_forgetful.py").write_text(FORGETFUL)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}  # its conftest imports from tests
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider"]
    told = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=50).stdout
    assert "3 passed, 2 errors" in told, told
    assert len(re.findall(r"^E +Failed: processes were left behind: \['\d+ .*sleep", told, re.MULTILINE)) == 2
    left = {int(pid) for pid in re.findall(r"^left (\d+)", told, re.MULTILINE)}
    assert len(left) == 2
    assert all(is_gone(pid) for pid in left)
