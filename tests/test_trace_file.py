"""A trace file is a valid file at every moment, whatever happens to the disk or to who writes it."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from timeline import trace_file
from timeline.trace_file import TraceFile

ENDINGS = (".json", ".json.gz")


def events_in(path: Path) -> list[int]:
    """Return the numbers of the events in a file, which must be valid as it stands."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    content = json.loads(data)
    assert content["otherData"] == {"about": 1}
    return [event["n"] for event in content["traceEvents"]]


def new_file(path: Path, most_bytes: int = 2**30) -> TraceFile:
    return TraceFile(path, b'{"about":1}', most_bytes)


def event(number: int, padding: int = 0) -> str:
    return json.dumps({"n": number, "text": os.urandom(padding).hex()})


@pytest.mark.parametrize("ending", ENDINGS)
def test_it_is_valid_after_every_write(tmp_path: Path, ending: str) -> None:
    file = new_file(path := tmp_path / f"trace{ending}")
    assert events_in(path) == []
    for number in range(0, 30, 3):
        file.append([event(number + i, 100) for i in range(3)])
        assert events_in(path) == list(range(number + 3))
    file.append([])
    file.close()
    assert events_in(path) == list(range(30))


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_older_file_is_replaced(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"trace{ending}"
    path.write_bytes(b"x" * 10_000)
    new_file(path).close()
    assert events_in(path) == []


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("written", [0, 1, 50])
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, ending: str, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = new_file(path := tmp_path / f"trace{ending}")
    file.append([event(0), event(1)])
    size = path.stat().st_size
    real = os.pwrite

    def full(descriptor: int, data: bytes, at: int) -> int:
        """Write up to some bytes beyond the old end of the file."""
        room = size + written - at
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:room], at)

    monkeypatch.setattr(os, "pwrite", full)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            file.append([event(2, 1000)])
        assert events_in(path) == [0, 1]
    monkeypatch.undo()
    file.append([event(3)])  # somebody has made room
    assert events_in(path) == [0, 1, 3]
    file.close()


@pytest.mark.parametrize("ending", ENDINGS)
def test_its_size_is_known_and_bounded(tmp_path: Path, ending: str) -> None:
    file = new_file(path := tmp_path / f"trace{ending}", most_bytes=3000)
    appended = 0
    while not file.full:
        file.append([event(appended, 200)])
        appended += 1
    file.close()
    assert 3000 <= file.size <= path.stat().st_size < 3000 + 600
    assert events_in(path) == list(range(appended))


def test_what_cannot_be_made_leaves_no_descriptor_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(trace_file, "_write_all", broken)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="broken"):
        new_file(tmp_path / "trace.json")
    assert os.listdir("/proc/self/fd") == before


def test_a_file_that_another_recording_writes_is_not_taken_from_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    file = new_file(path)
    file.append([event(1)])
    with pytest.raises(OSError, match="another recording is being written to it"):
        new_file(path)
    assert events_in(path) == [1]
    file.close()
    new_file(path).close()
    assert events_in(path) == []


def test_a_device_that_takes_nothing_says_why() -> None:
    with pytest.raises(OSError, match="No space left on device"):
        new_file(Path("/dev/full"))
