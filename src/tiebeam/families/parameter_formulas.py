"""How many parameters each family of architectures has besides its vocabulary matrices.

One function per family, from sizes to a number, in the order of the model: positions, layers, last norm. Keys
that a config.json may leave out have the default of their config class; the sizes that make a model what it
is (layers, widths, heads) have none, and without them there is no answer rather than a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_LARGEST = 2**40  # no size of a model is near it; what is beyond it is damage or malice


class Unclear(Exception):
    """A size that the count needs is missing or is no size."""


class Sizes:
    """A config, read for sizes and switches."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def size(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
            raise Unclear(key)
        return value

    def switch(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise Unclear(key)
        return value

    @property
    def hidden(self) -> int:
        return self.size("hidden_size")

    @property
    def layers(self) -> int:
        return self.size("num_hidden_layers")

    @property
    def heads(self) -> int:
        return self.size("num_attention_heads")


def _linear(inputs: int, outputs: int, bias: bool = False) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _norm(dim: int, bias: bool = False) -> int:
    return 2 * dim if bias else dim


def _head_dim(c: Sizes, default: int | None = None) -> int:
    return c.size("head_dim", default or c.hidden // c.heads)


def _attention(
    c: Sizes, head_dim: int, *, bias: bool = False, out_bias: bool = False, kv_default: int | None = None
) -> int:
    """Query, key, value and output projections, with fewer key-value heads where the config says so."""
    queries = c.heads * head_dim
    keys = c.size("num_key_value_heads", kv_default or c.heads) * head_dim
    return _linear(c.hidden, queries, bias) + 2 * _linear(c.hidden, keys, bias) + _linear(queries, c.hidden, out_bias)


def _gated(hidden: int, inner: int, bias: bool = False) -> int:
    return 2 * _linear(hidden, inner, bias) + _linear(inner, hidden, bias)


def _two_layer(hidden: int, inner: int, bias: bool = False) -> int:
    return _linear(hidden, inner, bias) + _linear(inner, hidden, bias)


def _llama(c: Sizes) -> int:
    biased = c.switch("attention_bias", False)
    attention = _attention(c, _head_dim(c), bias=biased, out_bias=biased)
    mlp = _gated(c.hidden, c.size("intermediate_size"), c.switch("mlp_bias", False))
    return c.layers * (attention + mlp + 2 * c.hidden) + c.hidden


def _mistral(c: Sizes) -> int:
    layer = _attention(c, _head_dim(c), kv_default=8) + _gated(c.hidden, c.size("intermediate_size")) + 2 * c.hidden
    return c.layers * layer + c.hidden


def _qwen2(c: Sizes) -> int:
    attention = _attention(c, _head_dim(c), bias=True, kv_default=32)
    return c.layers * (attention + _gated(c.hidden, c.size("intermediate_size")) + 2 * c.hidden) + c.hidden


def _qwen3_attention(c: Sizes, kv_default: int) -> int:
    biased, head_dim = c.switch("attention_bias", False), _head_dim(c, 128)
    return _attention(c, head_dim, bias=biased, out_bias=biased, kv_default=kv_default) + 2 * head_dim


def _qwen3(c: Sizes) -> int:
    layer = _qwen3_attention(c, 32) + _gated(c.hidden, c.size("intermediate_size")) + 2 * c.hidden
    return c.layers * layer + c.hidden


def _qwen3_moe(c: Sizes) -> int:
    if c.values.get("head_dim") is None:
        raise Unclear("head_dim")
    dense_only = c.values.get("mlp_only_layers") or []
    if not isinstance(dense_only, list):
        raise Unclear("mlp_only_layers")
    experts, step = c.size("num_experts"), c.size("decoder_sparse_step", 1)
    dense_turns = {i for i in dense_only if isinstance(i, int) and 0 <= i < c.layers and (i + 1) % step == 0}
    sparse = c.layers // step - len(dense_turns)
    routed = experts * _gated(c.hidden, c.size("moe_intermediate_size")) + c.hidden * experts
    dense = _gated(c.hidden, c.size("intermediate_size")) if sparse < c.layers else 0
    shared = _qwen3_attention(c, 4) + 2 * c.hidden
    return c.layers * shared + sparse * routed + (c.layers - sparse) * dense + c.hidden


def _mixtral(c: Sizes) -> int:
    experts = c.size("num_local_experts", 8)
    routed = experts * _gated(c.hidden, c.size("intermediate_size")) + c.hidden * experts
    return c.layers * (_attention(c, _head_dim(c), kv_default=8) + routed + 2 * c.hidden) + c.hidden


def _gemma_layers(c: Sizes, norms: int, kv_default: int, qk_norm: bool = False) -> int:
    biased, head_dim = c.switch("attention_bias", False), _head_dim(c, 256)
    attention = _attention(c, head_dim, bias=biased, out_bias=biased, kv_default=kv_default)
    attention += 2 * head_dim if qk_norm else 0
    return c.layers * (attention + _gated(c.hidden, c.size("intermediate_size")) + norms * c.hidden) + c.hidden


def _phi3(c: Sizes) -> int:
    layer = _attention(c, _head_dim(c)) + _gated(c.hidden, c.size("intermediate_size")) + 2 * c.hidden
    return c.layers * layer + c.hidden


def _phi(c: Sizes) -> int:
    head_dim = c.hidden // c.heads
    attention = _attention(c, head_dim, bias=True, out_bias=True)
    attention += 2 * _norm(head_dim, bias=True) if c.switch("qk_layernorm", False) else 0
    mlp = _two_layer(c.hidden, c.size("intermediate_size"), bias=True)
    return c.layers * (attention + mlp + _norm(c.hidden, bias=True)) + _norm(c.hidden, bias=True)


def _olmo(c: Sizes) -> int:
    biased = c.switch("attention_bias", False)  # its norms have no weights
    attention = _attention(c, c.hidden // c.heads, bias=biased, out_bias=biased)
    return c.layers * (attention + _gated(c.hidden, c.size("intermediate_size")))


def _olmo2(c: Sizes) -> int:
    biased, head_dim = c.switch("attention_bias", False), _head_dim(c)
    attention = _attention(c, head_dim, bias=biased, out_bias=biased)
    attention += (c.heads + c.size("num_key_value_heads", c.heads)) * head_dim
    return c.layers * (attention + _gated(c.hidden, c.size("intermediate_size")) + 2 * c.hidden) + c.hidden


def _stablelm(c: Sizes) -> int:
    head_dim = c.hidden // c.heads
    attention = _attention(c, head_dim, bias=c.switch("use_qkv_bias", False), kv_default=32)
    if c.switch("qk_layernorm", False):
        attention += (c.heads + c.size("num_key_value_heads", 32)) * head_dim
    norms = 1 if c.switch("use_parallel_residual", False) else 2
    mlp = _gated(c.hidden, c.size("intermediate_size"))
    return c.layers * (attention + mlp + norms * _norm(c.hidden, bias=True)) + _norm(c.hidden, bias=True)


def _cohere(c: Sizes) -> int:
    biased, head_dim = c.switch("attention_bias", False), _head_dim(c)
    attention = _attention(c, head_dim, bias=biased, out_bias=biased)
    if c.switch("use_qk_norm", False) and c.values["model_type"] == "cohere":
        attention += (c.heads + c.size("num_key_value_heads", c.heads)) * head_dim
    return c.layers * (attention + _gated(c.hidden, c.size("intermediate_size")) + c.hidden) + c.hidden


def _starcoder2(c: Sizes) -> int:
    biased = c.switch("use_bias", True)
    attention = _attention(c, _head_dim(c), bias=biased, out_bias=biased, kv_default=2)
    mlp = _two_layer(c.hidden, c.size("intermediate_size"), biased)
    return c.layers * (attention + mlp + 2 * _norm(c.hidden, bias=True)) + _norm(c.hidden, bias=True)


def _gpt2(c: Sizes) -> int:
    h, layers = c.size("n_embd"), c.size("n_layer")
    attention = _linear(h, 3 * h, bias=True) + _linear(h, h, bias=True)
    layer = attention + _two_layer(h, c.size("n_inner", 4 * h), bias=True) + 2 * _norm(h, bias=True)
    return c.size("n_positions", 1024) * h + layers * layer + _norm(h, bias=True)


def _gpt_neo(c: Sizes) -> int:
    h = c.hidden
    attention = 3 * _linear(h, h) + _linear(h, h, bias=True)
    layer = attention + _two_layer(h, c.size("intermediate_size", 4 * h), bias=True) + 2 * _norm(h, bias=True)
    return c.size("max_position_embeddings", 2048) * h + c.size("num_layers") * layer + _norm(h, bias=True)


def _gptj(c: Sizes) -> int:
    h = c.size("n_embd")
    layer = 4 * _linear(h, h) + _two_layer(h, c.size("n_inner", 4 * h), bias=True) + _norm(h, bias=True)
    return c.size("n_layer") * layer + _norm(h, bias=True)


def _gpt_neox(c: Sizes) -> int:
    h, biased = c.hidden, c.switch("attention_bias", True)
    attention = _linear(h, 3 * h, biased) + _linear(h, h, biased)
    layer = attention + _two_layer(h, c.size("intermediate_size"), bias=True) + 2 * _norm(h, bias=True)
    return c.layers * layer + _norm(h, bias=True)


def _opt(c: Sizes) -> int:
    h, biased = c.hidden, c.switch("enable_bias", True)
    narrow = c.size("word_embed_proj_dim", h)
    norm = _norm(h, bias=True) if c.switch("layer_norm_elementwise_affine", True) else 0
    layer = 4 * _linear(h, h, biased) + _two_layer(h, c.size("ffn_dim"), biased) + 2 * norm
    ends = 2 * narrow * h if narrow != h else 0
    last = norm if c.switch("do_layer_norm_before", True) and not c.switch("_remove_final_layer_norm", False) else 0
    return (c.size("max_position_embeddings", 2048) + 2) * h + ends + c.layers * layer + last


def _bloom(c: Sizes) -> int:
    h, layers = first(c, "n_embed", "hidden_size"), first(c, "n_layer", "num_hidden_layers")
    layer = _linear(h, 3 * h, bias=True) + _linear(h, h, bias=True)
    layer += _two_layer(h, 4 * h, bias=True) + 2 * _norm(h, bias=True)
    return _norm(h, bias=True) + layers * layer + _norm(h, bias=True)


def _mamba(c: Sizes) -> int:
    h = c.hidden
    inner, state = c.size("intermediate_size", c.size("expand", 2) * h), c.size("state_size", 16)
    rank = -(-h // 16) if c.values.get("time_step_rank", "auto") == "auto" else c.size("time_step_rank")
    biased = c.switch("use_bias", False)
    mixer = _linear(h, 2 * inner, biased) + _linear(inner, h, biased) + _linear(inner, rank + 2 * state)
    mixer += inner * c.size("conv_kernel", 4) + (inner if c.switch("use_conv_bias", True) else 0)
    mixer += _linear(rank, inner, bias=True) + inner * state + inner
    return c.layers * (mixer + h) + h


def _mpt(c: Sizes) -> int:
    h = c.size("d_model")
    layer = _linear(h, 3 * h) + _linear(h, h) + _two_layer(h, 4 * h) + 2 * h  # expansion_ratio is not read
    return c.size("n_layers") * layer + h


def _falcon(c: Sizes) -> int:
    h, heads, biased = c.hidden, c.heads, c.switch("bias", False)
    head_dim, grouped = h // heads, c.switch("new_decoder_architecture", False)
    if grouped:
        fused = (c.size("num_kv_heads", heads) * 2 + heads) * head_dim
    else:
        fused = h + 2 * head_dim if c.switch("multi_query", True) else 3 * h
    two_norms = not c.switch("parallel_attn", True) or c.size("num_ln_in_parallel_attn", 2 if grouped else 1) == 2
    layer = _linear(h, fused, biased) + _linear(h, h, biased)
    layer += _two_layer(h, c.size("ffn_hidden_size", 4 * h), biased) + (2 if two_norms else 1) * _norm(h, bias=True)
    return c.layers * layer + _norm(h, bias=True)


def _t5(c: Sizes) -> int:
    h, inner = c.size("d_model"), c.size("num_heads") * c.size("d_kv")
    encoders = c.size("num_layers")
    decoders = c.size("num_decoder_layers", encoders)
    wide = c.size("d_ff")
    plain = "relu" if c.values["model_type"] == "t5" else "gated-gelu"
    gated = str(c.values.get("feed_forward_proj", plain)).startswith("gated-")
    attention = 4 * h * inner + h
    mlp = (3 if gated else 2) * h * wide + h
    tables = c.size("relative_attention_num_buckets", 32) * c.size("num_heads")
    # umt5 has a table of relative positions in every layer, t5 in the first of each stack.
    positions = (encoders + decoders if c.values["model_type"] == "umt5" else 2) * tables
    return encoders * (attention + mlp) + decoders * (2 * attention + mlp) + positions + 2 * h


def first(c: Sizes, *keys: str) -> int:
    """The first key that is there: files of different ages name the same size differently."""
    return c.size(next((key for key in keys if c.values.get(key) is not None), keys[0]))


TRUNKS: dict[str, Callable[[Sizes], int]] = {
    "bloom": _bloom,
    "cohere": _cohere,
    "cohere2": _cohere,
    "falcon": _falcon,
    "gemma": lambda c: _gemma_layers(c, norms=2, kv_default=16),
    "gemma2": lambda c: _gemma_layers(c, norms=4, kv_default=4),
    "gemma3_text": lambda c: _gemma_layers(c, norms=4, kv_default=4, qk_norm=True),
    "gpt2": _gpt2,
    "gpt_neo": _gpt_neo,
    "gpt_neox": _gpt_neox,
    "gptj": _gptj,
    "granite": _llama,
    "llama": _llama,
    "mamba": _mamba,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "mpt": _mpt,
    "mt5": _t5,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "opt": _opt,
    "phi": _phi,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "smollm3": _llama,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
    "t5": _t5,
    "umt5": _t5,
}
HEAD_BIAS = ("gptj", "phi")
WIDTH_KEYS = {
    "bloom": ("n_embed", "hidden_size"),
    "opt": ("word_embed_proj_dim", "hidden_size"),
    **dict.fromkeys(("gpt2", "gptj"), ("n_embd",)),
    **dict.fromkeys(("mpt", "t5", "mt5", "umt5"), ("d_model",)),
}
