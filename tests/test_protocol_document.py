"""docs/protocol.md is true: its tables are the messages' declarations, and its example client works."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from protocol.messages import Chunk, Finish, Generate, Pong, SpanKind
from tests.message_tables import messages, table
from tests.stub_frontend import StubFrontend, chunk

DOCUMENT = (Path(__file__).parent.parent / "docs" / "protocol.md").read_text(encoding="utf-8")


def example() -> str:
    """Return the one Python program in the document."""
    (program,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    return str(program)


@pytest.mark.parametrize("message", messages(), ids=lambda message: message.__name__)
def test_every_message_has_its_table(message: type) -> None:
    _, heading, section = DOCUMENT.partition(f"\n### {message.__name__}\n")
    assert heading
    assert table(message) in section.partition("\n### ")[0]


def test_signs_of_life_are_explained_field_by_field() -> None:
    explained = DOCUMENT.partition("## Signs of life")[2].partition("\n## ")[0]
    assert "a **session**" in explained
    assert all(f"`{field.name}`" in explained for field in fields(Pong) if field.name != "session")


def test_every_way_to_end_is_listed() -> None:
    for finish in Finish:
        assert f"| {finish.value} | {finish.name} |" in DOCUMENT


def test_every_kind_of_span_is_listed() -> None:
    for kind in SpanKind:
        assert f"| {kind.value} | {kind.name} |" in DOCUMENT


def test_the_example_is_short_and_needs_nothing_of_ours() -> None:
    lines = [line for line in example().splitlines() if line.strip()]
    assert len(lines) <= 30
    assert set(re.findall(r"^(?:import|from) (\w+)", example(), re.MULTILINE)) == {"sys", "time", "msgpack", "zmq"}


@pytest.mark.processes
def test_the_example_streams_a_chat(tmp_path: Path) -> None:
    def answer(ask: Generate) -> list[Chunk]:
        assert ask.messages is not None
        words = str(ask.messages[0]["content"]).split()
        return [*(chunk(ask.request, f"{word} ", [1]) for word in words), chunk(ask.request, "!", finish=Finish.STOP)]

    program = tmp_path / "example.py"
    program.write_text(example(), encoding="utf-8")
    with StubFrontend(f"ipc://{tmp_path / 'frontend'}", answer) as server:
        done = subprocess.run(
            [sys.executable, str(program), server.address, "one two three"], capture_output=True, text=True, timeout=20
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "one two three !\n", "")
