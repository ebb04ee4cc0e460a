"""Who may import whom, and what may appear nowhere."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MAY_IMPORT = {
    "protocol": set[str](),
    "checkpoint": set[str](),
    "timeline": {"protocol"},
    "scheduler_proc": {"protocol", "timeline"},
    "client": {"protocol"},
    "frontend": {"protocol", "checkpoint", "timeline"},
    "gpu_worker": {"protocol", "checkpoint", "timeline"},
}
"""Packages of ours that a package of ours may import beside itself; those not named here tie the others together."""

OURS = [*MAY_IMPORT, "stepahead", "bench", "launch"]

PART_OF_THE_TIMELINE = {"timeline.config", "timeline.link", "timeline.options", "timeline.recorder"}
"""What those who record may import of it."""

WITH_TORCH = {"gpu_worker"}
WORKERS_OWN = {"torch", "transformers", "triton", "accelerate"}
BESIDE_THE_WORKER = {
    "bench/transformers_peer.py",
    "bench/continuous_peer.py",
    "bench/flash_stand_in.py",
    "bench/append_paged.py",
    "bench/decode_steps.py",
    "bench/decode_attention.py",
    "bench/bandwidth.py",
    "bench/read_kernel.py",
    "bench/matrix_rate.py",
    "bench/operations.py",
}
"""What the worker is measured against, in processes of its own, and what measures its engine without any other."""

START_WITHOUT_TORCH = [
    "protocol",
    "checkpoint",
    "client",
    "timeline.collect",
    "scheduler_proc.process",
    "frontend.process",
    "frontend.http.app",
    "launch",
    "stepahead.llm",
]

UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal"}
UNSAFE_CALLS = {"eval", "exec", "recv_pyobj", "send_pyobj", "yaml.load", "torch.load", "numpy.load", "np.load"}
BIND_CALLS = {"bind", "bind_to_random_port"}
WALL_CLOCK = {"time.time", "time.time_ns", "datetime.utcnow", "datetime.today"}
"""Clocks that somebody may set back. What is measured is measured by monotonic ones."""
OUTSIDE = ("0.0.0.0", "tcp://*", "[::]")


def files_of(package: str) -> list[Path]:
    module = ROOT / f"{package}.py"
    return [module] if module.exists() else sorted((ROOT / package).rglob("*.py"))


def trees() -> Iterator[tuple[str, str, ast.Module]]:
    for package in OURS:
        for path in files_of(package):
            yield package, str(path.relative_to(ROOT)), ast.parse(path.read_text(), path.name)


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of all imports, those inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            assert node.module is not None
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def calls(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield (line, name as written, last part of the name) of all calls to names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            written = ast.unparse(node.func)
            yield node.lineno, written, written.rpartition(".")[2]


def test_each_package_imports_only_what_it_may() -> None:
    wrong = [
        f"{where}:{line} imports {name}"
        for package, where, tree in trees()
        for line, name in imported(tree)
        if (top := name.partition(".")[0]) in OURS and top != package and package in MAY_IMPORT
        if top not in MAY_IMPORT[package]
    ]
    assert wrong == []


def test_those_who_record_import_the_recorder_and_no_more_of_the_timeline() -> None:
    wrong = [
        f"{where}:{line} imports {name}"
        for package, where, tree in trees()
        if package in {"scheduler_proc", "frontend", "gpu_worker"}
        for line, name in imported(tree)
        if name.startswith("timeline") and ".".join(name.split(".")[:2]) not in PART_OF_THE_TIMELINE
    ]
    assert wrong == []


def test_only_the_worker_imports_torch() -> None:
    wrong = [
        f"{where}:{line} imports {name}"
        for package, where, tree in trees()
        for line, name in imported(tree)
        if name.partition(".")[0] in WORKERS_OWN and package not in WITH_TORCH and where not in BESIDE_THE_WORKER
    ]
    assert wrong == []


def test_only_the_protocol_knows_messagepack() -> None:
    wrong = [
        f"{where}:{line}"
        for package, where, tree in trees()
        for line, name in imported(tree)
        if name.partition(".")[0] == "msgpack" and package != "protocol"
    ]
    assert wrong == []


def test_nothing_that_runs_what_it_reads_is_used() -> None:
    wrong = [
        f"{where}:{line} {name}"
        for _, where, tree in trees()
        for line, name in [
            *((line, name) for line, name in imported(tree) if name.partition(".")[0] in UNSAFE_MODULES),
            *((line, name) for line, name, _ in calls(tree) if name in UNSAFE_CALLS),
            *((line, name) for line, name, last in calls(tree) if last in {"recv_pyobj", "send_pyobj"}),
        ]
    ]
    assert wrong == []


def test_no_process_looks_at_a_clock_that_somebody_may_set() -> None:
    wrong = [
        f"{where}:{line} {name}" for _, where, tree in trees() for line, name, _ in calls(tree) if name in WALL_CLOCK
    ]
    assert wrong == []


def test_sockets_are_bound_in_the_protocol_only() -> None:
    wrong = [
        f"{where}:{line} {name}"
        for package, where, tree in trees()
        for line, name, last in calls(tree)
        if last in BIND_CALLS and package != "protocol"
    ]
    assert wrong == []


def test_no_address_is_open_to_other_hosts() -> None:
    wrong = [
        f"{where}:{node.lineno} {node.value!r}"
        for _, where, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if any(outside in node.value for outside in OUTSIDE)
    ]
    assert wrong == []


@pytest.mark.processes
@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        *((module, "torch") for module in START_WITHOUT_TORCH),
        ("gpu_worker.building", "transformers"),
        ("stepahead", "frontend"),
    ],
)
def test_starting_loads_nothing_heavy_that_is_not_needed(module: str, unwanted: str) -> None:
    code = f"import sys, {module}; print(*(name for name in sys.modules if name.partition('.')[0] == '{unwanted}'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
