"""GGUF files of every family, written as llama.cpp's converter writes them, give the logits of the original."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from helpers.lively_models import TOLERANCE, lively, reference, sentence
from helpers.tiny_ggufs import FAMILIES, options, write_gguf
from tiebeam.decode import Decoder
from tiebeam.errors import UnreadableInput


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_gives_the_logits_of_its_original(family, tied, tmp_path):
    model = lively(family, tie_word_embeddings=tied, **options(family))
    decoder = Decoder.open(write_gguf(model, tmp_path / "m.gguf"))
    tokens = sentence(40)
    assert decoder.notes == ()
    np.testing.assert_allclose(decoder.logits(tokens), reference(model, tokens), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("store", ["Q8_0", "F16", "BF16", "Q4_0"])
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_dequantised_tensors_equal_the_gguf_package(family, store, tmp_path):
    import torch

    model = lively(family, hidden_size=64, intermediate_size=96, **options(family))
    kind = gguf.GGMLQuantizationType[store]
    decoder = Decoder.open(write_gguf(model, tmp_path / "m.gguf", store))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:  # rounding goes along rows, so the order of rows does not matter
                rounded = gguf.quants.dequantize(gguf.quants.quantize(parameter.numpy(), kind), kind)
                parameter.copy_(torch.from_numpy(rounded.reshape(parameter.shape)))
    tokens = sentence(30)
    np.testing.assert_allclose(decoder.logits(tokens), reference(model, tokens), rtol=0, atol=TOLERANCE)


def test_linear_rotary_scaling_is_read_from_the_metadata(tmp_path):
    model = lively("llama", rope_parameters={"rope_theta": 100.0, "rope_type": "linear", "factor": 4.0})
    path = write_gguf(model, tmp_path / "m.gguf", rope__scaling__type="linear", rope__scaling__factor=4.0)
    tokens = sentence(40)
    np.testing.assert_allclose(Decoder.open(path).logits(tokens), reference(model, tokens), rtol=0, atol=TOLERANCE)


def test_a_mixture_of_experts_without_a_family_is_refused(tmp_path):
    path = write_gguf(lively("gemma"), tmp_path / "m.gguf", expert_count=8)
    with pytest.raises(UnreadableInput, match="is a mixture of experts of the architecture 'gemma', which the decoder"):
        Decoder.open(path)


def test_an_architecture_that_cannot_be_run_is_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.ones((8, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnreadableInput, match="cannot run the architecture 'mamba'; it runs"):
        Decoder.open(tmp_path / "m.gguf")
