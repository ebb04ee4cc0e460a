"""A batch under way: threads that each ask one question after the other, and what becomes of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from http.client import HTTPConnection
from typing import Any
from uuid import uuid4

from client.batch_files import BatchInput, BatchOutput
from client.batch_lines import Question, answer_line
from client.batch_server import BatchServer, LateError, NoServerError, Reply

LATER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
"""The same question may be answered another time."""

NOT_FOR_US = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""It is not the question that is wrong."""

PAUSE_SECONDS = 1.0
"""Between two tries of one question, unless the server says how long."""

LEAST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 60.0
"""Whatever the server says."""

GREETING_SECONDS = 10.0
"""How long a server may take to say which model it has."""


class BatchStoppedError(Exception):
    """The run can't go on; the text says why. What was answered stays."""


class BatchRun:
    """Asks what has no answer yet, so many questions at a time, and writes each answer as it comes.

    A server that is busy or gone is asked again, as long as it does not stay so for `patience` seconds.
    """

    def __init__(self, questions: BatchInput, output: BatchOutput, server: BatchServer, patience: float) -> None:
        """Be ready."""
        self._output = output
        self._server = server
        self._patience = patience
        self._left = self._unanswered(questions)
        self._turn = threading.Lock()  # of who takes the next question
        self._stop = threading.Event()
        self._answered_at = time.monotonic()
        self._broken: BaseException | None = None
        self.tokens = 0

    def greet(self) -> None:
        """Make sure that a server is there and lets us ask; raises `BatchStoppedError`."""
        connection, server = self._server.connection(), replace(self._server, timeout=GREETING_SECONDS)
        try:
            reply = server.ask(connection, "GET", "/v1/models", None, _new_id())
        except (NoServerError, LateError) as error:
            raise BatchStoppedError(f"{error} (--url URL asks another)") from None
        finally:
            connection.close()
        if reply.status not in (HTTPStatus.OK, *LATER):
            raise BatchStoppedError(f"{self._server.url} does not answer as a server of OpenAI's API: {reply.message}")

    def start(self, at_once: int) -> list[threading.Thread]:
        """Begin; the threads that are returned end when all is asked, or nothing can be any more."""
        threads = [threading.Thread(target=self._ask_all, name=f"batch {i}", daemon=True) for i in range(at_once)]
        for thread in threads:
            thread.start()
        return threads

    def stop(self) -> None:
        """Take no more questions; what is under way is left to itself."""
        self._stop.set()

    def check(self) -> None:
        """Raise what has ended the run early: `BatchStoppedError`, or `OSError` if an answer can't be written."""
        if self._broken is not None:
            raise self._broken

    def _unanswered(self, questions: BatchInput) -> Iterator[Question]:
        return (question for question in questions if question.key not in self._output.outcomes)

    def _next(self) -> Question | None:
        with self._turn:
            return None if self._stop.is_set() else next(self._left, None)

    def _ask_all(self) -> None:
        connection = self._server.connection()
        try:
            while (question := self._next()) is not None:
                self._see_to(question, connection)
        except BaseException as error:
            self._end(error)
        finally:
            connection.close()

    def _see_to(self, question: Question, connection: HTTPConnection) -> None:
        if question.problem:
            self._write(question, None, question.problem, "invalid_line")
            return
        request_id = _new_id()
        try:
            reply = self._insist(question, connection, request_id)
        except LateError as error:
            self._write(question, None, str(error), "timeout")
        else:
            response = {"status_code": reply.status, "request_id": reply.request_id or request_id, "body": reply.body}
            self._write(question, response)
            usage = reply.body.get("usage") if isinstance(reply.body, dict) else None
            tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
            with self._turn:
                self.tokens += tokens if isinstance(tokens, int) else 0

    def _insist(self, question: Question, connection: HTTPConnection, request_id: str) -> Reply:
        """Return what the server answers once it is there and has room. Raises `BatchStoppedError`, or `LateError`."""
        began = time.monotonic()
        while True:
            pause = None
            try:
                reply = self._server.ask(connection, "POST", question.url, question.body, request_id)
            except NoServerError as error:
                why = str(error)
            else:
                if reply.status in NOT_FOR_US:
                    raise BatchStoppedError(f"{self._server.url} lets us ask nothing: {reply.message}")
                if reply.status not in LATER:
                    return reply
                why, pause = reply.message, reply.retry_after
            if time.monotonic() - max(began, self._answered_at) > self._patience:
                raise BatchStoppedError(f"nothing was answered for {self._patience:g} s: {why}")
            pause = PAUSE_SECONDS if pause is None else min(max(pause, LEAST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
            if self._stop.wait(pause):
                raise BatchStoppedError("the run was stopped")

    def _write(self, question: Question, response: dict[str, Any] | None, error: str = "", code: str = "") -> None:
        good = response is not None and response["status_code"] == HTTPStatus.OK
        self._output.write(answer_line(question, uuid4().hex, response, error, code), question.key, good=good)
        self._answered_at = time.monotonic()

    def _end(self, why: BaseException) -> None:
        """Let all threads end; the first reason is the reason."""
        with self._turn:
            self._broken = self._broken or why
        self._stop.set()


def _new_id() -> str:
    return f"req_{uuid4().hex}"
