"""GPT-2: LayerNorm, learned positions, a fused qkv, biases everywhere, matrices stored [in, out]."""

from __future__ import annotations

from tiebeam.families import gguf
from tiebeam.families.config_fields import Fields, divide_heads
from tiebeam.families.family import Family, Gguf, TensorNames
from tiebeam.families.spec import Layer, Spec

NAMES = TensorNames(
    prefix="transformer.",
    embed="wte.weight",
    head="lm_head.weight",
    final_norm="ln_f",
    layer="h.{i}.",
    roles={
        "attn_norm": "ln_1",
        "qkv": "attn.c_attn",
        "o": "attn.c_proj",
        "mlp_norm": "ln_2",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    },
    positions="wpe.weight",
    transposed=True,
)
DEFAULTS = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-05,
    "scale_attn_weights": True,
}
GGUF_KEYS = {
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_inner": "feed_forward_length",
    "n_head": "attention.head_count",
    "n_positions": "context_length",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}


def spec(f: Fields) -> Spec:
    dim, heads = f.count("n_embd"), f.count("n_head")
    f.refuse("add_cross_attention", "the decoder has no encoder to attend to")
    head_dim = divide_heads(f, dim, heads)
    scale = head_dim**-0.5 if f.flag("scale_attn_weights") else 1.0
    by_layer = f.flag("scale_attn_by_inverse_layer_idx")
    return Spec(
        family="gpt2",
        vocab=f.count("vocab_size"),
        dim=dim,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        mlp=f.count_or("n_inner", 4 * dim),
        context=f.count("n_positions"),
        layers=tuple(Layer(scale=scale / (i + 1) if by_layer else scale) for i in range(f.layers("n_layer"))),
        norm="layer",
        norm_bias=True,
        eps=f.number("layer_norm_epsilon"),
        activation=f.text("activation_function"),
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        positions=True,
    )


FAMILIES = (
    Family(
        model_type="gpt2",
        architecture="GPT2LMHeadModel",
        defaults=DEFAULTS,
        names=NAMES,
        gguf=Gguf("gpt2", gguf.FUSED_QKV_NAMES, GGUF_KEYS, biases=()),
        spec=spec,
    ),
)
