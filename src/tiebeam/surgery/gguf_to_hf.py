"""A GGUF as the Hugging Face directory it once came from: names, layouts, numbers, config and tokenizer.

llama.cpp's converter renames tensors and moves some numbers: rows of q and k are reordered so that rotary pairs
are neighbours (llama), one is added to norm weights (Gemma), GPT-2's matrices are turned, NeoX's fused qkv is
split by kind instead of by head. Each is undone here, on the dequantised numbers. What decides all of it is in
`decode.names` and `decode.gguf`, so that what is written and what is run cannot drift apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint, TensorInfo, dtypes
from tiebeam.checkpoint.write.copy_bytes import Made
from tiebeam.checkpoint.write.safetensors import Entry
from tiebeam.decode.gguf import config_of
from tiebeam.decode.layer_names import GGUF, HUGGING_FACE, Names
from tiebeam.errors import BadRequest, TiebeamError
from tiebeam.surgery.edits import Shard
from tiebeam.surgery.output_shards import Layout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.float32]
    Change = Callable[[Numbers], Numbers]

_BLOCK = 1 << 21  # numbers dequantised at a time
_CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "phi3": "Phi3ForCausalLM",
}
_TORCH = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# In the config already: frequencies of the rotary positions.
_FOLDED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def convert(checkpoint: Checkpoint, dtype: str = "F32") -> tuple[Layout, dict[str, str]]:
    """The weights in `dtype`, config.json, the tokenizer where it can be rebuilt; and the new name of each tensor."""
    config = _config(checkpoint, dtype)
    family = config["model_type"]
    theirs, ours = GGUF[family], HUGGING_FACE[family]
    places = dict(_places(config, theirs, ours))
    entries = []
    for name, info in checkpoint.tensors.items():
        if name in _FOLDED:
            continue
        if name not in places:
            raise BadRequest(
                f"{checkpoint.source} holds {name}, which has no place in a {family} model of transformers"
            )
        target, change = places[name]
        entries.append(_entry(checkpoint, info, target, dtype, change, turned=_turns(ours, target, info)))
    entries.sort(key=lambda entry: entry.name)
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    shard = Shard("model.safetensors", tuple(entries), {"format": "pt"})
    layout = Layout((shard,), config, text, _documents(checkpoint, config))
    return layout, {name: target for name, (target, _) in places.items()}


def _turns(ours: Names, target: str, info: TensorInfo) -> bool:
    return ours.transposed and len(info.shape) == 2 and any(part in target for part in (".attn.c_", ".mlp.c_"))


def _entry(
    checkpoint: Checkpoint, info: TensorInfo, name: str, dtype: str, change: Change | None, turned: bool
) -> Entry:
    shape = info.shape[::-1] if turned else info.shape
    size = dtypes.nbytes(dtype, shape)
    assert size is not None

    def blocks() -> Iterator[bytes]:
        import numpy as np

        if change is None and not turned and len(shape) > 1:
            step = max(1, _BLOCK // info.shape[1])
            for start in range(0, info.shape[0], step):
                yield dtypes.encode(dtype, checkpoint.rows(info.name, start, start + step).astype(np.float32))
            return
        values = checkpoint.tensor(info.name).astype(np.float32)
        values = change(values) if change else values
        yield dtypes.encode(dtype, np.ascontiguousarray(values.T if turned else values))

    return Entry(name, dtype, shape, Made(size, blocks))


def _places(config: Mapping[str, Any], theirs: Names, ours: Names) -> Iterator[tuple[str, tuple[str, Change | None]]]:
    """GGUF name: (Hugging Face name, what undoes the converter's change)."""
    gemma = config["model_type"].startswith("gemma")
    norm: Change | None = (lambda x: x - 1) if gemma else None
    head = ours.head if ours.head.startswith(("lm_head", "embed_out")) else ours.prefix + ours.head
    yield theirs.embed, (ours.prefix + ours.embed, None)
    yield theirs.head, (head, None)
    for ending in (".weight", ".bias"):
        yield theirs.final_norm + ending, (ours.prefix + ours.final_norm + ending, norm)
    if ours.positions:
        yield theirs.positions, (ours.prefix + ours.positions, None)
    heads = config.get("num_attention_heads") or config.get("n_head")
    kv_heads = config.get("num_key_value_heads", heads)
    assert isinstance(heads, int)
    changes: dict[str, Change] = {}
    if theirs.paired_rotary:
        changes = {"q": lambda x: _halves(x, heads), "k": lambda x: _halves(x, kv_heads)}
    if ours.qkv_by_head:
        changes["qkv"] = lambda x: _by_head(x, heads)
    for i in range(config.get("num_hidden_layers") or config["n_layer"]):
        for role in theirs.roles:
            if role not in ours.roles:
                continue
            change = norm if role.endswith("norm") else changes.get(role)
            for ending in (".weight", ".bias"):
                yield theirs.of(role, i) + ending, (ours.of(role, i) + ending, change)


def _halves(x: Numbers, heads: int) -> Numbers:
    """Rows of each head from (pair, end of the pair) to (end of the pair, pair): rotary halves, not neighbours."""
    return x.reshape(heads, -1, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def _by_head(x: Numbers, heads: int) -> Numbers:
    """q, k, v one after the other -> head by head."""
    return x.reshape(3, heads, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def _config(checkpoint: Checkpoint, dtype: str) -> dict[str, Any]:
    config = dict(config_of(checkpoint))
    family = config["model_type"]
    if family not in _CLASSES:
        known = ", ".join(_CLASSES)
        raise BadRequest(f"a GGUF of {family!r} cannot be written for transformers; {known} can (or keep it GGUF)")
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
    return {**config, "architectures": [_CLASSES[family]], "dtype": _TORCH[dtype]}


def _shortest(value: Any) -> Any:
    """GGUF keeps single precision: 1e-05 comes out as 9.999999747378752e-06."""
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
        raise BadRequest(f"{checkpoint.source} scales its rotary positions in a way that config.json cannot say")
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
