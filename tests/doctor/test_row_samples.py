"""Values that a stage must keep: re-randomised heads, rows that became zero, copies that were not updated."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import tiebeam
from helpers.tiny_models import build
from tiebeam.doctor.guard import guard
from tiebeam.doctor.row_samples import local_rows, row_change, sample_rows, whole_shape
from tiebeam.errors import TieBroken


def partition(values: torch.Tensor, ranks: int, rank: int) -> Any:
    """The state in which DeepSpeed ZeRO-3 leaves a parameter: no values, and this rank's stretch in `ds_tensor`."""
    flat = values.flatten()
    size = -(-flat.numel() // ranks)
    padded = torch.cat([flat, flat.new_zeros(size * ranks - flat.numel())])
    parameter: Any = nn.Parameter(torch.empty(0))
    parameter.ds_shape, parameter.ds_numel = values.shape, flat.numel()
    parameter.ds_tensor = padded[rank * size : (rank + 1) * size].clone()
    return parameter


def test_a_resize_that_keeps_the_rows_passes_for_a_tied_and_an_untied_model() -> None:
    for tied in (True, False):
        model = build("llama", tie_word_embeddings=tied)
        with guard(model).stage("resize"):
            model.resize_token_embeddings(130)
        with guard(model).stage("resize"):
            model.resize_token_embeddings(64)


def test_a_resize_that_makes_a_new_head_is_named() -> None:
    model = build("llama", tie_word_embeddings=False)
    with (
        pytest.raises(TieBroken, match=r"TB512: .* rows of the head changed after resize"),
        guard(model).stage("resize"),
    ):
        model.lm_head = nn.Linear(32, 104, bias=False)


def test_new_rows_that_were_never_filled_are_named() -> None:
    model = build("llama", tie_word_embeddings=True)
    grown = torch.cat([model.lm_head.weight.detach(), torch.zeros(4, 32)])
    with pytest.raises(TieBroken, match=r"TB513: .* 4 of .* are zero after resize"), guard(model).stage("resize"):
        model.lm_head.weight = model.model.embed_tokens.weight = nn.Parameter(grown)


def test_a_cast_to_bf16_is_not_a_change_and_a_load_may_change_values() -> None:
    model = build("llama", tie_word_embeddings=True)
    watched = guard(model)
    with watched.stage("prepare"):
        model.to(torch.bfloat16)
    with watched.stage("load"):
        model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_the_partitions_of_zero_3_are_read_row_by_row(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(29, 5)
    seen: dict[int, torch.Tensor] = {}
    for rank in range(ranks):
        monkeypatch.setattr("tiebeam.doctor.row_samples._rank_of", lambda parameter, rank=rank: rank)
        part = partition(values, ranks, rank)
        assert whole_shape(part) == (29, 5)
        first, rows = local_rows(part)
        seen |= {first + i: row for i, row in enumerate(rows)}
    assert len(seen) > 29 - ranks  # only a row that is cut in two is left out
    assert all(torch.equal(row, values[number]) for number, row in seen.items())


def test_rows_that_went_to_zero_in_a_partition_are_found() -> None:
    values = torch.randn(40, 8)
    before = sample_rows(partition(values, 1, 0))
    assert before is not None
    assert before.total == 40
    kept = row_change(before, partition(values, 1, 0))
    assert kept is not None
    assert (kept.changed, kept.zeroed) == (0, 0)
    values[-5:] = 0
    lost = row_change(before, partition(values, 1, 0))
    assert lost is not None
    assert (lost.changed, lost.zeroed) == (5, 5)


def test_an_embedding_without_values_is_found() -> None:
    model = build("llama", tie_word_embeddings=True)
    watched = guard(model)
    model.lm_head.weight = model.model.embed_tokens.weight = nn.Parameter(torch.empty(0, 32))
    assert [f.code for f in watched.check("load")] == ["TB513"]


def test_a_copy_that_got_the_embedding_and_not_the_head_is_found() -> None:
    policy = build("llama", tie_word_embeddings=True)
    rollout = build("llama", tie_word_embeddings=False)
    rollout.load_state_dict(copy.deepcopy(policy.state_dict()))
    tiebeam.assert_synced(policy, rollout)
    with torch.no_grad():
        policy.model.embed_tokens.weight.mul_(1.1)
        rollout.model.embed_tokens.weight.copy_(policy.model.embed_tokens.weight)
    with pytest.raises(TieBroken, match=r"TB515: .* copy's head differ .* after weight sync"):
        tiebeam.assert_synced(policy, rollout)
    tiebeam.assert_synced(policy, tiebeam.tie_(rollout, keep="embed"))


def test_a_tied_copy_of_an_untied_model_is_found() -> None:
    model = build("llama", tie_word_embeddings=False)
    tied = build("llama", tie_word_embeddings=True)
    tied.load_state_dict({**model.state_dict(), "lm_head.weight": model.model.embed_tokens.weight})
    with pytest.raises(TieBroken, match=r"TB515: .*head"):
        tiebeam.assert_synced(model, tied)
