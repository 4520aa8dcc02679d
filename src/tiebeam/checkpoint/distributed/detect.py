"""Recognise distributed checkpoints, which were not consolidated into one model yet, by their file names.

Four layouts: torch's distributed checkpoint (DCP), its Hugging Face shards, DeepSpeed's, and one file per rank. They
are looked for in the directory and one level below it (a trainer's `checkpoint-500/` holds `pytorch_model_fsdp_0/`).
`open_distributed` opens them, each layout with its own reader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tiebeam._pattern import pattern
from tiebeam.checkpoint.file_roles import is_folder_without_model, is_never_weights
from tiebeam.checkpoint.files import Files, LocalFiles, contained
from tiebeam.errors import UnreadableInput

FORMATS = ("dcp", "deepspeed", "ranks")

METADATA = pattern(r"^(__\d+)?\.metadata$")
BLOB = pattern(r"\.distcp$")
SHARD = pattern(r"^shard-\d{5,}-model-\d{5,}-of-\d{5,}\.safetensors$")

# DeepSpeed: the states of one rank, with whole or sharded weights; one layer of a pipeline
_STATES = pattern(r"_(model|optim)_states\.pt$|-model_states\.pt$")
WHOLE_WEIGHTS = pattern(r"^mp_rank_(?P<mp>\d+)_model_states\.pt$")
SHARDED_WEIGHTS = pattern(r"^zero_pp_rank_(?P<rank>\d+)_mp_rank_(?P<mp>\d+)_model_states\.pt$")
LAYER = pattern(r"^layer_\d+(-model_\d+)?-model_states\.pt$")

RANK_FILE = pattern(r"^(?P<stem>.+?)[_-]rank[_-]?(?P<rank>\d{1,6})(?P<suffix>\.(?:pt|pth|bin|ckpt))$")

_MEGATRON = pattern(r"^mp_rank_\d+(_\d+)*$")
_MAX_FOLDERS = 1000


class DistributedFiles(NamedTuple):
    """The format of a distributed checkpoint, and its files in one folder."""

    format: str
    names: list[str]


def detect_files(names: list[str]) -> DistributedFiles | None:
    """The distributed checkpoint that the files of one folder make, if they do.

    >>> detect_files([".metadata", "__0_0.distcp", "notes.txt"])
    DistributedFiles(format='dcp', names=['.metadata', '__0_0.distcp'])
    """
    if any(METADATA.match(name) or BLOB.search(name) for name in names):
        return DistributedFiles("dcp", [name for name in names if METADATA.match(name) or BLOB.search(name)])
    if shards := [name for name in names if SHARD.match(name)]:
        return DistributedFiles("dcp", shards)
    if _is_deepspeed(names):
        return DistributedFiles("deepspeed", [name for name in names if _STATES.search(name)])
    for ranks in _rank_sets(name for name in names if not is_never_weights(name)).values():
        if len(ranks) > 1:
            return DistributedFiles("ranks", list(ranks.values()))
    return None


def is_distributed_model(folder: str, names: list[str]) -> bool:
    """Whether a folder of that name, with these files, is a model that several ranks saved."""
    found = None if is_folder_without_model(folder) else detect_files(names)
    return found is not None and (found.format != "dcp" or _is_finished(found))


def rank_set(name: str, names: Iterable[str]) -> dict[int, str]:
    """The files of all ranks in the set that `name` belongs to, by rank; empty if it is not one of several."""
    match = RANK_FILE.match(name)
    ranks = _rank_sets(names).get((match["stem"], match["suffix"]), {}) if match else {}
    return ranks if len(ranks) > 1 else {}


def _rank_sets(names: Iterable[str]) -> dict[tuple[str, str], dict[int, str]]:
    """Groups of files whose names differ only in the rank, each in rank order."""
    sets: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for match in filter(None, map(RANK_FILE.match, names)):
        sets.setdefault((match["stem"], match["suffix"]), []).append((int(match["rank"]), match.string))
    return {key: dict(sorted(found)) for key, found in sets.items()}


def _is_deepspeed(names: list[str]) -> bool:
    return any(WHOLE_WEIGHTS.match(name) or SHARDED_WEIGHTS.match(name) or LAYER.match(name) for name in names)


def detect_from_file(files: Files, names: list[str], name: str) -> DistributedFiles | None:
    """The distributed checkpoint that a file is part of, if the file cannot be opened by itself."""
    if METADATA.match(name) or BLOB.search(name) or SHARD.match(name):
        return detect_files(names)
    if _STATES.search(name) and _is_deepspeed(names) and not LAYER.match(name):
        return detect_files(names)
    ranks = rank_set(name, names)
    if ranks:
        from tiebeam.checkpoint.distributed.rank_files import holds_distributed_tensors

        return DistributedFiles("ranks", list(ranks.values())) if holds_distributed_tensors(files, name) else None
    return None


def find_in_subfolder(source: str, files: Files, names: list[str]) -> tuple[str, DistributedFiles] | None:
    """The one subfolder (with a slash) that holds a distributed checkpoint, and its files."""
    if not isinstance(files, LocalFiles):
        return None
    if "latest" in names:
        folder = _latest(files)
        latest = detect_files(_names_in(files, folder))
        if latest is not None:
            return f"{folder}/", latest
        raise UnreadableInput(f"{source}/latest names the folder {folder}, which holds no checkpoint; name another one")
    folders = files.folders()[:_MAX_FOLDERS]
    parallel = [folder for folder in folders if _MEGATRON.match(folder)]
    if parallel and any(name.endswith(".pt") for name in _names_in(files, parallel[0])):
        raise UnreadableInput(
            f"{source} is a Megatron checkpoint sharded over {len(parallel)} ranks ({parallel[0]} …), and does not say "
            "along which dimensions; convert it with Megatron's tools/checkpoint/convert.py, or save it as torch_dist"
        )
    inside = {folder: _names_in(files, folder) for folder in folders}
    found = {folder: detect_files(inside[folder]) for folder in folders if is_distributed_model(folder, inside[folder])}
    if len(found) > 1:
        some = ", ".join(list(found)[:3]) + (" …" if len(found) > 3 else "")
        raise UnreadableInput(
            f"{source} holds {len(found)} checkpoints that are not consolidated ({some}); name one, as "
            f"{source}/{list(found)[-1]}"
        )
    for folder, checkpoint in found.items():
        assert checkpoint is not None
        return f"{folder}/", checkpoint
    return None


def _latest(files: Files) -> str:
    """The folder that the file `latest` names."""
    size, raw = files.head("latest", 4096)
    name = raw.decode("utf-8", "backslashreplace").strip()
    if size > 4096 or not name or "\n" in name:
        raise UnreadableInput("the file latest does not name a folder; name one of the global_step folders")
    return contained(name, "latest")


def _is_finished(found: DistributedFiles) -> bool:
    return any(METADATA.match(name) or SHARD.match(name) for name in found.names)


def _names_in(files: LocalFiles, folder: str) -> list[str]:
    try:
        return LocalFiles(files.root / folder).names()
    except UnreadableInput:  # removed meanwhile, or without permission
        return []
