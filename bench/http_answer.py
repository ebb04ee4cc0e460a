"""An HTTP answer as its bytes come: status, then the body, then the events in it. No sockets, no clock."""

from __future__ import annotations

MOST_HEAD = 2**16
"""Bytes of an answer's status line and headers."""


class BadAnswerError(Exception):
    """What came is no HTTP/1.1 answer."""


class HttpAnswer:
    """Takes what a connection brings, in whatever pieces; `status` is 0 until it is known.

    A body is chunked, has a content-length, or goes on until the connection ends.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.status = 0
        self.complete = False
        self._unread = bytearray()
        self._left: int | None = None  # of the body, or of this chunk of it; None: until the end of the connection
        self._chunked = False

    def feed(self, data: bytes) -> bytes:
        """Return what of the body these bytes bring; raises `BadAnswerError`."""
        self._unread += data
        if not self.status and not self._read_head():
            return b""
        if self._chunked:
            return self._read_chunks()
        body = bytes(self._unread[: self._left])
        self._unread.clear()
        if self._left is not None:
            self._left -= len(body)
            self.complete = self._left == 0
        return body

    def end(self) -> None:
        """Note that the connection has ended, which may be the end of the answer."""
        self.complete = self.complete or (self.status > 0 and not self._chunked and self._left is None)

    def _read_head(self) -> bool:
        end = self._unread.find(b"\r\n\r\n")
        if end < 0:
            if len(self._unread) > MOST_HEAD:
                raise BadAnswerError(f"an answer's head has more than {MOST_HEAD} bytes")
            return False
        first, *lines = bytes(self._unread[:end]).split(b"\r\n")
        del self._unread[: end + 4]
        version, _, rest = first.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise BadAnswerError(f"what answers does not speak HTTP: {first[:80]!r}")
        headers = {name.strip().lower(): value.strip().lower() for name, _, value in (x.partition(b":") for x in lines)}
        self.status = int(rest[:3])
        self._chunked = headers.get(b"transfer-encoding", b"") == b"chunked"
        if self._chunked:
            self._left = 0
        elif length := headers.get(b"content-length", b""):
            self._left = _number(length, 10)
            self.complete = self._left == 0
        return True

    def _read_chunks(self) -> bytes:
        """Take chunks off: each is its length in hexadecimal, a line's end, so many bytes, and a line's end."""
        body = bytearray()
        while not self.complete:
            assert self._left is not None
            if self._left > 2:
                piece = self._unread[: self._left - 2]
                del self._unread[: len(piece)]
                body += piece
                self._left -= len(piece)
            if len(self._unread) < self._left:  # of the chunk, or the line's end behind it
                break
            end = self._unread.find(b"\r\n", self._left)
            if end < 0:
                if len(self._unread) > MOST_HEAD:
                    raise BadAnswerError("a chunk's length takes no end")
                break
            size = _number(bytes(self._unread[self._left : end]).partition(b";")[0].strip(), 16)
            del self._unread[: end + 2]
            self._left = size + 2
            self.complete = size == 0
        return bytes(body)


def _number(digits: bytes, base: int) -> int:
    try:
        number = int(digits, base)
    except ValueError:
        number = -1
    if number < 0:
        raise BadAnswerError(f"a length that is none: {digits[:40]!r}")
    return number


class EventStream:
    """Takes the body of an event stream, in whatever pieces."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._unread = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of the events that are whole now. Comments, and events without data, are none."""
        *events, self._unread = (self._unread + data).replace(b"\r\n", b"\n").split(b"\n\n")
        found = []
        for event in events:
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                found.append(b"\n".join(lines))
        return found
