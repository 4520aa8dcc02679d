"""Untie the real SmolLM2; transformers generates the same text."""

import pytest
import torch

from tiebeam.pair import Tie
from tiebeam.surgery import tie, untie

pytestmark = pytest.mark.real


def test_untied_smollm2_generates_the_same_text(smollm2, tmp_path):
    transformers = pytest.importorskip("transformers")
    outcome = untie(smollm2, tmp_path / "u")
    assert outcome.before.tie is Tie.SHARED
    assert outcome.proof.ran
    original = transformers.AutoModelForCausalLM.from_pretrained(
        smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32
    )
    untied = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "u")
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "u")
    prompt = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(untied(prompt).logits, original(prompt).logits)
        texts = [
            tokenizer.decode(m.generate(prompt, max_new_tokens=24, do_sample=False)[0]) for m in (original, untied)
        ]
    assert texts[0] == texts[1]
    assert "Paris" in texts[1]


def test_smollm2_gguf_round_trip_gives_the_same_file(smollm2, tmp_path):
    untie(smollm2, tmp_path / "u.gguf", proof=False)
    tie(tmp_path / "u.gguf", tmp_path / "b.gguf", proof=False)
    assert (tmp_path / "b.gguf").read_bytes() == smollm2.read_bytes()
