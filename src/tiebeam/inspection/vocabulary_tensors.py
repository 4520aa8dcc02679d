"""Every tensor that has the vocabulary as a dimension, by name and kind.

Whoever adds or drops rows must touch them all. Beside embedding and LM head there are per-layer embeddings (Gemma
3n), n-gram tables, the embedding and head of multi-token prediction (MTP), draft heads with their token maps, the
encoder's and the decoder's own embeddings, biases, and a quantiser's scales. A score head has labels instead of tokens.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from tiebeam._pattern import pattern
from tiebeam.checkpoint import Checkpoint, TensorInfo
from tiebeam.checkpoint.quantized.packed import is_helper, is_quantized, layer_of, packed_matrix
from tiebeam.inspection.draft_model import TOKEN_MAPS

EMBEDDING, HEAD = "embedding", "LM head"
PER_LAYER, NGRAM, MTP, DRAFT = "per-layer embedding", "n-gram table", "MTP table", "draft head"
TOKEN_MAP, SCORE, BIAS = "token map", "score head", "head bias"
SCALES, FURTHER = "quantizer scales", "further embedding"
# kind: a text that every such name has, which is searched first, and the name
_BY_NAME = {
    PER_LAYER: ("per_layer", pattern(r"(^|\.)(embed_tokens_per_layer|per_layer_token_embd)\.")),
    NGRAM: ("gram", pattern(r"(^|[._])(engram|n_?gram|bigram|trigram)[a-z_]*[._].*(emb|table|weight)")),
    DRAFT: ("medusa", pattern(r"(^|\.)medusa_heads?\.\d+\.\d+\.weight$")),
}
_SCORES = (".score.weight", ".v_head.summary.weight", ".value_head.weight")
_IN_LAYER = pattern(r"(^|\.)(layers|blk|mtp|mtp_layers|nextn|\d+)\.")
_MTP = pattern(r"(^|\.)mtp[a-z_]*\.|nextn|(embed_tokens|shared_head\.head|shared_head_head|lm_head)\.[a-z]+$")
_TABLE = pattern(r"(emb|wte|head|shared|logits|vocab|proj_out|decoder|output)[^.]*(\.weight)?$")
_NOT_TABLE = pattern(r"(^|[._])(pos|position|positions|type|norm|ln|visual|vision|image|audio|qformer)([._]|$)")
_BIASES = (".final_logits_bias", ".bias")


class VocabularyTensor(NamedTuple):
    """`params` counts a packed table unpacked; scales, maps and buffers have none."""

    name: str
    shape: tuple[int, ...]
    kind: str
    params: int
    nbytes: int

    @property
    def is_table(self) -> bool:
        """A matrix of its own beside embedding and head, counted with the vocabulary."""
        return self.kind in (PER_LAYER, NGRAM, MTP, DRAFT, SCORE, FURTHER)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "shape": list(self.shape),
            "kind": self.kind,
            "params": self.params,
            "bytes": self.nbytes,
        }


def vocabulary_tensors(
    checkpoint: Checkpoint, embed: str | None, head: str | None, sizes: frozenset[int], draft: bool = False
) -> tuple[VocabularyTensor, ...]:
    """All of them, embedding and head first. `sizes` are the row counts that mean the vocabulary."""
    pair = {embed: EMBEDDING, head: DRAFT if draft else HEAD}
    pair.pop(None, None)
    layers = {layer for name in pair if name and (layer := layer_of(name))}
    found = [_entry(checkpoint, checkpoint.tensors[name], kind) for name, kind in pair.items() if name]
    quantized = is_quantized(checkpoint)
    for info in checkpoint.tensors.values():
        if info.name not in pair:
            kind = _kind(checkpoint, info, sizes, layers, quantized)
            if kind is not None:
                found.append(_entry(checkpoint, info, kind))
    return tuple(found)


def _kind(
    checkpoint: Checkpoint, info: TensorInfo, sizes: frozenset[int], layers: set[str], quantized: bool
) -> str | None:
    name, shape = info.name, info.shape
    if name.rpartition(".")[2] in TOKEN_MAPS:
        return TOKEN_MAP
    if quantized and is_helper(name, checkpoint.tensors):
        return SCALES if layer_of(name) in layers else None
    for kind, (part, known) in _BY_NAME.items() if len(shape) == 2 else ():
        small = kind == NGRAM and shape[0] < min(sizes, default=1)  # a few vectors, not a table
        if part in name and known.search(name) and not small:
            return kind
    if len(shape) == 2 and f".{name}".endswith(_SCORES):
        return SCORE
    rows = {n for n in shape[:1] if n in sizes}
    packed = packed_matrix(checkpoint, name) if quantized and not rows and len(shape) == 2 else None
    if packed is not None and packed.codes == name and packed.shape[0] in sizes:
        rows = {packed.shape[0]}
    if f".{name}".endswith(_BIASES) and shape and shape[-1] in sizes and prod(shape) == shape[-1]:
        return None if _IN_LAYER.search(name) else BIAS
    if not rows or len(shape) != 2 or _NOT_TABLE.search(name):
        return None
    if _IN_LAYER.search(name):
        return MTP if _MTP.search(name) else None
    return FURTHER if _TABLE.search(name.removesuffix(".qweight")) else None


def _entry(checkpoint: Checkpoint, info: TensorInfo, kind: str) -> VocabularyTensor:
    packed = packed_matrix(checkpoint, info.name) if kind != SCALES else None
    shape: tuple[int, ...] = packed.shape if packed else info.shape
    params = 0 if kind in (SCALES, TOKEN_MAP) or info.name.endswith("final_logits_bias") else prod(shape)
    return VocabularyTensor(info.name, shape, kind, params, info.nbytes)
