"""A GGUF -> the Hugging Face directory that it was converted from: names, layouts, numbers, config and tokenizer.

llama.cpp's converter renames tensors and changes some numbers: rows of q and k are reordered so that rotary pairs
are neighbours (llama), 1 is added to norm weights (Gemma), GPT-2's matrices are transposed, NeoX's fused qkv is
split by kind instead of by head, experts are stacked. Each change is undone here, on the dequantised numbers. The
facts are in the family's file, which the decoder reads too, so what is written and what is run cannot differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint, TensorInfo, dtypes
from tiebeam.checkpoint.write.copy_bytes import Made
from tiebeam.checkpoint.write.safetensors import Entry
from tiebeam.decode.numpy.runnable import model_config
from tiebeam.errors import BadRequest, TiebeamError, UnreadableInput
from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family, TensorNames
from tiebeam.families.gguf import ROPE_TENSORS, gguf_family
from tiebeam.families.registry import families
from tiebeam.families.spec import Spec
from tiebeam.surgery.edits import Shard
from tiebeam.surgery.output_shards import Layout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float32]
    Change = Callable[[Numbers], Numbers]

_BLOCK = 1 << 21  # numbers dequantised at a time
_TORCH = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def convert(checkpoint: Checkpoint, dtype: str = "F32") -> tuple[Layout, dict[str, str]]:
    """The weights in `dtype`, config.json, the tokenizer where it can be rebuilt; and the new name of each tensor."""
    family = _family(checkpoint)
    config = _config(checkpoint, family, dtype)
    places = dict(_places(family, config))
    entries = []
    for name, info in checkpoint.tensors.items():
        if name in ROPE_TENSORS:
            continue  # in the config already
        if name not in places:
            raise BadRequest(
                f"{checkpoint.source} holds {name}, which has no place in a {family.model_type} model of transformers"
            )
        entries += [_entry(checkpoint, info, place, dtype) for place in places[name]]
    entries.sort(key=lambda entry: entry.name)
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    shard = Shard("model.safetensors", tuple(entries), {"format": "pt"})
    layout = Layout((shard,), config, text, _documents(checkpoint, config))
    return layout, {name: targets[0].name for name, targets in places.items()}


def gguf_places(checkpoint: Checkpoint) -> dict[str, Place]:
    """Hugging Face name: where the GGUF has that tensor."""
    family = _family(checkpoint)
    config = _config(checkpoint, family, "F32")
    places = dict(_places(family, config))
    return {place.name: replace(place, stored=name) for name in checkpoint.tensors for place in places.get(name, ())}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a GGUF tensor belongs: its Hugging Face name, and what undoes the converter's change."""

    name: str
    change: Change | None = None
    transposed: bool = False
    expert: int | None = None
    """This slice of a tensor [experts, out, in]."""
    stored: str = ""
    """The GGUF tensor, where that is not known otherwise."""


def _entry(checkpoint: Checkpoint, info: TensorInfo, place: Place, dtype: str) -> Entry:
    shape = info.shape if place.expert is None else info.shape[1:]
    transposed = place.transposed and len(shape) == 2
    shape = shape[::-1] if transposed else shape
    size = dtypes.nbytes(dtype, shape)
    assert size is not None

    def blocks() -> Iterator[bytes]:
        import numpy as np

        if place.expert is not None:
            values = checkpoint.rows(info.name, place.expert, place.expert + 1)[0]
            yield dtypes.encode(dtype, np.ascontiguousarray(values, np.float32))
            return
        if place.change is None and not transposed and len(shape) > 1:
            step = max(1, _BLOCK // info.shape[1])
            for start in range(0, info.shape[0], step):
                yield dtypes.encode(dtype, checkpoint.rows(info.name, start, start + step).astype(np.float32))
            return
        values = checkpoint.tensor(info.name).astype(np.float32)
        values = place.change(values) if place.change else values
        yield dtypes.encode(dtype, np.ascontiguousarray(values.T if transposed else values))

    return Entry(place.name, dtype, shape, Made(size, blocks))


def _places(family: Family, config: Mapping[str, Any]) -> Iterator[tuple[str, list[Place]]]:
    """GGUF name, and where it belongs: one place, or one for each expert."""
    assert family.gguf is not None
    assert family.names is not None
    assert family.spec is not None
    theirs, ours = family.gguf.names, family.names
    spec = family.spec(Fields(config, family.defaults))
    norm: Change | None = (lambda x: x - ours.norm_offset) if ours.norm_offset != theirs.norm_offset else None
    changes = _changes(theirs, ours, spec)
    yield theirs.embed, [Place(ours.prefix + ours.embed)]
    yield theirs.head, [Place(ours.head)]
    for ending in (".weight", ".bias"):
        yield theirs.final_norm + ending, [Place(ours.prefix + ours.final_norm + ending, norm)]
    if ours.positions:
        yield theirs.positions, [Place(ours.prefix + ours.positions)]
    for i in range(len(spec.layers)):
        for role in theirs.roles.keys() & ours.roles.keys():
            if role.startswith("expert_"):
                experts = spec.layers[i].experts
                count = experts.count if experts else 0
                places = [Place(ours.of(role, i, j) + ".weight", expert=j) for j in range(count)]
                yield theirs.of(role, i) + ".weight", places
                continue
            change = norm if role.endswith("norm") else changes.get(role)
            for ending in (".weight", ".bias"):
                yield theirs.of(role, i) + ending, [Place(ours.of(role, i) + ending, change, ours.transposed)]


def _changes(theirs: TensorNames, ours: TensorNames, spec: Spec) -> dict[str, Change]:
    """What undoes the converter's changes, by role."""
    changes: dict[str, Change] = {}
    if theirs.paired_rotary and not ours.paired_rotary:
        changes = {"q": lambda x: _halves(x, spec.heads), "k": lambda x: _halves(x, spec.kv_heads)}
    if ours.qkv_by_head:
        changes["qkv"] = lambda x: _by_head(x, spec.heads)
    return changes


def _halves(x: Numbers, heads: int) -> Numbers:
    """Rows of each head from (pair, 2) to (2, pair): rotary pairs half a head apart, not neighbours."""
    return x.reshape(heads, -1, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def _by_head(x: Numbers, heads: int) -> Numbers:
    """Fused qkv from (q|k|v, head) to (head, q|k|v)."""
    return x.reshape(3, heads, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def _family(checkpoint: Checkpoint) -> Family:
    family = gguf_family(checkpoint.metadata)
    if family is None:
        architecture = checkpoint.metadata.get("general.architecture")
        known = ", ".join(name for name, family in families().items() if family.gguf is not None)
        raise BadRequest(
            f"a GGUF of {architecture!r} cannot be written for transformers; {known} can (or keep it GGUF)"
        )
    return family


def _config(checkpoint: Checkpoint, family: Family, dtype: str) -> dict[str, Any]:
    _require_sizes(checkpoint)
    config = dict(model_config(checkpoint)[0])
    stored = checkpoint.tensors
    config = {key: _shortest(value) for key, value in config.items()}
    for key, probe in (("attention_bias", "blk.0.attn_q.bias"), ("mlp_bias", "blk.0.ffn_up.bias")):
        if key in config:
            config[key] = probe in stored
    for key in ("rotary_pct", "partial_rotary_factor"):
        if config.get(key) == 1.0:
            del config[key]
    if isinstance(config.get("rope_scaling"), dict):
        config["rope_scaling"] = _rope_scaling(checkpoint, config)
    metadata = checkpoint.metadata
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = metadata.get(f"tokenizer.ggml.{'padding_token_id' if key == 'pad_token_id' else key}")
        config[key] = value if type(value) is int else None
    return {**config, "architectures": [family.architecture], "dtype": _TORCH[dtype]}


def _require_sizes(checkpoint: Checkpoint) -> None:
    """A size that the metadata lacks would be taken from the family's default, and the config would be wrong."""
    architecture = checkpoint.metadata["general.architecture"]
    for key in ("block_count", "embedding_length", "attention.head_count"):
        value = checkpoint.metadata.get(f"{architecture}.{key}")
        sizes = value if isinstance(value, list) and value else [value]  # some architectures have one per layer
        if not all(type(size) is int and size > 0 for size in sizes):
            what = "has no" if value is None else f"has {value!r} as"
            raise UnreadableInput(
                f"{checkpoint.source} {what} {architecture}.{key}, which config.json needs; convert the original "
                "again, or name a target that ends in .gguf"
            )


def _shortest(value: Any) -> Any:
    """The shortest number that rounds to a GGUF's float32: 1e-05, not 9.999999747378752e-06."""
    import numpy as np

    return float(str(np.float32(value))) if isinstance(value, float) else value


def _rope_scaling(checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, Any]:
    """llama3's scaling is stored as one factor per frequency; find the four numbers that give them."""
    import numpy as np

    scaling = dict(config["rope_scaling"])
    if scaling.get("rope_type") != "factors":
        return scaling
    factors = np.array(scaling["factors"])  # [head_dim / 2]
    theta, half = float(config.get("rope_theta", 10000.0)), len(factors)
    wavelengths = 2 * np.pi * theta ** (np.arange(half) / half)
    original, low, high, factor = 8192, 1.0, 4.0, float(factors.max())
    smooth = (original / wavelengths - low) / (high - low)
    expected = np.where(
        wavelengths < original / high,
        1.0,
        np.where(wavelengths > original / low, factor, 1 / ((1 - smooth) / factor + smooth)),
    )
    if not np.allclose(factors, expected, rtol=1e-4):
        raise BadRequest(f"{checkpoint.source} has a rotary scaling that config.json cannot express")
    return {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }  # fmt: skip


def _documents(checkpoint: Checkpoint, config: Mapping[str, Any]) -> dict[str, bytes]:
    """The tokenizer's files, and where generation stops."""
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if config.get(key) is not None}
    documents = {"generation_config.json": _json(ids)} if ids else {}
    if "tokenizer.ggml.model" not in checkpoint.metadata:
        return documents
    try:
        from tiebeam.tokenizer.load import open_tokenizer

        tokenizer = open_tokenizer(checkpoint)
    except TiebeamError:
        return documents  # weights without a tokenizer are still the model
    assert tokenizer is not None
    backend, tokens = tokenizer.backend, checkpoint.metadata["tokenizer.ggml.tokens"]
    if tokenizer.start:
        from tokenizers.processors import TemplateProcessing

        first = tokens[tokenizer.start[0]]
        backend.post_processor = TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first} $B", special_tokens=[(first, tokenizer.start[0])]
        )
    about: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for key, i in ids.items():
        about[key.removesuffix("_id")] = tokens[i]
    template = checkpoint.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        about["chat_template"] = template
    context = config.get("max_position_embeddings") or config.get("n_positions")
    if context:
        about["model_max_length"] = context
    documents["tokenizer.json"] = backend.to_str(pretty=True).encode()
    documents["tokenizer_config.json"] = _json(about)
    return documents


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True) + "\n").encode()
