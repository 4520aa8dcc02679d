"""SmolLM2 with its one matrix under two types, as converters write it, becomes the published file's tensors again."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from tiebeam.decode import Decoder
from tiebeam.surgery.quantize import quantize

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.xdist_group("smollm2")]


def test_a_real_twin_becomes_one_and_logits_are_those_of_the_published_file(smollm2: Path, tmp_path: Path) -> None:
    outcome = quantize(smollm2, tmp_path / "twin.gguf", embed="Q5_0")
    assert outcome.facts["types"] == {"embed": "Q5_0", "head": "Q8_0"}
    assert outcome.proof is not None
    assert (outcome.proof.ran, outcome.proof.largest) == (True, 0.0)
    outcome = quantize(tmp_path / "twin.gguf", tmp_path / "one.gguf")
    assert outcome.proof is not None
    assert outcome.proof.largest == 0.0
    old, new = (gguf.GGUFReader(path) for path in (smollm2, tmp_path / "one.gguf"))
    found = {tensor.name: tensor for tensor in new.tensors}
    assert found.keys() == {tensor.name for tensor in old.tensors}
    for tensor in old.tensors:
        assert found[tensor.name].tensor_type == tensor.tensor_type
        assert np.array_equal(found[tensor.name].data, tensor.data)
    tokens = [1, 504, 3575, 282]
    assert np.array_equal(Decoder.open(tmp_path / "one.gguf").logits(tokens), Decoder.open(smollm2).logits(tokens))
