"""What `extend` writes, loaded by mlx-lm in its own environment: tokens, rows and old logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from helpers import peer_programs
from helpers.models_with_tokenizers import TOKENS, save_with_tokenizer
from tiebeam.surgery import extend

pytestmark = [pytest.mark.peer, pytest.mark.slow]


@pytest.mark.parametrize("tied", [True, False])
def test_mlx_lm_encodes_the_new_tokens_and_keeps_the_old_logits(tied: bool, tmp_path: Path) -> None:
    save_with_tokenizer(tmp_path / "m", tie_word_embeddings=tied)
    extend(tmp_path / "m", tmp_path / "x", tokens=TOKENS)
    old, same, new = peer_programs.mlx_lm_tokens(
        [(tmp_path / "m", "hello world"), (tmp_path / "x", "hello world"), (tmp_path / "x", "<think>hello</think>")]
    )
    assert same["ids"] == old["ids"]
    before, after = np.array(old["logits"]), np.array(same["logits"])
    assert after.shape == (len(old["ids"]), 302)
    np.testing.assert_allclose(after[:, :300], before, atol=1e-4)
    assert (new["ids"][0], new["ids"][-1]) == (300, 301)
    assert new["text"] == "<think>hello</think>"
    assert np.isfinite(new["logits"]).all()
