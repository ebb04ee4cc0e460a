"""Frontends behind one address tell what all of them have counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from frontend.counts import COUNTERS, Counts
from frontend.http.metrics import FrontendCollector
from frontend.tally import Histogram, Tally
from protocol.awake_clock import AwakeClock
from protocol.errors import ProtocolError
from protocol.messages import Finish
from tests.frontend_driver import Driver
from tests.word_tokenizer import word_text


def filled(step: int) -> tuple[Tally, Counter[str]]:
    """A tally in which every number is another one, and grows with `step`."""
    tally, numbers = Tally(), Counter({name: step * place for place, name in enumerate(COUNTERS, 1)})
    tally.take(iter([float(step * place) for place in range(len(tally.numbers))]))
    return tally, numbers


def samples(counted: tuple[Tally, Counter[str]], counts: Counts | None = None) -> dict[str, float]:
    """What /metrics tells of a frontend's own."""
    it = Driver(word_text())
    it.core.tally, it.core.counters = counted
    collector = FrontendCollector(it.core, AwakeClock(1.0, lambda: it.now), counts)
    return {
        f"{sample.name}{sample.labels}": sample.value
        for metric in collector.collect()
        for sample in metric.samples
        if not sample.name.endswith(("healthy", "_created"))
    }


def test_every_number_is_the_sum_over_all_frontends_whoever_is_asked(tmp_path: Path) -> None:
    path = str(tmp_path / "counts")
    first, second = Counts(path, 0, 2), Counts(path, 1, 2)
    second.keep_up(*filled(2), now=1.0)
    told = samples(filled(1), first)
    alone = samples(filled(1))
    assert told == {name: 3 * value for name, value in alone.items()}
    assert len(alone) > 50
    assert samples(filled(2), second) == told


def test_what_is_asked_for_is_of_now_and_what_others_have_is_a_moment_old(tmp_path: Path) -> None:
    path = str(tmp_path / "counts")
    first, second = Counts(path, 0, 2), Counts(path, 1, 2)
    second.keep_up(*filled(1), now=1.0)
    second.keep_up(*filled(2), now=1.1)
    assert first.told(*filled(0))[1]["refused"] == 1
    second.keep_up(*filled(3), now=1.5)
    assert first.told(*filled(0))[1]["refused"] == 3
    second.told(*filled(4))
    assert first.told(*filled(0))[1]["refused"] == 4, "the second has told 4: whoever asks next must not hear less"


def test_a_tally_can_be_told_and_taken_as_numbers() -> None:
    tally = Tally()
    tally.generation_tokens = 7
    tally.ended[Finish.ABORT] = 2
    tally.whole.observe(3.0, 5)
    other = Tally()
    other.take(iter(tally.numbers))
    assert other.numbers == tally.numbers
    assert (other.generation_tokens, other.ended[Finish.ABORT], other.whole.total) == (7, 2, 15.0)
    assert other.whole.cumulative == tally.whole.cumulative
    assert SimpleNamespace(**vars(other)).ended == {**dict.fromkeys(Finish, 0), Finish.ABORT: 2}
    assert len(Histogram().numbers) == len(Histogram().cumulative) + 1


def test_a_file_that_cannot_be_had_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="No such file or directory"):
        Counts(str(tmp_path / "missing" / "counts"), 0, 1)
