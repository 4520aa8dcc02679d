"""Checkpoints of DeepSpeed: a `global_stepN` folder of model states and optimizer states, one pair per process.

ZeRO 1 and 2 cut only the optimizer: `mp_rank_00_model_states.pt` holds every weight, and is read as any PyTorch file.
ZeRO 3 cuts the weights too. The model states then hold only names and shapes in the order of the optimizer's groups,
and the names that share a parameter with another; the numbers are the fp32 copies in the optimizer states. There, each
process keeps, for each parameter in order, one stretch of ceil(n / processes) numbers of the flattened parameter; the
stretches of all processes end to end are the parameter, and what is over at its end is padding.

A model cut by tensor or pipeline parallelism as well does not say in these files how it fits together.
"""

from __future__ import annotations

import re
from functools import partial
from math import prod
from typing import Any, NamedTuple

from tiebeam.checkpoint.distributed.detect import CUT, LAYER, WHOLE
from tiebeam.checkpoint.distributed.sharded_tensor import Piece, Pieced, Table, put_together
from tiebeam.checkpoint.files import Files
from tiebeam.checkpoint.formats.torch.reader import Contents, read_contents, read_header, tensor_info
from tiebeam.checkpoint.formats.torch.rebuild import MAX_DIMENSION, Tensor
from tiebeam.checkpoint.tensors import Header, TensorInfo
from tiebeam.errors import UnreadableInput

_OPTIMIZER = re.compile(r"^(?:\w+?_)?zero_pp_rank_(?P<rank>\d+)_mp_rank_(?P<mp>\d+)_optim_states\.pt$")
_EXPERT = re.compile(r"^(layer_\d+_)?expert_\d+_mp_rank_\d+_model_states\.pt$")
_MAX_PROCESSES = 100_000
_MAX_PIECES = 2_000_000


class Opened(NamedTuple):
    """The tensors of a DeepSpeed folder, with what to say about them."""

    table: Table
    header: Header
    notes: tuple[str, ...]


def read_folder(files: Files, folder: str, names: list[str]) -> Opened:
    """The model in a folder: `folder` is its path below `files`, with a slash, or empty."""
    called = folder.rstrip("/") or "this folder"
    if any(LAYER.match(name) for name in names):
        raise UnreadableInput(
            f"{called} is a pipeline-parallel checkpoint of DeepSpeed, one file a layer, and does not say how the "
            "layers make a model; convert it with the trainer's own tool, or look into one file: name it"
        )
    if any(_EXPERT.match(name) for name in names):
        raise UnreadableInput(
            f"{called} is a checkpoint of DeepSpeed with its experts in files of their own, which are not put together "
            "here; save the whole model with the trainer first"
        )
    ranks = {int(match["mp"]) for pattern in (WHOLE, CUT, _OPTIMIZER) for match in map(pattern.match, names) if match}
    if len(ranks) > 1:
        raise UnreadableInput(
            f"{called} is cut over {len(ranks)} tensor-parallel processes (mp_rank_00 to mp_rank_{max(ranks):02d}), "
            "and does not say along which dimensions; convert it with the trainer's own tool, or, where it is "
            "DeepSpeed's, with ds_to_universal.py"
        )
    whole = [name for name in names if WHOLE.match(name)]
    if whole:
        header = read_header(files, folder + whole[0])
        cut = sum(bool(_OPTIMIZER.match(name)) for name in names)
        note = f"a DeepSpeed checkpoint with whole weights (ZeRO 2 or below); {cut} optimizer files left alone"
        return Opened(Table(), header, (note,))
    return _read_cut(files, folder, names)


def _read_cut(files: Files, folder: str, names: list[str]) -> Opened:
    """ZeRO 3: names and shapes from the first process's model states, numbers from every optimizer's."""
    models = _by_rank(names, CUT)
    if 0 not in models:
        raise UnreadableInput(f"{folder or './'} lacks zero_pp_rank_0_mp_rank_00_model_states.pt, where the names are")
    main = read_contents(files, folder + models[0])
    state = main.root if type(main.root) is dict else {}
    shapes, frozen = _shapes(state.get("param_shapes"), folder + models[0]), state.get("frozen_param_shapes")
    frozen = _shapes(frozen, folder + models[0]) if frozen else {}
    if not shapes and not frozen:
        raise UnreadableInput(f"{folder + models[0]} holds no param_shapes; it is not from ZeRO 3, or damaged")
    table = Table()
    flats = _flat_groups(files, folder, _by_rank(names, _OPTIMIZER), shapes)
    if isinstance(flats, str):
        for name, shape in shapes.items():
            table.add(name, shape, Pieced("F32", shape, why=flats))
    else:
        _cut_trainable(files, folder, table, shapes, flats)
    _cut_frozen(files, folder, table, frozen, models, main)
    plain = _buffers(state, main, folder + models[0])
    for alias, source in _shared(state.get("shared_params")):
        if source in table.tensors and alias not in table.tensors:
            table.tensors[alias] = table.tensors[source]._replace(name=alias)
    notes = [f"a DeepSpeed ZeRO-3 checkpoint of {len(models)} processes; the numbers are the "
             "optimizer's fp32 copies"]  # fmt: skip
    if isinstance(flats, str):
        notes.append(f"numbers not read: {flats}")
    return Opened(table, Header(plain), tuple(notes))


def _by_rank(names: list[str], pattern: re.Pattern[str]) -> dict[int, str]:
    found = {int(match["rank"]): name for name in names if (match := pattern.match(name))}
    return dict(sorted(found.items()))


def _shapes(groups: object, file: str) -> dict[str, tuple[int, ...]]:
    """One dictionary for each of the optimizer's groups, in order; old versions have just one."""
    shapes: dict[str, tuple[int, ...]] = {}
    for group in groups if type(groups) is list else [groups]:
        for name, shape in group.items() if type(group) is dict else ():
            if type(shape) is not tuple or len(shape) > 32 or not all(type(n) is int and n >= 0 for n in shape):
                raise UnreadableInput(f"{file} gives {name!r} a shape that no tensor can have")
            if prod(n or 1 for n in shape) > MAX_DIMENSION or name in shapes:
                raise UnreadableInput(f"{file} lists {name!r} twice, or with a shape that no tensor can have")
            shapes[name] = shape
    return shapes


def _shared(pairs: object) -> list[tuple[str, str]]:
    """(the name that is not stored, the one that is)"""
    listed: Any = pairs.items() if type(pairs) is dict else pairs if type(pairs) is list else ()
    return [
        (pair[0], pair[1])
        for pair in listed
        if type(pair) in (tuple, list) and len(pair) == 2 and all(type(name) is str for name in pair)
    ]


Flats = list[list[TensorInfo]]
"""For each process, the flat groups that it keeps."""


def _flat_groups(
    files: Files, folder: str, optimizers: dict[int, str], shapes: dict[str, tuple[int, ...]]
) -> Flats | str:
    """Every process's flat fp32 groups; where they do not make the parameters, why not."""
    if not optimizers:
        return "the optimizer states (*_optim_states.pt) are not there, and ZeRO 3 keeps the numbers in them"
    count = len(optimizers)
    if list(optimizers) != list(range(count)) or count > _MAX_PROCESSES:
        return f"of the optimizer states of {max(optimizers) + 1} processes only {count} are there"
    flats: Flats = []
    for rank, name in optimizers.items():
        contents = read_contents(files, folder + name)
        state: Any = contents.root.get("optimizer_state_dict") if type(contents.root) is dict else None
        groups = state.get("fp32_flat_groups") if type(state) is dict else None
        if type(state) is not dict or type(groups) is not list or not all(type(g) is Tensor for g in groups):
            return f"{name} holds no fp32_flat_groups (offloaded to disk, or of another optimizer)"
        if state.get("partition_count") != count:
            said = state.get("partition_count")
            stated = f"{said}" if type(said) is int else "another number of"
            return f"{name} belongs to a job of {stated} processes, and the states of {count} are there"
        flats.append([_flat(contents, tensor, folder + name, i) for i, tensor in enumerate(groups)])
        if [flat.shape for flat in flats[rank]] != [flat.shape for flat in flats[0]]:
            return f"{name} has other groups than those of process 0"
    wanted = sum(-(-prod(shape) // count) for shape in shapes.values())
    held = sum(flat.size for flat in flats[0])
    if wanted != held or any(flat.dtype != "F32" for flats_of in flats for flat in flats_of):
        return f"a process keeps {held:,} numbers and the shapes ask for {wanted:,} of it: the layout is another"
    return flats


def _flat(contents: Contents, tensor: Tensor, file: str, i: int) -> TensorInfo:
    if tensor.unreadable:
        raise UnreadableInput(f"{file}: group {i} is {tensor.unreadable}")
    info = tensor_info(f"fp32_flat_groups.{i}", tensor, file, contents.locate)
    if len(info.shape) != 1 or info.strides is not None or info.packing:
        raise UnreadableInput(f"{file}: group {i} should be a plain row of numbers; it is {list(info.shape)}")
    return info


def _cut_trainable(files: Files, folder: str, table: Table, shapes: dict[str, tuple[int, ...]], flats: Flats) -> None:
    count, at, left = len(flats), 0, _MAX_PIECES
    for name, shape in shapes.items():
        size = prod(shape)
        stretch = -(-size // count)
        pieces = []
        for rank, flat in enumerate(flats):
            first, last = rank * stretch, min((rank + 1) * stretch, size)
            pieces += _stretches(flat, at, first, last)
        left -= len(pieces)
        if left < 0:
            raise UnreadableInput(f"{folder or './'} is cut into more than {_MAX_PIECES:,} pieces; refused as a bomb")
        table.add(name, shape, put_together(files, "F32", (size,), pieces, f"{name!r} in {folder or './'}"))
        at += stretch


def _stretches(flat: list[TensorInfo], at: int, first: int, last: int) -> list[Piece]:
    """Elements first:last of a parameter, which start at element `at` of the groups laid end to end."""
    pieces, begin = [], 0
    for info in flat:
        low, high = max(at, begin), min(at + last - first, begin + info.size)
        if low < high:
            start = info.begin + 4 * (low - begin)
            part = info._replace(shape=(high - low,), begin=start, end=start + 4 * (high - low))
            offset = first + low - at
            pieces.append(
                Piece((offset,), (high - low,), info.file, partial(_known, part), (info.file, part.begin, part.end))
            )
        begin += info.size
    return pieces


def _cut_frozen(
    files: Files,
    folder: str,
    table: Table,
    frozen: dict[str, tuple[int, ...]],
    models: dict[int, str],
    main: Contents,
) -> None:
    """Parameters that are not trained: each process's stretch lies in its own model states, in the model's type."""
    if not frozen:
        return
    opened = {rank: main if rank == 0 else read_contents(files, folder + name) for rank, name in models.items()}
    for name, shape in frozen.items():
        size, at = prod(shape), 0
        pieces: list[Piece] = []
        dtype, why = "F32", ""
        for rank, contents in opened.items():
            state = contents.root if type(contents.root) is dict else {}
            fragments = state.get("frozen_param_fragments")
            fragment = fragments.get(name) if type(fragments) is dict else None
            if type(fragment) is not Tensor or fragment.unreadable or list(opened) != list(range(len(opened))):
                why = f"{models[rank]} does not hold its part of it"
                break
            info = tensor_info(name, fragment, folder + models[rank], contents.locate)
            if len(info.shape) != 1 or info.strides is not None or info.packing:
                why = f"its part in {models[rank]} is not a plain row of numbers"
                break
            dtype, keep = info.dtype, min(info.size, size - at)
            width = info.nbytes // info.size if info.size else 0
            part = info._replace(shape=(keep,), end=info.begin + keep * width)
            pieces.append(Piece((at,), (keep,), info.file, partial(_known, part), (info.file, part.begin, part.end)))
            at += keep
        if why:
            table.add(name, shape, Pieced(dtype, shape, why=why))
        else:
            table.add(name, shape, put_together(files, dtype, (size,), pieces, f"{name!r} in {folder or './'}"))


def _known(info: TensorInfo, files: Files) -> TensorInfo:
    return info


def _buffers(state: dict[str, Any], contents: Contents, file: str) -> dict[str, TensorInfo]:
    """What the module keeps beside its parameters; those are there too, as empty placeholders."""
    module, names = state.get("module"), state.get("buffer_names")
    if type(module) is not dict or type(names) is not list:
        return {}
    found = {}
    for name in names[:_MAX_PROCESSES]:
        tensor = module.get(name) if type(name) is str else None
        if type(tensor) is Tensor and not tensor.unreadable:
            found[name] = tensor_info(name, tensor, file, contents.locate)
    return found
