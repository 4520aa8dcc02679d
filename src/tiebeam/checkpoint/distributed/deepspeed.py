"""DeepSpeed checkpoints: a `global_stepN` folder of model states and optimizer states, one pair per rank.

ZeRO 1 and 2 shard only the optimizer: `mp_rank_00_model_states.pt` holds every weight and is read as a PyTorch file.
ZeRO 3 shards the weights too. The model states then hold names and shapes, in the order of the optimizer's groups, and
the names that are tied to another parameter; the numbers are the fp32 copies in the optimizer states. There each rank
keeps, for each parameter in order, a slice of ceil(n / ranks) elements of the flattened parameter. The slices of all
ranks, concatenated, are the parameter; the excess at the end is padding.

Files of a model that is also sharded by tensor or pipeline parallelism do not say how they fit together.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any, NamedTuple

from tiebeam.checkpoint.distributed.detect import LAYER, SHARDED_WEIGHTS, WHOLE_WEIGHTS
from tiebeam.checkpoint.distributed.sharded_tensor import Chunk, ShardedTensor, TensorTable, join_chunks
from tiebeam.checkpoint.files import Files
from tiebeam.checkpoint.formats.torch.reader import Contents, read_contents, read_header, tensor_info
from tiebeam.checkpoint.formats.torch.rebuild import Tensor, is_torch_size
from tiebeam.checkpoint.tensors import Header, TensorInfo
from tiebeam.errors import UnreadableInput
from tiebeam.limits import MAX_CHUNKS, MAX_SHARDS

_OPTIMIZER = re.compile(r"^(?:\w+?_)?zero_pp_rank_(?P<rank>\d+)_mp_rank_(?P<mp>\d+)_optim_states\.pt$")
_EXPERT = re.compile(r"^(layer_\d+_)?expert_\d+_mp_rank_\d+_model_states\.pt$")


class DeepSpeedModel(NamedTuple):
    """The tensors of a DeepSpeed folder: sharded ones in `table`, whole ones in `header`."""

    table: TensorTable
    header: Header
    notes: tuple[str, ...]


def read_folder(files: Files, folder: str, names: list[str]) -> DeepSpeedModel:
    """The model in a folder. `folder` is its path below `files` with a trailing slash, or empty."""
    label = folder.rstrip("/") or "this folder"
    if any(LAYER.match(name) for name in names):
        raise UnreadableInput(
            f"{label} is a pipeline-parallel DeepSpeed checkpoint with one file per layer, and does not say how the "
            "layers make a model; convert it with the trainer's own tool, or name one of the files"
        )
    if any(_EXPERT.match(name) for name in names):
        raise UnreadableInput(
            f"{label} is a DeepSpeed checkpoint with experts in separate files, which is not supported; save the "
            "whole model with the trainer first"
        )
    ranks = {
        int(match["mp"])
        for pattern in (WHOLE_WEIGHTS, SHARDED_WEIGHTS, _OPTIMIZER)
        for match in map(pattern.match, names)
        if match
    }
    if len(ranks) > 1:
        raise UnreadableInput(
            f"{label} is sharded over {len(ranks)} tensor-parallel ranks (mp_rank_00 to mp_rank_{max(ranks):02d}), "
            "and does not say along which dimensions; convert it with the trainer's own tool, or, where it is "
            "DeepSpeed's, with ds_to_universal.py"
        )
    whole = [name for name in names if WHOLE_WEIGHTS.match(name)]
    if whole:
        header = read_header(files, folder + whole[0])
        count = sum(bool(_OPTIMIZER.match(name)) for name in names)
        note = f"a DeepSpeed checkpoint with whole weights (ZeRO 2 or below); {count} optimizer files ignored"
        return DeepSpeedModel(TensorTable(), header, (note,))
    return _read_zero3(files, folder, names)


def _read_zero3(files: Files, folder: str, names: list[str]) -> DeepSpeedModel:
    """ZeRO 3: names and shapes from the model states of rank 0, numbers from the optimizer states of all ranks."""
    models = _by_rank(names, SHARDED_WEIGHTS)
    if 0 not in models:
        raise UnreadableInput(
            f"{folder or './'} lacks zero_pp_rank_0_mp_rank_00_model_states.pt, which holds the parameter names"
        )
    main = read_contents(files, folder + models[0])
    state = main.root if type(main.root) is dict else {}
    shapes, frozen = _shapes(state.get("param_shapes"), folder + models[0]), state.get("frozen_param_shapes")
    frozen = _shapes(frozen, folder + models[0]) if frozen else {}
    if not shapes and not frozen:
        raise UnreadableInput(f"{folder + models[0]} holds no param_shapes; it is not from ZeRO 3, or it is damaged")
    table = TensorTable()
    flats = _flat_groups(files, folder, _by_rank(names, _OPTIMIZER), shapes)
    if isinstance(flats, str):
        for name, shape in shapes.items():
            table.add(name, shape, ShardedTensor("F32", shape, unreadable=flats))
    else:
        _add_trainable(files, folder, table, shapes, flats)
    _add_frozen(files, folder, table, frozen, models, main)
    plain = _buffers(state, main, folder + models[0])
    for alias, source in _tied_names(state.get("shared_params")):
        if source in table.tensors and alias not in table.tensors:
            table.tensors[alias] = table.tensors[source]._replace(name=alias)
    notes = [f"a DeepSpeed ZeRO-3 checkpoint of {len(models)} ranks; the numbers are the optimizer's fp32 copies"]
    if isinstance(flats, str):
        notes.append(f"numbers not read: {flats}")
    return DeepSpeedModel(table, Header(plain), tuple(notes))


def _by_rank(names: list[str], pattern: re.Pattern[str]) -> dict[int, str]:
    found = {int(match["rank"]): name for name in names if (match := pattern.match(name))}
    return dict(sorted(found.items()))


def _shapes(groups: object, file: str) -> dict[str, tuple[int, ...]]:
    """One dictionary per parameter group of the optimizer, in order; old versions have a single one."""
    shapes: dict[str, tuple[int, ...]] = {}
    for group in groups if type(groups) is list else [groups]:
        for name, shape in group.items() if type(group) is dict else ():
            if not is_torch_size(shape) or name in shapes:
                raise UnreadableInput(f"{file} lists {name!r} twice, or with a shape that no tensor can have")
            shapes[name] = shape
    return shapes


def _tied_names(pairs: object) -> list[tuple[str, str]]:
    """Pairs (name that is not stored, stored name)."""
    listed: Any = pairs.items() if type(pairs) is dict else pairs if type(pairs) is list else ()
    return [
        (pair[0], pair[1])
        for pair in listed
        if type(pair) in (tuple, list) and len(pair) == 2 and all(type(name) is str for name in pair)
    ]


Flats = list[list[TensorInfo]]
"""For each rank, its flat parameter groups."""


def _flat_groups(
    files: Files, folder: str, optimizers: dict[int, str], shapes: dict[str, tuple[int, ...]]
) -> Flats | str:
    """The flat fp32 groups of every rank, or the reason why they cannot be used."""
    if not optimizers:
        return "the optimizer states (*_optim_states.pt), in which ZeRO 3 keeps the numbers, are missing"
    count = len(optimizers)
    if list(optimizers) != list(range(count)) or count > MAX_SHARDS:
        return f"optimizer states of {max(optimizers) + 1} ranks are needed and {count} are there"
    flats: Flats = []
    for rank, name in optimizers.items():
        contents = read_contents(files, folder + name)
        state: Any = contents.root.get("optimizer_state_dict") if type(contents.root) is dict else None
        groups = state.get("fp32_flat_groups") if type(state) is dict else None
        if type(state) is not dict or type(groups) is not list or not all(type(g) is Tensor for g in groups):
            return f"{name} holds no fp32_flat_groups (offloaded to disk, or of another optimizer)"
        if state.get("partition_count") != count:
            expected = state.get("partition_count")
            ranks = f"{expected}" if type(expected) is int else "an unknown number of"
            return f"{name} belongs to a run of {ranks} ranks, and the states of {count} are there"
        flats.append([_flat(contents, tensor, folder + name, i) for i, tensor in enumerate(groups)])
        if [flat.shape for flat in flats[rank]] != [flat.shape for flat in flats[0]]:
            return f"{name} has other parameter groups than rank 0"
    wanted = sum(-(-prod(shape) // count) for shape in shapes.values())
    held = sum(flat.size for flat in flats[0])
    if wanted != held or any(flat.dtype != "F32" for flats_of in flats for flat in flats_of):
        return f"a rank stores {held:,} numbers and the shapes need {wanted:,}; this layout is not known"
    return flats


def _flat(contents: Contents, tensor: Tensor, file: str, i: int) -> TensorInfo:
    if tensor.unreadable:
        raise UnreadableInput(f"{file}: group {i} is {tensor.unreadable}")
    info = tensor_info(f"fp32_flat_groups.{i}", tensor, file, contents.locate)
    if len(info.shape) != 1 or info.strides is not None or info.packing:
        raise UnreadableInput(f"{file}: group {i} should be one dense dimension; it is {list(info.shape)}")
    return info


def _add_trainable(
    files: Files, folder: str, table: TensorTable, shapes: dict[str, tuple[int, ...]], flats: Flats
) -> None:
    count, at, left = len(flats), 0, MAX_CHUNKS
    for name, shape in shapes.items():
        size = prod(shape)
        length = -(-size // count)
        chunks = []
        for rank, flat in enumerate(flats):
            first, last = rank * length, min((rank + 1) * length, size)
            chunks += _slices(flat, at, first, last)
        left -= len(chunks)
        if left < 0:
            raise UnreadableInput(
                f"{folder or './'} has more shards than the limit of {MAX_CHUNKS:,}; refusing to read"
            )
        table.add(name, shape, join_chunks(files, "F32", (size,), chunks, f"{name!r} in {folder or './'}"))
        at += length


def _slices(flat: list[TensorInfo], at: int, first: int, last: int) -> list[Chunk]:
    """Elements first:last of a parameter, which start at element `at` of the concatenated groups."""
    chunks, begin = [], 0
    for info in flat:
        low, high = max(at, begin), min(at + last - first, begin + info.size)
        if low < high:
            start = info.begin + 4 * (low - begin)
            part = info._replace(shape=(high - low,), begin=start, end=start + 4 * (high - low))
            chunks.append(Chunk.at((first + low - at,), part))
        begin += info.size
    return chunks


def _add_frozen(
    files: Files,
    folder: str,
    table: TensorTable,
    frozen: dict[str, tuple[int, ...]],
    models: dict[int, str],
    main: Contents,
) -> None:
    """Frozen parameters: the slice of each rank is in its own model states, in the model's type."""
    if not frozen:
        return
    parts: dict[str, list[TensorInfo]] = {name: [] for name in frozen}
    unreadable: dict[str, str] = {}
    if list(models) != list(range(len(models))):
        unreadable = dict.fromkeys(frozen, "the model states of some ranks are missing")
    elif len(frozen) * len(models) > MAX_CHUNKS:
        raise UnreadableInput(f"{folder or './'} has more shards than the limit of {MAX_CHUNKS:,}; refusing to read")
    for rank, file in models.items() if not unreadable else ():
        contents = main if rank == 0 else read_contents(files, folder + file)
        fragments = contents.root.get("frozen_param_fragments") if type(contents.root) is dict else None
        for name in frozen:
            fragment = fragments.get(name) if type(fragments) is dict else None
            if type(fragment) is not Tensor or fragment.unreadable:
                unreadable.setdefault(name, f"{file} does not hold its slice")
                continue
            info = tensor_info(name, fragment, folder + file, contents.locate)
            if len(info.shape) != 1 or info.strides is not None or info.packing:
                unreadable.setdefault(name, f"the slice in {file} is not one dense dimension")
            parts[name].append(info)
    for name, shape in frozen.items():
        dtype = parts[name][-1].dtype if parts[name] else "F32"
        if name in unreadable:
            table.add(name, shape, ShardedTensor(dtype, shape, unreadable=unreadable[name]))
            continue
        chunks, at, size = [], 0, prod(shape)
        for info in parts[name]:
            if info.dtype != dtype:
                raise UnreadableInput(f"{folder or './'} holds {name!r} in two types, {info.dtype} and {dtype}")
            keep = min(info.size, size - at)
            width = info.nbytes // info.size if info.size else 0
            chunks.append(Chunk.at((at,), info._replace(shape=(keep,), end=info.begin + keep * width)))
            at += keep
        table.add(name, shape, join_chunks(files, dtype, (size,), chunks, f"{name!r} in {folder or './'}"))


def _buffers(state: dict[str, Any], contents: Contents, file: str) -> dict[str, TensorInfo]:
    """The buffers of the module. Its parameters are there too, but only as empty placeholders."""
    module, names = state.get("module"), state.get("buffer_names")
    if type(module) is not dict or type(names) is not list:
        return {}
    found = {}
    for name in names[:MAX_SHARDS]:
        tensor = module.get(name) if type(name) is str else None
        if type(tensor) is Tensor and not tensor.unreadable:
            found[name] = tensor_info(name, tensor, file, contents.locate)
    return found
