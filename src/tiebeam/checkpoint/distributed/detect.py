"""Checkpoints as trees: folders that a training over several processes left, before anyone consolidated them.

Four kinds: torch's distributed checkpoint (DCP), its Hugging Face shards, DeepSpeed's, and one file per process. Here
they are told apart by their file names alone and looked for one level down (a trainer's `checkpoint-500/` holds
`pytorch_model_fsdp_0/`); `tree_opening` opens them, each kind by a reader of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tiebeam.checkpoint.files import Files, LocalFiles, contained
from tiebeam.errors import UnreadableInput

FORMATS = ("dcp", "deepspeed", "ranks")

METADATA = re.compile(r"^(__\d+)?\.metadata$")
BLOB = re.compile(r"\.distcp$")
SHARD = re.compile(r"^shard-\d{5,}-model-\d{5,}-of-\d{5,}\.safetensors$")

# DeepSpeed: the states of one process, with whole weights or a part of each; a layer of a pipeline
_STATES = re.compile(r"_(model|optim)_states\.pt$|-model_states\.pt$")
WHOLE = re.compile(r"^mp_rank_(?P<mp>\d+)_model_states\.pt$")
CUT = re.compile(r"^zero_pp_rank_(?P<rank>\d+)_mp_rank_(?P<mp>\d+)_model_states\.pt$")
LAYER = re.compile(r"^layer_\d+(-model_\d+)?-model_states\.pt$")

RANKED = re.compile(r"^(?P<stem>.+?)[_-]rank[_-]?(?P<rank>\d{1,6})(?P<suffix>\.(?:pt|pth|bin|ckpt))$")

# Beside the weights of a training run, an adapter or a quantised model; never the model itself.
NOT_WEIGHTS = re.compile(
    r"^(adapter_|training_args|optimizer|scheduler|scaler|rng_state|random_states|sampler|mmproj|imatrix|.*\.index\.)"
)
_MEGATRON = re.compile(r"^mp_rank_\d+(_\d+)*$")
_NOT_MODELS = re.compile(r"^(optimizer|optim|scheduler|dataloader|sampler|ema|\.|tokenizer)")
_MAX_FOLDERS = 1000


class Tree(NamedTuple):
    """A kind, and the files of the folder that holds it."""

    format: str
    names: list[str]


def tree_of(names: list[str]) -> Tree | None:
    """What the files of one folder are, where they are a tree's."""
    if any(METADATA.match(name) or BLOB.search(name) for name in names):
        return Tree("dcp", [name for name in names if METADATA.match(name) or BLOB.search(name)])
    if shards := [name for name in names if SHARD.match(name)]:
        return Tree("dcp", shards)
    if _is_deepspeed(names):
        return Tree("deepspeed", [name for name in names if _STATES.search(name)])
    for ranked in _rank_sets(name for name in names if not NOT_WEIGHTS.match(name)).values():
        if len(ranked) > 1:
            return Tree("ranks", list(ranked.values()))
    return None


def is_model_tree(folder: str, names: list[str]) -> bool:
    """Whether a folder of that name, with these files, is a model that was saved by several processes."""
    tree = None if _NOT_MODELS.match(folder) else tree_of(names)
    return tree is not None and (tree.format != "dcp" or _is_finished(tree))


def rank_set(name: str, names: Iterable[str]) -> dict[int, str]:
    """The files of every process that `name` belongs with, itself among them; empty when it is not one of several."""
    match = RANKED.match(name)
    ranked = _rank_sets(names).get((match["stem"], match["suffix"]), {}) if match else {}
    return ranked if len(ranked) > 1 else {}


def _rank_sets(names: Iterable[str]) -> dict[tuple[str, str], dict[int, str]]:
    """Files that are called the same but for the process that wrote them, in its order."""
    sets: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for match in filter(None, map(RANKED.match, names)):
        sets.setdefault((match["stem"], match["suffix"]), []).append((int(match["rank"]), match.string))
    return {key: dict(sorted(found)) for key, found in sets.items()}


def _is_deepspeed(names: list[str]) -> bool:
    return any(WHOLE.match(name) or CUT.match(name) or LAYER.match(name) for name in names)


def tree_of_file(files: Files, names: list[str], name: str) -> Tree | None:
    """The tree that a file is a part of, when it says nothing by itself."""
    if METADATA.match(name) or BLOB.search(name) or SHARD.match(name):
        return tree_of(names)
    if _STATES.search(name) and _is_deepspeed(names) and not LAYER.match(name):
        return tree_of(names)
    found = rank_set(name, names)
    if found:
        from tiebeam.checkpoint.distributed.rank_files import is_spread

        return Tree("ranks", list(found.values())) if is_spread(files, name) else None
    return None


def tree_below(source: str, files: Files, names: list[str]) -> tuple[str, Tree] | None:
    """The one folder in this one that holds a tree, with a slash, and the tree."""
    if not isinstance(files, LocalFiles):
        return None
    if "latest" in names:
        folder = _latest(files)
        tree = tree_of(_names_in(files, folder))
        if tree is not None:
            return f"{folder}/", tree
        raise UnreadableInput(
            f"{source}/latest names the folder {folder}, which holds no checkpoint; name one yourself"
        )
    folders = files.folders()[:_MAX_FOLDERS]
    parallel = [folder for folder in folders if _MEGATRON.match(folder)]
    if parallel and any(name.endswith(".pt") for name in _names_in(files, parallel[0])):
        raise UnreadableInput(
            f"{source} is a checkpoint of Megatron, cut over {len(parallel)} processes ({parallel[0]} …), and does not "
            "say along which dimensions; convert it with Megatron's own tools/checkpoint/convert.py, or save it as "
            "torch_dist"
        )
    found = {}
    for folder in folders:
        inside = _names_in(files, folder)
        if is_model_tree(folder, inside):
            found[folder] = inside
    if len(found) > 1:
        some = ", ".join(list(found)[:3]) + (" …" if len(found) > 3 else "")
        raise UnreadableInput(
            f"{source} holds {len(found)} checkpoints that are not consolidated ({some}); name one, as "
            f"{source}/{list(found)[-1]}"
        )
    for folder, inside in found.items():
        tree = tree_of(inside)
        assert tree is not None
        return f"{folder}/", tree
    return None


def _latest(files: Files) -> str:
    """The folder that the file `latest` names."""
    size, raw = files.head("latest", 4096)
    name = raw.decode("utf-8", "backslashreplace").strip()
    if size > 4096 or not name or "\n" in name:
        raise UnreadableInput("the file latest does not name a folder; name one of the global_step folders yourself")
    return contained(name, "latest")


def _is_finished(tree: Tree) -> bool:
    return any(METADATA.match(name) or SHARD.match(name) for name in tree.names)


def _names_in(files: LocalFiles, folder: str) -> list[str]:
    try:
        return LocalFiles(files.root / folder).names()
    except UnreadableInput:  # gone, or not ours to read: not a checkpoint of this user's
        return []
