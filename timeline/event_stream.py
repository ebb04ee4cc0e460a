"""The events of a file in Chrome's trace format, one at a time, however the JSON is laid out and wherever it ends."""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Any

from timeline.errors import TraceError

Event = dict[str, Any]

PIECE = 2**20
"""Bytes that are read at once; also, no event and no member of the head is longer."""

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP = 16 + zlib.MAX_WBITS
_GZIP_BYTES = 512
"""Compressed bytes that are read at once: as many are lost before damage, at most."""

_SPACE = re.compile(r"[ \t\n\r]*")
_SEPARATOR = re.compile(r"[ \t\n\r,]*")


class _CutError(Exception):
    """What should stand here doesn't, or not all of it."""


class EventStream:
    """A file that is being read. While it is iterated, it holds one piece of the text and one event.

    Both forms of the format are read: {"otherData": …, "traceEvents": [event, …]} and [event, …]. `header` has the
    members beside "traceEvents" that were met so far. `complete` is whether the JSON had its end; what stands behind
    the first place where it is no JSON is not read.
    """

    def __init__(self, path: Path) -> None:
        """Open it. Raises `TraceError`."""
        self._path = path
        self.header: dict[str, Any] = {}
        self.complete = False
        self._text, self._at = "", 0
        self._more = True
        self._has_borders = True
        self._decode = json.JSONDecoder().raw_decode
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            self._file = path.open("rb")
        except (OSError, ValueError) as error:
            raise TraceError(f"{path}: {_reason(error)}") from error
        self._pieces: Iterator[bytes] = iter(())

    def __enter__(self) -> EventStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Event]:
        """Yield all events. Raises `TraceError` if this is no JSON in either form, or can't be read."""
        try:
            is_gzip = self._file.peek(2)[:2] == _GZIP_MAGIC
        except OSError as error:
            raise TraceError(f"{self._path}: {_reason(error)}") from error
        self._pieces = _unzipped(self._file) if is_gzip else iter(lambda: self._file.read(PIECE), b"")
        try:
            opening = self._character(_SPACE)
        except _CutError:
            raise TraceError(f"{self._path}: the file is empty") from None
        if opening not in ("{", "["):
            raise TraceError(f"{self._path}: this is no JSON, so no timeline")
        try:
            yield from self._events() if opening == "[" else self._object()
            self.complete = True
        except _CutError:
            pass

    def _object(self) -> Iterator[Event]:
        """Yield the events of what stands behind "{"."""
        while (found := self._character(_SEPARATOR)) != "}":
            self._at -= 1  # it belongs to the name
            name = self._value() if found == '"' else None
            if name is None or self._character(_SPACE) != ":":
                raise _CutError
            if name == "traceEvents":
                if self._character(_SPACE) != "[":
                    raise TraceError(f'{self._path}: "traceEvents" is no list')
                yield from self._events()
            else:
                self._skip(_SPACE)
                self.header[name] = self._value()

    def _events(self) -> Iterator[Event]:
        """Yield the events of what stands behind "["."""
        while self._character(_SEPARATOR) != "]":
            self._at -= 1  # it belongs to the event
            for event in self._piece() or (self._value(),):
                if not isinstance(event, dict):
                    raise TraceError(f"{self._path}: an event is no object: {event!r:.80}")
                yield event

    def _piece(self) -> list[Any]:
        """Return the events up to what looks like the last border between two in the text at hand, or nothing.

        It saves half of the time of one by one. If it is something else, the text up to it is no JSON, and this layout
        is not tried again.
        """
        if not self._has_borders:
            return []
        end = max(self._text.rfind("},\n", self._at), self._text.rfind("},{", self._at)) + 1
        try:
            events: list[Any] = json.loads(f"[{self._text[self._at : end]}]")
        except (ValueError, RecursionError):
            self._has_borders = False
            return []
        self._at = max(end, self._at)
        return events

    def _value(self) -> Any:
        """Return the value that begins here."""
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except (ValueError, RecursionError):
                if len(self._text) - self._at > PIECE or not self._read():
                    raise _CutError from None
            else:
                if end < len(self._text) or not self._read():  # a number might go on
                    self._at = end
                    return value

    def _character(self, before: re.Pattern[str]) -> str:
        """Return the first character that is not passed over by `before`, and pass it too."""
        self._skip(before)
        if self._at == len(self._text):
            raise _CutError
        self._at += 1
        return self._text[self._at - 1]

    def _skip(self, what: re.Pattern[str]) -> None:
        while True:
            match = what.match(self._text, self._at)
            assert match is not None, "it matches nothing, too"
            self._at = match.end()
            if self._at < len(self._text) or not self._read():
                return

    def _read(self) -> bool:
        """Read another piece; False if there was none."""
        while self._more:
            try:
                read = next(self._pieces, b"")
            except OSError as error:
                raise TraceError(f"{self._path}: {_reason(error)}") from error
            self._more = bool(read)
            text = self._characters.decode(read, final=not read)
            if text:
                self._text, self._at = self._text[self._at :] + text, 0
                return True
        return False


def _unzipped(file: BufferedReader) -> Iterator[bytes]:
    """Yield what a gzip file holds, in pieces; where it is cut or damaged, it ends."""
    state = zlib.decompressobj(wbits=_GZIP)
    piece = bytearray()
    try:
        while read := file.read(_GZIP_BYTES):
            piece += state.decompress(read)
            while state.unused_data:  # another member, as parallel compressors make them
                read, state = state.unused_data, zlib.decompressobj(wbits=_GZIP)
                piece += state.decompress(read)
            if len(piece) >= PIECE:
                yield bytes(piece)
                piece.clear()
    except zlib.error:
        pass
    if piece:
        yield bytes(piece)


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
