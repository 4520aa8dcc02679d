"""What a loop wrote is compared with the model in memory: whole state dicts, without a config, and files of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from helpers.tiny_models import build
from tiebeam.errors import TieBroken
from tiebeam.integrations.tie_checks import TieChecks

HEAD, EMBED = "lm_head.weight", "model.embed_tokens.weight"


def checks_of(model: torch.nn.Module) -> TieChecks:
    checks = TieChecks()
    checks.load(model)
    return checks


def test_a_state_dict_with_a_copy_per_name_is_the_tied_model(tmp_path: Path) -> None:
    """As Accelerate writes it with FSDP and FULL_STATE_DICT."""
    model = build("llama", tie_word_embeddings=True)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.save({"state": {}}, tmp_path / "optimizer.bin")
    for change, said in (
        ({}, None),
        ({HEAD: state[HEAD] + 1}, r"one matrix but .* is untied"),
        ({HEAD: state[HEAD] + 1, EMBED: state[EMBED] + 1}, r"does not hold the model's values: row \d+ differs"),
    ):
        torch.save({**state, **change}, tmp_path / "pytorch_model_fsdp.bin")
        if said is None:
            checks_of(model).after_save(model, tmp_path)
        else:
            with pytest.raises(TieBroken, match=f"^TB514: .*{said}.*after save"):
                checks_of(model).after_save(model, tmp_path)


def test_a_file_of_a_module_that_holds_the_model_is_read_by_the_names_of_the_module(tmp_path: Path) -> None:
    owner = torch.nn.Module()
    owner.net = build("llama", tie_word_embeddings=True)
    checks, path = checks_of(owner), tmp_path / "last.ckpt"
    state = owner.state_dict()
    for written, said in (
        (state, None),
        (
            {**state, f"net.{HEAD}": state[f"net.{HEAD}"] + 1},
            r"net\.lm_head\.weight in .* does not hold the model's values",
        ),
        ({**state, f"net.{EMBED}": torch.zeros(4, 32)}, r"net\.model\.embed_tokens\.weight is \[4, 32\] in "),
        ({"net.model.norm.weight": torch.ones(32)}, r"net\.model\.embed_tokens\.weight is not in "),
    ):
        torch.save({"state_dict": written}, path)
        if said is None:
            checks.written(owner, owner, path)
        else:
            with pytest.raises(TieBroken, match=f"^TB514: .*{said}"):
                checks.written(owner, owner, path)


def test_a_file_in_a_format_of_its_own_is_left_alone_with_a_warning(tmp_path: Path) -> None:
    model = build("llama", tie_word_embeddings=True)
    (tmp_path / "last.ckpt").write_bytes(b"not a checkpoint")
    with pytest.warns(UserWarning, match=r"the written checkpoint was not checked: .*last\.ckpt"):
        checks_of(model).written(model, model, tmp_path / "last.ckpt")
