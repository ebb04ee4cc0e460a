"""Seeds of several answers to one prompt."""

from __future__ import annotations

from protocol.fields import UINT64_MAX

_GAMMA = 0x9E3779B97F4A7C15


def sample_seed(seed: int, index: int) -> int:
    """Return the seed, in [0, 2**64), of sample `index` of a request whose seed is `seed`.

    Sample 0 has the request's own: the first of n answers is the one that n = 1 would give. The others' are mixed, for
    to count upwards would make sample 1 of seed 7 the same as sample 0 of seed 8. The mixing is that of SplitMix64
    (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
    """
    if index == 0:
        return seed
    mixed = seed + index * _GAMMA & UINT64_MAX
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & UINT64_MAX
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & UINT64_MAX
    return mixed ^ mixed >> 31
