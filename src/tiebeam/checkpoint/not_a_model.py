"""Recognise what people name instead of a model, and say what it is: one sentence with the way out.

Git LFS pointers, ONNX exports, tokenizers without weights, TensorFlow and Flax weights, images and text. A
sentence-transformers tree holds its model in a folder of its own; `transformer_folder` finds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tiebeam.checkpoint.files import Files, LocalFiles
from tiebeam.errors import UnreadableInput
from tiebeam.limits import MAX_LFS_POINTER

_LFS = b"version https://git-lfs.github.com/spec/"
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model", "tekken.json")
_OTHER_FRAMEWORKS = {
    ".h5": "TensorFlow", ".msgpack": "Flax", ".tflite": "TensorFlow Lite", ".mlmodel": "Core ML", ".ot": "rust-bert",
}  # fmt: skip
_IMAGES = {b"\x89PNG": "a PNG image", b"\xff\xd8\xff": "a JPEG image", b"GIF8": "a GIF image", b"RIFF": "a media file"}


def is_lfs_pointer(start: bytes) -> bool:
    """Whether a file that starts with these bytes is a Git LFS pointer.

    >>> is_lfs_pointer(b"version https://git-lfs.github.com/spec/v1")
    True
    """
    return start.startswith(_LFS)


def refuse_lfs_pointers(files: Files, names: Iterable[str]) -> None:
    """Raise if one of the files on disk is a Git LFS pointer. The Hub resolves pointers itself."""
    if not isinstance(files, LocalFiles):
        return
    for name in names:
        size, start = files.head(name, len(_LFS))
        if size <= MAX_LFS_POINTER and is_lfs_pointer(start):
            raise UnreadableInput(lfs_sentence(name, str(files.root)))


def lfs_sentence(name: str, directory: str = "") -> str:
    where = f" in {directory}" if directory else " in its directory"
    return f"{name} is a Git LFS pointer, not the file itself; run `git lfs pull`{where}"


def tokenizer_files(names: Iterable[str]) -> list[str]:
    """The files of a tokenizer among `names`."""
    return [name for name in names if name in _TOKENIZER]


def what_instead(source: str, names: list[str], folders: list[str]) -> str | None:
    """What a directory without weights is; None if that is not known."""
    onnx = next((name for name in names if name.endswith((".onnx", ".onnx_data"))), None)
    if onnx or "onnx" in folders:
        return f"{source} holds {_onnx(onnx or 'onnx/')}"
    for suffix, framework in _OTHER_FRAMEWORKS.items():
        other = next((name for name in names if name.endswith(suffix)), None)
        if other:
            return (
                f"{source} holds {framework} weights ({other}) and no others; convert them first, with transformers 4: "
                "from_pretrained(..., from_tf=True or from_flax=True), then save_pretrained"
            )
    tokenizer = tokenizer_files(names)
    if tokenizer:
        return f"{source} holds a tokenizer ({tokenizer[0]}) and no weights; name the directory that has the weights"
    return None


def _onnx(name: str) -> str:
    return (
        f"an ONNX export ({name}) and no checkpoint; name the checkpoint that it was exported from, "
        "as a directory or org/name"
    )


def what_file(name: str, size: int, start: bytes) -> str | None:
    """What a file is that is not weights, by its name and first bytes; None if that is not known."""
    if size <= MAX_LFS_POINTER and is_lfs_pointer(start):
        return lfs_sentence(name)
    if name.endswith((".onnx", ".onnx_data")):
        return f"{name} is {_onnx(name).replace(f' ({name}) and no checkpoint', '')}"
    for magic, what in _IMAGES.items():
        if start.startswith(magic):
            return f"{name} is {what}, not a model"
    for suffix, framework in _OTHER_FRAMEWORKS.items():
        if name.endswith(suffix):
            return f"{name} holds {framework} weights, which cannot be read here; name the safetensors or PyTorch files"
    if name in _TOKENIZER:
        return f"{name} is part of a tokenizer and holds no weights; name the directory of the model"
    return None


def transformer_folder(files: LocalFiles, names: list[str]) -> str | None:
    """The folder with the model in a sentence-transformers tree: by modules.json, else 0_Transformer."""
    folders = files.folders()
    if "modules.json" in names:
        try:
            modules = json.loads(files.read("modules.json", 0, min(files.size("modules.json"), 1 << 20)))
        except (ValueError, RecursionError):
            modules = []
        for module in modules if isinstance(modules, list) else []:
            if isinstance(module, dict) and str(module.get("type", "")).endswith("Transformer"):
                path = module.get("path")
                if path in folders:
                    return str(path)
    return "0_Transformer" if "0_Transformer" in folders else None
