"""EleutherAI's families: GPT-NeoX and Pythia, and the parameter counts of GPT-Neo and GPT-J.

GPT-NeoX: LayerNorm, attention and MLP in parallel, rotary positions on a part of each head, qkv fused by head.
"""

from __future__ import annotations

from tiebeam.families import gguf
from tiebeam.families.config_fields import Fields, divide_heads, read_rope
from tiebeam.families.family import Family, Gguf, TensorNames
from tiebeam.families.parameter_count import linear, norm, two_layer_mlp
from tiebeam.families.spec import Layer, Spec

NAMES = TensorNames(
    prefix="gpt_neox.",
    embed="embed_in.weight",
    head="embed_out.weight",
    final_norm="final_layer_norm",
    layer="layers.{i}.",
    roles={
        "attn_norm": "input_layernorm",
        "qkv": "attention.query_key_value",
        "o": "attention.dense",
        "mlp_norm": "post_attention_layernorm",
        "up": "mlp.dense_h_to_4h",
        "down": "mlp.dense_4h_to_h",
    },
    qkv_by_head=True,
)
DEFAULTS = {
    "vocab_size": 50432,
    "hidden_size": 6144,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "intermediate_size": 24576,
    "hidden_act": "gelu",
    "max_position_embeddings": 2048,
    "rotary_emb_base": 10_000.0,
    "rotary_pct": 0.25,
    "layer_norm_eps": 1e-05,
    "use_parallel_residual": True,
    "attention_bias": True,
}
GGUF_KEYS = {
    **gguf.KEYS,
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "use_parallel_residual": "use_parallel_residual",
}


def spec(f: Fields) -> Spec:
    dim, heads = f.count("hidden_size"), f.count("num_attention_heads")
    head_dim = divide_heads(f, dim, heads)
    own_names = {"rope_theta": f.get("rotary_emb_base"), "partial_rotary_factor": f.get("rotary_pct")}
    rope = read_rope(Fields({**own_names, **f.config}, f.defaults, f.where), head_dim)
    return Spec(
        family="gpt_neox",
        vocab=f.count("vocab_size"),
        dim=dim,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        mlp=f.count("intermediate_size"),
        context=f.count("max_position_embeddings"),
        layers=(Layer(rope=rope, scale=head_dim**-0.5),) * f.layers(),
        norm="layer",
        norm_bias=True,
        eps=f.number("layer_norm_eps"),
        activation=f.text("hidden_act"),
        gated=False,
        qkv_bias=f.flag("attention_bias"),
        out_bias=f.flag("attention_bias"),
        mlp_bias=True,
        parallel=f.flag("use_parallel_residual"),
    )


def gpt_neo_parameters(f: Fields) -> int:
    D = f.count("hidden_size")
    attention = 3 * linear(D, D) + linear(D, D, bias=True)
    layer = attention + two_layer_mlp(D, f.count_or("intermediate_size", 4 * D), bias=True) + 2 * norm(D)
    return f.count_or("max_position_embeddings", 2048) * D + f.layers("num_layers") * layer + norm(D)


def gptj_parameters(f: Fields) -> int:
    D = f.count("n_embd")
    layer = 4 * linear(D, D) + two_layer_mlp(D, f.count_or("n_inner", 4 * D), bias=True) + norm(D)
    return f.layers("n_layer") * layer + norm(D)


FAMILIES = (
    Family(
        model_type="gpt_neox",
        architecture="GPTNeoXForCausalLM",
        defaults=DEFAULTS,
        names=NAMES,
        gguf=Gguf(
            "gptneox",
            gguf.FUSED_QKV_NAMES,
            GGUF_KEYS,
            biases=(),
            complete=lambda config: {"rotary_pct": config.get("partial_rotary_factor", 1.0)},
        ),
        spec=spec,
    ),
    Family("gpt_neo", "GPTNeoForCausalLM", non_embedding=gpt_neo_parameters),
    Family("gptj", "GPTJForCausalLM", non_embedding=gptj_parameters),
)
