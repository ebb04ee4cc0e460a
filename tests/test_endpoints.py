"""Addresses: loopback only, nothing of anybody else's is touched, and what a killed owner left is cleared away."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from protocol import endpoints
from protocol.endpoints import LONGEST_SOCKET_PATH, PrivateDirectory, check_free, clear_away, for_zmq, parse
from protocol.errors import ProtocolError
from protocol.sockets import bind_router, connect_dealer


@pytest.fixture
def tmp_path(short_path: Path) -> Path:
    """All folders here are for sockets: where pytest's has no room for them, another one would be taken."""
    return short_path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ---------------------------------------------------------------- which addresses there are


@pytest.mark.parametrize(
    ("address", "where", "zmq_address"),
    [
        ("tcp://127.0.0.1:1", ("127.0.0.1", 1), "tcp://127.0.0.1:1"),
        ("tcp://127.1.2.3:65535", ("127.1.2.3", 65535), "tcp://127.1.2.3:65535"),
        ("tcp://localhost:80", ("127.0.0.1", 80), "tcp://127.0.0.1:80"),
        ("tcp://[::1]:80", ("::1", 80), "tcp://[::1]:80"),
        ("ipc:///run/x y/ä", Path("/run/x y/ä"), "ipc:///run/x y/ä"),
        ("ipc://here", Path("here"), "ipc://here"),
    ],
)
def test_loopback_and_paths_are_addresses(address: str, where: object, zmq_address: str) -> None:
    assert parse(address) == where
    assert for_zmq(address) == zmq_address


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "*", "192.168.1.1", "8.8.8.8", "[::]", "::1", "[127.0.0.1]", "example.org", "lo", "", "127.1"]
)
def test_other_hosts_are_refused(host: str) -> None:
    with pytest.raises(ProtocolError, match="only loopback"):
        parse(f"tcp://{host}:5555")


@pytest.mark.parametrize(
    "address",
    [
        *("", "tcp", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://127.0.0.1:0", "tcp://127.0.0.1:65536"),
        *("tcp://127.0.0.1:-1", "tcp://127.0.0.1:*", "tcp://127.0.0.1:٣", "tcp://127.0.0.1:" + "9" * 5000),
        *("http://127.0.0.1:80", "inproc://x", "pgm://127.0.0.1:5", "ipc://", "ipc://@abstract", "ipc:///a\0b", "/a/b"),
    ],
    ids=lambda address: ascii(address)[:40],
)
def test_anything_else_is_no_address(address: str) -> None:
    with pytest.raises(ProtocolError, match="is no address"):
        parse(address)


def test_a_path_too_long_for_a_socket_is_refused_with_its_length() -> None:
    fits = "/" + "x" * (LONGEST_SOCKET_PATH - 1)
    assert parse(f"ipc://{fits}") == Path(fits)
    with pytest.raises(ProtocolError, match=f"{LONGEST_SOCKET_PATH} bytes, this one has {LONGEST_SOCKET_PATH + 1}"):
        parse(f"ipc://{fits}x")


def test_the_length_of_a_path_is_counted_in_bytes() -> None:
    with pytest.raises(ProtocolError, match="this one has 121"):
        parse("ipc:///" + "ä" * 60)


def test_a_path_that_is_no_utf_8_is_refused() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        parse("ipc:///tmp/" + os.fsdecode(b"\xff"))


def test_the_longest_path_can_be_served(tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with PrivateDirectoryIn(Path("/tmp")) as directory:
        room = LONGEST_SOCKET_PATH - len(os.fsencode(directory.path)) - 1
        address = directory.address("ä " + "x" * (room - 3))
        bind_router(context, address).close()


# ---------------------------------------------------------------- is it free?


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """A context whose end hangs, so that the test fails, when a socket was left open."""
    with zmq.Context() as context:
        yield context


class PrivateDirectoryIn:
    """A private directory that a test gives back."""

    def __init__(self, base: Path) -> None:
        self.base = base

    def __enter__(self) -> PrivateDirectory:
        self.directory = PrivateDirectory(self.base)
        return self.directory

    def __exit__(self, *_: object) -> None:
        self.directory.remove()


def leave_stale_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()


def test_a_dead_servers_socket_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    leave_stale_socket(path)
    check_free(f"ipc://{path}")
    assert not path.exists()


def test_a_live_servers_socket_is_left_alone(tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    address = f"ipc://{tmp_path / 's'}"
    with bind_router(context, address) as server, connect_dealer(context, address) as client:
        with pytest.raises(ProtocolError, match="in use"):
            bind_router(context, address)
        client.send(b"still there?")
        assert server.poll(2000)


def test_what_a_server_leaves_is_its_own_socket_and_nothing_else(
    tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    own, others, plain = (tmp_path / name for name in ("own", "others", "plain"))
    leave_stale_socket(own)
    plain.write_text("text")
    with bind_router(context, f"ipc://{others}"):
        for path in (own, others, plain, tmp_path / "nothing", tmp_path / "no" / "folder"):
            clear_away(f"ipc://{path}")
        assert [path.exists() for path in (own, others, plain)] == [False, True, True]
    clear_away("nonsense")


def test_a_server_too_busy_to_take_another_caller_is_live(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as stuck, socket.socket(socket.AF_UNIX) as caller:
        stuck.bind(str(path))
        stuck.listen(0)
        caller.connect(str(path))
        outcome: list[str] = []
        probe = threading.Thread(target=lambda: outcome.append(why_not(f"ipc://{path}")), daemon=True)
        probe.start()
        probe.join(timeout=2)
        assert len(outcome) == 1
        assert "in use" in outcome[0]
        assert path.exists()


def why_not(address: str) -> str:
    with pytest.raises(ProtocolError) as error:
        check_free(address)
    return str(error.value)


def test_a_plain_file_is_left_alone(tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    path = tmp_path / "precious"
    path.write_text("text")
    with pytest.raises(ProtocolError, match="no socket"):
        bind_router(context, f"ipc://{path}")
    assert path.read_text() == "text"


def test_a_link_to_a_socket_is_left_alone(tmp_path: Path) -> None:
    leave_stale_socket(tmp_path / "s")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "s")
    assert "no socket" in why_not(f"ipc://{link}")
    assert link.is_symlink()


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert f"there is no directory {tmp_path / 'no'}" in why_not(f"ipc://{tmp_path / 'no' / 's'}")


def test_a_busy_port_is_refused(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        assert "the port is in use" in why_not(address)
        with pytest.raises(ProtocolError, match="the port is in use"):
            bind_router(context, address)


def test_a_port_is_free_again_right_after_its_server_ended() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    for _ in range(2):
        with (
            zmq.Context[zmq.Socket[bytes]]() as context,
            connect_dealer(context, address) as client,
            bind_router(context, address) as server,  # closed first: its connections stay in TIME_WAIT
        ):
            client.send(b"hello")
            assert server.poll(2000)


def test_localhost_can_be_served(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    address = f"tcp://localhost:{free_port()}"
    with bind_router(context, address) as server, connect_dealer(context, address) as client:
        client.send(b"hello")
        assert server.poll(2000)


def test_an_address_that_is_refused_leaves_no_socket_open(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    for make in (bind_router, connect_dealer):
        with pytest.raises(ProtocolError):
            make(context, "tcp://0.0.0.0:5555")
    context.term()  # hangs while a socket is open


# ---------------------------------------------------------------- the private directory


def test_only_its_owner_may_enter(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with PrivateDirectoryIn(tmp_path) as directory:
            assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
            assert directory.path.parent == tmp_path
    finally:
        os.umask(before)


def test_it_is_gone_when_given_back(tmp_path: Path) -> None:
    with PrivateDirectoryIn(tmp_path) as directory:
        leave_stale_socket(directory.path / "s")
    assert list(tmp_path.iterdir()) == []


def test_a_base_that_is_missing_is_made(tmp_path: Path) -> None:
    with PrivateDirectoryIn(tmp_path / "a" / "b") as directory:
        assert directory.path.is_dir()


def test_two_at_once_get_different_directories(tmp_path: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with PrivateDirectoryIn(tmp_path) as first, PrivateDirectoryIn(tmp_path) as second:
        assert first.path != second.path
        assert first.path.is_dir()  # the second one's sweep has spared it
        with (
            bind_router(context, first.address("s")) as here,
            bind_router(context, second.address("s")) as there,
            connect_dealer(context, first.address("s")) as client,
        ):
            client.send(b"for the first")
            assert here.poll(2000)
            assert not there.poll(50)


def test_many_that_start_together_spare_each_other(tmp_path: Path) -> None:
    made: list[PrivateDirectory] = []
    gate = threading.Barrier(8)

    def start() -> None:
        gate.wait()
        made.extend(PrivateDirectory(tmp_path) for _ in range(20))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 160
    assert all((directory.path / "lock").is_file() for directory in made)
    for directory in made:
        directory.remove()


@pytest.mark.parametrize("name", ["x" * 150, "ä" * 60, "with space " * 12, os.fsdecode(b"\xff\xfe")], ids=ascii)
def test_a_base_that_leaves_no_room_for_sockets_is_replaced(
    tmp_path: Path, name: str, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    with PrivateDirectoryIn(tmp_path / name) as directory:
        assert directory.path.parent == Path("/tmp")
        bind_router(context, directory.address("a-name-of-24-characters-")).close()


@pytest.mark.parametrize("name", ["ä b", "x"])
def test_a_base_with_room_is_kept(name: str, context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with PrivateDirectoryIn(Path("/tmp")) as outer, PrivateDirectoryIn(outer.path / name) as directory:
        assert directory.path.parent == outer.path / name
        bind_router(context, directory.address("a-name-of-24-characters-")).close()


def test_the_fullest_base_that_is_kept_still_has_room(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with PrivateDirectoryIn(Path("/tmp")) as outer:
        base = outer.path
        while endpoints._has_room(base / "x"):
            base = base / "x" if len(str(base)) % 2 else base.with_name(base.name + "x")
        with PrivateDirectoryIn(base) as directory:
            assert directory.path.parent == base
            bind_router(context, directory.address("a-name-of-24-characters-")).close()


def test_a_base_that_can_not_be_made_is_one_clear_error() -> None:
    with PrivateDirectoryIn(Path("/tmp")) as outer:
        (outer.path / "file").write_text("")
        with pytest.raises(ProtocolError, match="no directory for sockets can be made"):
            PrivateDirectory(outer.path / "file" / "below")


OWNER = """
import sys, pathlib
from protocol.endpoints import PrivateDirectory
print(PrivateDirectory(pathlib.Path(sys.argv[1])).path, flush=True)
sys.stdin.read()
"""


def start_owner(base: Path) -> tuple[subprocess.Popen[str], Path]:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(base)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    return owner, Path(owner.stdout.readline().strip())


@pytest.mark.processes
def test_a_killed_owners_directory_is_swept_and_a_live_owners_is_not(tmp_path: Path) -> None:
    dead, dead_path = start_owner(tmp_path)
    live, live_path = start_owner(tmp_path)
    with dead, live:
        dead.kill()
        dead.wait()
        assert dead_path.is_dir()
        with PrivateDirectoryIn(tmp_path):
            assert not dead_path.exists()
            assert live_path.is_dir()
        live.kill()


def test_what_is_not_ours_is_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = [tmp_path / "stepahead-without-lock", tmp_path / "other", tmp_path / "elsewhere"]
    for directory in keep:
        directory.mkdir()
    for directory in keep[1:]:
        (directory / "lock").touch()
    (tmp_path / "stepahead-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "stepahead-file").touch()
    with PrivateDirectoryIn(tmp_path):
        pass
    assert all((directory / "lock").exists() for directory in keep[1:])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["stepahead-without-lock", "other", "elsewhere", "stepahead-link", "stepahead-file"]
    )

    abandoned = tmp_path / "stepahead-abandoned"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)  # so that it belongs to another user
    with PrivateDirectoryIn(tmp_path):
        assert abandoned.is_dir()
    monkeypatch.undo()
    with PrivateDirectoryIn(tmp_path):
        assert not abandoned.exists()
