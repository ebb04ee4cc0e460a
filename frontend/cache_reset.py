"""What is cached at the schedulers is to be forgotten: who of them has not said yet that it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from frontend.scheduler_link import SchedulerLink
from protocol.messages import PrefixCacheReset, ResetPrefixCache


class CacheReset:
    """One such wish, until every scheduler has answered it."""

    def __init__(self, number: int, links: Iterable[SchedulerLink], done: Callable[[int], None]) -> None:
        """Ask the schedulers of `links`; `done` is called with the number of blocks when the last has answered."""
        self.number = number
        self._done = done
        self._blocks = 0
        self._asked = list(links)
        for link in self._asked:
            link.say(ResetPrefixCache(number))

    @property
    def missing(self) -> list[str]:
        """The addresses of those that have not answered."""
        return [link.address for link in self._asked]

    def hear(self, link: SchedulerLink, answer: PrefixCacheReset) -> None:
        """Take the answer of a scheduler; one that has answered before, or was not asked, says nothing by it."""
        if link in self._asked:
            self._asked.remove(link)
            self._blocks += answer.blocks
            if not self._asked:
                self._done(self._blocks)
