"""Recognise a model that tiebeam wrote: the only thing that `force=True` replaces."""

from __future__ import annotations

import re
from pathlib import Path

from tiebeam._fs import Kind
from tiebeam.checkpoint.file_roles import is_document
from tiebeam.surgery.model_card import has_record
from tiebeam.surgery.output_shards import companions
from tiebeam.surgery.source import Source

_WRITTEN = re.compile(
    r"(model|tiebeam|model\.tiebeam)(-\d{5,}-of-\d{5,})?\.safetensors|model\.safetensors\.index(\.tiebeam)?\.json"
    r"|modeling_tiebeam\.py|id_map\.json"
)


def own_output(source: Source) -> Kind:
    """A directory whose model card has our record and whose files are those of a model, or were copied from `source`;
    or a single GGUF or safetensors file.
    """

    def owns(name: str) -> bool:
        if _WRITTEN.fullmatch(name) or is_document(name):
            return True
        return name in {shard.name for shard in source.layout.shards} | {
            kept for kept, _ in companions(source.checkpoint, set()).kept
        }

    return Kind("a model that tiebeam wrote", _is_ours, owns)


def _is_ours(path: Path) -> bool:
    if path.is_dir():
        return has_record(path)
    if not path.is_file():
        return False
    with open(path, "rb") as handle:
        head = handle.read(9)
    return head[:4] == b"GGUF" if path.suffix == ".gguf" else path.suffix == ".safetensors" and head[8:] == b"{"
