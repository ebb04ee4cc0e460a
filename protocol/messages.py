"""Every message that crosses a process. Reading this file teaches the system.

    text client ──Generate, Cancel──► frontend ──Submit, Abort──► scheduler ──Plan──► worker
                ◄──────Chunk────────           ◄────Deltas──────           ◄─Result──
                                                                           ◄─Failed──

A thin client that has token ids may take the frontend's place. Each message is one frame: a MessagePack map of the
field names below plus `type`, the class's name. docs/protocol.md has the rules of the conversations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.errors import FieldError, ProtocolError
from protocol.fields import INT64_MAX, INT64_MIN, UINT64_MAX, Column, Document, Flag, Integer, Many, Maybe, Real, Text
from protocol.logprobs import LOWEST_LOGPROB, MOST_LOGPROBS, Logprobs, Scores

# What a request may ask for at most, however it is asked: HTTP has the same limits.
COUNT_MAX = 2**31 - 1
TEMPERATURE_MAX = 1e6
REPETITION_MIN, REPETITION_MAX = 0.01, 100.0
PENALTY_MAX = 2.0  # of presence and frequency, either way
BIAS_MAX = 100.0  # either way
TIMEOUT_MIN, TIMEOUT_MAX = 0.001, 1e9  # seconds
MOST_SAMPLES = 128  # answers to one prompt; OpenAI's limit
MOST_STOPS = 64
MOST_MESSAGES = 2**12  # of a chat
MOST_SALT = 256  # characters
MOST_USER = 256  # characters
PRIORITY_MIN, PRIORITY_MAX = -(2**31), 2**31 - 1
MOST_BAD_WORDS = 128  # of several tokens
MOST_BAD_WORD_TOKENS = 32  # of one of them
MOST_BAD_TOKENS = 1024  # of all of them

# What may stand in a field. "u4" and friends are NumPy's names, "<" is little-endian.
Session = Annotated[int, Integer(1, UINT64_MAX)]  # drawn at random by one side of a handshake; a mismatch is dropped
RequestId = Annotated[int, Integer(0, UINT64_MAX)]  # a client's counter: with its incarnation, never used twice
Step = Annotated[int, Integer()]  # steps of a session count from 1; 0 is "none yet"
Count = Annotated[int, Integer(0, COUNT_MAX)]
Words = Annotated[str, Text()]
Salt = Annotated[str, Text(MOST_SALT)]
User = Annotated[str, Text(MOST_USER)]
U1 = Annotated[NDArray[np.uint8], Column("<u1")]
U4 = Annotated[NDArray[np.uint32], Column("<u4")]
U8 = Annotated[NDArray[np.uint64], Column("<u8")]
Nanoseconds = Annotated[int, Integer()]  # of a host's monotonic clock: comparable between processes of one boot

Temperature = Annotated[float, Real(0.0, TEMPERATURE_MAX)]  # 0 is greedy
TopK = Annotated[int, Integer(0, COUNT_MAX)]  # 0 is off
TopP = Annotated[float, Real(0.0, 1.0)]
MinP = Annotated[float, Real(0.0, 1.0)]
Repetition = Annotated[float, Real(REPETITION_MIN, REPETITION_MAX)]  # 1 is off
Penalty = Annotated[float, Real(-PENALTY_MAX, PENALTY_MAX)]  # 0 is off
SomeU4 = Annotated[NDArray[np.uint32] | None, Maybe(Column("<u4"))]
Listed = Annotated[NDArray[np.uint8] | None, Maybe(Column("<u1", high=1 + MOST_LOGPROBS))]
LogprobColumn = Annotated[NDArray[np.float32] | None, Maybe(Column("<f4", LOWEST_LOGPROB, 0.0))]
WantedLogprobs = Annotated[int | None, Maybe(Integer(0, MOST_LOGPROBS))]  # of so many tokens beside the one that came
WordLengths = Annotated[NDArray[np.uint8] | None, Maybe(Column("<u1", low=2, high=MOST_BAD_WORD_TOKENS))]
Biases = Annotated[NDArray[np.float32] | None, Maybe(Column("<f4", -BIAS_MAX, BIAS_MAX))]
Seed = Annotated[int, Integer(0, UINT64_MAX)]
Seconds = Annotated[float, Real(0.0, TIMEOUT_MAX)]
Priority = Annotated[int, Integer(PRIORITY_MIN, PRIORITY_MAX)]  # lower ones first


MOST_STOP_TOKENS = 256
"""A request may name so many `stop_token_ids`: each new token is compared with all of them, at every step."""

MOST_TOKEN_IDS = 1024
"""As many of each kind a request may name to bias, to allow or to ban: they travel whenever it gets a slot."""

MOST_NOTES = 5120
"""A plan has at most so many notes, and one more for each token of a context: those of one request always fit."""


class RowFlag(IntFlag):
    """What a row of a plan is."""

    CARRY = 1  # its one input token is last_token[slot], which the worker has and the scheduler may not have yet
    SAMPLE = 2  # it yields a token: a prompt's chunk that is not the last does not


_CARRY = np.uint8(RowFlag.CARRY)


class RowStatus(IntEnum):
    """How a sampled row came out."""

    OK = 0
    NAN = 1  # its logits held no usable number; the token means nothing


class Note(IntEnum):
    """What is noted of a token for a slot whose logits are adjusted."""

    PROMPT = 0  # it stands in the prompt
    OUTPUT = 1  # it stands in the output so far: noted as often as it does
    END = 2  # it would end the request, which is too short before `free_from`
    BIAS = 3  # a number is added to its logit
    ALLOWED = 4  # of a slot that has any of these, no other token may come
    BANNED = 5  # it may not come
    RECENT = 6  # it is one of the output's last tokens, in order: of a slot with the next two
    WORD = 7  # it begins, or goes on, a word of several tokens
    WORD_END = 8  # it ends one, and may not come behind the others


class Finish(IntEnum):
    """Why a request ended; RUNNING while it has not."""

    RUNNING = 0
    STOP = 1  # its last token is one of the model's end tokens or of its own stop_token_ids
    LENGTH = 2
    ABORT = 3
    ERROR = 4  # our fault; a text says what happened
    REFUSED = 5  # the client's: the request can never be served; a text says why
    TIMEOUT = 6
    BUSY = 7  # too many wait already: not accepted now, and later it may be; a text says how many


EXPLAINED = (Finish.ERROR, Finish.REFUSED, Finish.BUSY)
"""The ends that come with a text."""

_IS_EXPLAINED = np.isin(np.arange(max(Finish) + 1), EXPLAINED)


class SpanKind(IntEnum):
    """What a process or a device was doing. The last four are a device's; no two of one process's others overlap."""

    RECEIVE = 1  # scheduler: read answers; worker: read plans
    SETTLE = 2  # scheduler: one answer
    PLAN = 3  # scheduler: build one plan
    SEND = 4  # scheduler: one plan; frontend: what clients are told
    INTAKE = 5  # scheduler: requests and aborts
    DELIVER = 6  # scheduler: deltas
    STAGE = 7  # worker: write a plan's columns where the device can read them
    LAUNCH = 8  # worker: put a plan behind those in flight
    REPLY = 9  # worker: collect one answer and send it
    TOKENIZE = 10  # frontend: one request
    DETOKENIZE = 11  # frontend: one Deltas
    FLUSH = 12  # send what was recorded to the collector
    WAIT = 13  # blocked while a step is in flight
    IDLE = 14  # blocked, and nothing is to be done
    COPY_IN = 15
    FORWARD = 16  # carry-over and forward pass
    SAMPLE = 17
    COPY_OUT = 18


# ---------------------------------------------------------------- anyone and anyone


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there? Sent when nothing else was for a while; answered by Pong at once."""


@dataclass(frozen=True, slots=True)
class Pong:
    """I am. `session` changes when the process was restarted; `step` is the last step a worker has answered.

    `busy` are the seconds that a worker's device has computed for the session it has, whoever asks.
    `trouble` says what keeps a scheduler's workers from computing; nothing if all of them do. `serves`: one at least
    does, so that whoever asks now is served.
    """

    session: Session
    step: Step
    busy: Annotated[float, Real(0.0, 1e12)] = 0.0
    trouble: Words = ""
    serves: Annotated[bool, Flag()] = True


# ---------------------------------------------------------------- scheduler and worker


@dataclass(frozen=True, slots=True)
class Open:
    """Scheduler to worker: be mine. `nonce` comes back in Opened, so that an answer to an older Open shows."""

    nonce: Session
    plans_in_flight: Annotated[int, Integer(1, 64)]


@dataclass(frozen=True, slots=True)
class Opened:
    """Worker to scheduler: a session begins, every slot is clear; this is what I am and hold."""

    nonce: Session
    session: Session
    model: Words
    device: Words
    dtype: Words
    vocab_size: Count
    eos_token_ids: U4
    slots: Count
    blocks: Count  # ids 1 … blocks; block 0 is the worker's own, for padding
    block_size: Count
    max_batch_tokens: Count
    max_model_len: Count


@dataclass(frozen=True, slots=True)
class Refused:
    """Worker to scheduler: no, and why. A worker has one scheduler at a time."""

    nonce: Session
    reason: Words


class Adjusting(NamedTuple):
    """The columns of a plan that are about adjusted slots."""

    slot: NDArray[np.uint32]
    penalty: NDArray[np.float32]
    free_from: NDArray[np.uint32]
    notes: NDArray[np.uint32]
    note: NDArray[np.uint8]
    token: NDArray[np.uint32]
    bias: NDArray[np.float32]


class Scoring(NamedTuple):
    """What of a plan is scored: one entry for each row of which some is, and the tokens."""

    row: NDArray[np.uint32]
    skipped: NDArray[np.uint32]  # so many of the row's inputs come before the first whose successor is scored
    length: NDArray[np.uint32]  # of so many inputs it is
    entries: NDArray[np.uint32]  # log probabilities of each: its own, and those of the likeliest
    token: NDArray[np.uint32]  # the successors, row after row


@dataclass(frozen=True, slots=True)
class Plan:
    """Scheduler to worker: one step. Columns of one group are equally long.

    A row is `count` tokens of one slot at positions position … position+count-1; a slot has at most one row in a
    plan. `token` holds the input of the rows without CARRY, one after the other in row order. What a plan changes
    (tables, settings) holds from its own step on.

    Slots in `adjust_slot` have three numbers of `penalty` each (repetition, presence, frequency) and notes about
    tokens, slot after slot; the worker itself goes on counting what it samples for them.

    `scored` has four numbers for each row whose prompt is scored, which are the first four of `Scoring`: what the
    model, behind each of `length` inputs of the row, gives to the token that follows there in fact.
    """

    session: Session
    step: Step
    settled: Step  # the newest step whose answer the scheduler had seen: a plan that knows nothing of a failure fails
    slot: U4
    position: U4
    count: Annotated[NDArray[np.uint32], Column("<u4", low=1)]
    flags: Annotated[NDArray[np.uint8], Column("<u1", high=int(RowFlag.CARRY | RowFlag.SAMPLE))]
    token: U4
    table_slot: U4  # block_table[table_slot][table_index] = table_block
    table_index: U4
    table_block: U4
    begin_slot: U4  # requests that enter a slot with this step, and how to sample them
    temperature: Annotated[NDArray[np.float32], Column("<f4", 0.0, TEMPERATURE_MAX)]
    top_k: U4
    top_p: Annotated[NDArray[np.float32], Column("<f4", 0.0, 1.0)]
    min_p: Annotated[NDArray[np.float32], Column("<f4", 0.0, 1.0)]
    seed: U8
    adjust_slot: SomeU4 = None  # those of `begin_slot` whose logits are adjusted; None, as all of these, for none
    penalty: Annotated[NDArray[np.float32] | None, Maybe(Column("<f4", -PENALTY_MAX, REPETITION_MAX))] = None
    free_from: SomeU4 = None  # the position from which on an end token may come
    notes: SomeU4 = None  # how many of the notes are a slot's
    note: Annotated[NDArray[np.uint8] | None, Maybe(Column("<u1", high=int(max(Note))))] = None
    note_token: SomeU4 = None
    bias: Biases = None  # one for each BIAS, in order
    listed: Listed = None  # one for each of `begin_slot`: log probabilities wanted a token; None is 0 for all
    scored: SomeU4 = None
    scored_token: SomeU4 = None

    def check(self) -> None:
        """Raise `ProtocolError` unless the columns fit together."""
        _same_length("rows", self.slot, self.position, self.count, self.flags)
        _same_length("tables", self.table_slot, self.table_index, self.table_block)
        _same_length("settings", self.begin_slot, self.temperature, self.top_k, self.top_p, self.min_p, self.seed)
        carried = self.flags & _CARRY
        travelling = len(self.count) - int(np.count_nonzero(carried))
        longer = self.count != 1
        if np.count_nonzero(longer):  # rare, and the rest worth its microseconds
            if carried[longer].any():
                raise ProtocolError("a row with CARRY has exactly one input token")
            travelling += int((self.count[longer] - np.uint32(1)).sum(dtype=np.uint64))
        if travelling != len(self.token):
            raise ProtocolError(f"rows without CARRY count {travelling} tokens in all, {len(self.token)} came")
        if self.listed is not None:
            _same_length("settings", self.begin_slot, self.listed)
        if (adjusting := self.adjusting) is not None:
            _check_adjusting(adjusting)
        if (scoring := self.scoring) is not None:
            _check_scoring(scoring, self.count)

    @property
    def scoring(self) -> Scoring | None:
        """What is scored; None if nothing is. Raises `ProtocolError` if its columns do not fit."""
        if self.scored is None and self.scored_token is None:
            return None
        if self.scored is None or self.scored_token is None or len(self.scored) % 4:
            raise ProtocolError("scored has not four numbers per row, or there are no tokens for them")
        row, skipped, length, entries = self.scored.reshape(-1, 4).T
        return Scoring(row, skipped, length, entries, self.scored_token)

    @property
    def adjusting(self) -> Adjusting | None:
        """The columns about adjusted slots; None if there are none. Raises `ProtocolError` if some are missing."""
        slot, penalty, free_from, notes = self.adjust_slot, self.penalty, self.free_from, self.notes
        note, token, bias = self.note, self.note_token, self.bias
        no_slots = slot is None and penalty is None and free_from is None and notes is None
        if no_slots and note is None and token is None and bias is None:
            return None
        if slot is None or penalty is None or free_from is None or notes is None:
            raise ProtocolError("of the columns about adjusted slots some are missing")
        if note is None or token is None or bias is None:
            raise ProtocolError("of the columns of notes some are missing")
        return Adjusting(slot, penalty, free_from, notes, note, token, bias)


@dataclass(frozen=True, slots=True)
class Result:
    """Worker to scheduler: what a step sampled, one entry per SAMPLE row, in the plan's order.

    If a slot wants log probabilities, `listed` says how many each row has of the next two columns: that of its token
    first, then those of the likeliest. If prompts are scored, `scored` and the columns behind it say the same of each
    scored token, in the plan's order, and its rank.
    """

    session: Session
    step: Step
    token: U4
    status: Annotated[NDArray[np.uint8], Column("<u1", high=int(max(RowStatus)))]
    listed: Listed = None
    listed_token: SomeU4 = None
    logprob: LogprobColumn = None
    scored: Listed = None
    scored_token: SomeU4 = None
    scored_logprob: LogprobColumn = None
    scored_rank: SomeU4 = None

    def check(self) -> None:
        """Raise `ProtocolError` unless the columns fit together."""
        _same_length("rows", self.token, self.status)
        if (logprobs := self.logprobs) is not None:
            _same_length("rows", self.token, logprobs.count)
        _scores(self.scored, self.scored_token, self.scored_logprob, self.scored_rank)

    @property
    def logprobs(self) -> Logprobs | None:
        """The columns about what was sampled; None if nobody asked. Raises `ProtocolError` if they do not fit."""
        return _logprobs(self.listed, self.listed_token, self.logprob)

    @property
    def scores(self) -> Scores | None:
        """The last four columns; None if nothing was scored. Raises `ProtocolError` if they do not fit."""
        return _scores(self.scored, self.scored_token, self.scored_logprob, self.scored_rank)


@dataclass(frozen=True, slots=True)
class Failed:
    """Worker to scheduler: a step gave nothing. `ran` is False for one that was only queued behind a failed one."""

    session: Session
    step: Step
    ran: Annotated[bool, Flag()]
    error: Words


@dataclass(frozen=True, slots=True)
class Close:
    """Scheduler to worker: the session is over; be free for the next scheduler."""

    session: Session


# ---------------------------------------------------------------- client (frontend or thin) and scheduler


@dataclass(frozen=True, slots=True)
class Attach:
    """Client to scheduler: I am here. A new incarnation on the same connection ends the requests of the old one."""

    incarnation: Session


@dataclass(frozen=True, slots=True)
class Attached:
    """Scheduler to client: you are known; this is what can be asked for."""

    incarnation: Session
    session: Session
    model: Words
    vocab_size: Count
    max_model_len: Count
    eos_token_ids: U4


@dataclass(frozen=True, slots=True)
class Unattached:
    """Scheduler to client: I don't know you (I was restarted, or you were silent too long). Attach, then resubmit."""

    session: Session


@dataclass(frozen=True, slots=True)
class Submit:
    """Client to scheduler: serve this. With `output`, tokens it has already been given: serving goes on after them.

    `max_tokens`, `seed` and positions count from the original prompt, so a resumed request gets the tokens that it
    would have got. `timeout` of 0 is none.
    """

    request: RequestId
    prompt: U4
    output: U4
    max_tokens: Count
    temperature: Temperature
    top_k: TopK
    top_p: TopP
    min_p: MinP
    seed: Seed
    ignore_eos: Annotated[bool, Flag()]
    stop_token_ids: U4
    timeout: Seconds
    repetition_penalty: Repetition = 1.0  # over prompt and output; the other two over the output
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    min_tokens: Count = 0  # of output, before one may come that ends it
    bias_token_ids: SomeU4 = None
    bias: Biases = None
    allowed_token_ids: SomeU4 = None  # no other may come
    banned_token_ids: SomeU4 = None
    bad_word_tokens: SomeU4 = None  # words of several tokens, one after the other: none may stand in the output
    bad_word_lengths: WordLengths = None  # of each, in tokens
    logprobs: WantedLogprobs = None
    prompt_logprobs: WantedLogprobs = None  # the same of each token of the prompt but the first: it is scored
    scores_told: Count = 0  # of so many of these tokens the client has been told already
    cache_salt: Salt = ""  # KV is shared among requests of the same salt alone
    priority: Priority = 0  # which some policies go by; others refuse all but 0
    user: User = ""  # for whom it is, as the client tells them apart: where users take turns, this one does
    again: Annotated[bool, Flag()] = False  # submitted before, to whoever has lost it: no queue is too long for it

    def check(self) -> None:
        """Raise `ProtocolError` unless each biased token has its bias, and each bad word its tokens."""
        _check_bias(self.bias_token_ids, self.bias)
        tokens = 0 if self.bad_word_tokens is None else len(self.bad_word_tokens)
        said = 0 if self.bad_word_lengths is None else int(self.bad_word_lengths.sum(dtype=np.uint64))
        if tokens != said:
            raise ProtocolError(f"bad words of {said} tokens in all, {tokens} came")


@dataclass(frozen=True, slots=True)
class Abort:
    """Client to scheduler: end these, whatever their state. Unknown ids are dropped."""

    request: U8


@dataclass(frozen=True, slots=True)
class Deltas:
    """Scheduler to client: what is new in its requests since the last one, one row per request.

    A row brings `count` tokens that begin at `offset` of the request's output (counted from the original prompt), so
    gaps and duplicates show. Of the row's prompt `cached` tokens were not computed, because others had done it.
    `errors` has one text per row that ended with ERROR, REFUSED or BUSY, in row order.
    `timing` has four numbers per row that ended, in seconds since the request arrived: when it was first planned,
    its first token, its last token, its end; -1 for what never happened.
    `score_row` has three numbers for each row with news of a scored prompt: the row, where in the prompt the first
    token stands of which there is news, and of how many there is. These are the tokens of the columns behind it, which
    are as in Result. A request may have a row for such news before that of its tokens.
    """

    session: Session
    request: U8
    offset: U4
    count: U4
    finish: Annotated[NDArray[np.uint8], Column("<u1", high=int(max(Finish)))]
    cached: U4
    token: U4
    timing: Annotated[NDArray[np.float32], Column("<f4", -1.0, 1e9)]
    errors: Annotated[tuple[str, ...], Many(Text())]
    listed: Listed = None  # one for each of `token`: how many it has of the next two, as in Result
    listed_token: SomeU4 = None
    logprob: LogprobColumn = None
    score_row: SomeU4 = None
    scored: Listed = None
    scored_token: SomeU4 = None
    scored_logprob: LogprobColumn = None
    scored_rank: SomeU4 = None

    def check(self) -> None:
        """Raise `ProtocolError` unless the columns fit together."""
        _same_length("rows", self.request, self.offset, self.count, self.finish, self.cached)
        if int(self.count.sum(dtype=np.uint64)) != len(self.token):
            raise ProtocolError(f"rows of {self.count.sum(dtype=np.uint64)} tokens in all, {len(self.token)} came")
        if len(self.timing) != 4 * np.count_nonzero(self.finish):
            raise ProtocolError("timing has not four numbers per ended row")
        explained = int(np.count_nonzero(_IS_EXPLAINED[self.finish]))
        if len(self.errors) != explained:
            raise ProtocolError(f"{explained} rows ended with an error, {len(self.errors)} texts came")
        if (logprobs := self.logprobs) is not None:
            _same_length("tokens", self.token, logprobs.count)
        _check_score_rows(self.score_row, self.scores, len(self.request))

    @property
    def logprobs(self) -> Logprobs | None:
        """The columns about `token`; None if nobody asked. Raises `ProtocolError` if they do not fit."""
        return _logprobs(self.listed, self.listed_token, self.logprob)

    @property
    def scores(self) -> Scores | None:
        """The last four columns; None if there is no such news. Raises `ProtocolError` if they do not fit."""
        return _scores(self.scored, self.scored_token, self.scored_logprob, self.scored_rank)


@dataclass(frozen=True, slots=True)
class AskTotals:
    """Client to scheduler: how much is there to do, and what have you counted?"""


@dataclass(frozen=True, slots=True)
class Totals:
    """Scheduler to client: the answer, over all of its workers. Below `blocks` is what has happened since its start.

    `busy` are the seconds that devices have computed, as far as their workers have told, and `plan_bytes` how large
    the plans of all steps were on their way to these.
    """

    session: Session
    running: Count
    waiting: Count
    blocks_used: Count
    blocks: Count
    steps: Annotated[int, Integer()]
    rows: Annotated[int, Integer()]
    wasted_rows: Annotated[int, Integer()]
    failed_steps: Annotated[int, Integer()]
    stale_results: Annotated[int, Integer()]
    preemptions: Annotated[int, Integer()]
    prefill_tokens: Annotated[int, Integer()]
    cached_tokens: Annotated[int, Integer()]
    busy: Annotated[float, Real(0.0, 1e12)]
    plan_bytes: Annotated[int, Integer()] = 0


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """Client to scheduler: nothing that was computed up to now shall serve requests that begin from now on.

    `request` is a number of the client's own choice.
    """

    request: RequestId


@dataclass(frozen=True, slots=True)
class PrefixCacheReset:
    """Scheduler to client: that is done, at all of its workers; `blocks` had been kept or were about to be."""

    session: Session
    request: RequestId
    blocks: Count


# ---------------------------------------------------------------- text client and frontend


@dataclass(frozen=True, slots=True)
class Generate:
    """Text client to frontend: continue exactly one of prompt, messages (a chat) and token_ids.

    None leaves a setting to the server. With `stream`, text comes as it is made, else in one piece. `n` answers are
    sampled, each from a seed of its own, which is made of `seed` and the answer's index. With `max_tokens` of 0 nothing
    is answered: there is only what is said of the prompt.
    """

    request: RequestId
    prompt: Annotated[str | None, Maybe(Text())] = None
    messages: Annotated[tuple[dict[str, Any], ...] | None, Maybe(Many(Document(), MOST_MESSAGES))] = None
    token_ids: Annotated[NDArray[np.uint32] | None, Maybe(Column("<u4"))] = None
    stream: Annotated[bool, Flag()] = False
    n: Annotated[int, Integer(1, MOST_SAMPLES)] = 1
    max_tokens: Annotated[int | None, Maybe(Integer(0, COUNT_MAX))] = None
    temperature: Annotated[float | None, Maybe(Real(0.0, TEMPERATURE_MAX))] = None
    top_k: Annotated[int | None, Maybe(Integer(0, COUNT_MAX))] = None
    top_p: Annotated[float | None, Maybe(Real(0.0, 1.0))] = None
    min_p: Annotated[float | None, Maybe(Real(0.0, 1.0))] = None
    seed: Annotated[int | None, Maybe(Integer(INT64_MIN, INT64_MAX))] = None
    ignore_eos: Annotated[bool, Flag()] = False
    stop: Annotated[tuple[str, ...], Many(Text(2**14), MOST_STOPS)] = ()
    stop_token_ids: Annotated[NDArray[np.uint32] | None, Maybe(Column("<u4"))] = None
    include_stop: Annotated[bool, Flag()] = False
    timeout: Annotated[float | None, Maybe(Real(0.0, TIMEOUT_MAX))] = None
    repetition_penalty: Annotated[float | None, Maybe(Real(REPETITION_MIN, REPETITION_MAX))] = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    min_tokens: Count = 0
    bias_token_ids: SomeU4 = None
    bias: Biases = None
    allowed_token_ids: SomeU4 = None
    bad_words: Annotated[tuple[str, ...], Many(Text(2**14), MOST_TOKEN_IDS)] = ()
    logprobs: WantedLogprobs = None
    prompt_logprobs: WantedLogprobs = None
    cache_salt: Salt = ""
    priority: Priority = 0
    user: User = ""

    def check(self) -> None:
        """Raise `ProtocolError` unless one kind of input is given, something is asked, and each bias has its token."""
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            raise FieldError("Generate", "max_tokens", "must be at least 1 without prompt_logprobs, got 0")
        _check_bias(self.bias_token_ids, self.bias)
        if (self.prompt is not None) + (self.messages is not None) + (self.token_ids is not None) != 1:
            raise ProtocolError("exactly one of prompt, messages and token_ids is needed")


@dataclass(frozen=True, slots=True)
class Cancel:
    """Text client to frontend: end this request; unknown ids are dropped."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class Chunk:
    """Frontend to text client: the next piece of answer `index` to a request. `finish` but RUNNING: it is its last.

    `error` is empty unless the answer ended with ERROR, REFUSED or BUSY. Token counts are those up to this chunk. If it
    was REFUSED or BUSY, so is the request, and no other answer to it comes. Of what was REFUSED `at_fault` names the
    field of `Generate` that was wrong, `code` is OpenAI's word for what was, or nothing. If `prompt_logprobs` were
    wanted, the first chunk of answer 0 has the prompt and how likely its tokens were, unless that failed.
    """

    request: RequestId
    text: Words
    token_ids: U4
    finish: Annotated[int, Integer(0, max(Finish))]
    error: Words
    prompt_tokens: Count
    output_tokens: Count
    at_fault: Words = ""
    code: Words = ""
    cached_tokens: Count = 0  # of the prompt: those that were not computed, because others had done it
    listed: Listed = None  # one for each of `token_ids`: how many it has of the next two, as in Result
    listed_token: SomeU4 = None
    logprob: LogprobColumn = None
    index: Annotated[int, Integer(0, MOST_SAMPLES - 1)] = 0
    prompt_token_ids: SomeU4 = None
    scored: Listed = None  # one for each of `prompt_token_ids`, as in Result; the first has none, and a rank of 0
    scored_token: SomeU4 = None
    scored_logprob: LogprobColumn = None
    scored_rank: SomeU4 = None

    def check(self) -> None:
        """Raise `ProtocolError` unless the columns fit together."""
        if (logprobs := self.logprobs) is not None:
            _same_length("tokens", self.token_ids, logprobs.count)
        if (scores := self.scores) is not None:
            if self.prompt_token_ids is None:
                raise ProtocolError("a prompt's log probabilities come without the prompt")
            _same_length("prompt tokens", self.prompt_token_ids, scores.rank)

    @property
    def logprobs(self) -> Logprobs | None:
        """The columns about `token_ids`; None if nobody asked. Raises `ProtocolError` if they do not fit."""
        return _logprobs(self.listed, self.listed_token, self.logprob)

    @property
    def scores(self) -> Scores | None:
        """The last four columns; None unless they are here. Raises `ProtocolError` if they do not fit."""
        return _scores(self.scored, self.scored_token, self.scored_logprob, self.scored_rank)


# ---------------------------------------------------------------- any process and the timeline's collector


@dataclass(frozen=True, slots=True)
class Joined:
    """Process to collector: this is me. Said to one that is new to us, or to whom we are: its Pong has the session 1.

    Processes with the same `host` share a monotonic clock. `role` is worker, scheduler or frontend; `name` tells those
    of one role apart, `device` is what a worker computes on, and `about` says in words how it was set up.
    """

    name: Words
    role: Words
    pid: Count
    host: Words
    device: Words = ""
    about: Words = ""


@dataclass(frozen=True, slots=True)
class Record:
    """Collector to process: record spans from now on, or no longer, and send them every so many `seconds`."""

    on: Annotated[bool, Flag()]
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class ClockAsk:
    """Collector to a process of another host: what does your clock show? `asked` is what the collector's shows."""

    asked: Nanoseconds


@dataclass(frozen=True, slots=True)
class ClockTold:
    """Process to collector: when you `asked`, mine showed this."""

    asked: Nanoseconds
    clock: Nanoseconds


@dataclass(frozen=True, slots=True)
class Spans:
    """Process to collector: what was done since the last one; columns are equally long.

    Where a span belongs to no step, `step` and `session` (the lower half of the worker's session) are 0. `rows` and
    `tokens` are those of its step, or of what it handled; `decodes` are the rows that carry, `wasted` those whose
    request had ended. `lost` counts spans that were overwritten before they could be sent. A device's clock is
    mapped to the host's with an error of at most `clock_error`.
    """

    kind: Annotated[NDArray[np.uint8], Column("<u1", 1, int(max(SpanKind)))]
    start: U8
    end: U8
    step: U8
    session: U4
    rows: U4
    tokens: U4
    decodes: U4
    wasted: U4
    lost: Count
    clock_error: Nanoseconds

    def check(self) -> None:
        """Raise `ProtocolError` unless the columns fit together."""
        _same_length(
            "spans", self.kind, self.start, self.end, self.step, self.session, self.rows, self.tokens, self.decodes,
            self.wasted,
        )  # fmt: skip
        if (self.end < self.start).any():
            raise ProtocolError("a span ends before it starts")


@dataclass(frozen=True, slots=True)
class Load:
    """Scheduler to collector: how much there is to do at `time`, over all of its workers.

    `settled_tokens` counts all tokens since the scheduler started.
    """

    time: Nanoseconds
    running: Count
    waiting: Count
    blocks_used: Count
    blocks: Count
    settled_tokens: Annotated[int, Integer()]


# ---------------------------------------------------------------- whoever looks at the timeline


@dataclass(frozen=True, slots=True)
class StartTimeline:
    """Text client to frontend to collector: record into a file of this name; empty: named by date and time.

    The directory is the collector's, and nobody else's to choose.
    """

    request: RequestId
    file: Annotated[str, Text(200)] = ""


@dataclass(frozen=True, slots=True)
class StopTimeline:
    """Text client to frontend to collector: close the file."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class AskTimeline:
    """Text client to frontend to collector: is anything recorded, and where?"""

    request: RequestId


@dataclass(frozen=True, slots=True)
class TimelineState:
    """The answer to the three above: the recording that runs, or the last one there was (`file` is empty if none was).

    `refusal` says why what was asked is not done; nothing if it is. `problem` says why a recording ended by itself.
    """

    request: RequestId
    recording: Annotated[bool, Flag()]
    file: Words
    seconds: Seconds
    spans: Annotated[int, Integer()]
    bytes: Annotated[int, Integer()]
    refusal: Words
    problem: Words


@dataclass(frozen=True, slots=True)
class Watch:
    """Frontend to collector: somebody looks at the live page. For a few seconds after it, spans are recorded."""


@dataclass(frozen=True, slots=True)
class View:
    """Collector to frontend: the last seconds, cut into bins of `bin` ns; the first one begins at `start`.

    Columns have one entry a bin, 0 to 255 for none to all of it: when a device computed, when a scheduler or a worker
    worked, and when both the device and one of these did. Shares of several `devices` are averaged. A step in flight
    counts; only the first `known` bins are known of all devices, and the others may still change. The numbers are those
    of the last second that is known: `busy` is the device's share of it, `tokens_per_second` what is settled in it, or
    in as long as four steps take. The rest is as in Load, of all schedulers.
    """

    start: Nanoseconds
    bin: Nanoseconds
    known: Count
    devices: Count
    device: U1
    scheduler: U1
    worker: U1
    both: U1
    busy: Annotated[float, Real(0.0, 1.0)]
    step_seconds: Seconds  # the median
    tokens_per_second: Annotated[float, Real(0.0, 1e12)]
    running: Count
    waiting: Count
    blocks_used: Count
    blocks: Count

    def check(self) -> None:
        """Raise `ProtocolError` unless the columns fit together."""
        _same_length("bins", self.device, self.scheduler, self.worker, self.both)
        if self.known > len(self.device):
            raise ProtocolError(f"{self.known} of {len(self.device)} bins cannot be known")


Message = (
    Ping | Pong | Open | Opened | Refused | Plan | Result | Failed | Close
    | Attach | Attached | Unattached | Submit | Abort | Deltas | AskTotals | Totals
    | ResetPrefixCache | PrefixCacheReset | Generate | Cancel | Chunk
    | Joined | Record | ClockAsk | ClockTold | Spans | Load
    | StartTimeline | StopTimeline | AskTimeline | TimelineState | Watch | View
)  # fmt: skip


def _check_adjusting(it: Adjusting) -> None:
    _same_length("adjusted slots", it.slot, it.free_from, it.notes)
    _same_length("notes", it.note, it.token)
    if len(it.penalty) != 3 * len(it.slot):
        raise ProtocolError("penalty has not three numbers per adjusted slot")
    if int(it.notes.sum(dtype=np.uint64)) != len(it.note):
        raise ProtocolError(f"{it.notes.sum(dtype=np.uint64)} notes in all, {len(it.note)} came")
    if np.count_nonzero(it.note == Note.BIAS) != len(it.bias):
        raise ProtocolError("bias has not one number per note of it")
    if np.count_nonzero(it.note >= Note.RECENT):
        _check_words(it)
    if len(it.slot) and (least := it.penalty[::3].min()) < np.float32(REPETITION_MIN):
        raise ProtocolError(f"a repetition penalty of {least} is below {REPETITION_MIN}")


def _check_words(it: Adjusting) -> None:
    """Raise `ProtocolError` unless a slot has words that end, and as many and as long ones as a worker has room for."""
    owner = np.repeat(np.arange(len(it.slot)), it.notes)
    recent = np.bincount(owner[it.note == Note.RECENT], minlength=len(it.slot))
    parts = it.note >= Note.WORD
    owner, ends = owner[parts], it.note[parts] == Note.WORD_END
    words = np.bincount(owner[ends], minlength=len(it.slot))
    if recent.max() >= MOST_BAD_WORD_TOKENS or words.max() > MOST_BAD_WORDS:
        raise ProtocolError(f"a slot has {words.max()} words and {recent.max()} recent tokens")
    last = ends.nonzero()[0]
    lengths = np.diff(last, prepend=-1)
    if len(owner) != lengths.sum() or (len(last) and not 2 <= lengths.min() <= lengths.max() <= MOST_BAD_WORD_TOKENS):
        raise ProtocolError("a word has no end, or too few or too many tokens")
    if (owner[last - lengths + 1] != owner[last]).any():
        raise ProtocolError("a word begins in one slot and ends in another")


def _logprobs(
    count: NDArray[np.uint8] | None, token: NDArray[np.uint32] | None, logprob: NDArray[np.float32] | None
) -> Logprobs | None:
    if count is None and token is None and logprob is None:
        return None
    if count is None or token is None or logprob is None:
        raise ProtocolError("of the columns of log probabilities some are missing")
    _same_length("log probabilities", token, logprob)
    if int(count.sum(dtype=np.uint64)) != len(token):
        raise ProtocolError(f"{count.sum(dtype=np.uint64)} log probabilities in all, {len(token)} came")
    return Logprobs(count, token, logprob)


def _scores(
    count: NDArray[np.uint8] | None,
    token: NDArray[np.uint32] | None,
    logprob: NDArray[np.float32] | None,
    rank: NDArray[np.uint32] | None,
) -> Scores | None:
    logprobs = _logprobs(count, token, logprob)
    if logprobs is None and rank is None:
        return None
    if logprobs is None or rank is None:
        raise ProtocolError("of the columns of scores some are missing")
    _same_length("scores", logprobs.count, rank)
    return Scores(logprobs, rank)


def _check_scoring(it: Scoring, count: NDArray[np.uint32]) -> None:
    if len(it.row) and (it.row.max() >= len(count) or (it.row[1:] <= it.row[:-1]).any()):
        raise ProtocolError("what is scored is of no row, or not in the order of rows")
    if (it.skipped.astype(np.uint64) + it.length > count[it.row]).any():
        raise ProtocolError("more is scored of a row than it has")
    if int(it.length.sum(dtype=np.uint64)) != len(it.token):
        raise ProtocolError(f"{it.length.sum(dtype=np.uint64)} tokens to score in all, {len(it.token)} came")
    if len(it.entries) and not 1 <= it.entries.min() <= it.entries.max() <= 1 + MOST_LOGPROBS:
        raise ProtocolError(f"a scored token has 1 to {1 + MOST_LOGPROBS} log probabilities")


def _check_score_rows(rows: NDArray[np.uint32] | None, scores: Scores | None, total: int) -> None:
    if rows is None and scores is None:
        return
    if rows is None or scores is None or len(rows) % 3:
        raise ProtocolError("score_row has not three numbers per row, or there are no scores for them")
    if len(rows) and rows[::3].max() >= total:
        raise ProtocolError(f"scores of row {rows[::3].max()}, there are {total}")
    if int(rows[2::3].sum(dtype=np.uint64)) != len(scores):
        raise ProtocolError(f"scores of {rows[2::3].sum(dtype=np.uint64)} tokens in all, {len(scores)} came")


def _check_bias(tokens: NDArray[np.uint32] | None, bias: NDArray[np.float32] | None) -> None:
    if (0 if tokens is None else len(tokens)) != (0 if bias is None else len(bias)):
        raise ProtocolError("bias_token_ids and bias differ in length")


def _same_length(group: str, *columns: NDArray[Any]) -> None:
    length = len(columns[0])
    for column in columns:
        if len(column) != length:
            raise ProtocolError(f"columns of {group} differ in length: {[len(column) for column in columns]}")
