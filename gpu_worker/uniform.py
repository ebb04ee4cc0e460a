"""One random number for each (seed, position): counter-based, so that a draw depends on nothing else.

A request's n-th token draws the same number alone or in a crowd, before or after a preemption, on any device. The mixer
is SplitMix64's (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014): the seed is mixed once, and
the position counts steps of that generator from there. All in int64, whose products wrap around like unsigned ones.
"""

from __future__ import annotations

from torch import Tensor


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


GAMMA = _signed(0x9E3779B97F4A7C15)
FIRST = _signed(0xBF58476D1CE4E5B9)
SECOND = _signed(0x94D049BB133111EB)


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    """Return numbers in [0, 1), multiples of 2⁻⁵³: float64, shaped like `seed` and `position` (int64).

    A seed is 64 bits: an unsigned one at or above 2⁶³ is given as the int64 of the same bits.
    """
    bits = _mix(_mix(seed + GAMMA) + (position + 1) * GAMMA)
    return _shifted(bits, 11).double() * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * FIRST
    x = (x ^ _shifted(x, 27)) * SECOND
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Shift right and bring in zeros: torch's own shift of int64 brings in the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)
