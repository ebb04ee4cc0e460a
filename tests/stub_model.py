"""A worker's device in a few lines of Python: it runs plans exactly, on a paged cache that begins poisoned.

Its next token is a function of every token that the row's block table reaches, so a wrong table, a stale block, a lost
or doubled token or a wrong position changes what comes out; reading what was never written is an error at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.messages import Opened, Plan, Result, RowFlag, RowStatus

POISON = -1
VOCAB = 97
EOS = 5

NextToken = Callable[[Sequence[int], int], int]
"""(all tokens so far, seed or -1 when greedy) -> the next token; NAN_TOKEN for a row of NaN."""

NAN_TOKEN = -7


def opened(
    *,
    slots: int = 4,
    blocks: int = 64,
    block_size: int = 4,
    max_batch_tokens: int = 64,
    max_model_len: int = 64,
    session: int = 77,
    eos: Sequence[int] = (EOS,),
    vocab_size: int = VOCAB,
) -> Opened:
    return Opened(
        nonce=1,
        session=session,
        model="stub",
        device="stub",
        dtype="none",
        vocab_size=vocab_size,
        eos_token_ids=np.array(eos, np.uint32),
        slots=slots,
        blocks=blocks,
        block_size=block_size,
        max_batch_tokens=max_batch_tokens,
        max_model_len=max_model_len,
    )


def hashed(tokens: Sequence[int], seed: int) -> int:
    """A next token that depends on every token and its place."""
    state = (seed * 0x9E3779B97F4A7C15 + 0x1234567) % 2**64
    for token in tokens:
        state = ((state ^ token) * 0x100000001B3 + 0x51) % 2**64
    return (state >> 17) % VOCAB


def counting(tokens: Sequence[int], _seed: int) -> int:
    """A next token that never is the end: the number of tokens so far, in the vocabulary's upper half."""
    return 50 + len(tokens) % 40


def score(before: Sequence[int], token: int, entries: int) -> tuple[list[tuple[int, float]], int]:
    """What is said of `token` behind the tokens `before`: (its entries, its rank), which depend on all of them."""
    salt = hashed([*before, token], entries)
    return [(token, -float(salt)), *[((salt + i) % VOCAB, -float(i)) for i in range(1, entries)]], 1 + salt


class StubModel:
    """Runs plans one after the other, as a device does."""

    def __init__(self, worker: Opened, next_token: NextToken = hashed) -> None:
        self.worker = worker
        self.next_token = next_token
        self.kv = np.full((worker.blocks + 1, worker.block_size), POISON, np.int64)
        self.tables = np.zeros((worker.slots, -(-worker.max_model_len // worker.block_size)), np.int64)
        self.last_token = np.full(worker.slots, POISON, np.int64)
        self.seeds = np.full(worker.slots, POISON, object)
        self.resets = 0
        self.begun = np.zeros(worker.slots, np.int64)  # by slot: how many resets there had been when its request began
        self.age = np.zeros_like(self.kv)  # the same, of whoever wrote it
        self.steps = 0

    def run(self, plan: Plan) -> Result:
        worker = self.worker
        assert plan.session == worker.session
        assert plan.step == self.steps + 1
        self.steps += 1
        assert len(plan.slot) > 0
        assert len(set(plan.slot.tolist())) == len(plan.slot), "a slot has two rows in one plan"
        assert plan.count.sum() <= worker.max_batch_tokens
        for slot, temperature, seed in zip(plan.begin_slot, plan.temperature, plan.seed, strict=True):
            self.seeds[slot] = int(seed) if temperature > 0 else -1
        self.begun[plan.begin_slot] = self.resets
        assert len(plan.table_block) <= worker.blocks, "more table entries than the worker takes"
        assert (plan.table_block >= 1).all()
        assert (plan.table_block <= worker.blocks).all()
        self.tables[plan.table_slot, plan.table_index] = plan.table_block
        carry = (plan.flags & RowFlag.CARRY) > 0
        assert plan.count[~carry].sum() == len(plan.token), "prompt tokens are not those of the rows without CARRY"
        assert (plan.count[carry] == 1).all()
        taken = 0
        for slot, position, count, carries in zip(*_ints(plan), carry, strict=True):
            if carries:
                tokens: NDArray[Any] = self.last_token[slot : slot + 1]
                assert tokens[0] != POISON, "carries a token that was never sampled"
            else:
                tokens = plan.token[taken : taken + count]
                taken += count
            self._write(slot, position, tokens)
        scores = self._scores(plan)
        token, status = [], []
        for slot, position, count, flags in zip(*_ints(plan), plan.flags, strict=True):
            if flags & RowFlag.SAMPLE:
                sampled = self.next_token(self._read(slot, position + count), self.seeds[slot])
                status.append(RowStatus.NAN if sampled == NAN_TOKEN else RowStatus.OK)
                token.append(0 if sampled == NAN_TOKEN else sampled)
                self.last_token[slot] = token[-1]
        return Result(plan.session, plan.step, np.array(token, np.uint32), np.array(status, np.uint8), **scores)

    def _scores(self, plan: Plan) -> dict[str, Any]:
        scoring = plan.scoring
        if scoring is None:
            return {}
        entries: list[tuple[int, float]] = []
        ranks, counts, taken = [], [], 0
        for row, skipped, count, most in zip(*(column.tolist() for column in scoring[:4]), strict=True):
            first = int(plan.position[row]) + skipped
            for position in range(first, first + count):
                before = self._read(int(plan.slot[row]), position + 1)
                told, rank = score(before, int(scoring.token[taken]), most)
                entries += told
                ranks.append(rank)
                counts.append(most)
                taken += 1
        return {
            "scored": np.array(counts, np.uint8),
            "scored_token": np.array([token for token, _ in entries], np.uint32),
            "scored_logprob": np.array([logprob for _, logprob in entries], np.float32),
            "scored_rank": np.array(ranks, np.uint32),
        }

    def _write(self, slot: int, position: int, tokens: NDArray[Any]) -> None:
        for place, token in enumerate(tokens, position):
            block = self.tables[slot, place // self.worker.block_size]
            assert block > 0, "writes to a block that the row has not been given"
            self.kv[block, place % self.worker.block_size] = token
            self.age[block, place % self.worker.block_size] = self.begun[slot]

    def _read(self, slot: int, length: int) -> list[int]:
        table = self.tables[slot, : -(-length // self.worker.block_size)]
        tokens: list[int] = self.kv[table].reshape(-1)[:length].tolist()
        assert POISON not in tokens, "reads KV that nobody wrote"
        ages = self.age[table].reshape(-1)[:length]
        assert (ages >= self.begun[slot]).all(), "reads KV of a request that had begun before a reset"
        return tokens


def _ints(plan: Plan) -> tuple[list[int], list[int], list[int]]:
    return plan.slot.tolist(), plan.position.tolist(), plan.count.tolist()
