"""Draft models of speculative decoding: they borrow the embedding or the LM head of the model that they draft for.

EAGLE-1 stores an embedding, one or two layers and `fc` [D, 2D], and no head. EAGLE-3 stores a head over the most
frequent `draft_vocab_size` tokens, with the map `d2t` from its rows to the target's ids. Both are complete as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiebeam.checkpoint import Checkpoint

TOKEN_MAPS = frozenset({"d2t", "t2d"})


def draft_vocab_size(config: Mapping[str, Any] | None) -> int | None:
    size = (config or {}).get("draft_vocab_size")
    return size if type(size) is int and size > 0 else None


def draft_kind(checkpoint: Checkpoint) -> str:
    """EAGLE-3, EAGLE, or empty for a model that is no draft model."""
    config, tensors = checkpoint.config or {}, checkpoint.tensors
    classes = config.get("architectures")
    named = str(classes[0]) if isinstance(classes, list) and classes else ""
    if draft_vocab_size(config) or any(name.rpartition(".")[2] in TOKEN_MAPS for name in tensors):
        return "EAGLE-3"
    if "eagle" in named.lower() or "speculators_config" in config:
        return "EAGLE-3" if "eagle3" in named.lower() else "EAGLE"
    joined = next((tensors[name] for name in ("fc.weight", "model.fc.weight") if name in tensors), None)
    has_head = any(name.endswith("lm_head.weight") for name in tensors)
    if joined is None or has_head or len(joined.shape) != 2 or joined.shape[1] != 2 * joined.shape[0]:
        return ""
    return "EAGLE" if any(".self_attn." in name for name in tensors) else ""
