"""A tree that was told by its names -> an open checkpoint, with what a person should know of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiebeam.checkpoint.distributed import dcp, deepspeed, rank_files
from tiebeam.checkpoint.distributed.detect import BLOB, METADATA, SHARD, Tree, rank_set
from tiebeam.checkpoint.distributed.sharded_tensor import Table
from tiebeam.checkpoint.files import Files
from tiebeam.checkpoint.tensors import Checkpoint, TensorInfo
from tiebeam.errors import UnreadableInput


def open_tree(
    source: str, files: Files, folder: str, tree: Tree, config: Mapping[str, Any] | None, config_name: str
) -> Checkpoint:
    """The model in a tree, its names and shapes read and its numbers not."""
    notes: tuple[str, ...]
    plain: Mapping[str, TensorInfo] = {}
    if tree.format == "deepspeed":
        opened = deepspeed.read_folder(files, folder, tree.names)
        table, plain, notes = opened.table, opened.header.tensors, (*opened.notes, *opened.header.notes)
    elif tree.format == "ranks":
        table, header = rank_files.read_ranks(files, folder, rank_set(tree.names[0], tree.names))
        plain, notes = header.tensors, (f"one file for each of {len(tree.names)} processes",)
    else:
        table, notes = _open_dcp(source, files, folder, tree.names)
    tensors = {**table.tensors, **plain}
    if not tensors:
        raise UnreadableInput(f"{source} holds no tensors")
    architecture = (config or {}).get("model_type")
    return Checkpoint(
        source=source,
        format=tree.format,
        files=files,
        tensors=tensors,
        config=config,
        config_name=config_name,
        architecture=architecture if isinstance(architecture, str) else None,
        notes=notes,
        pieced=table.pieced,
    )


def _open_dcp(source: str, files: Files, folder: str, names: list[str]) -> tuple[Table, tuple[str, ...]]:
    called = folder.rstrip("/") or source
    shards = [name for name in names if SHARD.match(name)]
    if not shards and not any(METADATA.match(name) for name in names):
        raise UnreadableInput(
            f"{called} holds {_count(names, 'file')} of a torch distributed checkpoint but no .metadata, which is "
            "written last: the save did not finish, or the hidden file was not copied"
        )
    part = dcp.read_shards(files, folder, names) if shards else dcp.read_metadata(files, folder, names)
    if not part.table.tensors:
        what = (
            f"{_number(part.tensors_beside, 'tensor')} of an optimizer and none"
            if part.tensors_beside
            else "no tensors"
        )
        raise UnreadableInput(f"{called} holds {what} of a model; name the folder of the model's own checkpoint")
    parts = _count(shards, "safetensors shard") if shards else _count([n for n in names if BLOB.search(n)], "file")
    note = f"a torch distributed checkpoint (DCP) in {parts}"
    if part.at:
        note += f"; the weights are {part.at!r} in it"
    if part.beside:
        note += f", {', '.join(map(repr, part.beside[:4]))} beside it left alone"
    elif part.tensors_beside:
        note += f"{',' if part.at else ';'} {_number(part.tensors_beside, 'tensor')} of an optimizer left alone"
    return part.table, (note, *part.notes)


def _count(names: list[str], what: str) -> str:
    return _number(len(names), what)


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
