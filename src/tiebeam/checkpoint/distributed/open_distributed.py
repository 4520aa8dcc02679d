"""Open a distributed checkpoint whose format is known, with notes on what was found in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiebeam.checkpoint.distributed import dcp, deepspeed, rank_files
from tiebeam.checkpoint.distributed.detect import BLOB, METADATA, SHARD, DistributedFiles, rank_set
from tiebeam.checkpoint.distributed.sharded_tensor import TensorTable
from tiebeam.checkpoint.files import Files
from tiebeam.checkpoint.tensors import Checkpoint, TensorInfo
from tiebeam.errors import UnreadableInput


def open_distributed(
    source: str, files: Files, folder: str, found: DistributedFiles, config: Mapping[str, Any] | None, config_name: str
) -> Checkpoint:
    """Names and shapes of the model in `folder`; numbers are read later, by rows."""
    notes: tuple[str, ...]
    plain: Mapping[str, TensorInfo] = {}
    if found.format == "deepspeed":
        model = deepspeed.read_folder(files, folder, found.names)
        table, plain, notes = model.table, model.header.tensors, (*model.notes, *model.header.notes)
    elif found.format == "ranks":
        table, header = rank_files.read_ranks(files, folder, rank_set(found.names[0], found.names))
        plain, notes = header.tensors, (f"one file for each of {len(found.names)} ranks",)
    else:
        table, notes = _open_dcp(source, files, folder, found.names)
    tensors = {**table.tensors, **plain}
    if not tensors:
        raise UnreadableInput(f"{source} holds no tensors")
    architecture = (config or {}).get("model_type")
    return Checkpoint(
        source=source,
        format=found.format,
        files=files,
        tensors=tensors,
        config=config,
        config_name=config_name,
        architecture=architecture if isinstance(architecture, str) else None,
        notes=notes,
        sharded=table.sharded,
    )


def _open_dcp(source: str, files: Files, folder: str, names: list[str]) -> tuple[TensorTable, tuple[str, ...]]:
    label = folder.rstrip("/") or source
    shards = [name for name in names if SHARD.match(name)]
    if not shards and not any(METADATA.match(name) for name in names):
        raise UnreadableInput(
            f"{label} holds {_number(len(names), 'file')} of a torch distributed checkpoint but no .metadata, which "
            "is written last: the save did not finish, or the hidden file was not copied"
        )
    model = dcp.read_shards(files, folder, names) if shards else dcp.read_metadata(files, folder, names)
    if not model.table.tensors:
        held = (
            f"{_number(model.other_tensors, 'tensor')} of an optimizer and none"
            if model.other_tensors
            else "no tensors"
        )
        raise UnreadableInput(f"{label} holds {held} of a model; name the folder of the model's own checkpoint")
    blobs = [name for name in names if BLOB.search(name)]
    count = _number(len(shards), "safetensors shard") if shards else _number(len(blobs), "file")
    note = f"a torch distributed checkpoint (DCP) in {count}"
    if model.path:
        note += f"; the weights are under {model.path!r}"
    if model.others:
        note += f", {', '.join(map(repr, model.others[:4]))} ignored"
    elif model.other_tensors:
        note += f"{',' if model.path else ';'} {_number(model.other_tensors, 'tensor')} of an optimizer ignored"
    return model.table, (note, *model.notes)


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
