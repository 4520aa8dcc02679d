"""The head's share of the gradient, measured inside real models, against the same model with two parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers.tiny_models import VOCAB, build
from tiebeam.integrations.head_gradient import HeadGradient
from tiebeam.nn import patch
from tiebeam.surgery.module import find_parameters

IDS = torch.randint(0, VOCAB, (2, 9), generator=torch.Generator().manual_seed(3))  # 0 is the padding token


def measured(model: Any, **inputs: Any) -> Any:
    gradient = HeadGradient()
    gradient.arm(*find_parameters(model))
    model(input_ids=IDS, labels=IDS).loss.backward()
    return gradient.result


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt2", "cohere"])
def test_the_parts_are_the_gradients_of_an_untied_model(model_type: str) -> None:
    tied = build(model_type, tie_word_embeddings=True)
    untied = build(model_type, tie_word_embeddings=False)
    untied.load_state_dict(tied.state_dict())
    found = measured(tied)
    expected = measured(untied)
    E, W = untied.get_input_embeddings().weight.grad, untied.get_output_embeddings().weight.grad
    assert found.lookup_norm == pytest.approx(E.norm().item(), rel=1e-4)
    assert found.head_norm == pytest.approx(W.norm().item(), rel=1e-4)
    assert expected.head_share == pytest.approx(found.head_share, rel=1e-4)


def test_only_the_next_backward_pass_is_measured_and_no_hook_stays() -> None:
    model = build("llama", tie_word_embeddings=True)
    measured(model)
    assert not model.model.embed_tokens._forward_hooks
    assert not model.lm_head.weight._backward_hooks


def test_a_patched_model_is_measured_too() -> None:
    plain, fused = (build("llama", tie_word_embeddings=True).train() for _ in range(2))
    assert measured(patch(fused)).head_share == pytest.approx(measured(plain).head_share, rel=1e-4)


def test_rows_that_a_hook_changed_are_not_measured() -> None:
    model = build("llama", tie_word_embeddings=True)
    model.model.embed_tokens.register_forward_hook(lambda layer, args, out: out + torch.randn_like(out))
    assert measured(model) is None
