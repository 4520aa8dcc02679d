"""The objects of a PyTorch pickle as data: storages, tensors as views of them, and a few containers.

These are the only functions that reading a pickle can reach. Each takes the arguments of one of PyTorch's rebuild
functions, whatever their types are, and records them. A ValueError or TypeError raised here means a damaged file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

from tiebeam.checkpoint.dtypes import is_shape
from tiebeam.checkpoint.formats.torch.pickle_reader import Builder, Global, PickledObject
from tiebeam.limits import MAX_DIMENSION, MAX_DIMENSIONS

_MAX_KEY = 256
_STORAGE_TYPES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL", "ComplexDoubleStorage": "C128", "ComplexFloatStorage": "C64",
    "UntypedStorage": "U8", "QInt8Storage": "I8", "QInt32Storage": "I32", "QUInt8Storage": "U8",
    "QUInt4x2Storage": "U8", "QUInt2x4Storage": "U8",
}  # fmt: skip
_DTYPES = {
    "float64": "F64", "double": "F64", "float32": "F32", "float": "F32", "float16": "F16", "half": "F16",
    "bfloat16": "BF16", "int64": "I64", "long": "I64", "int32": "I32", "int": "I32", "int16": "I16", "short": "I16",
    "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
    "complex64": "C64", "cfloat": "C64", "complex128": "C128", "cdouble": "C128",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
_WRAPPER = Global("torch._utils", "_rebuild_wrapper_subclass")
_DISTRIBUTED = ("DTensor", "ShardedTensor")


class Storage(NamedTuple):
    """A persistent id: a block of numbers by its key, and optionally a range of it (in elements).

    `numel` is what the pickle says, any integer; it is compared with the file when the storage is located.
    """

    dtype: str
    key: str
    numel: int
    first: int = 0
    part: int | None = None


class Tensor(NamedTuple):
    """A tensor as the pickle describes it: a view of a storage. Nothing has been checked yet."""

    storage: Any
    offset: object
    shape: object
    strides: object
    dtype: object
    """The tensor's own type, if it has one; otherwise the type of its storage counts."""
    unreadable: str = ""
    """Why its numbers are not plain bytes of the storage; empty if they are."""


class DistributedTensor(NamedTuple):
    """In place of a storage: one rank's part of a DTensor or ShardedTensor (`kind`), with its pickled state."""

    kind: str
    state: Any


def storage_of(identity: tuple[object, ...]) -> object:
    """A persistent id of a zip file: ('storage', type, key, device, elements)."""
    if len(identity) != 5 or identity[0] != "storage":
        return None
    _, kind, key, _, numel = identity
    known = type(kind) is Global and (kind.module == "torch" or kind.module.startswith("torch."))
    dtype = _STORAGE_TYPES.get(kind.name) if known else None  # type: ignore[attr-defined]
    if dtype is None or type(key) is not str or len(key) > _MAX_KEY:
        return None
    return Storage(dtype, key, numel if isinstance(numel, int) else -1)


def legacy_storage_of(identity: tuple[object, ...]) -> object:
    """The same in a legacy file: one more field, None or a view (its key, first element, elements)."""
    storage: Any = storage_of(identity[:5]) if len(identity) == 6 else None
    view: Any = identity[5] if storage is not None else None
    if view is None:
        return storage
    _, first, part = view
    if not are_offsets((first, part)):
        raise ValueError
    return storage._replace(first=first, part=part)


def is_torch_size(numbers: object) -> TypeGuard[tuple[int, ...]]:
    """Whether an untrusted value can be a torch.Size, which a pickle gives as a tuple."""
    return type(numbers) is tuple and is_shape(numbers)


def are_offsets(numbers: object) -> TypeGuard[tuple[int, ...]]:
    """Whether an untrusted value can be offsets in a tensor: a short tuple of integers in a plausible range."""
    if type(numbers) is not tuple or len(numbers) > MAX_DIMENSIONS:
        return False
    return all(type(n) is int and 0 <= n <= MAX_DIMENSION for n in numbers)


def element_type(dtype: object) -> str | None:
    """torch.bfloat16, as the pickle names it -> 'BF16'; None for types that are not supported."""
    return _DTYPES.get(dtype.name) if type(dtype) is Global and dtype.module == "torch" else None


def _rebuild(arguments: tuple[object, ...], dtype: object = None, metadata: object = None) -> Tensor:
    storage, offset, shape, strides, *_ = arguments
    unreadable = ""
    if type(storage) is not Storage:
        unreadable = "a view of something that is not a plain storage"
    elif type(metadata) is dict and (metadata.get("conj") or metadata.get("neg")):
        unreadable = "a conjugated or negated view"
    return Tensor(storage, offset, shape, strides, dtype, unreadable)


def _rebuild_v1(arguments: tuple[object, ...]) -> object:
    return _rebuild(arguments) if len(arguments) == 4 else None


def _rebuild_v2(arguments: tuple[object, ...]) -> object:
    if not 6 <= len(arguments) <= 7:
        return None
    return _rebuild(arguments, metadata=arguments[6] if len(arguments) > 6 else None)


def _rebuild_v3(arguments: tuple[object, ...]) -> object:
    if not 7 <= len(arguments) <= 8:
        return None
    named = arguments[6]
    dtype = element_type(named)
    tensor = _rebuild(arguments, dtype, arguments[7] if len(arguments) > 7 else None)
    if dtype is None:
        shown = ".".join(named) if type(named) is Global else "unknown"
        return tensor._replace(unreadable=f"of the element type {shown}")
    return tensor


def _rebuild_quantized(arguments: tuple[object, ...]) -> object:
    return _rebuild(arguments)._replace(unreadable="quantized by PyTorch")


def _rebuild_meta(arguments: tuple[object, ...]) -> object:
    _, shape, strides, *_ = arguments
    return Tensor(None, 0, shape, strides, None, "on the meta device, without numbers")


def _rebuild_sparse(arguments: tuple[object, ...]) -> object:
    """(layout, (indices, values, shape, coalesced)), or two index tensors and the shape last."""
    parts = arguments[-1]
    last = parts[-2:] if type(parts) is tuple else ()
    return Tensor(None, 0, next((part for part in last if type(part) is tuple), ()), (), None, "sparse")


def _rebuild_on_device(arguments: tuple[object, ...]) -> object:
    tensor, dtype, *_ = arguments
    if type(tensor) is Tensor and not tensor.unreadable:
        own = tensor.dtype or tensor.storage.dtype
        return tensor if own == element_type(dtype) else tensor._replace(unreadable="converted on loading")
    return None


def _distributed_tensor(kind: object, inner: tuple[object, ...], state: object) -> object:
    """A subclass that wraps other tensors, (class, type, shape, strides, ...): DTensor and ShardedTensor do."""
    name = kind.name if type(kind) is Global else ""
    if name not in _DISTRIBUTED:
        return None
    dtype = element_type(inner[1])
    unreadable = f"one rank's part of a sharded tensor ({name})"
    return Tensor(DistributedTensor(name, state), 0, inner[2], inner[3], dtype or inner[1], unreadable)


def _rebuild_from_type(arguments: tuple[object, ...]) -> object:
    """A subclass of Tensor: (function, class, its arguments, state). The function is one of those above."""
    function, kind, inner, *rest = arguments
    if function == _WRAPPER and type(inner) is tuple and len(inner) >= 4:
        return _distributed_tensor(kind, inner, rest[0] if rest else None)
    builder = _TENSOR_BUILDERS.get(function) if type(function) is Global else None
    return builder(inner) if builder is not None and type(inner) is tuple else None


def _first_tensor(arguments: tuple[object, ...]) -> object:
    return arguments[0] if type(arguments[0]) is Tensor else None


def _mapping(arguments: tuple[object, ...]) -> object:
    """An OrderedDict: empty and filled later, or (Python 2) made of pairs. A defaultdict names its factory."""
    made: dict[str, object] = {}
    if arguments and type(arguments[0]) is list:
        for pair in arguments[0]:
            if type(pair) in (list, tuple) and len(pair) == 2 and type(pair[0]) is str:
                made[pair[0]] = pair[1]
        arguments[0].clear()  # moved and not copied, so that many calls with the same list cost nothing
    return made


def _sequence(arguments: tuple[object, ...]) -> object:
    return arguments[0] if arguments and type(arguments[0]) in (list, tuple) else []


def _size(arguments: tuple[object, ...]) -> object:
    return arguments[0] if arguments and type(arguments[0]) is tuple else None


def _instance(arguments: tuple[object, ...]) -> object:
    """An object in protocols 0 and 1: (class, base, state of the base)."""
    return PickledObject(arguments[0]) if type(arguments[0]) is Global else None


def _itself(arguments: tuple[object, ...]) -> object:
    return arguments[0]


_TENSOR_BUILDERS: dict[Global, Builder] = {
    Global("torch._utils", "_rebuild_tensor"): _rebuild_v1,
    Global("torch._utils", "_rebuild_tensor_v2"): _rebuild_v2,
    Global("torch._utils", "_rebuild_tensor_v3"): _rebuild_v3,
    Global("torch._utils", "_rebuild_qtensor"): _rebuild_quantized,
    Global("torch._utils", "_rebuild_sparse_tensor"): _rebuild_sparse,
    Global("torch._utils", "_rebuild_meta_tensor_no_storage"): _rebuild_meta,
    Global("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"): _rebuild_on_device,
}
BUILDERS: Mapping[Global, Builder] = {
    **_TENSOR_BUILDERS,
    Global("torch._utils", "_rebuild_parameter"): _first_tensor,
    Global("torch._utils", "_rebuild_parameter_with_state"): _first_tensor,
    Global("torch.nn.parameter", "Parameter"): _first_tensor,
    Global("torch._tensor", "_rebuild_from_type"): _rebuild_from_type,
    Global("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    Global("torch.tensor", "_rebuild_from_type"): _rebuild_from_type,
    Global("torch", "Size"): _size,
    Global("torch.jit._pickle", "restore_type_tag"): _itself,
    Global("torch.jit._pickle", "build_tensorlist"): _itself,
    Global("collections", "OrderedDict"): _mapping,
    Global("collections", "defaultdict"): _mapping,
    Global("builtins", "set"): _sequence,
    Global("__builtin__", "set"): _sequence,
    Global("copyreg", "_reconstructor"): _instance,
    Global("copy_reg", "_reconstructor"): _instance,
}
