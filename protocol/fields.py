"""Kinds of message fields: what may stand in one, and how it travels.

A kind turns a Python value into something MessagePack can carry (`pack`) and back (`unpack`). Unpacking is where
foreign bytes become values, so it is strict: the exact type, the declared range, nothing converted on the quiet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from math import inf
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ProtocolError

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
UINT64_MAX = 2**64 - 1


class Kind(Protocol):
    """What every kind of field can do."""

    def pack(self, value: Any) -> Any:
        """Return what MessagePack carries for `value`; raises `ProtocolError` if it may not stand in the field."""

    def unpack(self, wire: Any) -> Any:
        """Return the value for what MessagePack carried; raises `ProtocolError` if it may not stand in the field."""


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number in [low, high]; a bool is not one."""

    low: int = 0
    high: int = INT64_MAX

    def unpack(self, wire: Any) -> int:
        """Return the number; raises `ProtocolError` outside of the range."""
        if type(wire) is not int:
            raise ProtocolError(f"expected an integer, got {type(wire).__name__}")
        if not self.low <= wire <= self.high:
            raise ProtocolError(f"{wire} is outside of [{self.low}, {self.high}]")
        return wire

    def pack(self, value: Any) -> int:
        """Return the number; a member of an `IntEnum` is one too, here where it comes from our own code."""
        if type(value) is int and self.low <= value <= self.high:
            return value
        return self.unpack(int(value) if isinstance(value, IntEnum) else value)


@dataclass(frozen=True, slots=True)
class Real:
    """A finite number in [low, high]. NaN fails every comparison and is refused with the rest."""

    low: float = -inf
    high: float = inf

    def unpack(self, wire: Any) -> float:
        """Return the number as a float; raises `ProtocolError` for NaN, infinities and the range."""
        if type(wire) is not float and type(wire) is not int:
            raise ProtocolError(f"expected a number, got {type(wire).__name__}")
        if not (self.low <= wire <= self.high and -inf < wire < inf):
            raise ProtocolError(f"{wire} is not a finite number in [{self.low}, {self.high}]")
        return float(wire)

    pack = unpack  # the value travels as it is: one check serves both directions


@dataclass(frozen=True, slots=True)
class Flag:
    """True or False, and not 0 or 1."""

    def unpack(self, wire: Any) -> bool:
        """Return the flag."""
        if type(wire) is not bool:
            raise ProtocolError(f"expected a bool, got {type(wire).__name__}")
        return wire

    pack = unpack  # the value travels as it is: one check serves both directions


@dataclass(frozen=True, slots=True)
class Text:
    """Text of at most `longest` characters."""

    longest: int = 2**24

    def unpack(self, wire: Any) -> str:
        """Return the text."""
        if type(wire) is not str:
            raise ProtocolError(f"expected text, got {type(wire).__name__}")
        if len(wire) > self.longest:
            raise ProtocolError(f"text of {len(wire)} characters, at most {self.longest} are allowed")
        return wire

    pack = unpack  # the value travels as it is: one check serves both directions


@dataclass(frozen=True, slots=True)
class Many:
    """A list of at most `most` items of one kind; a tuple in Python."""

    item: Kind
    most: int = 2**16

    def pack(self, value: Any) -> list[Any]:
        """Return the items' wire forms."""
        if type(value) is not tuple and type(value) is not list:
            raise ProtocolError(f"expected a tuple, got {type(value).__name__}")
        if len(value) > self.most:
            raise ProtocolError(f"{len(value)} items, at most {self.most} are allowed")
        return [self.item.pack(item) for item in value]

    def unpack(self, wire: Any) -> tuple[Any, ...]:
        """Return the items as a tuple."""
        if type(wire) is not list:
            raise ProtocolError(f"expected a list, got {type(wire).__name__}")
        if len(wire) > self.most:
            raise ProtocolError(f"{len(wire)} items, at most {self.most} are allowed")
        return tuple([self.item.unpack(item) for item in wire])


@dataclass(frozen=True, slots=True)
class Maybe:
    """A field that may be absent: None in Python, nil on the wire."""

    kind: Kind

    def pack(self, value: Any) -> Any:
        """Return nil for None, else what the inner kind returns."""
        return None if value is None else self.kind.pack(value)

    def unpack(self, wire: Any) -> Any:
        """Return None for nil, else what the inner kind returns."""
        return None if wire is None else self.kind.unpack(wire)


@dataclass(frozen=True, slots=True)
class Document:
    """A map whose keys are text, as are those of all maps in it. The receiver checks the rest (a chat message, say)."""

    def unpack(self, wire: Any) -> dict[str, Any]:
        """Return the map. It must be finite: the codec bounds what it unfolds into before."""
        if type(wire) is not dict:
            raise ProtocolError(f"expected a map with text keys, got {type(wire).__name__}")
        left: list[Any] = [wire]
        while left:
            value = left.pop()
            if isinstance(value, dict):
                for key in value:
                    if type(key) is not str:
                        raise ProtocolError(f"expected a map with text keys, one has the key {key!r:.60}")
                left += value.values()
            elif isinstance(value, list | tuple):
                left += value
        return wire

    pack = unpack  # the value travels as it is: one check serves both directions


@dataclass(frozen=True, slots=True)
class Column:
    """A NumPy array of one dimension, carried as its raw little-endian bytes.

    Unsigned types are used wherever a negative number has no meaning: then there is none to check for. A decoded
    column is read-only. `low` and `high`, where given, bound every entry; both are, wherever the type is a
    float: that keeps NaN and infinities out.
    """

    dtype: str
    low: float | None = None
    high: float | None = None
    _dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)  # NumPy takes its time to read a name
    _empty: NDArray[Any] = field(init=False, repr=False, compare=False)  # most columns of most plans are

    def __post_init__(self) -> None:
        object.__setattr__(self, "_dtype", np.dtype(self.dtype))
        object.__setattr__(self, "_empty", np.frombuffer(b"", self._dtype))

    def pack(self, value: Any) -> bytes:
        """Return the bytes; raises `ProtocolError` for another dtype or shape."""
        if not isinstance(value, np.ndarray) or value.dtype != self._dtype or value.ndim != 1:
            found = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
            raise ProtocolError(f"expected a one-dimensional {self.dtype} array, got {found}")
        if self.low is not None or self.high is not None:
            self._check_range(value)
        return value.tobytes()

    def unpack(self, wire: Any) -> NDArray[Any]:
        """Return a read-only array over the bytes."""
        if type(wire) is not bytes:
            raise ProtocolError(f"expected the bytes of a column, got {type(wire).__name__}")
        if not wire:
            return self._empty
        try:
            column = np.frombuffer(wire, self._dtype)
        except ValueError:
            raise ProtocolError(f"{len(wire)} bytes are no whole number of {self.dtype}") from None
        if self.low is not None or self.high is not None:
            self._check_range(column)
        return column

    def _check_range(self, column: NDArray[Any]) -> None:
        if not len(column):
            return
        # NaN comes out of both reductions, and fails every comparison.
        if self.low is not None and not (least := np.minimum.reduce(column)) >= self.low:
            raise ProtocolError(f"a column holds {least}, at least {self.low} is allowed")
        if self.high is not None and not (most := np.maximum.reduce(column)) <= self.high:
            raise ProtocolError(f"a column holds {most}, at most {self.high} is allowed")
