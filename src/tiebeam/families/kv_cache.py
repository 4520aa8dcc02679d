"""The KV cache of a model, from its config: families know their layers, `tiebeam.budget` does the arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiebeam.budget import KVCache, kv_cache
from tiebeam.errors import UnreadableInput
from tiebeam.families.config_fields import Fields
from tiebeam.families.registry import families


def kv_cache_of(config: Mapping[str, Any] | None) -> KVCache | None:
    """The KV cache of a family whose layers are known, else None.

    >>> kv_cache_of({"model_type": "gpt2"}).bytes_per_token
    36864
    """
    kind = (config or {}).get("model_type")
    family = families().get(kind) if isinstance(kind, str) else None
    if config is None or family is None or family.spec is None:
        return None
    try:
        spec = family.spec(Fields(config, family.defaults))
    except UnreadableInput:
        return None
    return kv_cache(spec.kv_heads, spec.head_dim, [layer.window for layer in spec.layers])
