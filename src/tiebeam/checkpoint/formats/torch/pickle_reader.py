"""Read a pickle as data. Nothing is imported and nothing from the file is ever called.

A pickle is a program for a small stack machine. Three of its instructions are dangerous: one looks a name up in a
module (importing it), one calls what was found, one passes state to the result. This machine has its own version of
each. A name becomes a `Global`, two strings. A call looks these strings up among the `builders` of the caller, a fixed
table of functions that only arrange their arguments; everything else becomes a `PickledObject`. State is stored in a
PickledObject and not used. No other instruction can reach code: the rest make numbers, strings, lists, tuples and
dictionaries.

`pickle.Unpickler` with `find_class` overridden would be as safe but not bounded: it allocates a memo as large as the
largest index in a file and buffers as large as a length field, and hashes nested dictionary keys on the C stack. Here
every length is checked against the remaining bytes, instructions and the memory that they take are counted, and only
string keys are kept (`key_name` can turn other keys into strings), so that a key cannot be nested, unhashable, or
chosen to collide. Byte strings and long texts are dropped, because nothing uses them. A value can be referenced any
number of times at one byte each, so no step may take time or memory in proportion to the size of a value: builders get
few arguments and must not copy them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tiebeam.errors import UnreadableInput
from tiebeam.limits import MAX_NAME, MAX_PICKLE_MEMORY, MAX_PICKLE_OPS

_MAX_INT_BYTES = 1024  # arithmetic on longer integers is slow
_MAX_TEXT = 4096  # bytes of any text that is kept; the longest that is used is a path
_MAX_ARGUMENTS = 16  # more than any function that a builder replaces


class Global(NamedTuple):
    """A name in the pickle, not looked up."""

    module: str
    name: str


class PickledObject:
    """An object that was not built: its class or function, the items set on it, its state."""

    __slots__ = ("items", "kind", "state")

    def __init__(self, kind: Global | None = None) -> None:
        self.kind = kind
        self.items: dict[str, object] | None = None
        self.state: object = None


KeyName = Callable[[object], str | None]
"""Turns a dictionary key that is not a string into one, in constant time; None drops the entry."""
Builder = Callable[[tuple[object, ...]], object]
"""Arranges the arguments of a call without copying them; None if they are not as expected."""


def no_value(identity: tuple[object, ...]) -> object:
    """A builder that knows nothing: every persistent id becomes a PickledObject."""
    return None


class TruncatedPickle(UnreadableInput):
    """The bytes end before the pickle does."""


def read_pickle(
    raw: bytes,
    label: str,
    builders: Mapping[Global, Builder],
    persistent: Builder,
    at: int = 0,
    key_name: KeyName | None = None,
    max_ops: int = MAX_PICKLE_OPS,
    max_memory: int = MAX_PICKLE_MEMORY,
) -> tuple[Any, int]:
    """The value of the pickle at byte `at`, and the byte where it ends. `persistent` builds persistent ids."""
    machine = _Machine(raw, label, builders, persistent, at, key_name)
    machine.left = max_memory - len(raw)
    return machine.run(max_ops)


class _Machine:
    __slots__ = ("at", "builders", "key_name", "label", "left", "memo", "outer", "persistent", "raw", "sparse", "stack")

    def __init__(
        self,
        raw: bytes,
        label: str,
        builders: Mapping[Global, Builder],
        persistent: Builder,
        at: int,
        key_name: KeyName | None,
    ) -> None:
        self.raw, self.label, self.builders, self.persistent, self.at = raw, label, builders, persistent, at
        self.key_name = key_name
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []  # the stacks below each mark: no instruction reaches below a mark
        self.memo: list[Any] = []  # writers number from 0 without gaps
        self.sparse: dict[int, Any] = {}  # other numbers
        self.left = 0

    def run(self, max_ops: int) -> tuple[Any, int]:
        raw, end = self.raw, len(self.raw)
        start = self.at
        try:
            for _ in range(max_ops):
                if self.at >= end:
                    raise TruncatedPickle(f"{self.label} is truncated: its pickle does not end")
                op = raw[self.at]
                self.at += 1
                if op == _STOP:
                    return self.stack.pop(), self.at
                self.left -= _COSTS[op]
                _OPS[op](self)
                if self.left < 0:
                    raise UnreadableInput(
                        f"{self.label} holds a pickle of more objects than the limit on memory allows; refusing to read"
                    )
        except (IndexError, KeyError, ValueError, TypeError, OverflowError, struct.error):
            if self.at >= end:
                raise TruncatedPickle(f"{self.label} is truncated: its pickle does not end") from None
            raise UnreadableInput(
                f"{self.label} is damaged: its pickle is invalid at byte {self.at - start:,}"
            ) from None
        raise UnreadableInput(
            f"{self.label} holds a pickle with more instructions than the limit of {max_ops:,}; refusing to read"
        )

    def take(self, count: int) -> bytes:
        if count < 0:
            raise ValueError
        begin, end = self.at, self.at + count
        if end > len(self.raw):
            raise TruncatedPickle(f"{self.label} is truncated: its pickle needs {count:,} bytes that are missing")
        self.at = end
        self.left -= count
        return self.raw[begin:end]

    def skip(self, count: int) -> None:
        if self.at + count > len(self.raw):
            raise TruncatedPickle(f"{self.label} is truncated: its pickle needs {count:,} bytes that are missing")
        self.at += count

    def line(self) -> bytes | None:
        """A line without its end; None, and the line is skipped, if it is too long to be kept."""
        begin, end = self.at, self.raw.find(b"\n", self.at)
        if end < 0:
            raise TruncatedPickle(f"{self.label} is truncated: a line of its pickle does not end")
        self.at = end + 1
        if end - begin > _MAX_TEXT:
            return None
        self.left -= end - begin
        return self.raw[begin:end]

    def short_line(self) -> bytes:
        text = self.line()
        if text is None:
            raise ValueError
        return text

    def text(self, raw: bytes) -> str:
        """UTF-8; invalid bytes are escaped, so that every name is printable and names stay distinct."""
        if not raw.isascii():
            self.left -= 4 * len(raw)
        return raw.decode("utf-8", "backslashreplace")

    def remember(self, index: int) -> None:
        value = self.stack[-1]
        if index == len(self.memo):
            self.memo.append(value)
            if self.sparse:
                self.sparse.pop(index, None)
        elif 0 <= index < len(self.memo):
            self.memo[index] = value
        else:
            self.sparse[index] = value
            self.left -= _SPARSE

    def recall(self, index: int) -> None:
        self.stack.append(self.memo[index] if 0 <= index < len(self.memo) else self.sparse[index])

    def unsigned(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.outer.pop()
        self.left -= 9 * len(items)
        return items

    def make(self, what: object, arguments: object) -> object:
        """The result of a builder in place of a call, or a PickledObject. Nothing is called by name."""
        if type(what) is not Global:
            return PickledObject()
        builder = self.builders.get(what)
        if builder is not None and type(arguments) is tuple and len(arguments) <= _MAX_ARGUMENTS:
            built = builder(arguments)
            if built is not None:
                self.left -= 0 if arguments and built is arguments[0] else _BUILT
                return built
        self.left -= _BUILT
        return PickledObject(what)


def _set_items(m: _Machine, target: object, pairs: list[Any]) -> None:
    if type(target) is PickledObject:
        target.items = target.items if target.items is not None else {}
        target = target.items
    if type(target) is dict:
        count = len(pairs) // 2
        m.left -= _NEW_TABLE * (not target) + (_ITEM * count if len(target) + count > _IN_NEW_TABLE else 0)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if type(key) in (list, dict):  # no dictionary has such a key
                raise ValueError
            name = key if type(key) is str or m.key_name is None else m.key_name(key)
            if type(name) is str and len(name) <= MAX_NAME:
                target[name] = value


def _add_items(target: object, items: list[Any]) -> None:
    if type(target) is list:
        target.extend(items)


def _text_integer(raw: bytes) -> object:
    if raw in (b"00", b"01"):  # a bool in the oldest protocol
        return raw == b"01"
    return int(raw) if len(raw) <= _MAX_INT_BYTES else PickledObject()


def _no_operation(m: _Machine) -> None:
    pass


def _unknown(m: _Machine) -> None:
    raise ValueError


def _proto(m: _Machine) -> None:
    protocol = m.unsigned(1)
    if protocol > 5:
        raise UnreadableInput(f"{m.label} is damaged: its pickle names protocol {protocol}, and the newest is 5")


def _mark(m: _Machine) -> None:
    m.outer.append(m.stack)
    m.stack = []


def _pop(m: _Machine) -> None:
    if m.stack:
        m.stack.pop()
    else:
        m.stack = m.outer.pop()


def _memoize(m: _Machine) -> None:
    m.remember(len(m.memo) + len(m.sparse))


def _binput(m: _Machine) -> None:
    index = m.raw[m.at]
    m.at += 1
    m.remember(index)


def _long_binput(m: _Machine) -> None:
    begin, m.at = m.at, m.at + 4  # the check before the next instruction detects the end
    m.remember(int.from_bytes(m.raw[begin : m.at], "little"))


def _binget(m: _Machine) -> None:
    index = m.raw[m.at]
    m.at += 1
    m.recall(index)


def _long_binget(m: _Machine) -> None:
    begin, m.at = m.at, m.at + 4
    m.recall(int.from_bytes(m.raw[begin : m.at], "little"))


def _binint(m: _Machine) -> None:
    m.stack.append(int.from_bytes(m.take(4), "little", signed=True))


def _long_text(m: _Machine) -> None:
    m.stack.append(_text_integer(m.short_line().rstrip(b"L")))


def _string(m: _Machine) -> None:
    line = m.line()  # quoted; escapes are kept as written
    m.stack.append(PickledObject() if line is None else line.strip()[1:-1].decode("latin-1"))


def _unicode(m: _Machine) -> None:
    line = m.line()
    if line is None:
        m.stack.append(PickledObject())
        return
    m.left -= 4 * len(line)  # at most, if there are escapes in it
    m.stack.append(line.decode("raw-unicode-escape").encode("utf-8", "backslashreplace").decode())


def _tuple(m: _Machine) -> None:
    items = m.since_mark()  # first, because it changes the stack
    m.stack.append(tuple(items))


def _short_tuple(count: int) -> Callable[[_Machine], None]:
    def build(m: _Machine) -> None:
        if len(m.stack) < count:
            raise ValueError
        m.stack[-count:] = [tuple(m.stack[-count:])]

    return build


def _dict(m: _Machine) -> None:
    made: dict[str, object] = {}
    _set_items(m, made, m.since_mark())
    m.stack.append(made)


def _setitem(m: _Machine) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    _set_items(m, m.stack[-1], [key, value])


def _setitems(m: _Machine) -> None:
    pairs = m.since_mark()
    _set_items(m, m.stack[-1], pairs)


def _append(m: _Machine) -> None:
    item = m.stack.pop()
    _add_items(m.stack[-1], [item])


def _appends(m: _Machine) -> None:
    items = m.since_mark()
    _add_items(m.stack[-1], items)


def _named(module: object, name: object) -> Global:
    if type(name) is not str or type(module) is not str or len(module) + len(name) > MAX_NAME:
        raise ValueError
    return Global(module, name)


def _global(m: _Machine) -> None:
    m.stack.append(_named(m.text(m.short_line()), m.text(m.short_line())))


def _stack_global(m: _Machine) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    m.stack.append(_named(module, name))


def _reduce(m: _Machine) -> None:
    arguments, what = m.stack.pop(), m.stack.pop()
    m.stack.append(m.make(what, arguments))


def _newobj(m: _Machine) -> None:
    """Only `__new__`, which takes the arguments of a tensor; those of a container are for its `__init__`."""
    arguments, what = m.stack.pop(), m.stack.pop()
    of_torch = type(what) is Global and what.module.startswith("torch")
    m.stack.append(m.make(what, arguments if of_torch else ()))


def _newobj_ex(m: _Machine) -> None:
    m.stack.pop()  # keyword arguments: no builder takes any
    _newobj(m)


def _inst(m: _Machine) -> None:
    what = _named(m.text(m.short_line()), m.text(m.short_line()))
    arguments = m.since_mark()
    m.stack.append(m.make(what, tuple(arguments)))


def _obj(m: _Machine) -> None:
    what, *arguments = m.since_mark()
    m.stack.append(m.make(what, tuple(arguments)))


def _build(m: _Machine) -> None:
    state, target = m.stack.pop(), m.stack[-1]
    if type(target) is PickledObject:
        target.state = state
    elif type(target) not in (dict, list) and not (type(state) is tuple and state and type(state[0]) is bool):
        # PyTorch 0.3 gave a parameter the state (requires_grad, ...). Any other state replaces a tensor's numbers.
        raise UnreadableInput(f"{m.label} is damaged: its pickle sets the state of a tensor or a plain value")


def _persistent(m: _Machine) -> None:
    identity = m.stack.pop()
    built = m.persistent(identity) if type(identity) is tuple and len(identity) <= _MAX_ARGUMENTS else None
    m.stack.append(built if built is not None else PickledObject())


def _persistent_line(m: _Machine) -> None:
    m.line()
    m.stack.append(PickledObject())


def _extension(width: int) -> Callable[[_Machine], None]:
    def push(m: _Machine) -> None:
        m.skip(width)
        m.stack.append(PickledObject())

    return push


def _sized_bytes(width: int) -> Callable[[_Machine], None]:
    def push(m: _Machine) -> None:
        m.skip(m.unsigned(width))
        m.stack.append(PickledObject())

    return push


def _push(make: Callable[[_Machine], object]) -> Callable[[_Machine], None]:
    def push(m: _Machine) -> None:
        value = make(m)  # first, because it can change the stack
        m.stack.append(value)

    return push


def _sized_text(width: int) -> Callable[[_Machine], None]:
    def push(m: _Machine) -> None:
        length = m.unsigned(width)
        if length > _MAX_TEXT:
            m.skip(length)
            m.stack.append(PickledObject())
        else:
            m.stack.append(m.text(m.take(length)))

    return push


def _long_integer(width: int) -> Callable[[_Machine], None]:
    def push(m: _Machine) -> None:
        length = m.unsigned(width)
        if length > _MAX_INT_BYTES:
            m.skip(length)
            m.stack.append(PickledObject())
        else:
            m.stack.append(int.from_bytes(m.take(length), "little", signed=True))

    return push


_STOP = ord(".")

# Sets and frozensets become lists: nothing here needs membership.
_NAMED: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": _proto, b"\x95": lambda m: m.skip(8), b"(": _mark, b"0": _pop,
    b"1": lambda m: m.since_mark().clear(), b"2": _push(lambda m: m.stack[-1]),
    b"N": _push(lambda m: None), b"\x88": _push(lambda m: True), b"\x89": _push(lambda m: False),
    b"I": _push(lambda m: _text_integer(m.short_line())), b"L": _long_text,
    b"F": _push(lambda m: float(m.short_line())),
    b"J": _binint, b"K": _push(lambda m: m.unsigned(1)), b"M": _push(lambda m: m.unsigned(2)),
    b"\x8a": _long_integer(1), b"\x8b": _long_integer(4),
    b"G": _push(lambda m: struct.unpack(">d", m.take(8))[0]),
    b"S": _string, b"T": _sized_text(4), b"U": _sized_text(1),
    b"V": _unicode, b"X": _sized_text(4), b"\x8c": _sized_text(1), b"\x8d": _sized_text(8),
    b"B": _sized_bytes(4), b"C": _sized_bytes(1), b"\x8e": _sized_bytes(8), b"\x96": _sized_bytes(8),
    b"\x97": _push(lambda m: PickledObject()), b"\x98": _no_operation,
    b"]": _push(lambda m: []), b"l": _push(lambda m: m.since_mark()), b"a": _append, b"e": _appends,
    b"\x8f": _push(lambda m: []), b"\x90": _appends, b"\x91": _push(lambda m: m.since_mark()),
    b")": _push(lambda m: ()), b"t": _tuple,
    b"\x85": _short_tuple(1), b"\x86": _short_tuple(2), b"\x87": _short_tuple(3),
    b"}": _push(lambda m: {}), b"d": _dict, b"s": _setitem, b"u": _setitems,
    b"p": lambda m: m.remember(int(m.short_line()[:20])), b"q": _binput, b"r": _long_binput,
    b"g": lambda m: m.recall(int(m.short_line()[:20])), b"h": _binget, b"j": _long_binget, b"\x94": _memoize,
    b"c": _global, b"\x93": _stack_global, b"R": _reduce, b"\x81": _newobj, b"\x92": _newobj_ex,
    b"i": _inst, b"o": _obj, b"b": _build, b"P": _persistent_line, b"Q": _persistent,
    b"\x82": _extension(1), b"\x83": _extension(2), b"\x84": _extension(4),
}  # fmt: skip

_OPS = tuple(_NAMED.get(bytes([code]), _unknown) for code in range(256))

# Bytes that an instruction takes in CPython, rounded up; what depends on a length is counted where it is known.
_BUILT, _ITEM, _NEW_TABLE, _IN_NEW_TABLE, _SPARSE = 104, 80, 130, 5, 150
_COSTS = tuple(
    104 if code in b"\x93cQ"
    else 72 if code in b"(}]ltP\x8f\x91\x85\x86\x87\x82\x83\x84\x96\x97BC\x8e"
    else 60 if code in b"STUVX\x8c\x8d"
    else 36 if code in b"IJLMFG\x8a\x8b"
    else 9
    for code in range(256)
)  # fmt: skip
