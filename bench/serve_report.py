"""What a load was answered with, in figures that are called and reckoned as those of vLLM's `bench serve`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.serve_course import Course

LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}
"""By the name that --goodput takes; not itl, of which a request has many."""

GOALS = ("ttft", "tpot", "e2el")


def figures(courses: Sequence[Course], goals: dict[str, float]) -> dict[str, Any]:
    """Return what a report says of what became of all requests; `goals` are milliseconds by a name of `GOALS`.

    The duration is that from when the first request was due to the end of the last one. Failed requests are in no
    figure but their own. With T for the sum over all that were answered:

        request throughput   answered / duration                 goodput   those that meet every goal / duration
        output throughput    T(output tokens) / duration
        total throughput     T(prompt tokens + output tokens) / duration

    A request of a single output token has no TPOT, and meets a goal for it.
    """
    done = [each for each in courses if not each.error]
    begin = min((min(each.due, each.sent) for each in courses), default=0.0)
    seconds = max((each.last for each in done), default=begin) - begin
    latencies = {
        "ttft": [each.ttft for each in done],
        "tpot": [each.tpot for each in done if each.tpot is not None],
        "itl": [gap for each in done for gap in each.gaps],
        "e2el": [each.e2el for each in done],
    }
    output, prompts = sum(each.output_tokens for each in done), sum(each.prompt_tokens for each in done)
    events = sum(each.events for each in done)
    found = {
        "requests": len(courses),
        "completed": len(done),
        "duration_seconds": seconds,
        "input_tokens": prompts,
        "output_tokens": output,
        "without_usage": sum(each.tokens < 0 for each in done),
        "tokens_an_event": output / events if events else 0.0,
        "requests_per_second": _rate(len(done), seconds),
        "output_tokens_per_second": _rate(output, seconds),
        "total_tokens_per_second": _rate(output + prompts, seconds),
        "errors": _errors(courses),
    }
    if goals:
        good = sum(_is_good(each, goals) for each in done)
        found["goodput"] = {"goals_ms": goals, "requests": good, "requests_per_second": _rate(good, seconds)}
    return found | {f"{name}_ms": spread(values) for name, values in latencies.items()}


def lateness(courses: Sequence[Course], *, scheduled: bool) -> dict[str, Any]:
    """Return how well the schedule was kept, in milliseconds.

    `own` is the load generator's: from when a request was due, and there was room for it, until it was sent. With a
    schedule, `behind` counts from when it was due, room or not; `ttft_from_due` does, too, and shows what those wait
    for whom a capped or late generator has not asked yet.
    """
    late = {"own_ms": spread([each.sent - each.free for each in courses])}
    if scheduled:
        late["behind_ms"] = spread([each.sent - each.due for each in courses])
        done = [each for each in courses if not each.error]
        late["ttft_from_due_ms"] = spread([each.sent + each.ttft - each.due for each in done])
    return late


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return mean, median, 99th percentile and maximum in milliseconds; zeros of nothing."""
    values = 1e3 * np.array(seconds) if len(seconds) else np.zeros(1)
    median, p99 = np.percentile(values, (50, 99)).tolist()
    return {"mean": float(values.mean()), "median": median, "p99": p99, "max": float(values.max())}


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _is_good(course: Course, goals: dict[str, float]) -> bool:
    reached = {"ttft": course.ttft, "tpot": course.tpot or 0.0, "e2el": course.e2el}
    return all(1e3 * reached[name] <= most for name, most in goals.items())


def _errors(courses: Sequence[Course]) -> list[dict[str, Any]]:
    kinds = Counter(each.error for each in courses if each.error)
    first = {each.error: each.about for each in reversed(courses) if each.error}
    return [{"kind": kind, "requests": count, "first": first[kind]} for kind, count in kinds.most_common()]


def table(report: dict[str, Any]) -> list[str]:
    """Return the figures as lines."""
    lines = [
        f"{report['completed']:,} of {report['requests']:,} requests answered in {report['duration_seconds']:.2f} s: "
        f"{report['input_tokens']:,} tokens in, {report['output_tokens']:,} out",
        f"requests {report['requests_per_second']:,.2f} /s, output {report['output_tokens_per_second']:,.1f} tok/s, "
        f"input and output {report['total_tokens_per_second']:,.1f} tok/s",
        f"tokens are those of the usage that ends each stream; {report['tokens_an_event']:.2f} of them an event",
    ]
    if report["without_usage"]:
        lines[-1] = f"{report['without_usage']:,} answers had no usage at their end: an event counts as a token there"
    if "goodput" in report:
        good = report["goodput"]
        goals = ", ".join(f"{LATENCIES[name]} {most:g} ms" for name, most in good["goals_ms"].items())
        lines.append(f"goodput {good['requests_per_second']:,.2f} /s: {good['requests']:,} requests within {goals}")
    lines.append(f"{'ms':16}{'mean':>12}{'median':>12}{'p99':>12}{'max':>12}")
    lines += [_row(title, report[f"{name}_ms"]) for name, title in LATENCIES.items()]
    late = report["lateness"]
    lines.append(_row("sent late", late["own_ms"]))
    if "behind_ms" in late:
        lines.append(_row("behind schedule", late["behind_ms"]))
        lines.append(_row("TTFT from due", late["ttft_from_due_ms"]))
    for error in report["errors"]:
        lines.append(f"{error['requests']:,} failed, {error['kind']}: {error['first']}")
    return lines


def _row(title: str, values: dict[str, float]) -> str:
    return f"{title:16}" + "".join(f"{values[name]:12,.2f}" for name in ("mean", "median", "p99", "max"))
