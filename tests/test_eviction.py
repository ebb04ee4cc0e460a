"""The order in which cached blocks give way is that of their last use, however often they are used again."""

from __future__ import annotations

import random
from collections import OrderedDict

import numpy as np
import pytest

from scheduler_proc.eviction import EvictionOrder


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_unused_give_way_first(seed: int) -> None:
    dice = random.Random(seed)
    total = dice.choice([1, 2, 7, 40])
    order, expected = EvictionOrder(total), OrderedDict[int, None]()
    for _ in range(400):
        elsewhere = [block for block in range(1, total + 1) if block not in expected]
        event = dice.random()
        if event < 0.5 and elsewhere:
            blocks = dice.sample(elsewhere, dice.randint(1, len(elsewhere)))
            order.add(np.array(blocks, np.int32))
            expected.update(dict.fromkeys(blocks))
        elif event < 0.8 and expected:
            blocks = dice.sample(list(expected), dice.randint(1, len(expected)))
            order.remove(np.array(blocks, np.int32))
            for block in blocks:
                del expected[block]
        else:
            count = dice.randint(0, len(expected))
            assert order.take(count).tolist() == [expected.popitem(last=False)[0] for _ in range(count)]
        order.check()
        assert order.blocks().tolist() == list(expected)
        assert len(order) == len(expected)


def test_what_is_used_again_and_again_is_not_searched_through_one_by_one() -> None:
    order = EvictionOrder(5000)
    blocks = np.arange(1, 5001, dtype=np.int32)
    order.add(blocks[:1])
    order.add(blocks[1:])
    order.remove(blocks[1:])
    order.add(blocks[1:])
    assert order.take(2).tolist() == [1, 2]
    assert order.take(4998).tolist() == list(range(3, 5001))
