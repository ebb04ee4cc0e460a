"""Text in a picture: its sizes and colours, and how much room it takes."""

from __future__ import annotations

from functools import cache

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

FONT = "DejaVu Sans"  # comes with matplotlib

# Points.
TITLE = 11.5
TEXT = 9.0
TEXT_IN_SPAN = 7.6

INK = "#1c242c"
GREY = "#5b6670"


@cache
def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Return the width of a line of text in points."""
    font = FontProperties(family=FONT, size=size, weight=weight)
    width, _, _ = TextToPath().get_text_width_height_descent(text, font, ismath=False)
    return float(width)


def shortened(text: str, room: float, size: float) -> str:
    """Return as much of a bold line of text as there is room for, with … in its middle if that is not all."""
    kept = len(text)
    short = text
    while kept and text_width(short, size, "bold") > room:
        kept -= 1
        short = f"{text[: (kept + 1) // 2]}…{text[len(text) - kept // 2 :]}"
    return short
