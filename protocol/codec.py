"""MessagePack frames to messages and back. Nothing else in Stepahead knows MessagePack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from io import BytesIO
from operator import attrgetter
from typing import Any, get_args, get_type_hints

import msgpack

from protocol.errors import FieldError, ProtocolError
from protocol.fields import UINT64_MAX, Document, Kind, Many, Maybe
from protocol.messages import Generate, Message

MAX_FRAME_BYTES = 64 * 2**20
"""No frame is larger, in either direction: a submitted prompt of 16 million tokens would still fit."""

MAX_FRAME_ITEMS = 2**18
"""Entries of all lists and maps of a frame together. A byte on the wire can become a hundred in Python (an empty map),
so a frame's size alone would bound no memory. Columns are one entry, however long."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """How one message type lies in its map."""

    make: Callable[..., Message]
    fields: tuple[str, ...]
    values: Callable[[Any], tuple[Any, ...]]  # of all fields at once
    packs: tuple[Callable[[Any], Any], ...]  # by field, in order; so that none is looked up at each message
    unpacks: tuple[tuple[str, Callable[[Any], Any]], ...]
    optional: frozenset[str]
    silent: tuple[bool, ...]  # by field: whether absent and None are the same; most plans have many of them
    unfolding: tuple[str, ...]  # the fields with lists and maps in them, which have to be counted
    check: Callable[[Any], None] | None


def _layout(message_type: type[Message]) -> _Layout:
    hints = get_type_hints(message_type, include_extras=True)
    kinds = tuple((name, hint.__metadata__[0]) for name, hint in hints.items())
    optional = frozenset(field.name for field in fields(message_type) if field.default is not MISSING)
    unfolding = tuple(name for name, kind in kinds if _unfolds(kind))
    return _Layout(
        make=message_type,
        fields=tuple(hints),
        values=_values(tuple(hints)),
        packs=tuple(kind.pack for _, kind in kinds),
        unpacks=tuple((name, kind.unpack) for name, kind in kinds),
        optional=optional,
        silent=tuple(field.default is None for field in fields(message_type)),
        unfolding=unfolding,
        check=getattr(message_type, "check", None),
    )


def _values(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda message: tuple(getattr(message, name) for name in names)  # an attrgetter of one gives no tuple


def _unfolds(kind: Kind) -> bool:
    return _unfolds(kind.kind) if isinstance(kind, Maybe) else isinstance(kind, Many | Document)


_LAYOUTS = {message_type.__name__: _layout(message_type) for message_type in get_args(Message)}


class _Items:
    """Counts what a frame unfolds into while it does, or would before it is made."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MAX_FRAME_ITEMS

    def of_list(self, entries: list[Any]) -> list[Any]:
        self._take(1 + len(entries))
        return entries

    def of_map(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        self._take(1 + len(pairs))
        whole = dict(pairs)
        if len(whole) != len(pairs):
            raise ProtocolError("a map names a key twice")
        return whole

    def of_message(self, layout: _Layout, message: Message) -> None:
        """Count as `of_list` and `of_map` will. What contains itself is endless here, and so refused too."""
        self._take(1 + len(layout.packs) + 1)  # `type` is the last
        left = [getattr(message, field) for field in layout.unfolding]
        while left:
            value = left.pop()
            if isinstance(value, dict):
                self._take(1 + len(value))
                left += value.values()
            elif isinstance(value, list | tuple):
                self._take(1 + len(value))
                left += value

    def _take(self, entries: int) -> None:
        self._left -= entries
        if self._left < 0:
            raise ProtocolError(f"more than {MAX_FRAME_ITEMS} entries in lists and maps")


def encode(message: Message) -> bytes:
    """Return the frame of a message.

    Raises `FieldError` if a field holds what its declaration does not allow, `ProtocolError` if fields do not fit
    together, or the frame would be too large.
    """
    name = type(message).__name__
    layout = _LAYOUTS[name]
    wire: dict[str, Any] = {"type": name}
    if layout.unfolding:
        _Items().of_message(layout, message)
    try:
        for field, value, pack, silent in zip(
            layout.fields, layout.values(message), layout.packs, layout.silent, strict=True
        ):
            if value is not None or not silent:
                wire[field] = pack(value)
    except ProtocolError as error:
        raise FieldError(name, field, str(error)) from None
    if layout.check is not None:
        layout.check(message)
    try:
        frame: bytes = msgpack.packb(wire)
    except (ValueError, TypeError, OverflowError, UnicodeEncodeError) as error:
        raise ProtocolError(f"{name} can't be carried: {error}") from None
    if len(frame) > MAX_FRAME_BYTES:
        raise ProtocolError(f"{name} of {len(frame)} bytes, at most {MAX_FRAME_BYTES} are allowed")
    return frame


def decode(frame: bytes, *expected: type[Message]) -> Message:
    """Return the message in a frame, checked; with `expected`, only one of those types.

    Raises `ProtocolError` for whatever is not exactly a message: broken MessagePack, an unknown type, a missing or
    unknown field, a frame over `MAX_FRAME_BYTES`; `FieldError` for a wrong type, dtype, length or range.
    """
    if len(frame) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(frame)} bytes, at most {MAX_FRAME_BYTES} are allowed")
    try:
        items = _Items()
        wire = msgpack.unpackb(
            frame,
            max_array_len=MAX_FRAME_ITEMS,
            max_map_len=MAX_FRAME_ITEMS,
            list_hook=items.of_list,
            object_pairs_hook=items.of_map,
        )
    except UnicodeDecodeError:
        raise ProtocolError("a text is not valid UTF-8; half of a surrogate pair, perhaps") from None
    except Exception as error:  # msgpack raises ValueError and its own exceptions
        raise ProtocolError(f"not MessagePack: {error or type(error).__name__}") from None
    if type(wire) is not dict:
        raise ProtocolError(f"expected a map, got {type(wire).__name__}")
    name = wire.pop("type", None)
    layout = _LAYOUTS.get(name) if type(name) is str else None
    if layout is None:
        raise ProtocolError(f"unknown message type {name!r:.60}")
    if expected and layout.make not in expected:
        raise ProtocolError(f"{name} has no place here")
    values: dict[str, Any] = {}
    try:
        for field, unpack in layout.unpacks:
            if field in wire:
                values[field] = unpack(wire[field])
    except ProtocolError as error:
        raise FieldError(name, field, str(error)) from None
    if len(values) != len(wire):
        unknown = sorted(map(repr, wire.keys() - values.keys()))
        raise ProtocolError(f"{name} has unknown fields {', '.join(unknown):.200}")
    try:
        message = layout.make(**values)
    except TypeError:
        lacking = next(field for field, _ in layout.unpacks if field not in values and field not in layout.optional)
        raise ProtocolError(f"{name} lacks {lacking!r}") from None
    if layout.check is not None:
        layout.check(message)
    return message


def request_of(frame: bytes) -> int | None:
    """Return the request's id in a `Generate` that `decode` refuses, so that its sender can be told; None without.

    Only these two fields are unfolded, and nothing is read behind them: whatever else is wrong does not matter.
    """
    reader = msgpack.Unpacker(BytesIO(frame), read_size=2**14, max_array_len=0, max_map_len=0, unicode_errors="replace")
    found: dict[str, Any] = {}
    try:
        for _ in range(min(reader.read_map_header(), 1 + len(_LAYOUTS[Generate.__name__].packs))):
            key = reader.unpack()
            if key == "type" or key == "request":
                found[key] = reader.unpack()
                if len(found) == 2:
                    break
            else:
                reader.skip()
    except Exception:  # msgpack's many: whatever it is, what it has no request in front of that has none
        pass
    name, request = found.get("type"), found.get("request")
    return request if name == Generate.__name__ and type(request) is int and 0 <= request <= UINT64_MAX else None
