"""The configurations of known models, as far as they fix the parameter count: name -> (model_type, keys).

They are what the catalogue's totals were recomputed from. Three model types that transformers does not have
(mobilellm, minicpm, internlm2) hold the same tensors as a llama and are counted as one.
"""

from typing import Any


def llama(
    V: int, D: int, layers: int, ffn: int, heads: int, kv: int, tied: bool = False, **more: Any
) -> dict[str, Any]:
    return {
        "vocab_size": V,
        "hidden_size": D,
        "num_hidden_layers": layers,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "tie_word_embeddings": tied,
        **more,
    }


def bert(V: int, D: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"vocab_size": V, "hidden_size": D, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**sizes, "intermediate_size": 4 * D, **more}


def gpt2(D: int, layers: int, heads: int) -> dict[str, Any]:
    return {"vocab_size": 50257, "n_positions": 1024, "n_embd": D, "n_layer": layers, "n_head": heads}


def neox(V: int, D: int, layers: int, heads: int) -> dict[str, Any]:
    return bert(V, D, layers, heads, tie_word_embeddings=False)


def opt(D: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"vocab_size": 50272, "hidden_size": D, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**sizes, "ffn_dim": 4 * D, "max_position_embeddings": 2048, "word_embed_proj_dim": D, **more}


def seq2seq(V: int, D: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes: dict[str, Any] = {"vocab_size": V, "d_model": D, "max_position_embeddings": 1024}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": layers, f"{side}_attention_heads": heads, f"{side}_ffn_dim": 4 * D}
    return {**sizes, **more}


def t5(V: int, D: int, ffn: int, layers: int, heads: int, v1_1: bool = False) -> dict[str, Any]:
    sizes = {"vocab_size": V, "d_model": D, "d_ff": ffn, "num_layers": layers, "num_heads": heads, "d_kv": 64}
    return sizes | ({"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False} if v1_1 else {})


def gemma3(text: dict[str, Any]) -> dict[str, Any]:
    tower = {"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27}
    tower |= {"patch_size": 14, "image_size": 896, "vision_use_head": False}
    return {"text_config": text, "vision_config": tower, "mm_tokens_per_image": 256}


def phi3(*sizes: Any, **more: Any) -> dict[str, Any]:
    return llama(*sizes, pad_token_id=0, **more)  # the class default lies outside a small vocabulary


CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT-2 small": ("gpt2", gpt2(768, 12, 12)),
    "GPT-2 medium": ("gpt2", gpt2(1024, 24, 16)),
    "GPT-2 large": ("gpt2", gpt2(1280, 36, 20)),
    "GPT-2 XL": ("gpt2", gpt2(1600, 48, 25)),
    "GPT-J 6B": (
        "gptj",
        {"vocab_size": 50400, "n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64}
        | {"tie_word_embeddings": False},
    ),
    **{
        f"GPT-Neo {size}": (
            "gpt_neo",
            {"vocab_size": 50257, "hidden_size": D, "num_layers": layers, "num_heads": heads}
            | {"max_position_embeddings": 2048, "attention_types": [[["global", "local"], layers // 2]]},
        )
        for size, D, layers, heads in (("125M", 768, 12, 12), ("1.3B", 2048, 24, 16), ("2.7B", 2560, 32, 20))
    },
    "GPT-NeoX 20B": ("gpt_neox", neox(50432, 6144, 44, 64)),
    "Pythia 70M": ("gpt_neox", neox(50304, 512, 6, 8)),
    "Pythia 160M": ("gpt_neox", neox(50304, 768, 12, 12)),
    "Pythia 410M": ("gpt_neox", neox(50304, 1024, 24, 16)),
    "Pythia 1B": ("gpt_neox", neox(50304, 2048, 16, 8)),
    "Pythia 1.4B": ("gpt_neox", neox(50304, 2048, 24, 16)),
    "Pythia 2.8B": ("gpt_neox", neox(50304, 2560, 32, 32)),
    "Pythia 6.9B": ("gpt_neox", neox(50432, 4096, 32, 32)),
    "Pythia 12B": ("gpt_neox", neox(50688, 5120, 36, 40)),
    "OPT-125M": ("opt", opt(768, 12, 12)),
    "OPT-350M": ("opt", opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False)),
    "OPT-1.3B": ("opt", opt(2048, 24, 32)),
    "OPT-6.7B": ("opt", opt(4096, 32, 32)),
    "BLOOM-560M": ("bloom", {"vocab_size": 250880, "hidden_size": 1024, "n_layer": 24, "n_head": 16}),
    "BLOOM-7.1B": ("bloom", {"vocab_size": 250880, "hidden_size": 4096, "n_layer": 30, "n_head": 32}),
    "BLOOM-176B": ("bloom", {"vocab_size": 250880, "hidden_size": 14336, "n_layer": 70, "n_head": 112}),
    "LLaMA-1 7B": ("llama", llama(32000, 4096, 32, 11008, 32, 32)),
    "Llama-2 7B": ("llama", llama(32000, 4096, 32, 11008, 32, 32)),
    "Llama-2 13B": ("llama", llama(32000, 5120, 40, 13824, 40, 40)),
    "Llama-2 70B": ("llama", llama(32000, 8192, 80, 28672, 64, 8)),
    "Llama-3 8B": ("llama", llama(128256, 4096, 32, 14336, 32, 8)),
    "Llama-3.1 8B": ("llama", llama(128256, 4096, 32, 14336, 32, 8)),
    "Llama-3.1 70B": ("llama", llama(128256, 8192, 80, 28672, 64, 8)),
    "Llama-3.1 405B": ("llama", llama(128256, 16384, 126, 53248, 128, 8)),
    "Llama-3.2 1B": ("llama", llama(128256, 2048, 16, 8192, 32, 8, True, head_dim=64)),
    "Llama-3.2 3B": ("llama", llama(128256, 3072, 28, 8192, 24, 8, True, head_dim=128)),
    "Llama-4 Scout 17B-16E": (
        "llama4",
        {
            "vision_config": {"hidden_size": 1408, "num_hidden_layers": 34, "num_attention_heads": 16}
            | {"intermediate_size": 5632, "vision_output_dim": 4096, "image_size": 336, "patch_size": 14}
            | {"projector_input_dim": 4096, "projector_output_dim": 4096, "pixel_shuffle_ratio": 0.5}
        },
    ),
    "TinyLlama 1.1B": ("llama", llama(32000, 2048, 22, 5632, 32, 4)),
    "Mistral 7B v0.1": ("mistral", llama(32000, 4096, 32, 14336, 32, 8)),
    "Mixtral 8x7B": ("mixtral", llama(32000, 4096, 32, 14336, 32, 8, num_local_experts=8)),
    "Mistral NeMo 12B": ("mistral", llama(131072, 5120, 40, 14336, 32, 8, head_dim=128)),
    "Gemma 2B": ("gemma", llama(256000, 2048, 18, 16384, 8, 1, True, head_dim=256)),
    "Gemma 7B": ("gemma", llama(256000, 3072, 28, 24576, 16, 16, True, head_dim=256)),
    "Gemma 2 2B": ("gemma2", llama(256000, 2304, 26, 9216, 8, 4, True, head_dim=256)),
    "Gemma 2 9B": ("gemma2", llama(256000, 3584, 42, 14336, 16, 8, True, head_dim=256)),
    "Gemma 2 27B": ("gemma2", llama(256000, 4608, 46, 36864, 32, 16, True, head_dim=128)),
    "Gemma 3 270M": ("gemma3_text", llama(262144, 640, 18, 2048, 4, 1, True, head_dim=256)),
    "Gemma 3 1B": ("gemma3_text", llama(262144, 1152, 26, 6912, 4, 1, True, head_dim=256)),
    "Gemma 3 4B": ("gemma3", gemma3(llama(262208, 2560, 34, 10240, 8, 4, True, head_dim=256))),
    "Gemma 3 12B": ("gemma3", gemma3(llama(262208, 3840, 48, 15360, 16, 8, True, head_dim=256))),
    "Gemma 3 27B": ("gemma3", gemma3(llama(262208, 5376, 62, 21504, 32, 16, True, head_dim=128))),
    "Phi-1": ("phi", neox(51200, 2048, 24, 32)),
    "Phi-1.5": ("phi", neox(51200, 2048, 24, 32)),
    "Phi-2": ("phi", neox(51200, 2560, 32, 32)),
    "Phi-3-mini 4k": ("phi3", phi3(32064, 3072, 32, 8192, 32, 32)),
    "Phi-3.5-mini": ("phi3", phi3(32064, 3072, 32, 8192, 32, 32)),
    "Phi-4 14B": ("phi3", phi3(100352, 5120, 40, 17920, 40, 10)),
    "Phi-4-mini": ("phi3", phi3(200064, 3072, 32, 8192, 24, 8, True, partial_rotary_factor=0.75)),
    "Qwen1.5 0.5B": ("qwen2", llama(151936, 1024, 24, 2816, 16, 16, True)),
    "Qwen1.5 1.8B": ("qwen2", llama(151936, 2048, 24, 5504, 16, 16)),
    "Qwen1.5 4B": ("qwen2", llama(151936, 2560, 40, 6912, 20, 20)),
    "Qwen1.5 7B": ("qwen2", llama(151936, 4096, 32, 11008, 32, 32)),
    "Qwen1.5 14B": ("qwen2", llama(152064, 5120, 40, 13696, 40, 40)),
    "Qwen2 0.5B": ("qwen2", llama(151936, 896, 24, 4864, 14, 2, True)),
    "Qwen2 1.5B": ("qwen2", llama(151936, 1536, 28, 8960, 12, 2, True)),
    "Qwen2 7B": ("qwen2", llama(152064, 3584, 28, 18944, 28, 4)),
    "Qwen2 72B": ("qwen2", llama(152064, 8192, 80, 29568, 64, 8)),
    "Qwen2.5 0.5B": ("qwen2", llama(151936, 896, 24, 4864, 14, 2, True)),
    "Qwen2.5 1.5B": ("qwen2", llama(151936, 1536, 28, 8960, 12, 2, True)),
    "Qwen2.5 3B": ("qwen2", llama(151936, 2048, 36, 11008, 16, 2, True)),
    "Qwen2.5 7B": ("qwen2", llama(152064, 3584, 28, 18944, 28, 4)),
    "Qwen2.5 14B": ("qwen2", llama(152064, 5120, 48, 13824, 40, 8)),
    "Qwen2.5 32B": ("qwen2", llama(152064, 5120, 64, 27648, 40, 8)),
    "Qwen2.5 72B": ("qwen2", llama(152064, 8192, 80, 29568, 64, 8)),
    "Qwen3 0.6B": ("qwen3", llama(151936, 1024, 28, 3072, 16, 8, True, head_dim=128)),
    "Qwen3 1.7B": ("qwen3", llama(151936, 2048, 28, 6144, 16, 8, True, head_dim=128)),
    "Qwen3 4B": ("qwen3", llama(151936, 2560, 36, 9728, 32, 8, True, head_dim=128)),
    "Qwen3 8B": ("qwen3", llama(151936, 4096, 36, 12288, 32, 8, head_dim=128)),
    "Qwen3 14B": ("qwen3", llama(151936, 5120, 40, 17408, 40, 8, head_dim=128)),
    "Qwen3 32B": ("qwen3", llama(151936, 5120, 64, 25600, 64, 8, head_dim=128)),
    "Qwen3 30B-A3B": (
        "qwen3_moe",
        llama(151936, 2048, 48, 6144, 32, 4, head_dim=128, moe_intermediate_size=768, num_experts=128),
    ),
    "SmolLM 135M": ("llama", llama(49152, 576, 30, 1536, 9, 3, True)),
    "SmolLM 360M": ("llama", llama(49152, 960, 32, 2560, 15, 5, True)),
    "SmolLM 1.7B": ("llama", llama(49152, 2048, 24, 8192, 32, 32, True)),
    "SmolLM2 135M": ("llama", llama(49152, 576, 30, 1536, 9, 3, True)),
    "SmolLM2 360M": ("llama", llama(49152, 960, 32, 2560, 15, 5, True)),
    "SmolLM2 1.7B": ("llama", llama(49152, 2048, 24, 8192, 32, 32, True)),
    "SmolLM3 3B": ("smollm3", llama(128256, 2048, 36, 11008, 16, 4, True)),
    "OLMo 1B (2402)": ("olmo", llama(50304, 2048, 16, 8192, 16, 16, True)),
    "OLMo 1B (0724)": ("olmo", llama(50304, 2048, 16, 8192, 16, 16)),
    "OLMo 7B": ("olmo", llama(50304, 4096, 32, 11008, 32, 32)),
    "OLMo 2 1B": ("olmo2", llama(100352, 2048, 16, 8192, 16, 16)),
    "OLMo 2 7B": ("olmo2", llama(100352, 4096, 32, 11008, 32, 32)),
    "OLMo 2 13B": ("olmo2", llama(100352, 5120, 40, 13824, 40, 40)),
    "Falcon 7B": (
        "falcon",
        {"vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71}
        | {"multi_query": True, "parallel_attn": True, "bias": False, "new_decoder_architecture": False},
    ),
    "Falcon 40B": (
        "falcon",
        {"vocab_size": 65024, "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128}
        | {"num_kv_heads": 8, "parallel_attn": True, "bias": False, "new_decoder_architecture": True},
    ),
    "MPT-7B": (
        "mpt",
        {"vocab_size": 50432, "d_model": 4096, "n_layers": 32, "n_heads": 32, "expansion_ratio": 4}
        | {"no_bias": True, "max_seq_len": 2048, "attn_config": {"alibi": True}},
    ),
    "StableLM-3B-4E1T": ("stablelm", llama(50304, 2560, 32, 6912, 32, 32, use_qkv_bias=False)),
    "StableLM 2 1.6B": ("stablelm", llama(100352, 2048, 24, 5632, 32, 32, use_qkv_bias=True)),
    "MobileLLM 125M": ("llama", llama(32000, 576, 30, 1536, 9, 3, True)),
    "MobileLLM 350M": ("llama", llama(32000, 960, 32, 2560, 15, 5, True)),
    "MobileLLM 600M": ("llama", llama(32000, 1152, 40, 3072, 18, 6, True)),
    "MobileLLM 1B": ("llama", llama(32000, 1280, 54, 3584, 20, 5, True)),
    "MobileLLM 1.5B": ("llama", llama(32000, 1600, 54, 4352, 25, 5, True)),
    "Command-R 35B": ("cohere", llama(256000, 8192, 40, 22528, 64, 64, True)),
    "Command R7B": ("cohere2", llama(256000, 4096, 32, 14336, 32, 8, True)),
    "Aya-23 8B": ("cohere", llama(256000, 4096, 32, 14336, 32, 8, True)),
    "Granite 3.0 2B": ("granite", llama(49155, 2048, 40, 8192, 32, 8, True)),
    "Granite 3.0 8B": ("granite", llama(49155, 4096, 40, 12800, 32, 8, True)),
    "DeepSeek-LLM 7B": ("llama", llama(102400, 4096, 30, 11008, 32, 32)),
    "DeepSeek-V2-Lite": (
        "deepseek_v2",
        llama(102400, 2048, 27, 10944, 16, 16, moe_intermediate_size=1408, n_routed_experts=64, n_shared_experts=2)
        | {"q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
        | {"v_head_dim": 128, "first_k_dense_replace": 1},
    ),
    "DeepSeek-V3": ("deepseek_v3", {}),
    "gpt-oss-20b": ("gpt_oss", {"num_hidden_layers": 24, "num_local_experts": 32}),
    "gpt-oss-120b": ("gpt_oss", {}),
    "MiniCPM-2B": ("llama", llama(122753, 2304, 40, 5760, 36, 36, True)),
    "Yi-6B": ("llama", llama(64000, 4096, 32, 11008, 32, 4)),
    "InternLM2 7B": ("llama", llama(92544, 4096, 32, 14336, 32, 8)),
    "Mamba 130M": ("mamba", {"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 24, "time_step_rank": 48}),
    "Mamba 2.8B": ("mamba", {"vocab_size": 50280, "hidden_size": 2560, "num_hidden_layers": 64, "time_step_rank": 160}),
    "RWKV-4 169M": (
        "rwkv",
        {"vocab_size": 50277, "hidden_size": 768, "num_hidden_layers": 12, "tie_word_embeddings": False},
    ),
    "LFM2 1.2B": (
        "lfm2",
        {"vocab_size": 65536, "hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 12288}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "full_attn_idxs": [2, 5, 8, 10, 12, 14]}
        | {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256},
    ),
    "Apertus 8B": ("apertus", llama(131072, 4096, 32, 21504, 32, 8)),
    "nanochat": (
        "nanochat",
        {"vocab_size": 65536, "hidden_size": 1280, "num_hidden_layers": 20, "intermediate_size": 5120}
        | {"num_attention_heads": 10, "num_key_value_heads": 10},
    ),
    "Starcoder2 3B": ("starcoder2", llama(49152, 3072, 30, 12288, 24, 2, True, use_bias=True)),
    "T5 small": ("t5", t5(32128, 512, 2048, 6, 8)),
    "T5 base": ("t5", t5(32128, 768, 3072, 12, 12)),
    "T5 large": ("t5", t5(32128, 1024, 4096, 24, 16)),
    "T5 v1.1 base": ("t5", t5(32128, 768, 2048, 12, 12, v1_1=True)),
    "T5 v1.1 large": ("t5", t5(32128, 1024, 2816, 24, 16, v1_1=True)),
    "Flan-T5 base": ("t5", t5(32128, 768, 2048, 12, 12, v1_1=True)),
    "mT5 small": ("mt5", t5(250112, 512, 1024, 8, 6, v1_1=True)),
    "mT5 base": ("mt5", t5(250112, 768, 2048, 12, 12, v1_1=True)),
    "BART base": ("bart", seq2seq(50265, 768, 6, 12)),
    "BART large": ("bart", seq2seq(50265, 1024, 12, 16)),
    "BERT base uncased": ("bert", bert(30522, 768, 12, 12)),
    "BERT large uncased": ("bert", bert(30522, 1024, 24, 16)),
    "RoBERTa base": ("roberta", bert(50265, 768, 12, 12, max_position_embeddings=514, type_vocab_size=1)),
    "ALBERT base v2": ("albert", bert(30000, 768, 12, 12, embedding_size=128)),
    "ALBERT xxlarge v2": ("albert", bert(30000, 4096, 12, 64, embedding_size=128)),
    "DeBERTa base": (
        "deberta",
        bert(50265, 768, 12, 12, relative_attention=True, max_relative_positions=-1, pos_att_type=["c2p", "p2c"])
        | {"type_vocab_size": 0, "position_biased_input": False},
    ),
    "DeBERTa-v3 base": (
        "deberta-v2",
        bert(128100, 768, 12, 12, relative_attention=True, max_relative_positions=-1, pos_att_type=["p2c", "c2p"])
        | {"type_vocab_size": 0, "position_biased_input": False, "position_buckets": 256, "share_att_key": True}
        | {"norm_rel_ebd": "layer_norm"},
    ),
    "ModernBERT base": ("modernbert", {}),
    "ModernBERT large": (
        "modernbert",
        {"hidden_size": 1024, "intermediate_size": 2624, "num_hidden_layers": 28, "num_attention_heads": 16},
    ),
    "XLM-R base": ("xlm-roberta", bert(250002, 768, 12, 12, max_position_embeddings=514, type_vocab_size=1)),
    "XLM-R large": ("xlm-roberta", bert(250002, 1024, 24, 16, max_position_embeddings=514, type_vocab_size=1)),
    "RemBERT": (
        "rembert",
        bert(250300, 1152, 32, 18, input_embedding_size=256, output_embedding_size=1664, tie_word_embeddings=False),
    ),
    "NLLB-200 distilled 600M": ("m2m_100", seq2seq(256206, 1024, 12, 16, scale_embedding=True)),
    "Whisper tiny": ("whisper", seq2seq(51865, 384, 4, 6, max_position_embeddings=448)),
    "Whisper large-v3": ("whisper", seq2seq(51866, 1280, 32, 20, max_position_embeddings=448, num_mel_bins=128)),
}
