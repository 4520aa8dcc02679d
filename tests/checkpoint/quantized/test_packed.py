"""Packed matrices: their logical shape, bits and parts. MLX packs its own; the other layouts are written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.checkpoint.quantized.packed import is_helper, packed_matrix

V, D = 96, 128
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, np.ndarray], int]] = {
    "gptq": (
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        {
            "qweight": np.zeros((D // 8, V), np.int32),
            "qzeros": np.zeros((2, V // 8), np.int32),
            "scales": np.ones((2, V), np.float16),
            "g_idx": np.zeros(D, np.int32),
        },
        4,
    ),
    "awq": (
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
        {
            "qweight": np.zeros((D, V // 8), np.int32),
            "qzeros": np.zeros((2, V // 8), np.int32),
            "scales": np.ones((2, V), np.float16),
        },
        4,
    ),
    "compressed-tensors": (
        {},
        {
            "weight_packed": np.zeros((V, D // 4), np.int32),
            "weight_scale": np.ones((V, 2), np.float16),
            "weight_shape": np.array([V, D], np.int64),
        },
        8,
    ),
    "int8": ({}, {"weight": np.zeros((V, D), np.int8), "weight_scale": np.ones((V, 1), np.float32)}, 8),
    "bitsandbytes": ({}, {"weight": np.zeros((V, D), np.int8), "SCB": np.ones(V, np.float32)}, 8),
}


def write(where: Path, tensors: dict[str, Any], **config: Any) -> Checkpoint:
    where.mkdir(exist_ok=True)
    save_file(tensors, where / "model.safetensors")
    (where / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return open_checkpoint(where)


@pytest.mark.parametrize("method", LAYOUTS)
def test_the_logical_shape_is_read_from_every_part(method: str, tmp_path: Path) -> None:
    config, parts, bits = LAYOUTS[method]
    checkpoint = write(tmp_path, {f"lm_head.{name}": values for name, values in parts.items()}, **config)
    for part in parts:
        packed = packed_matrix(checkpoint, f"lm_head.{part}")
        assert packed is not None, part
        assert (packed.method, packed.bits, packed.shape) == (method, bits, (V, D))
        assert set(packed.parts) == set(checkpoint.tensors)
        assert packed.params == V * D


def test_bitsandbytes_4_bit_has_its_shape_in_the_quant_state(tmp_path: Path) -> None:
    state = json.dumps({"quant_type": "nf4", "blocksize": 64, "shape": [V, D]}).encode()
    parts = {
        "lm_head.weight": np.zeros((V * D // 2, 1), np.uint8),
        "lm_head.weight.absmax": np.zeros(V * D // 64, np.uint8),
        "lm_head.weight.quant_map": np.zeros(16, np.float32),
        "lm_head.weight.quant_state.bitsandbytes__nf4": np.frombuffer(state, np.uint8),
    }
    packed = packed_matrix(write(tmp_path, parts), "lm_head.weight")
    assert packed is not None
    assert (packed.method, packed.bits, packed.shape, set(packed.parts)) == ("bitsandbytes", 4, (V, D), set(parts))


@pytest.mark.parametrize(("bits", "group"), [(4, 64), (8, 32), (6, 64), (3, 128)])
def test_a_matrix_packed_by_mlx_has_its_shape_and_bits(bits: int, group: int, tmp_path: Path) -> None:
    mx = pytest.importorskip("mlx.core")
    nn = pytest.importorskip("mlx.nn")
    layer = nn.QuantizedEmbedding.from_embedding(nn.Embedding(V, D), group_size=group, bits=bits)
    path = tmp_path / "model.safetensors"
    mx.save_safetensors(str(path), {f"model.embed_tokens.{k}": v for k, v in layer.parameters().items()})
    settings = {"group_size": 64, "bits": 4, "model.embed_tokens": {"group_size": group, "bits": bits}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization": settings}))
    checkpoint = open_checkpoint(tmp_path)
    packed = packed_matrix(checkpoint, "model.embed_tokens.weight")
    assert packed is not None
    assert (packed.method, packed.bits, packed.shape) == ("mlx", bits, (V, D))
    assert set(packed.parts) == set(checkpoint.tensors)


def test_plain_tensors_are_not_packed(tmp_path: Path) -> None:
    plain = {"lm_head.weight": np.zeros((V, D), np.float32), "norm.weight": np.zeros(D, np.float32)}
    checkpoint = write(tmp_path, plain)
    assert [packed_matrix(checkpoint, name) for name in plain] == [None, None]
    assert not any(is_helper(name, plain) for name in plain)


def test_scales_without_codes_are_no_matrix(tmp_path: Path) -> None:
    checkpoint = write(tmp_path, {"lm_head.scales": np.ones((V, 2), np.float16)})
    assert packed_matrix(checkpoint, "lm_head.scales") is None
    assert not is_helper("lm_head.scales", checkpoint.tensors)


def test_damaged_parts_are_no_packed_matrix(tmp_path: Path) -> None:
    parts: dict[str, np.ndarray] = {
        "a.weight": np.zeros((8, 1), np.uint8),
        "a.weight.absmax": np.zeros(1, np.uint8),
        "a.weight.quant_state.bitsandbytes__nf4": np.frombuffer(b"not json", np.uint8),
        "b.qweight": np.zeros((8, 0), np.int32),
        "b.scales": np.zeros((1, 0), np.float16),
    }
    checkpoint = write(tmp_path, parts)
    assert packed_matrix(checkpoint, "a.weight") is None
    assert packed_matrix(checkpoint, "b.qweight") is None
