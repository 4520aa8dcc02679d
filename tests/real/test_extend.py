"""`<think>` and `</think>` for the real SmolLM2 GGUF: old logits to the bit, read back by the gguf package."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from tiebeam.decode import Decoder
from tiebeam.surgery import extend

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("smollm2")]


def test_smollm2_thinks(smollm2: Path, tmp_path: Path) -> None:
    outcome = extend(smollm2, tmp_path / "think.gguf", tokens=["<think>", "</think>"])
    assert outcome.proof is not None
    assert (outcome.proof.ran, outcome.proof.largest) == (True, 0.0)
    assert outcome.measured["probability"] < 0.001, "--init mean takes next to nothing from the old tokens"
    before, after = Decoder.open(smollm2), Decoder.open(tmp_path / "think.gguf")
    text = "The capital of France is"
    tokens = before.encode(text)
    assert after.encode(text) == tokens
    assert after.encode("<think>Paris</think>") == [49152, *before.encode("Paris"), 49153]
    assert np.array_equal(after.logits(tokens)[:, :49152], before.logits(tokens))
    assert "Paris" in "".join(token.text for token in after.generate(text, 4))
    old, new = (gguf.GGUFReader(path) for path in (smollm2, tmp_path / "think.gguf"))
    assert new.fields["tokenizer.ggml.tokens"].contents()[-2:] == ["<think>", "</think>"]
    assert new.fields["tokenizer.ggml.token_type"].contents()[-2:] == [4, 4]
    for a, b in zip(old.tensors, new.tensors, strict=True):
        assert np.array_equal(a.data, b.data[: len(a.data)])
