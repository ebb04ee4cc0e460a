"""How spans and moments look, in every picture the same: hue and lightness differ, for those who see little of one."""

from __future__ import annotations

from protocol.messages import SpanKind

OF_KIND = {
    SpanKind.RECEIVE: "#b9c3cf",
    SpanKind.SETTLE: "#e8912d",
    SpanKind.PLAN: "#2a63ab",
    SpanKind.SEND: "#7d8b9d",
    SpanKind.INTAKE: "#a4508a",
    SpanKind.DELIVER: "#e6c0d9",
    SpanKind.STAGE: "#56b0de",
    SpanKind.LAUNCH: "#5a3e97",
    SpanKind.REPLY: "#f0cb7c",
    SpanKind.TOKENIZE: "#86603f",
    SpanKind.DETOKENIZE: "#d4b592",
    SpanKind.FLUSH: "#d2d6bf",
    SpanKind.WAIT: "#dfe3e8",
    SpanKind.IDLE: "#eef0f2",
    SpanKind.COPY_IN: "#8fa3b5",
    SpanKind.FORWARD: "#37546d",
    SpanKind.SAMPLE: "#a5bfd4",
    SpanKind.COPY_OUT: "#6a7d90",
}

ODD_FORWARD = "#4c6d89"
"""Forward passes of odd steps, so that two of them back to back can be told apart."""

DEVICE_IDLE, DEVICE_ONLY, BOTH, NO_WORK = range(4)
"""What a moment of a device was. Where there was no work, nothing is drawn."""

OF_MOMENT = {BOTH: "#00552c", DEVICE_ONLY: "#a9dcb1", DEVICE_IDLE: "#e5533d"}
MOMENT_NAMES = {BOTH: "device and CPU busy", DEVICE_ONLY: "device busy", DEVICE_IDLE: "device idle"}


def ink_on(colour: str) -> str:
    """Return black or white, whichever is read better on `colour` (relative luminance as WCAG 2 has it)."""
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#ffffff" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#000000"
