"""Open the directory of a PEFT adapter: adapter_config.json, and the tensors of adapter_model.safetensors or .bin."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiebeam.checkpoint.files import LocalFiles
from tiebeam.checkpoint.json_files import read_json
from tiebeam.checkpoint.open import open_shards
from tiebeam.checkpoint.tensors import Checkpoint
from tiebeam.errors import UnreadableInput

CONFIG = "adapter_config.json"
_WEIGHTS = (("adapter_model.safetensors", "safetensors"), ("adapter_model.bin", "pytorch"))


@dataclass(frozen=True)
class Adapter:
    """An opened adapter: `config` is its adapter_config.json, `weights` has its tensors. Only headers are read."""

    source: str
    files: LocalFiles
    config: Mapping[str, Any]
    weights: Checkpoint

    @property
    def base(self) -> str | None:
        """The model it was trained on, as the adapter names it."""
        named = self.config.get("base_model_name_or_path")
        return named if isinstance(named, str) and named else None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that were read."""
        return tuple(self.files.path(name) for name in (CONFIG, *{t.file for t in self.weights.tensors.values()}))


def is_adapter(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is the directory of a PEFT adapter."""
    return Path(path).is_dir() and (Path(path) / CONFIG).is_file()


def open_adapter(path: str | os.PathLike[str]) -> Adapter:
    """Open the adapter in the directory `path`; a .bin is read by the reader that executes nothing."""
    where = Path(path)
    if not where.is_dir():
        what = "is a file, not a directory" if where.exists() else "does not exist"
        hint = f"; download it first: hf download {path}" if _looks_like_hub_id(str(path)) else ""
        raise UnreadableInput(f"the adapter {path} {what}{hint or '; name the directory with its ' + CONFIG}")
    files = LocalFiles(where)
    names = files.names()
    if CONFIG not in names:
        raise UnreadableInput(f"{path} has no {CONFIG}, so it is not a PEFT adapter; name the directory that has one")
    config = read_json(files, CONFIG, str(path))
    for name, format in _WEIGHTS:
        if name in names:
            return Adapter(str(path), files, config, open_shards(str(path), format, files, [name], None))
    raise UnreadableInput(
        f"{path} has an {CONFIG} but no adapter_model.safetensors or .bin; save the adapter again, or copy that file"
    )


def _looks_like_hub_id(text: str) -> bool:
    return text.count("/") == 1 and not text.startswith((".", "/", "~"))
