"""Numbers as people read them, and tables of them as Markdown that is aligned in a terminal, too."""

from __future__ import annotations

import re
from collections.abc import Sequence

UNKNOWN = "–"

_SIZES = ((1e9, "GB"), (1e6, "MB"), (1e3, "KB"))
_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


MOST_OF_A_NAME = 100


def plain(text: str) -> str:
    """Return a foreign text as one that may stand in any line, table or page: short, and all of it can be seen."""
    shown = text if len(text) <= MOST_OF_A_NAME else f"{text[: MOST_OF_A_NAME - 1]}…"
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in shown)


def duration(ns: float | None) -> str:
    """Return nanoseconds in the unit that suits them: "81.2 µs"."""
    if ns is None:
        return UNKNOWN
    if ns == 0:
        return "0"
    size, unit = next(((size, unit) for size, unit in _UNITS if ns >= size * 0.9995), _UNITS[-1])
    return f"{_three_digits(ns / size)} {unit}"


def percent(share: float | None) -> str:
    """Return a share as "97.3 %". What is nearly all or nothing gets another digit; only what is exact is round."""
    if share is None:
        return UNKNOWN
    if share in (0, 1):
        return f"{share:.0%}".replace("%", " %")
    if 0.01 <= share <= 0.99:
        return f"{share * 100:.1f} %"
    if 0.0001 <= share <= 0.9999:
        return f"{share * 100:.2f} %"
    return "< 0.01 %" if share < 0.5 else "> 99.99 %"


def number(value: float | None) -> str:
    """Return a count, or a rate with three digits."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else _three_digits(value)


def size(count: int) -> str:
    """Return bytes in the unit that suits them, which is a thousand of the one before: "45.1 KB"."""
    if count < 1000:
        return f"{count} B"
    unit, name = next(((unit, name) for unit, name in _SIZES if count >= unit * 0.9995), _SIZES[-1])
    return f"{_three_digits(count / unit)} {name}"


def natural(name: str) -> list[tuple[int, str]]:
    """Return what puts names in order as people count: "worker 2" before "worker 10"."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def times(ratio: float | None) -> str:
    """Return a ratio as "1.28×"; what is nearly 1 or 0 gets more digits."""
    if ratio is None:
        return UNKNOWN
    digits = 4 if ratio < 0.1 or (0.99 < ratio < 1.01 and ratio != 1) else 2
    return f"{ratio:,.{digits}f}×" if ratio else "0"


def points(difference: float | None) -> str:
    """Return the difference of two shares in percentage points: "−23.4 pp"."""
    if difference is None:
        return UNKNOWN
    if difference == 0:
        return "0"
    return f"{difference * 100:+.{1 if abs(difference) >= 0.01 else 2}f} pp".replace("-", "−")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return a Markdown table; its first `left` columns are aligned to the left, the others to the right."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(head))]
    lines = [
        " | ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    rule = " | ".join("-" * width if column < left else "-" * (width - 1) + ":" for column, width in enumerate(widths))
    return "\n".join(f"| {line} |" for line in (lines[0], rule, *lines[1:]))


def _three_digits(value: float) -> str:
    """Return the value rounded to three digits, but to no more than a whole number."""
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{digits}f}"
