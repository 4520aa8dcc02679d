"""Rows in memory are classified as rows in files are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.tiny_models import build
from tiebeam import inspect, open_checkpoint
from tiebeam.inspection.live_rows import live_rows
from tiebeam.inspection.row_health import UNTRAINED, row_health


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_live_rows_are_counted_like_saved_ones(tmp_path: Path, dtype: torch.dtype) -> None:
    model = build("llama", tie_word_embeddings=True, vocab_size=300)
    with torch.no_grad():
        table = model.lm_head.weight
        table[:250] = torch.randn(250, 32) * torch.linspace(0.3, 3, 250).unsqueeze(1)
        table[290:] = 0
    model.to(dtype).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    (saved,) = row_health(checkpoint, inspect(checkpoint)).matrices
    live = live_rows(model.lm_head.weight, model.config.to_dict())
    assert live.untrained == saved.count(*UNTRAINED)
    assert live.untrained >= 50
    assert live.median_norm == pytest.approx(saved.median_norm)


def test_a_matrix_without_rows_has_no_norm() -> None:
    assert live_rows(torch.empty(0, 8)).median_norm == 0.0
