"""Lines of OpenAI's batch files: what is asked, and what is answered."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

URLS = ("/v1/completions", "/v1/chat/completions")
"""What a line may ask."""

ID_PREFIX = "batch_req_"

FIRST_BYTES = f'{{"id":"{ID_PREFIX}'.encode()
"""What each line of ours begins with: how one that was torn is told from somebody else's file."""

Key = str | int
"""What tells the lines of an input apart: the custom_id, or the number of a line in which none can be read."""


class BatchFileError(Exception):
    """A file can't be used as it is; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Question:
    """One line of the input: `body`, JSON, is for the endpoint at `url`; with a `problem` it asks nothing."""

    line: int
    custom_id: str | None
    url: str = ""
    body: bytes = b""
    problem: str = ""

    @property
    def key(self) -> Key:
        """What its answer is known by."""
        return self.line if self.custom_id is None else self.custom_id


def question_of(number: int, line: bytes) -> Question:
    """Return what a line asks; what is wrong with it is told in its `problem`."""
    try:
        fields = json.loads(line)
    except RecursionError:
        return Question(number, None, problem="the line nests too deep")
    except ValueError as error:  # no UTF-8, no JSON, or an integer of thousands of digits
        return Question(number, None, problem=f"the line is not JSON: {error}")
    if not isinstance(fields, dict):
        return Question(number, None, problem="the line must be a JSON object")
    custom_id = fields.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id or not _is_unicode(custom_id):
        return Question(number, None, problem="custom_id must be a text, and not empty")
    body = fields.get("body")
    if fields.get("method") != "POST":
        problem = 'method must be "POST"'
    elif fields.get("url") not in URLS:
        problem = f"url must be {' or '.join(URLS)}"
    elif not isinstance(body, dict):
        problem = "body must be an object"
    elif body.get("stream"):
        problem = "body: stream must be false in a batch"
    else:
        return Question(number, custom_id, fields["url"], json.dumps(body).encode())
    return Question(number, custom_id, problem=problem)


def answer_line(question: Question, number: str, response: dict[str, Any] | None, error: str, code: str) -> bytes:
    """Return the line, with its end, that answers a question by `response` or, without one, by `error`.

    `number` is new for each.
    """
    wrong = None if response is not None else {"code": code, "message": error, "param": None, "line": question.line}
    answer = {"id": ID_PREFIX + number, "custom_id": question.custom_id, "response": response, "error": wrong}
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n"


def outcome_of(line: bytes) -> tuple[Key, bool]:
    """Return whose answer a line is, and whether it has status 200. Raises `ValueError` if it is no answer at all."""
    try:
        answer = json.loads(line)
    except RecursionError:
        raise ValueError("it nests too deep") from None
    if not isinstance(answer, dict) or not {"custom_id", "response", "error"} <= answer.keys():
        raise ValueError("it is no answer")
    key, response, error = answer["custom_id"], answer["response"], answer["error"]
    if key is None and isinstance(error, dict):
        key = error.get("line")
    if not isinstance(key, str | int):
        raise ValueError("nobody knows whose answer it is")
    return key, isinstance(response, dict) and response.get("status_code") == 200


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can carry a text: half of a surrogate pair it can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
