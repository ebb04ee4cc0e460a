"""Command lines out of dataclasses: what goes out as arguments comes back as the same config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.options import lifeline_option, option, parse_options, to_arguments
from scheduler_proc.config import SchedulingConfig


@dataclass(frozen=True)
class Config:
    needed: str = option("text")
    many: tuple[str, ...] = option("texts", ())
    count: int = option("a number", 3)
    share: float | None = option("a part (default: all)", None)
    eager: bool = option("a flag", False)
    careful: bool = option("a flag that is set", True)
    kind: Literal["a", "b"] = option("one of two", "a")
    lifeline: str | None = lifeline_option()

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("--count must not be negative")


@dataclass(frozen=True)
class Other:
    max_other: int = option("another number", 1)


def parse(*arguments: str) -> tuple[Any, ...]:
    return parse_options("test", "A test.", Config, Other, arguments=arguments)


def test_defaults_hold_where_nothing_is_said() -> None:
    assert parse("--needed", "x") == (Config("x"), Other())


def test_each_option_reaches_its_own_config() -> None:
    given = "--needed=x --many a --many b --count 5 --share 0.5 --eager --no-careful --kind b --max-other 7"
    assert parse(*given.split()) == (Config("x", ("a", "b"), 5, 0.5, True, False, "b"), Other(7))


def test_two_dashes_behind_an_equals_sign_are_a_text_like_any_other() -> None:
    assert parse("--needed=--", "--many=a", "--many=--") == (Config("--", ("a", "--")), Other())


@given(
    st.builds(
        Config,
        needed=st.text(),
        many=st.lists(st.text()).map(tuple),
        count=st.integers(0),
        share=st.none() | st.floats(allow_nan=False),
        eager=st.booleans(),
        careful=st.booleans(),
        kind=st.sampled_from(["a", "b"]),
        lifeline=st.none() | st.text(),
    ),
    st.builds(Other, st.integers()),
)
def test_arguments_come_back_as_the_same_config(config: Config, other: Other) -> None:
    assert parse(*to_arguments(config, other)) == (config, other)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("", "--needed"),
        ("--needed x --unknown 1", "--unknown"),
        ("--needed x --need y", "--need"),  # no abbreviations
        ("--needed x --count many", "--count"),
        ("--needed x --kind c", "--kind"),
        ("--needed x --count -1", "--count must not be negative"),
        ("--needed x --count=--", "--count"),
        ("--needed x --kind=--", "--kind"),
        ("--needed x stray", "stray"),
    ],
)
def test_a_mistake_ends_in_one_line_that_names_it(arguments: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse(*arguments.split())
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("test: ")
    assert why in line


def test_what_contradicts_itself_is_refused_and_what_is_only_said_twice_is_not() -> None:
    assert (SchedulingConfig().credit, SchedulingConfig(max_plans_in_flight=3).credit) == (2, 3)
    assert SchedulingConfig(lockstep=True).credit == 1
    assert SchedulingConfig(lockstep=True, max_plans_in_flight=1).credit == 1
    with pytest.raises(ValueError, match="give --lockstep, .* or --max-plans-in-flight 2"):
        SchedulingConfig(lockstep=True, max_plans_in_flight=2)
    assert SchedulingConfig(aging_seconds=5.0, scheduling_policy="priority").aging_seconds == 5.0
    with pytest.raises(ValueError, match="--aging-seconds is for --scheduling-policy priority and shortest-.*fcfs"):
        SchedulingConfig(aging_seconds=5.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_waiting", -1),
        ("max_prefill_tokens", 0),
        ("aging_seconds", -1.0),
        ("aging_seconds", float("nan")),
        ("aging_seconds", float("inf")),
    ],
)
def test_rules_that_cannot_be_meant_are_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"--{name.replace('_', '-')} must "):
        SchedulingConfig(**{name: value})  # type: ignore[arg-type]


def test_help_tells_the_defaults_and_hides_what_is_not_for_users(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse("--help")
    assert end.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "a number (default: 3)" in told
    assert "a part (default: all)" in told
    assert "None" not in told
    assert "lifeline" not in told
