"""Write tiny llamas packed by the real quantisers into the directory named on the command line.

Runs alone in an environment that has torch, transformers, bitsandbytes and compressed-tensors, on a CPU: it imports
nothing of the project. Names: METHOD-tied and METHOD-untied; the head is packed wherever the quantiser packs it.
"""

import sys
from pathlib import Path

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from compressed_tensors.quantization.utils import calculate_qparams
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

BITSANDBYTES = {
    "bitsandbytes4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "llm_int8_skip_modules": []},
    "bitsandbytes8": {"load_in_8bit": True, "llm_int8_skip_modules": []},
}
COMPRESSED = {"fp8": "FP8_DYNAMIC", "w4a16": "W4A16"}
SIZES = {"vocab_size": 256, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1}


def write_plain(where, tied):
    torch.manual_seed(0)
    config = LlamaConfig(**SIZES, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=tied)
    LlamaForCausalLM(config).save_pretrained(where)


def write_bitsandbytes(plain, where, settings):
    chosen = BitsAndBytesConfig(**settings)
    LlamaForCausalLM.from_pretrained(plain, quantization_config=chosen, device_map="cpu").save_pretrained(where)


def write_compressed(plain, where, preset):
    model = LlamaForCausalLM.from_pretrained(plain)
    apply_quantization_config(model, QuantizationConfig(config_groups={preset: ["Linear"]}, ignore=[]))
    for module in model.modules():
        if hasattr(module, "weight_scale"):
            chosen = module.quantization_scheme.weights
            rows = module.weight.detach().reshape(module.weight.shape[0], -1, chosen.group_size or module.in_features)
            scale, _ = calculate_qparams(rows.amin(-1), rows.amax(-1), chosen)
            module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape))
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(where)
    compressor.update_config(where)


def main():
    out = Path(sys.argv[1])
    for tied in (True, False):
        kind = "tied" if tied else "untied"
        write_plain(out / f"plain-{kind}", tied)
        for name, settings in BITSANDBYTES.items():
            write_bitsandbytes(out / f"plain-{kind}", out / f"{name}-{kind}", settings)
        for name, preset in COMPRESSED.items():
            write_compressed(out / f"plain-{kind}", out / f"{name}-{kind}", preset)


main()
