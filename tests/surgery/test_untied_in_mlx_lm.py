"""What `untie` and `doctor --fix` write, loaded by mlx-lm in its own environment."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from helpers import peer_programs
from peers.states import Base
from tiebeam.doctor.fix import plan_fix
from tiebeam.surgery import execute, open_source, plan_untie

pytestmark = [pytest.mark.peer, pytest.mark.slow]
TYPES = ["llama", "qwen2", "qwen3", "phi3", "olmo2", "mamba", "gemma3_text"]


def test_an_untied_model_and_a_fixed_torn_one_keep_both_matrices(tmp_path: Path) -> None:
    cases = []
    for model_type in TYPES:
        base = Base(model_type, tmp_path / f"{model_type}-base")
        for stored in ("one", "differ"):
            source, target = tmp_path / f"{model_type}-{stored}", tmp_path / f"{model_type}-{stored}-out"
            base.write(source, stored, "true")
            if stored == "one":
                execute(plan_untie(open_source(source)), target, proof=False, durable=False)
            else:
                plan_fix(source).write(target)
            shutil.copy(source / "expected.st", target)
            cases.append((target, "equal" if stored == "one" else "differ"))
    outcomes = peer_programs.mlx_lm(cases)
    assert {case[0].name: result["outcome"] for case, result in zip(cases, outcomes, strict=True)} == {
        case[0].name: "keeps both" for case in cases
    }


def test_a_table_quantised_by_mlx_is_untied_whole(tmp_path: Path) -> None:
    """Codes, scales and biases of the head are there, or mlx-lm, which loads strictly, would refuse."""
    import json

    mx = pytest.importorskip("mlx.core")
    base = Base("llama", tmp_path / "base")
    base.write(tmp_path / "m", "one", "true")
    stored = load_file(tmp_path / "m" / "model.safetensors")
    plain = {name: mx.array(value.numpy()) for name, value in stored.items()}
    table = plain.pop("model.embed_tokens.weight")
    codes, scales, biases = mx.quantize(table, group_size=32, bits=4)
    parts = {"weight": codes, "scales": scales, "biases": biases}
    packed = {f"model.embed_tokens.{part}": value for part, value in parts.items()}
    mx.save_safetensors(str(tmp_path / "m" / "model.safetensors"), {**plain, **packed}, {"format": "mlx"})
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config["quantization"] = {"group_size": 32, "bits": 4}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    execute(plan_untie(open_source(tmp_path / "m")), tmp_path / "untied", proof=False)
    unpacked = mx.dequantize(codes, scales, biases, group_size=32, bits=4)
    import numpy as np
    import torch

    rounded = torch.from_numpy(np.array(unpacked))
    save_file({"E": rounded, "W": rounded.clone()}, tmp_path / "untied" / "expected.st")
    shutil.copy(tmp_path / "untied" / "expected.st", tmp_path / "m")
    (tied, untied) = peer_programs.mlx_lm([(tmp_path / "m", "one"), (tmp_path / "untied", "equal")])
    assert "refuses" not in (tied["outcome"], untied["outcome"]), (tied, untied)
