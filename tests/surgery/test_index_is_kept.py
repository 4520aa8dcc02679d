"""The index of a sharded model is written anew: it is not among the files that were left behind."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.tiny_models import build
from tiebeam.surgery import execute, open_source, plan_untie


def test_the_index_that_was_written_is_not_reported_as_left(tmp_path: Path) -> None:
    build("llama", tie_word_embeddings=True).save_pretrained(tmp_path / "m", max_shard_size="20KB")
    assert (tmp_path / "m" / "model.safetensors.index.json").exists()
    (tmp_path / "m" / "pytorch_model.bin.index.json").write_text("{}")
    outcome = execute(plan_untie(open_source(tmp_path / "m")), tmp_path / "untied")
    assert outcome.left == ("pytorch_model.bin.index.json",)
    index = json.loads((tmp_path / "untied" / "model.safetensors.index.json").read_text())
    assert "lm_head.weight" in index["weight_map"]
