"""The two files of a batch: one that is read, and one that grows by a line for each answer."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections.abc import Container, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from client.batch_lines import FIRST_BYTES, BatchFileError, Key, Question, outcome_of, question_of

MOST_TWINS = 5
"""Repeated names that are told of."""


class BatchInput:
    """Every line that asks something, in order. They are read anew each time, so that a large file takes no memory."""

    def __init__(self, path: Path) -> None:
        """Read the file once; raises `BatchFileError` if it can't be read, or a custom_id is on several lines."""
        self._path = path
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # it is read twice, and has to have an end
                raise BatchFileError(f"{path} is no regular file")
            where: dict[Key, list[int]] = {}
            for question in self:
                where.setdefault(question.key, []).append(question.line)
        except OSError as error:
            raise BatchFileError(f"{path}: {error.strerror or error}") from None
        twins = [f'"{key}" on lines {", ".join(map(str, lines))}' for key, lines in where.items() if len(lines) > 1]
        if twins:
            more = f"; and {len(twins) - MOST_TWINS} more" if len(twins) > MOST_TWINS else ""
            raise BatchFileError(f"{path}: each custom_id may be there once: {'; '.join(twins[:MOST_TWINS])}{more}")
        if not where:
            raise BatchFileError(f"{path} asks nothing")
        self.keys = where.keys()

    def __iter__(self) -> Iterator[Question]:
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
                if line.strip():
                    yield question_of(number, line)


class BatchOutput:
    """Answers that were written before, and those that come now, a line at a time: `outcomes` has which are good.

    What a run that was killed has left is kept, and half a line at the end taken off; nobody else writes meanwhile.
    """

    def __init__(self, path: Path, asked: Container[Key]) -> None:
        """Open or make the file; raises `BatchFileError` if it can't be, or holds anything but answers to `asked`."""
        self._path = path
        self._asked = asked
        self._lock = threading.Lock()
        self.outcomes: dict[Key, bool] = {}
        self.bad = 0  # of them
        try:
            if path.exists() and not path.is_file():  # it is read first, and has to have an end
                raise BatchFileError(f"{path} is no regular file")
            with ExitStack() as undo:
                self._file = undo.enter_context(path.open("ab+", buffering=0))
                self._take_over(self._file)
                undo.pop_all()
        except OSError as error:
            raise BatchFileError(f"{path}: {error.strerror or error}") from None

    def write(self, line: bytes, key: Key, *, good: bool) -> None:
        """Append an answer; once this returns, no end of this process can lose it.

        Raises `OSError`, and leaves nothing of it then.
        """
        with self._lock:
            file, rest = self._file.fileno(), memoryview(line)
            try:
                while rest:
                    rest = rest[os.write(file, rest) :]
            except OSError:
                with suppress(OSError):  # other threads may still find room: no line goes on behind half of this one
                    os.ftruncate(file, os.fstat(file).st_size - (len(line) - len(rest)))
                raise
            self._count(key, good=good)

    def close(self) -> None:
        """Let go of the file; what is written later raises `ValueError`."""
        with self._lock:
            self._file.close()

    def _count(self, key: Key, *, good: bool) -> None:
        self.outcomes[key] = good
        self.bad += not good

    def _take_over(self, file: BinaryIO) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BatchFileError(f"{self._path}: another run writes to it") from None
        file.seek(0)
        end = 0
        with open(file.fileno(), "rb", closefd=False) as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n") and _is_torn(line):
                    file.truncate(end)
                    return
                self._note(number, line)
                end += len(line)
        if end and not line.endswith(b"\n"):  # all that it lacks is its end
            os.write(file.fileno(), b"\n")

    def _note(self, number: int, line: bytes) -> None:
        """Count a line that was there before."""
        if not line.strip():
            return
        try:
            key, good = outcome_of(line)
        except ValueError:
            what = "is no answer of a batch"
        else:
            if key in self._asked:
                self._count(key, good=good)
                return
            what = f"answers {key!r}, which nobody asks"
        raise BatchFileError(f"{self._path}: line {number} {what}; name a new file for the answers")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _is_torn(line: bytes) -> bool:
    """Whether it is the beginning of a line of ours, and not all of it."""
    with suppress(ValueError):
        outcome_of(line)
        return False
    return line.startswith(FIRST_BYTES) or FIRST_BYTES.startswith(line)
