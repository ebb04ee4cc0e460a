"""The frontend without sockets and clock: messages in, messages to send out, time as an argument."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, count
from math import inf

from frontend.cache_reset import CacheReset
from frontend.delta_rows import DeltaRow, rows_of
from frontend.intake import Intake
from frontend.model_text import ModelText
from frontend.request_log import RequestLog
from frontend.scheduler_link import SchedulerLink
from frontend.stream import NO_TOKENS, Stream
from frontend.tally import Tally
from frontend.text_error import TextError
from frontend.text_peer import TextPeer
from frontend.unread import MOST_UNREAD_CHARACTERS, Unread
from protocol.errors import FieldError, ProtocolError
from protocol.identity import new_session
from protocol.logprobs import Scores
from protocol.logs import about_request
from protocol.messages import (
    Attached,
    Cancel,
    Chunk,
    Deltas,
    Finish,
    Generate,
    Message,
    Ping,
    Pong,
    PrefixCacheReset,
    Totals,
    Unattached,
)
from protocol.sockets import HEARTBEAT_SECONDS, LATE_SECONDS, PULSE_SECONDS, SILENCE_SECONDS

PATIENCE_SECONDS = 10.0
"""How long a request waits for any scheduler to be there before it ends with an error."""

LOOK_AROUND_SECONDS = 0.25
"""How often silences and deadlines are looked at."""

FAILED = "the server failed at this request"

SHUTTING_DOWN = "the server is shutting down"

BROKEN_DOWN = "the server has broken down: one of its processes has died"

_log = logging.getLogger("stepahead.frontend")


class FrontendCore:
    """Text clients on one side, schedulers on the other.

    A request is placed at the attached scheduler with the fewest outstanding tokens and stays there. A scheduler that
    has forgotten us gets its requests again with the output so far; one that is silent loses them to another. Every
    request that was accepted ends exactly once, whoever dies.

    Of several answers to one request each is a request of its own to a scheduler, and all are sent at once: it knows
    which steps compute what of their prompt, and lets them wait for these, one behind the other in its queue.
    """

    def __init__(
        self,
        intake: Intake,
        schedulers: Iterable[str],
        now: float,
        request_log: RequestLog | None = None,
        at_once: float = inf,
    ) -> None:
        """Begin with nobody attached; `schedulers` are addresses, and links are named by their index.

        A prompt of more than `at_once` characters is left unread: whoever calls `take_unread` has it read.
        """
        self._intake = intake
        self.request_log = request_log or RequestLog(lambda: now, on=False)
        self.links = [SchedulerLink(address, now) for address in schedulers]
        for link in self.links:
            link.attach()
        self.peers: dict[bytes, TextPeer] = {}
        self.speak_to: dict[bytes, None] = {}  # peers that may have something to be sent, in order
        self.served: Attached | None = None  # what can be asked for, as the first scheduler said
        self.draining = False  # no new requests any more
        self.counters: Counter[str] = Counter()
        self.tally = Tally()
        self.resets: dict[int, CacheReset] = {}  # those that schedulers have not all answered yet, by their numbers
        self._at_once = at_once
        self._unread: deque[Unread] = deque()
        self._unread_characters = 0  # of those and of those that were taken
        self._ids = count(1)
        self._unplaced: dict[Stream, float] = {}  # until when each waits for a scheduler
        self._limited: set[Stream] = set()  # live ones that have a deadline
        self._next_look = now

    @property
    def ready(self) -> bool:
        """Whether requests can be judged: some scheduler has said what it serves."""
        return self.served is not None

    @property
    def text(self) -> ModelText:
        """How the model's text is read and written."""
        return self._intake.text

    @property
    def owed(self) -> int:
        """How many requests have not been told their end."""
        return sum(len(peer.requests) + len(peer.unread) for peer in self.peers.values())

    def trouble(self, now: float) -> str:
        """Return in words what is wrong with schedulers or workers; nothing if every one of them is well."""
        return "; ".join(trouble for link in self.links if (trouble := link.trouble(now)))

    def closed(self, now: float) -> str:
        """Return in words why a request that came now would not be served; nothing if it would be."""
        if self.draining:
            return SHUTTING_DOWN
        reasons = [link.closed(now) for link in self.links]
        return "; ".join(reasons) if all(reasons) else ""

    # ------------------------------------------------------------ from text clients

    def hear_client(self, identity: bytes, message: Message, now: float) -> None:
        """Take a message of a text client."""
        peer = self._peer(identity, now)
        match message:
            case Generate():
                self._generate(identity, peer, message, now)
            case Cancel() if message.request in peer.requests:
                for stream in peer.requests[message.request]:
                    self._end(stream, Finish.ABORT, abort=True)
            case Cancel() if message.request in peer.unread:
                self._end_unread(peer.unread[message.request], peer, Finish.ABORT, "", now)
            case Ping():
                self._answer(identity, peer, Pong(peer.session, 0), now)
            case _:
                pass  # a Pong has done its work by being heard; a Cancel may come too late; the rest is not for us

    def refuse(self, identity: bytes, request: int, error: ProtocolError, now: float) -> None:
        """Refuse a request whose message broke the protocol's rules; a field is called as its client wrote it."""
        reason = TextError(str(error))
        if isinstance(error, FieldError):
            reason = TextError(f"{error.field}: {error.why}", at_fault=error.field)
        self._refuse(identity, self._peer(identity, now), request, reason, now)

    def answer(self, identity: bytes, message: Message, now: float) -> None:
        """Tell a client something that is about no request, if it is still there."""
        if identity in self.peers:
            self._answer(identity, self.peers[identity], message, now)

    def join(self, identity: bytes, now: float, name: str = "") -> TextPeer:
        """Take in a client that lives in this process, until `client_gone`; its log lines call it `name`."""
        peer = self.peers[identity] = TextPeer(new_session(), now, self.tally, local=True, name=name)
        return peer

    def client_gone(self, identity: bytes) -> None:
        """Forget a text client and end its requests."""
        self.speak_to.pop(identity, None)
        peer = self.peers.pop(identity, None)
        if peer is None:
            return
        for unread in peer.unread.values():
            self._give_up(unread, peer, Finish.ABORT)
        for stream in chain(*peer.requests.values()):
            if stream.finish is Finish.RUNNING:
                try:
                    stream.end(Finish.ABORT)
                except Exception:
                    self._fail(stream)
                self._let_go(stream, abort=True)

    def _peer(self, identity: bytes, now: float) -> TextPeer:
        peer = self.peers.get(identity)
        if peer is None:
            peer = self.peers[identity] = TextPeer(new_session(), now, self.tally)
        peer.heard = now
        return peer

    def _generate(self, identity: bytes, peer: TextPeer, ask: Generate, now: float) -> None:
        try:
            if self.draining:
                raise TextError(f"{SHUTTING_DOWN} and takes no new requests")
            if ask.request in peer.requests or ask.request in peer.unread:
                raise TextError(f"request {ask.request} is still being served; a new request needs a new number")
        except TextError as error:
            self._refuse(identity, peer, ask.request, error, now)
            return
        characters = self._intake.characters(ask)
        if characters > self._at_once:
            self._leave_unread(identity, peer, ask, characters, now)
        else:
            self._accept(identity, peer, ask, now)

    def _accept(self, identity: bytes, peer: TextPeer, ask: Generate, now: float, unread: Unread | None = None) -> None:
        assert self.served is not None
        try:
            prompt, arrived = (None, now) if unread is None else (unread.result(), unread.arrived)
            streams = self._intake.accept(identity, ask, self.served, arrived, prompt)
        except TextError as error:
            self._refuse(identity, peer, ask.request, error, now)
            return
        except Exception:  # as in `_fail`, before there is a stream
            self._note_failure(peer.name_of(ask.request))
            self._end_all(identity, peer, ask, Finish.ERROR, FAILED, now)
            return
        self.counters["accepted"] += 1
        self.tally.prompt(len(streams[0].submit.prompt))
        peer.requests[ask.request] = streams
        self._limited.update(stream for stream in streams if stream.deadline < inf)
        for stream in streams:
            stream.name = peer.name_of(ask.request)
            self._place(stream, now)

    def _end_all(self, identity: bytes, peer: TextPeer, ask: Generate, finish: Finish, error: str, now: float) -> None:
        """Tell the end of every answer to a request that has no streams."""
        for index in range(ask.n):
            self._answer(identity, peer, Chunk(ask.request, "", NO_TOKENS, finish, error, 0, 0, index=index), now)

    # ------------------------------------------------------------ prompts that take long to read

    def take_unread(self) -> Unread | None:
        """Return a request to be read now, beside everything else; `has_read` is to be told. None if none waits."""
        return self._unread.popleft() if self._unread else None

    def has_read(self, unread: Unread, now: float) -> None:
        """Go on with a request that has been read, unless it was ended meanwhile."""
        self._unread_characters -= unread.characters
        if not unread.given_up:
            peer = self.peers[unread.peer]
            del peer.unread[unread.ask.request]
            self._accept(unread.peer, peer, unread.ask, now, unread)

    def _leave_unread(self, identity: bytes, peer: TextPeer, ask: Generate, characters: int, now: float) -> None:
        assert self.served is not None
        if self._unread_characters and self._unread_characters + characters > MOST_UNREAD_CHARACTERS:
            self.counters["turned_away"] += 1
            self.request_log.unserved(peer.name_of(ask.request), Finish.BUSY)
            busy = "too many long prompts wait to be read"
            self._answer(identity, peer, Chunk(ask.request, "", NO_TOKENS, Finish.BUSY, busy, 0, 0), now)
            return
        unread = Unread(identity, ask, characters, now, partial(self._intake.prompt, ask, self.served))
        peer.unread[ask.request] = unread
        self._unread.append(unread)
        self._unread_characters += characters

    def _end_unread(self, unread: Unread, peer: TextPeer, finish: Finish, error: str, now: float) -> None:
        del peer.unread[unread.ask.request]
        self._give_up(unread, peer, finish)
        self._end_all(unread.peer, peer, unread.ask, finish, error, now)

    def _give_up(self, unread: Unread, peer: TextPeer, finish: Finish) -> None:
        unread.given_up = True
        self.tally.unread(finish, unread.ask.n)
        self.request_log.unserved(peer.name_of(unread.ask.request), finish)

    def _refuse(self, identity: bytes, peer: TextPeer, request: int, error: TextError, now: float) -> None:
        self.counters["refused"] += 1
        self.request_log.unserved(peer.name_of(request), Finish.REFUSED)
        chunk = Chunk(request, "", NO_TOKENS, Finish.REFUSED, error.reason, 0, 0, error.at_fault, error.code)
        self._answer(identity, peer, chunk, now)

    def _answer(self, identity: bytes, peer: TextPeer, message: Message, now: float) -> None:
        if peer.floods(now):
            _log.warning("a client doesn't read its answers: forgotten, its requests ended")
            self.client_gone(identity)
            return
        peer.answer(message, now)
        self.speak_to[identity] = None

    # ------------------------------------------------------------ what is cached

    def reset_prefix_cache(self, done: Callable[[int], None]) -> CacheReset:
        """Have every scheduler forget what is cached; `done` is told how many blocks when all have said they did.

        Until `give_up_reset` it waits for them.
        """
        number = next(self._ids)
        reset = self.resets[number] = CacheReset(number, self.links, done)
        return reset

    def give_up_reset(self, reset: CacheReset) -> None:
        """Wait no more for answers to it."""
        del self.resets[reset.number]

    # ------------------------------------------------------------ from schedulers

    def hear_scheduler(self, index: int, message: Message, now: float) -> None:
        """Take a message of a scheduler."""
        link = self.links[index]
        link.hear(now)
        match message:
            case Attached():
                self._attached(link, message, now)
            case Deltas() if link.attached is not None and message.session == link.attached.session:
                self._deltas(link, message, now)
            case Deltas():
                self.counters["stale_deltas"] += 1
            # Until Attached comes, what is heard answers to what was said before the Attach that is on its way.
            case Unattached() if link.attached is not None:
                _log.warning("%s: the scheduler does not know us any more; attaching again", link.address)
                link.detach(now)
            case Pong() if link.attached is not None and message.session != link.attached.session:
                _log.warning("%s: the scheduler was restarted; attaching again", link.address)
                link.detach(now)
            case Pong():
                link.hear_pulse(message)
            case Totals() if link.attached is not None and message.session == link.attached.session:
                link.totals = message
            case PrefixCacheReset() if link.attached is not None and message.session == link.attached.session:
                if (reset := self.resets.get(message.request)) is not None:
                    reset.hear(link, message)
            case Ping():
                link.say(Pong(link.incarnation, 0))
            case _:
                pass

    def _attached(self, link: SchedulerLink, attached: Attached, now: float) -> None:
        if link.attached is not None or attached.incarnation != link.incarnation:
            return
        self.served = self.served or attached
        if (attached.model, attached.vocab_size) != (self.served.model, self.served.vocab_size):
            if not self.counters["other_model"]:
                _log.error(
                    "%s: the scheduler serves %s, others %s: not used", link.address, attached.model, self.served.model
                )
            self.counters["other_model"] += 1
            return
        link.attached = attached
        again = link.give_back_all()
        for stream in again:
            self._submit(link, stream, now)
        self.counters["resubmitted"] += len(again)
        for stream in list(self._unplaced):
            del self._unplaced[stream]
            self._place(stream, now)

    def _deltas(self, link: SchedulerLink, deltas: Deltas, now: float) -> None:
        for row in rows_of(deltas):
            stream = link.streams.get(row.request)
            if stream is None:
                self.counters["overshoot_tokens"] += len(row.tokens)
                if row.timing is not None and (stopped := link.stopped.pop(row.request, None)) is not None:
                    self.tally.phases(stopped, row.timing)
            else:
                self._delta(link, stream, row, now)

    def _delta(self, link: SchedulerLink, stream: Stream, row: DeltaRow, now: float) -> None:
        known, running = len(stream.output), row.finish is Finish.RUNNING
        if row.offset > known:
            self.counters["gaps"] += 1
            missing = f"the scheduler's tokens {known} to {row.offset - 1} did not come"
            self._end(stream, Finish.ERROR, missing, abort=running)
            return
        if row.scores is not None and (missing := self._scores(stream, *row.scores)):
            self.counters["gaps"] += 1
            self._end(stream, Finish.ERROR, missing, abort=running)
            return
        if not known:
            stream.cached_tokens = row.cached
        news = row.tokens[known - row.offset :]
        if news and stream.lacks_scores:
            self.counters["gaps"] += 1
            missing = "the scheduler has not told how likely the prompt is"
            self._end(stream, Finish.ERROR, missing, abort=running)
            return
        if len(news) < len(row.tokens):
            self.counters["duplicate_tokens"] += len(row.tokens) - len(news)
        try:
            stream.push(news)
        except Exception:
            self._fail(stream)
        used = len(stream.output) - known
        self.tally.tokens(stream, used, now)
        if row.logprobs is not None:
            skipped = known - row.offset
            stream.push_logprobs(row.logprobs.part(skipped, skipped + used))
        link.outstanding -= used
        if stream.finish is not Finish.RUNNING:  # a stop string, or it failed
            self.counters["overshoot_tokens"] += len(news) - used
            self._ended(stream, abort=running)
        elif not running:
            if row.finish in (Finish.REFUSED, Finish.BUSY):
                self.counters["refused" if row.finish is Finish.REFUSED else "turned_away"] += 1
                self._refuse_whole(stream, row.finish)
            self._end(stream, row.finish, row.error, abort=False)
        elif news:
            self._has_news(stream)
        if row.timing is not None:
            self.tally.phases(stream, row.timing)

    def _scores(self, stream: Stream, first: int, scores: Scores) -> str:
        """Take what is said of a prompt's tokens from the `first` on; return what is missing before, if anything."""
        due = 1 + stream.scored
        if first > due:
            return f"the scheduler's scores of the prompt's tokens {due} to {first - 1} did not come"
        stream.push_scores(scores.part(due - first, len(scores)))
        return ""

    # ------------------------------------------------------------ time

    def look_around(self, now: float) -> None:
        """See to heartbeats, silences and deadlines. `now` counts only time in which this process ran."""
        if now < self._next_look:
            return
        self._next_look = now + LOOK_AROUND_SECONDS
        for link in self.links:
            self._watch_link(link, now)
        for identity, peer in list(self.peers.items()):
            if peer.local:
                continue
            if now - peer.heard >= SILENCE_SECONDS:
                self.client_gone(identity)
            elif (peer.requests or peer.unread) and now - peer.spoke >= HEARTBEAT_SECONDS and not peer.answers_waiting:
                self._answer(identity, peer, Ping(), now)  # to a peer that is gone it fails: how we learn of it
        for stream in [stream for stream in self._limited if self._is_overdue(stream, now)]:
            self._end(stream, Finish.TIMEOUT, abort=True)
        for peer in list(self.peers.values()):
            for unread in [unread for unread in peer.unread.values() if now >= unread.deadline]:
                self._end_unread(unread, peer, Finish.TIMEOUT, "", now)
        for stream, until in list(self._unplaced.items()):
            if now >= until:
                self._end(stream, Finish.ERROR, "no scheduler is there to serve it", abort=False)

    def _is_overdue(self, stream: Stream, now: float) -> bool:
        """Whether a stream's time is up; a scheduler that has it ends it itself, unless it hangs."""
        return now >= stream.deadline + (0.0 if stream in self._unplaced else LATE_SECONDS)

    def _watch_link(self, link: SchedulerLink, now: float) -> None:
        missing = now - (link.lost if link.attached is None else link.heard)
        if missing >= SILENCE_SECONDS and (link.attached is not None or link.streams):
            _log.warning("%s: the scheduler has been missing for %.0f s", link.address, missing)
            link.detach(now)
            for stream in link.give_back_all():
                self._place(stream, now)
        elif link.attached is None:
            if now - link.spoke >= HEARTBEAT_SECONDS and link.peek() is None:
                link.attach()
        elif now - link.asked >= PULSE_SECONDS:
            link.ask(now)

    def stop(self, why: str = SHUTTING_DOWN) -> None:
        """End every request: this process is about to end."""
        self.draining = True
        for peer in list(self.peers.values()):
            for stream in chain(*peer.requests.values()):
                self._end(stream, Finish.ERROR, why, abort=True)
            for unread in list(peer.unread.values()):
                self._end_unread(unread, peer, Finish.ERROR, why, peer.took)

    # ------------------------------------------------------------ streams

    def _place(self, stream: Stream, now: float) -> None:
        here = [link for link in self.links if link.attached is not None]
        if here:
            self._submit(min(here, key=lambda link: link.outstanding), stream, now)
        else:
            self._unplaced[stream] = now + PATIENCE_SECONDS

    def _submit(self, link: SchedulerLink, stream: Stream, now: float) -> None:
        link.take(stream, stream.submission(next(self._ids), now))

    def _refuse_whole(self, stream: Stream, finish: Finish) -> None:
        """End the other answers to a request of which one can't be served, without a word: its refusal is theirs."""
        for other in self.peers[stream.peer].speak_for_all(stream):
            if other.finish is Finish.RUNNING:
                other.finish = finish
                self._let_go(other, abort=True)

    def _end(self, stream: Stream, finish: Finish, error: str = "", *, abort: bool) -> None:
        if stream.finish is Finish.RUNNING:
            try:
                stream.end(finish, error)
            except Exception:
                self._fail(stream)
            self._ended(stream, abort=abort)

    def _fail(self, stream: Stream) -> None:
        """End a stream at an exception that nobody foresaw: it is no reason to end all others."""
        self._note_failure(stream.name)
        stream.fail(FAILED)

    def _note_failure(self, name: str) -> None:
        self.counters["failed"] += 1
        _log.exception("a request failed", extra=about_request(name))

    def _ended(self, stream: Stream, *, abort: bool) -> None:
        self._let_go(stream, abort=abort)
        self._has_news(stream)

    def _let_go(self, stream: Stream, *, abort: bool) -> None:
        """Be done with a stream that has ended: of nobody, and with `abort` of no scheduler either, any more."""
        self._limited.discard(stream)
        self.tally.end(stream)
        self.request_log.ended(stream)
        if self._unplaced.pop(stream, None) is not None:
            return
        link = next(link for link in self.links if link.streams.get(stream.request) is stream)
        link.give_back(stream, abort=abort)

    def _has_news(self, stream: Stream) -> None:
        self.peers[stream.peer].has_news(stream)
        self.speak_to[stream.peer] = None

    def check(self) -> None:
        """Assert what holds between any two events: each live request is in exactly one place."""
        placed = [stream for link in self.links for stream in link.streams.values()]
        owed = [s for peer in self.peers.values() for streams in peer.requests.values() for s in streams]
        live = [stream for stream in owed if stream.finish is Finish.RUNNING]
        assert len(placed) + len(self._unplaced) == len(live), "a request is lost, or in two places"
        assert {*placed, *self._unplaced} == set(live)
        assert self._limited == {stream for stream in live if stream.deadline < inf}, "a deadline is not watched"
        assert self.speak_to.keys() <= self.peers.keys(), "somebody unknown is spoken to"
        waiting = [unread for peer in self.peers.values() for unread in peer.unread.values()]
        assert not any(unread.given_up for unread in waiting), "a request that nobody wants is waited for"
        assert self._unread_characters >= sum(unread.characters for unread in waiting)
        for link in self.links:
            link.check()
