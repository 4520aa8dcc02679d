"""What a file in a model's directory is, by its name: weights, training state, an adapter, a document.

This is the only list of files that are never weights. Opening a directory, copying a model and listing models in the
studio all ask here.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from tiebeam._pattern import pattern

SUFFIXES = {
    "safetensors": (".safetensors",),
    "pytorch": (".bin", ".pt", ".pth", ".ckpt"),
    "gguf": (".gguf",),
    "npz": (".npz",),
}
"""Formats that can be opened -> their suffixes, in the order in which a directory is searched."""
WEIGHT_SUFFIXES = tuple(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)

INDEXES = {
    "model.safetensors.index.json": "safetensors",
    "model.safetensors.index.tiebeam.json": "safetensors",
    "pytorch_model.bin.index.json": "pytorch",
}
"""The index of a sharded model -> the format of its shards. That of a joint tie has its own name (variant tiebeam)."""

_TRAINING_STATE = (
    *("optimizer", "scheduler", "scaler", "rng_state", "random_states", "training_args", "trainer_state", "sampler"),
    "resume.",
)
_GGUF_EXTRA = ("mmproj", "imatrix")
_OTHER_FORMATS = pattern(r"\.(h5|msgpack|onnx|onnx_data|ot|tflite|mlmodel)$|\.index\.json$|\.data-\d+-of-")
_DOCUMENT = pattern(
    r"^(config|generation_config|tokenizer.*|vocab|special_tokens_map|added_tokens|preprocessor_config|processor_config"
    r"|chat_template)\.(json|model|jinja|txt)$|^merges\.txt$|^(README|LICENSE|NOTICE)(\.\w+)?$",
    re.IGNORECASE,
)
_FOLDER_WITHOUT_MODEL = pattern(r"^(optimizer|optim|scheduler|dataloader|sampler|ema|\.|tokenizer)")


def is_training_state(name: str) -> bool:
    """Written by a trainer to resume: optimizer, schedule, random states, arguments."""
    return name.startswith(_TRAINING_STATE)


def is_adapter(name: str) -> bool:
    """Part of a LoRA or another adapter of peft."""
    return name.startswith("adapter_")


def is_never_weights(name: str) -> bool:
    """Whether a file is not the model's weights, whatever its suffix.

    >>> is_never_weights("optimizer.pt"), is_never_weights("pytorch_model.bin")
    (True, False)
    """
    return is_training_state(name) or is_adapter(name) or name.startswith(_GGUF_EXTRA) or ".index." in name


def holds_weights(name: str) -> bool:
    """Whether a file, by its name, holds weights of a model in a format that can be opened."""
    return name.endswith(WEIGHT_SUFFIXES) and not is_never_weights(name)


def found_by_loaders(stored: Iterable[str], names: Container[str]) -> bool:
    """Whether transformers finds the weights in a directory: `stored` are its weight files, `names` all its files.

    >>> found_by_loaders(["weights.safetensors"], ["config.json", "weights.safetensors"])
    False
    """
    return bool({"model.safetensors", "pytorch_model.bin"} & set(stored)) or any(index in names for index in INDEXES)


def is_weights_copy(name: str) -> bool:
    """Whether a file has the suffix of weights (or of their index) in any format, opened here or not."""
    return name.endswith(WEIGHT_SUFFIXES) or bool(_OTHER_FORMATS.search(name))


def is_document(name: str) -> bool:
    """Config, tokenizer, model card or licence: what belongs to a model even if only its weights file was named."""
    return bool(_DOCUMENT.match(name))


def is_folder_without_model(name: str) -> bool:
    """Whether a folder in a checkpoint, by its name, holds something other than the model."""
    return bool(_FOLDER_WITHOUT_MODEL.match(name))
