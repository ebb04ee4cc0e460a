"""A timeline as one page for a browser: it has everything in it, and fetches nothing."""

from __future__ import annotations

import base64
import html
import json
import zlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.messages import SpanKind
from timeline.caption import SEPARATOR, caption
from timeline.colours import DEVICE_IDLE, MOMENT_NAMES, NO_WORK, ODD_FORWARD, OF_KIND, OF_MOMENT, ink_on
from timeline.rows import Row, rows
from timeline.strip import Strip
from timeline.trace import COMPUTE, HOST, NOT_WORK, Lane, Trace, name_of
from timeline.window import View, whole

SCRIPTS = ("trace.js", "view.js", "paint.js", "overview.js", "controls.js")
COUNTS = ("rows", "tokens", "decodes", "wasted")

_TYPES: Mapping[str, np.dtype[Any]] = {name: np.dtype(f"<{name}") for name in ("u1", "u2", "u4")}
_ANY = "f8"
"""Whole numbers up to 2**53: as nanoseconds, 104 days."""


def write_page(views: Sequence[View], path: Path) -> None:
    """Write the page of `views` to `path`. Raises `OSError` if it cannot be written."""
    path.write_text(page(views), encoding="utf-8")


def page(views: Sequence[View]) -> str:
    """Return the page of `views`: whole runs under each other, opening on their windows, whose starts are aligned.

    Each run's times count from where its recording began, and so does its axis.
    """
    columns: list[bytes] = []
    origins = [view.window.start for view in views] if len(views) > 1 else [0]
    runs = [_run(view.trace, origin, columns) for view, origin in zip(views, origins, strict=True)]
    opening = (
        min(view.window.start - origin for view, origin in zip(views, origins, strict=True)),
        max(view.window.end - origin for view, origin in zip(views, origins, strict=True)),
    )
    kinds = sorted({int(kind) for view in views for lane in view.trace.lanes for kind in np.unique(lane.kind)})
    header = {
        "runs": runs,
        "opening": opening,
        "kinds": _kinds(),
        "moments": _moments(),
        "plan": int(SpanKind.PLAN),
        "settle": int(SpanKind.SETTLE),
        "seen": [kind for kind in kinds if kind not in NOT_WORK],
    }
    packed = base64.b64encode(zlib.compress(b"".join(columns), 6)).decode()
    scripts = "\n".join(f"<script>\n{_source(name)}</script>" for name in SCRIPTS)
    parts = {
        "title": html.escape(" · ".join(run["name"] for run in runs)),
        "style": "\n" + _source("page.css"),
        "header": json.dumps(header, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
        "columns": packed,
        "scripts": scripts,
    }
    return _filled(_source("page.html"), parts)


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """Return the template with each {{name}} replaced once; what is put in is not looked at again."""
    pieces = template.split("{{")
    filled = [pieces[0]]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        filled += [parts[name], rest]
    return "".join(filled)


def _source(name: str) -> str:
    return resources.files("timeline").joinpath("web", name).read_text("utf-8")


def _kinds() -> list[dict[str, object]]:
    """Return what a browser must know of each kind, by its number."""
    kinds: list[dict[str, object]] = [{}]
    for kind in SpanKind:
        colour = OF_KIND[kind]
        about = {"name": name_of(kind), "colour": colour, "ink": ink_on(colour), "work": kind not in NOT_WORK}
        if kind == SpanKind.WAIT:
            about["waits"] = True
        if kind == SpanKind.FORWARD:
            about |= {"odd": ODD_FORWARD, "oddInk": ink_on(ODD_FORWARD)}
        kinds.append(about)
    return kinds


def _moments() -> list[dict[str, object]]:
    return [
        {
            "name": MOMENT_NAMES.get(moment, "no work"),
            "colour": OF_MOMENT.get(moment, ""),
            "idle": moment == DEVICE_IDLE,
        }
        for moment in range(NO_WORK + 1)
    ]


def _run(trace: Trace, origin: int, columns: list[bytes]) -> dict[str, Any]:
    """Return what a browser must know of a run; what its `rows` call columns is appended to `columns`, in order."""
    run = whole(trace)
    words = caption(trace)
    sessions = np.unique(np.concatenate([np.zeros(1, np.int64), *(lane.session for lane in trace.lanes)]))
    return {
        "name": words.name,
        "figures": words.figures.split(SEPARATOR) if words.figures else [],
        "notes": " ".join(words.problems),
        "whole": [run.start, run.end],
        "origin": origin,
        "rows": [_row(row, sessions, columns) for row in rows(trace)],
    }


def _row(row: Row, sessions: NDArray[np.int64], columns: list[bytes]) -> dict[str, Any]:
    shown = row.shows
    start, end = (shown.edges[:-1], shown.edges[1:]) if isinstance(shown, Strip) else (shown.start, shown.end)
    own: dict[str, NDArray[Any]]
    if isinstance(shown, Strip):
        own = {"kind": shown.moments}
    else:
        own = {"kind": shown.kind, "step": shown.step, "session": np.searchsorted(sessions, shown.session)}
        own |= {name: getattr(shown, name) for name in COUNTS}
    named = {"since": np.diff(start, prepend=0), "lasts": end - start, **own}
    return {
        "label": row.label,
        "opens": row.opens,
        "shows": _shows(shown),
        "process": shown.process,
        "device": shown.device if isinstance(shown, Lane) and shown.tid != HOST else "",
        "whole": [int(start[0]), int(end.max())],
        "columns": [[name, _pack(column, columns), len(column)] for name, column in named.items()],
    }


def _shows(shown: Lane | Strip) -> str:
    if isinstance(shown, Strip):
        return "strip"
    return {HOST: "host", COMPUTE: "compute"}.get(shown.tid, "copy")


def _pack(column: NDArray[Any], columns: list[bytes]) -> str:
    """Append a column's bytes in the narrowest type that has room for its numbers, and return the type's name."""
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    fits = (name for name, dtype in _TYPES.items() if low >= 0 and high <= np.iinfo(dtype).max)
    name = next(fits, _ANY)
    columns.append(column.astype(f"<{name}").tobytes())
    return name
