"""The tables of messages as docs/protocol.md has them, made from the messages' declarations.

`python -m tests.message_tables` prints them, for pasting after a change.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from math import inf
from typing import get_args, get_type_hints

from protocol.fields import Column, Document, Flag, Integer, Kind, Many, Maybe, Real, Text
from protocol.messages import Message

_POWERS = (
    {2**n - 1: f"2^{n}-1" for n in (31, 63, 64)}
    | {2**n: f"2^{n}" for n in (12, 14, 16, 24)}
    | {-(2**31): "-2^31", -(2**63): "-2^63"}
)


def messages() -> tuple[type, ...]:
    """Return the types of all messages, in the order of their file."""
    return get_args(Message)


def table(message: type) -> str:
    """Return the Markdown table of one message's fields."""
    optional = {field.name for field in fields(message) if field.default is not MISSING}
    hints = get_type_hints(message, include_extras=True)
    if not hints:
        return "No fields.\n"
    lines = ["| field | what may stand in it |", "| --- | --- |"]
    for name, hint in hints.items():
        absent = " (may be absent)" if name in optional else ""
        lines.append(f"| `{name}` | {_words(hint.__metadata__[0])}{absent} |")
    return "\n".join(lines) + "\n"


def _words(kind: Kind) -> str:
    match kind:
        case Integer():
            return f"integer, {_number(kind.low)} … {_number(kind.high)}"
        case Real():
            return f"number, {_number(kind.low)} … {_number(kind.high)}"
        case Flag():
            return "true or false"
        case Text():
            return f"text, at most {_number(kind.longest)} characters"
        case Many():
            return f"list of at most {_number(kind.most)}: {_words(kind.item)}"
        case Maybe():
            return f"nil, or {_words(kind.kind)}"
        case Document():
            return "map with text keys"
        case Column():
            column = f"column {kind.dtype.strip('<')}"
            low = "" if kind.low is None else f", at least {_number(kind.low)}"
            high = "" if kind.high is None else f", at most {_number(kind.high)}"
            return column + low + high
    raise AssertionError(kind)


def _number(value: float) -> str:
    if value in (inf, -inf):
        return "any"
    return _POWERS.get(int(value), f"{value:g}")


if __name__ == "__main__":
    for each in messages():
        print(f"### {each.__name__}\n\n{table(each)}")
