"""The parts that each layer adds to a logit."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("transformers")

from helpers.lively_models import lively, save, sentence
from tiebeam.decode import Decoder
from tiebeam.decode.numpy.layer_contributions import layer_contributions


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "gpt_neox", "granite"])
def test_the_parts_add_up_to_the_logit(tmp_path, family):
    decoder = Decoder.open(save(lively(family), tmp_path / family))
    tokens = sentence(min(200, decoder.spec.context), decoder.vocab)  # several chunks where they fit
    states: list[np.ndarray] = []
    h = decoder.forward(tokens, decoder.cache(len(tokens)), states)
    assert len(states) == len(decoder.spec.layers) + 1
    row = decoder.head.lookup(np.array([3]))[0].astype(np.float64)
    bias = decoder.final_norm.bias
    logit = (h[-1] - (0 if bias is None else bias)) @ row * decoder.spec.scales.logits
    parts = layer_contributions(decoder, states, 3)
    assert parts.sum() == pytest.approx(logit, rel=1e-3, abs=1e-4)
    assert np.abs(parts).max() > 1e-4


def test_the_first_part_is_the_direct_path(tmp_path):
    decoder = Decoder.open(save(lively("llama"), tmp_path))
    states: list[np.ndarray] = []
    decoder.forward([5, 7], decoder.cache(2), states)
    np.testing.assert_array_equal(states[0], decoder.embed.lookup(np.array([7]))[0] * decoder.spec.scales.input)
