"""A packed matrix is moved with all its parts, or not at all.

MLX files are made by mlx; the others are written in the layouts that their quantisers publish.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.building import llama_config
from tiebeam.errors import BadRequest
from tiebeam.surgery import execute, open_source, plan_untie
from tiebeam.surgery.packed_parts import packed_by, parts_of

V, D = 64, 64
EMBED = "model.embed_tokens"


def write(where: Path, tensors: dict[str, torch.Tensor], **config: object) -> Path:
    where.mkdir()
    rest = {"model.norm.weight": torch.ones(D)}
    save_file({**rest, **tensors}, where / "model.safetensors", {"format": "pt"})
    document = {**llama_config(tie_word_embeddings=True), "vocab_size": V, "hidden_size": D, **config}
    (where / "config.json").write_text(json.dumps(document))
    return where


def mlx_tied(where: Path, own_bits: bool = False) -> Path:
    """A table quantised by mlx to 4 bits, as mlx-lm stores a tied llama."""
    mx = pytest.importorskip("mlx.core")
    nn = pytest.importorskip("mlx.nn")
    table = nn.Embedding(V, D)
    table.weight = mx.array(np.random.default_rng(0).standard_normal((V, D)).astype(np.float32))
    packed = nn.QuantizedEmbedding.from_embedding(table, group_size=32, bits=4)
    parts = {"weight": packed.weight, "scales": packed.scales, "biases": packed.biases}
    tensors = {
        f"{EMBED}.{name}": torch.from_numpy(np.array(value).astype(np.int64)).to(torch.uint32)
        if name == "weight"
        else torch.from_numpy(np.array(value))
        for name, value in parts.items()
    }
    settings = {"group_size": 32, "bits": 4, **({EMBED: {"group_size": 32, "bits": 4}} if own_bits else {})}
    return write(where, tensors, quantization=settings)


@pytest.mark.parametrize("own_bits", [False, True], ids=["one setting", "a setting per layer"])
def test_an_mlx_table_is_untied_with_its_scales_and_biases(tmp_path: Path, own_bits: bool) -> None:
    source = mlx_tied(tmp_path / "mlx", own_bits)
    execute(plan_untie(open_source(source)), tmp_path / "untied", proof=False)
    stored = load_file(tmp_path / "untied" / "model.safetensors")
    for part in ("weight", "scales", "biases"):
        assert torch.equal(stored[f"lm_head.{part}"], stored[f"{EMBED}.{part}"])
    config = json.loads((tmp_path / "untied" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    assert config["quantization"].get("lm_head") == ({"group_size": 32, "bits": 4} if own_bits else None)


def int32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


STATE = torch.tensor(list(json.dumps({"shape": [V, D], "quant_type": "nf4"}).encode()), dtype=torch.uint8)
LAYOUTS = {
    "gptq": {
        "qweight": int32(D // 8, V), "qzeros": int32(1, V // 8), "scales": torch.ones(1, V, dtype=torch.float16),
        "g_idx": int32(D),
    },
    "awq": {"qweight": int32(D, V // 8), "qzeros": int32(1, V // 8), "scales": torch.ones(1, V, dtype=torch.float16)},
    "compressed-tensors": {
        "weight_packed": int32(V, D // 8), "weight_scale": torch.ones(V, 1, dtype=torch.bfloat16),
        "weight_shape": torch.tensor([V, D]),
    },
    "bitsandbytes 4": {
        "weight": torch.zeros(V * D // 2, 1, dtype=torch.uint8), "weight.absmax": torch.ones(V * D // 64),
        "weight.quant_map": torch.ones(16), "weight.quant_state.bitsandbytes__nf4": STATE,
    },
    "bitsandbytes 8": {
        "weight": torch.zeros(V, D, dtype=torch.int8), "SCB": torch.ones(V),
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    },
    "fp8": {"weight": torch.zeros(V, D).to(torch.float8_e4m3fn), "weight_scale_inv": torch.ones(1, 1)},
    "fp8 of compressed-tensors": {
        "weight": torch.zeros(V, D).to(torch.float8_e4m3fn), "weight_scale": torch.ones(V, 1),
    },
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_table_packed_for_linear_layers_is_refused_with_the_way_out(tmp_path: Path, layout: str) -> None:
    tensors = {f"{EMBED}.{name}": value for name, value in LAYOUTS[layout].items()}
    source = write(tmp_path / "packed", tensors)
    with pytest.raises(BadRequest, match=r"is packed \(.*dequantize it"):
        plan_untie(open_source(source))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_part_belongs_to_its_matrix(layout: str) -> None:
    parts = {f"lm_head.{name}" for name in LAYOUTS[layout]}
    codes = next(name for name in ("lm_head.qweight", "lm_head.weight_packed", "lm_head.weight") if name in parts)
    dtypes = dict.fromkeys(parts, "I32")
    assert packed_by(codes, dtypes)
    assert set(parts_of(codes, dtypes)) == parts


def test_a_plain_matrix_has_one_part() -> None:
    names = {"lm_head.weight": "BF16", "lm_head.bias": "BF16"}
    assert packed_by("lm_head.weight", names) is None
    assert parts_of("lm_head.weight", names) == ["lm_head.weight"]


@pytest.mark.parametrize("layout", ["gptq", "awq", "compressed-tensors"])
def test_a_plain_table_beside_packed_layers_is_untied(tmp_path: Path, layout: str) -> None:
    """Quantisers leave the embedding plain: then its copy is a plain head."""
    layer = {f"model.layers.0.mlp.up_proj.{name}": value for name, value in LAYOUTS[layout].items()}
    source = write(tmp_path / "m", {f"{EMBED}.weight": torch.randn(V, D), **layer})
    execute(plan_untie(open_source(source)), tmp_path / "untied", proof=False)
    stored = load_file(tmp_path / "untied" / "model.safetensors")
    assert torch.equal(stored["lm_head.weight"], stored[f"{EMBED}.weight"])
