"""Addresses: which are allowed, whether one is free, and the private directory for those inside a host.

Messages stay on this host: TCP on loopback only, ipc:// sockets in a directory that only their owner may enter. HTTP
alone may be served to others, if its user names such an address.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path

from protocol.errors import ProtocolError

DEFAULT_ADDRESS = "tcp://127.0.0.1:8555"
"""Where text clients find the frontend unless somebody says otherwise."""

LONGEST_SOCKET_PATH = 107
"""Bytes that the kernel leaves for the path of a Unix socket, its closing zero not counted."""

BACKLOG = 2048
"""Connections that may wait to be accepted."""

_LONGEST_SOCKET_NAME = 24
_DIRECTORY_PREFIX = "stepahead-"


def parse(address: str) -> tuple[str, int] | Path:
    """Return (host, port) of a `tcp://` address or the path of an `ipc://` one.

    Raises `ProtocolError` for any other form, a host that is not a loopback address, a path too long for a socket.
    """
    scheme, _, rest = address.partition("://")
    if scheme == "ipc" and rest and rest[0] not in "@*" and "\0" not in rest:
        try:
            length = len(rest.encode())
        except UnicodeEncodeError:  # bytes of a file name that are no UTF-8: ZeroMQ takes text only
            raise ProtocolError(f"{address!a}: a socket's path must be UTF-8") from None
        if length > LONGEST_SOCKET_PATH:
            raise ProtocolError(
                f"{address}: a socket's path may have {LONGEST_SOCKET_PATH} bytes, this one has {length}: shorten it"
            )
        return Path(rest)
    if scheme == "tcp":
        host, colon, port = rest.rpartition(":")
        if colon and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 2**16:
            return _loopback(address, host), int(port)
    raise ProtocolError(f"{address!r} is no address: use tcp://127.0.0.1:PORT or ipc:///PATH")


def _loopback(address: str, host: str) -> str:
    if host == "localhost":  # ZeroMQ binds to numbers only, and what a name means is somebody else's to decide
        return "127.0.0.1"
    bracketed = host.startswith("[") and host.endswith("]")
    with contextlib.suppress(ValueError):
        number = ipaddress.ip_address(host[1:-1] if bracketed else host)
        if number.is_loopback and bracketed == (number.version == 6):
            return str(number)
    raise ProtocolError(f"{address}: only loopback addresses are allowed (127.0.0.1, [::1]), got {host!r}")


def for_zmq(address: str) -> str:
    """Return the address as ZeroMQ wants it, with a host in numbers; raises as `parse` does."""
    where = parse(address)
    if isinstance(where, Path):
        return address
    host, port = where
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def check_free(address: str) -> None:
    """Raise `ProtocolError` in one clear line unless a server may bind `address` now; remove a dead server's socket.

    ZeroMQ itself would delete whatever lies at an ipc path, a live server's socket or somebody's file included.
    """
    where = parse(address)
    if isinstance(where, Path):
        _check_path_free(address, where)
        return
    host, port = where
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            why = "is in use by another program" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
            raise ProtocolError(f"{address}: the port {why}") from None


def clear_away(address: str) -> None:
    """Remove the socket file of an address that this process has listened at, unless somebody else does by now."""
    with contextlib.suppress(ProtocolError):
        if isinstance(parse(address), Path):
            check_free(address)


def listen(host: str, port: int, *, shared: bool = False, joins: bool = False) -> socket.socket:
    """Return a TCP socket that listens there, for HTTP; connections wait in it until somebody accepts them.

    Only this one may listen to other hosts, if its user names such an address. Sockets that come later may share the
    port of one that is `shared`: they say that they join it. Raises `ProtocolError` in one line.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ProtocolError(f"{host!r} is no host name or address of this machine: {why}") from None
    family, _, _, _, where = min(found, key=lambda each: each[0] != socket.AF_INET)  # localhost is 127.0.0.1
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if joins:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(where)
        # Not before, so that a port which anybody has fails, be it another one of us.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, shared or joins)
        listener.listen(BACKLOG)  # a port that is only bound could be bound by others, too
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise ProtocolError(f"{host!r} is no address of this machine") from None
        why = "is in use by another program" if error.errno == errno.EADDRINUSE else f"can't be had: {error.strerror}"
        raise ProtocolError(f"http://{url_host(host)}:{port}: the port {why}") from None
    listener.setblocking(False)
    return listener


def url_host(host: str) -> str:
    """Return a host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host


def _check_path_free(address: str, path: Path) -> None:
    try:
        if not path.parent.is_dir():
            raise ProtocolError(f"{address}: there is no directory {path.parent}")
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ProtocolError(f"{address}: {error.strerror or error}") from None
    if not stat.S_ISSOCK(mode):
        raise ProtocolError(f"{address}: a file that is no socket lies there; it was left alone")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a server that has stopped answering may have no room for one more caller
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass
        except OSError as error:
            raise ProtocolError(f"{address}: {error.strerror or error}") from None
    raise ProtocolError(f"{address} is in use by another program")


class PrivateDirectory:
    """A directory of mode 0700 for the ipc sockets of one running system; its owner gives it back by `remove`.

    It holds a lock file for as long as its owner lives, so that the next start can tell directories which a killed
    owner left behind, and removes them. A base whose path leaves no room for socket names, or is no UTF-8, is replaced
    by /tmp.
    """

    def __init__(self, base: Path | str | None = None) -> None:
        """Make the directory below `base` (the system's temporary directory if None); sweep dead owners' there."""
        base = Path(tempfile.gettempdir() if base is None else base)
        if not _has_room(base):
            base = Path("/tmp")
        try:
            base.mkdir(parents=True, exist_ok=True)
            _sweep(base)
            self.path = Path(tempfile.mkdtemp(prefix=_DIRECTORY_PREFIX, dir=base))
            self._lock = _locked_file(self.path)
        except OSError as error:
            raise ProtocolError(f"{base}: {error.strerror or error}; no directory for sockets can be made") from None

    def address(self, name: str) -> str:
        """Return the ipc address of a socket called `name` in the directory."""
        return f"ipc://{self.path / name}"

    def remove(self) -> None:
        """Delete the directory with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _has_room(base: Path) -> bool:
    try:
        longest = len(str(base).encode()) + len(f"/{_DIRECTORY_PREFIX}12345678/") + _LONGEST_SOCKET_NAME
    except UnicodeEncodeError:
        return False
    return longest <= LONGEST_SOCKET_PATH


def _locked_file(directory: Path) -> int:
    """Return the descriptor of a lock file that was locked before anybody could see it under its name."""
    unnamed = directory / "new"
    descriptor = os.open(unnamed, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    unnamed.rename(directory / "lock")
    return descriptor


def _sweep(base: Path) -> None:
    for entry in os.scandir(base):
        if not entry.name.startswith(_DIRECTORY_PREFIX):
            continue
        with contextlib.suppress(OSError):  # its owner lives, or another start removed it at this moment
            if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            descriptor = os.open(Path(entry.path, "lock"), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path, ignore_errors=True)
            finally:
                os.close(descriptor)
