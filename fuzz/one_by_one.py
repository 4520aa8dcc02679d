"""The tensors of a PyTorch file one by one, where torch.load refuses the file for something else in it.

Python's own pickle machine and zipfile read the file, and torch's own function makes each tensor from its storage. A
call, a storage or a tensor that fails becomes an `Other`, and reading goes on. So a tensor that we return from a file
that torch refuses must be here under its name, with its type, shape and bytes.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import torch

ReadStorage = Callable[[str, int, torch.dtype], bytes]
"""The bytes of a storage by its key, number of elements and element type."""


class Other:
    """What is neither a tensor nor a plain value: the items and the state that were set on it."""

    def __init__(self) -> None:
        self.items: dict[str, Any] = {}
        self.state: Any = None

    def children(self) -> list[tuple[Any, Any]]:
        """Also the parameters, buffers and modules of a pickled module, which are named without these words."""
        state = self.state[0] if isinstance(self.state, tuple) and self.state else self.state
        state = state if isinstance(state, dict) else {}
        parts = [state.get(name) for name in ("_parameters", "_buffers", "_modules")]
        return [pair for part in (self.items, state, *parts) if isinstance(part, dict) for pair in part.items()]


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> Any:
    return torch._utils._rebuild_tensor(storage, offset, shape, stride)


def _tensor_v2(storage: Any, offset: Any, shape: Any, stride: Any, grad: Any, hooks: Any, flags: Any = None) -> Any:
    assert not (isinstance(flags, dict) and (flags.get("conj") or flags.get("neg")))
    return _tensor(storage, offset, shape, stride)


def _tensor_v3(*arguments: Any) -> Any:
    storage, dtype = arguments[0], arguments[6]
    typed = torch.TypedStorage(wrap_storage=storage._untyped_storage, dtype=dtype, _internal=True)
    return _tensor_v2(typed, *arguments[1:6], *arguments[7:])


def _of_type(function: Any, kind: Any, arguments: Any, *_: Any) -> Any:
    return _call(function, arguments)


def _first(*arguments: Any) -> Any:
    return arguments[0]


def _list(*arguments: Any) -> Any:
    return arguments[0] if arguments and isinstance(arguments[0], list | tuple) else []


def _dict(*arguments: Any) -> Any:
    pairs = arguments[0] if arguments and isinstance(arguments[0], list) else []
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and isinstance(pair[0], str)}


CALLS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._tensor._rebuild_from_type": _of_type,
    "torch._tensor._rebuild_from_type_v2": _of_type,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _first,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch.nn.parameter.Parameter": _first,
    "torch.Size": _first,
    "collections.OrderedDict": _dict,
    "collections.defaultdict": _dict,
    "builtins.set": _list,
    "__builtin__.set": _list,
}


def _call(function: Any, arguments: Any) -> Any:
    try:
        return CALLS[function](*arguments)
    except Exception:  # not a call that makes a tensor, or torch refuses it: the others are read without it
        return Other()


_Machine: Any = pickle._Unpickler  # the one that is written in Python


class Unpickler(_Machine):
    """Python's machine, with every instruction that can fail for what is beside the tensors made lenient."""

    dispatch: ClassVar[dict[int, Callable[[Any], Any]]] = dict(_Machine.dispatch)

    def __init__(self, stream: io.BytesIO, read_storage: ReadStorage) -> None:
        super().__init__(stream, encoding="utf-8", errors="backslashreplace")
        self.read_storage, self.types = read_storage, dict[str, torch.dtype]()

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "torch" and name.endswith("Storage"):
            with suppress(KeyError):
                return torch.UntypedStorage if name == "UntypedStorage" else torch.serialization.StorageType(name)
        found = getattr(torch, name, None) if module == "torch" else None
        return found if isinstance(found, torch.dtype) else f"{module}.{name}"

    def persistent_load(self, identity: Any) -> Any:
        try:
            word, kind, key, _, numel, *view = identity
            own = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
            dtype = self.types.setdefault(key, own)
            raw = bytearray(self.read_storage(key, numel, dtype))
            assert (word, own if raw else dtype, len(raw)) == ("storage", dtype, numel * dtype.itemsize)
            storage = torch.frombuffer(raw, dtype=torch.uint8).untyped_storage() if raw else torch.UntypedStorage(0)
            if view and view[0] is not None:
                _, first, count = view[0]
                storage = storage[first * dtype.itemsize : (first + count) * dtype.itemsize]
            return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
        except Exception:
            return Other()

    def text(self, raw: bytes) -> str:
        return raw.decode("utf-8", "backslashreplace")

    def name(self) -> Any:
        return self.find_class(self.text(self.readline()[:-1]), self.text(self.readline()[:-1]))

    def reduce(self, arguments: Any) -> None:
        self.stack[-1] = _call(self.stack[-1], arguments)

    def new_object(self, arguments: Any) -> None:
        """`__new__` without `__init__`: a container is empty."""
        self.reduce(arguments if str(self.stack[-1]).startswith("torch.") else ())

    def set_items(self, *items: Any) -> None:
        target = getattr(self.stack[-1], "items", None) if isinstance(self.stack[-1], Other) else self.stack[-1]
        if isinstance(target, dict):
            target.update((k, v) for k, v in zip(items[::2], items[1::2], strict=True) if isinstance(k, str))

    def add_items(self, *items: Any) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(items)

    def set_state(self, state: Any) -> None:
        grad = isinstance(state, tuple) and state and isinstance(state[0], bool)  # (requires_grad, ...)
        if isinstance(self.stack[-1], torch.Tensor) and not grad:
            raise ValueError("the state of a tensor replaces its numbers")
        if isinstance(self.stack[-1], Other):
            self.stack[-1].state = state

    def new_dict(self, items: list[Any]) -> None:
        self.append({})
        self.set_items(*items)

    def skip(self, count: int, value: Any) -> None:
        self.read(count)
        self.append(value)


Unpickler.dispatch |= {
    ord(code): function
    for code, function in {
        "R": lambda u: u.reduce(u.stack.pop()),
        "\x81": lambda u: u.new_object(u.stack.pop()),
        "\x92": lambda u: u.new_object((u.stack.pop(), u.stack.pop())[1]),  # without the keywords
        "i": lambda u: u.append(_call(u.name(), u.pop_mark())),
        "o": lambda u: u.append(_call(*(lambda what, *rest: (what, rest))(*u.pop_mark()))),
        "b": lambda u: u.set_state(u.stack.pop()),
        "s": lambda u: u.set_items(*reversed((u.stack.pop(), u.stack.pop()))),
        "u": lambda u: u.set_items(*u.pop_mark()),
        "d": lambda u: u.new_dict(u.pop_mark()),
        "a": lambda u: u.add_items(u.stack.pop()),
        "e": lambda u: u.add_items(*u.pop_mark()),
        "\x90": lambda u: u.add_items(*u.pop_mark()),
        "\x8f": lambda u: u.append([]),
        "\x91": lambda u: u.append(u.pop_mark()),
        "c": lambda u: u.append(u.name()),
        "P": lambda u: (u.readline(), u.append(Other())),
        "X": lambda u: u.append(u.text(u.read(struct.unpack("<I", u.read(4))[0]))),
        "\x8c": lambda u: u.append(u.text(u.read(u.read(1)[0]))),
        "\x8d": lambda u: u.append(u.text(u.read(struct.unpack("<Q", u.read(8))[0]))),
        "\x82": lambda u: u.skip(1, Other()),
        "\x83": lambda u: u.skip(2, Other()),
        "\x84": lambda u: u.skip(4, Other()),
        "\x95": lambda u: u.read(8),  # frames are only a hint
        "\x97": lambda u: u.append(Other()),
        "\x98": lambda u: None,
    }.items()
}


def load_zip(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:

        def read(name: str) -> bytes:
            with archive.open(name) as member:
                member._expected_crc = None  # type: ignore[attr-defined] # torch does not check it either
                return member.read()

        (program,) = (name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl"))
        prefix = program.removesuffix("data.pkl")
        return Unpickler(io.BytesIO(read(program)), lambda key, *_: read(f"{prefix}data/{key}")).load()


def load_legacy(path: Path) -> Any:
    """Five pickles, then the storages in the order of the fifth, each after its number of elements."""
    stream = io.BytesIO(path.read_bytes())
    types: dict[str, torch.dtype] = {}

    def note(key: str, numel: int, dtype: torch.dtype) -> bytes:
        types.setdefault(key, dtype)
        return b""

    begins = []
    for _ in range(5):
        begins.append(stream.tell())
        keys = Unpickler(stream, note).load()
    blocks: dict[str, bytes] = {}
    for key in keys:
        (count,) = struct.unpack("<q", stream.read(8))
        blocks[key] = stream.read(count * types[key].itemsize)
    stream.seek(begins[3])
    return Unpickler(stream, lambda key, *_: blocks[key]).load()


def load(path: Path) -> Any:
    return load_zip(path) if path.read_bytes()[:2] == b"PK" else load_legacy(path)
