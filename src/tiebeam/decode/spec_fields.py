"""A configuration -> the Spec of what to run: sizes, and which part is chosen at each place.

Each family below states only how it differs; what a config.json leaves out is the default of the
transformers class that would read it, because that is what the model's author relied on. A feature that
the decoder does not have is refused by name: a model run *almost* right is worse than one not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from tiebeam.decode.defaults import DEFAULTS
from tiebeam.decode.spec import Layer, Rope, Spec
from tiebeam.errors import UnreadableInput

_MOST_LAYERS = 10_000


class Fields:
    """Typed access to a configuration, with the family's defaults behind it."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any], where: str) -> None:
        self.config, self.defaults, self.where = config, defaults, where

    def get(self, key: str) -> Any:
        return self.config.get(key, self.defaults.get(key))

    def count(self, key: str) -> int:
        """A positive whole number."""
        value = self.get(key)
        if type(value) is not int or not 0 < value < 1 << 31:
            raise UnreadableInput(f"{self.where}: {key} is {value!r}, not a positive whole number")
        return value

    def layers(self, key: str) -> int:
        """How many blocks; each is an object, so a damaged file must not ask for a billion."""
        value = self.count(key)
        if value > _MOST_LAYERS:
            raise UnreadableInput(f"{self.where}: {key} is {value:,}; more than {_MOST_LAYERS:,} is not believed")
        return value

    def count_or_none(self, key: str) -> int | None:
        return None if self.get(key) is None else self.count(key)

    def number(self, key: str) -> float:
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise UnreadableInput(f"{self.where}: {key} is {value!r}, not a number")
        return float(value)

    def number_or_none(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        return bool(self.get(key))

    def text(self, key: str) -> str:
        value = self.get(key)
        if not isinstance(value, str):
            raise UnreadableInput(f"{self.where}: {key} is {value!r}, not a name")
        return value


def spec_of(config: Mapping[str, Any], where: str = "config.json") -> Spec:
    """The Spec of a Hugging Face style configuration."""
    family = config.get("model_type")
    if not isinstance(family, str):
        raise UnreadableInput(f"{where} has no model_type, so there is no telling how to run the model; {_runnable()}")
    if config.get("quantization_config"):
        method = config["quantization_config"]
        method = method.get("quant_method", "a packed form") if isinstance(method, Mapping) else method
        raise UnreadableInput(f"{where}: the weights are quantised ({method}); the decoder runs the unpacked model")
    if family == "gemma3" and isinstance(config.get("text_config"), Mapping):  # the text part of the multimodal model
        config, family = {**config["text_config"], "model_type": "gemma3_text"}, "gemma3_text"
    if family not in BUILDERS:
        raise UnreadableInput(f"the decoder cannot run the architecture {family!r}; {_runnable()}")
    fields = Fields(config, DEFAULTS[family], where)
    if fields.flag("use_bidirectional_attention"):
        raise UnreadableInput(f"{where}: use_bidirectional_attention is set; the decoder runs causal models only")
    return BUILDERS[family](fields, family)


def _runnable() -> str:
    return f"it runs {', '.join(RUNNABLE)}"


def _gpt2(f: Fields, family: str) -> Spec:
    dim, heads = f.count("n_embd"), f.count("n_head")
    if f.flag("add_cross_attention"):
        raise UnreadableInput(f"{f.where}: add_cross_attention is set; the decoder has no encoder to attend to")
    head_dim = _divide(dim, heads, f)
    scale = head_dim**-0.5 if f.flag("scale_attn_weights") else 1.0
    by_layer = f.flag("scale_attn_by_inverse_layer_idx")
    return Spec(
        family=family,
        vocab=f.count("vocab_size"),
        dim=dim,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        mlp=f.count_or_none("n_inner") or 4 * dim,
        context=f.count("n_positions"),
        layers=tuple(Layer(scale=scale / (i + 1) if by_layer else scale) for i in range(f.layers("n_layer"))),
        norm="layer",
        eps=f.number("layer_norm_epsilon"),
        activation=f.text("activation_function"),
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        positions=True,
    )


def _gpt_neox(f: Fields, family: str) -> Spec:
    dim, heads = f.count("hidden_size"), f.count("num_attention_heads")
    head_dim = _divide(dim, heads, f)
    older = {"rope_theta": f.get("rotary_emb_base"), "partial_rotary_factor": f.get("rotary_pct")}
    layer = Layer(rope=_rope(Fields({**older, **f.config}, f.defaults, f.where), head_dim), scale=head_dim**-0.5)
    return Spec(
        family=family,
        vocab=f.count("vocab_size"),
        dim=dim,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        mlp=f.count("intermediate_size"),
        context=f.count("max_position_embeddings"),
        layers=(layer,) * f.layers("num_hidden_layers"),
        norm="layer",
        eps=f.number("layer_norm_eps"),
        activation=f.text("hidden_act"),
        gated=False,
        qkv_bias=f.flag("attention_bias"),
        out_bias=f.flag("attention_bias"),
        mlp_bias=True,
        parallel=f.flag("use_parallel_residual"),
    )


def _llama_like(f: Fields, family: str) -> Spec:
    dim, heads = f.count("hidden_size"), f.count("num_attention_heads")
    head_dim = f.count_or_none("head_dim") or _divide(dim, heads, f)
    gemma = family.startswith("gemma")
    two_ropes = family == "gemma3_text"
    kinds = _layer_kinds(f, family)
    rope = {kind: _rope(f, head_dim, kind if two_ropes else None) for kind in sorted(set(kinds))}
    scale = (f.number_or_none("query_pre_attn_scalar") or head_dim) ** -0.5
    window = f.count("sliding_window") if "sliding_attention" in kinds else None
    activation = f.text("hidden_activation" if family in ("gemma2", "gemma3_text") else "hidden_act")
    if family == "gemma" and activation == "gelu":
        activation = "gelu_pytorch_tanh"  # what the first Gemma configs meant by it
    return Spec(
        family=family,
        vocab=f.count("vocab_size"),
        dim=dim,
        heads=heads,
        kv_heads=f.count_or_none("num_key_value_heads") or heads,
        head_dim=head_dim,
        mlp=f.count("intermediate_size"),
        context=f.count("max_position_embeddings"),
        layers=tuple(Layer(window if kind == "sliding_attention" else None, rope[kind], scale) for kind in kinds),
        eps=f.number("rms_norm_eps"),
        norm_offset=1.0 if gemma else 0.0,
        activation=activation,
        qkv_bias=True if family == "qwen2" else _bias(f, "attention_bias"),
        out_bias=False if family == "qwen2" else _bias(f, "attention_bias"),
        mlp_bias=_bias(f, "mlp_bias"),
        qk_norm=family in ("qwen3", "gemma3_text"),
        post_norms=family in ("gemma2", "gemma3_text"),
        embed_scale=dim**0.5 if gemma else 1.0,
        attention_cap=f.number_or_none("attn_logit_softcapping") if family == "gemma2" else None,
        logit_cap=f.number_or_none("final_logit_softcapping") if gemma else None,
    )


def _golf(f: Fields, family: str) -> Spec:
    """Written by `tiebeam train --arch golf`; its tensor names are in names.py."""
    dim, heads = f.count("hidden_size"), f.count("num_attention_heads")
    head_dim = _divide(dim, heads, f)
    layer = Layer(rope=replace(_rope(f, head_dim), backwards=True), scale=head_dim**-0.5)
    return Spec(
        family=family,
        vocab=f.count("vocab_size"),
        dim=dim,
        heads=heads,
        kv_heads=f.count_or_none("num_key_value_heads") or heads,
        head_dim=head_dim,
        mlp=f.count("intermediate_size"),
        context=f.count("max_position_embeddings"),
        layers=(layer,) * f.layers("num_hidden_layers"),
        eps=f.number("rms_norm_eps"),
        activation="relu2",
        gated=False,
        qk_norm=True,
        logit_cap=f.number_or_none("logit_softcap"),
        golf=True,
    )


def _divide(dim: int, heads: int, f: Fields) -> int:
    if dim % heads:
        raise UnreadableInput(f"{f.where}: a width of {dim} does not divide into {heads} attention heads")
    return dim // heads


def _bias(f: Fields, key: str) -> bool | None:
    """A GGUF does not say: its config carries "if stored"."""
    return None if f.get(key) == "if stored" else f.flag(key)


def _layer_kinds(f: Fields, family: str) -> list[str]:
    """For each layer, "full_attention" or "sliding_attention"."""
    count = f.layers("num_hidden_layers")
    given = f.get("layer_types")
    if given is not None and family not in ("llama", "mistral", "gemma", "phi3"):
        if not isinstance(given, list) or len(given) != count:
            raise UnreadableInput(f"{f.where}: layer_types does not name a kind for each of the {count} layers")
        strange = next((kind for kind in given if kind not in ("full_attention", "sliding_attention")), None)
        if strange is not None:
            raise UnreadableInput(f"{f.where}: the decoder has no layers of the type {strange!r}")
        return given
    window = f.get("sliding_window")
    if family in ("mistral", "phi3") and window is not None:
        slides = [True] * count
    elif family in ("qwen2", "qwen3") and window is not None and f.flag("use_sliding_window"):
        slides = [i >= int(f.get("max_window_layers")) for i in range(count)]
    elif family in ("gemma2", "gemma3_text"):
        every = 2 if family == "gemma2" else f.count("sliding_window_pattern")
        slides = [(i + 1) % every != 0 for i in range(count)]
    else:
        slides = [False] * count
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


_SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "factors")


def _rope(f: Fields, head_dim: int, kind: str | None = None) -> Rope:
    """Both spellings: rope_theta + rope_scaling (transformers 4) and rope_parameters (5), per layer kind or not."""
    given = f.get("rope_scaling") or f.get("rope_parameters") or {}
    if not isinstance(given, Mapping):
        raise UnreadableInput(f"{f.where}: rope_scaling is {given!r}, not an object")
    theta, share = f.get("rope_theta"), f.get("partial_rotary_factor")
    if kind is not None:
        theta = f.get("rope_theta" if kind == "full_attention" else "rope_local_base_freq")
        if "full_attention" in given or "sliding_attention" in given:
            given = given.get(kind) or {}
        elif kind == "sliding_attention":  # Gemma 3 stretches its full layers only
            given = {}
    theta = given.get("rope_theta", theta)
    share = given.get("partial_rotary_factor", share)
    scaling = str(given.get("rope_type", given.get("type", "default")))
    if f.config.get("model_type") == "phi3" and scaling in ("su", "yarn"):
        scaling = "longrope"  # its names before the paper had one
    if scaling not in _SCALINGS:
        raise UnreadableInput(f"{f.where}: the decoder has no rotary scaling {scaling!r} ({', '.join(_SCALINGS[:-1])})")
    original = f.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
    numbers = {"rope_theta": theta, "partial_rotary_factor": 1.0 if share is None else share}
    checked = Fields(numbers, {}, f.where)
    dim = int(head_dim * checked.number("partial_rotary_factor"))
    if dim % 2 or not 0 < dim <= head_dim:
        raise UnreadableInput(f"{f.where}: rotary positions need an even part of a head; {dim} of {head_dim} is not")
    context = f.count("max_position_embeddings")
    more = {"original_max_position_embeddings": original or context, "max_position_embeddings": context}
    return Rope(dim, checked.number("rope_theta"), scaling, {**given, **more})


BUILDERS: dict[str, Callable[[Fields, str], Spec]] = {
    **dict.fromkeys(DEFAULTS, _llama_like),
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "tiebeam_golf": _golf,
}

RUNNABLE = sorted({"gemma3" if family == "gemma3_text" else family for family in BUILDERS})
