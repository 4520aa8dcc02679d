"""Folders that DeepSpeed 0.19.8 wrote (see deepspeed_checkpoints.py), compared with its own consolidation."""

from __future__ import annotations

import pickle
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers.mangling import damage_pickle, mangled, one_sentence, survives
from tiebeam.checkpoint import open_checkpoint
from tiebeam.doctor import examine
from tiebeam.errors import UnreadableInput
from tiebeam.inspection import inspect
from tiebeam.surgery import tie, untie

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FROZEN = "model.layers.0.mlp.up_proj.weight"
CASES = ["zero1_tied", "zero2_tied", "zero3_tied", "zero3_untied", "zero3_twin"]
MODEL_0 = "zero_pp_rank_0_mp_rank_00_model_states.pt"
OPTIM_0, OPTIM_1 = (f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1))


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As written, without DeepSpeed's consolidated weights, which would be opened instead."""
    out = tmp_path_factory.mktemp("deepspeed")
    with tarfile.open(Path(__file__).with_name("deepspeed.tar.xz")) as archive:
        archive.extractall(out, filter="data")
    for case in CASES:
        (out / case / "fp32.safetensors").rename(out / f"{case}.safetensors")
    return out


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Path:
    """An untied ZeRO-3 checkpoint to damage."""
    shutil.copytree(written / "zero3_untied", tmp_path / "copy")
    return tmp_path / "copy"


def step(where: Path) -> Path:
    return where / "global_step1"


class Inert:
    """Replaces DeepSpeed's classes, which are not installed."""

    def __init__(self, *_: Any) -> None:
        pass


class Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return Inert if module.startswith("deepspeed") else super().find_class(module, name)


class PickleModule:
    Unpickler = Unpickler


def resave(path: Path, change: Any) -> None:
    """Load a file with torch, change it and save it again."""
    state = torch.load(path, weights_only=False, pickle_module=PickleModule)
    change(state)
    torch.save(state, path)


def refusal(source: Path) -> str:
    with pytest.raises(UnreadableInput) as caught:
        inspect(source)
    assert one_sentence(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("case", CASES)
def test_every_number_equals_deepspeeds_consolidation(written: Path, case: str) -> None:
    """ZeRO 3 gives the exact fp32 copies; ZeRO 1 and 2 store bf16 weights, to which the fp32 copies round."""
    checkpoint, expected = open_checkpoint(written / case), load_file(written / f"{case}.safetensors")
    assert set(checkpoint.tensors) - set(expected) == ({FROZEN} if case == "zero1_tied" else set())  # lost by its tool
    for name, tensor in expected.items():
        assert checkpoint.tensors[name].shape == tensor.shape
        rounded = tensor.float() if case.startswith("zero3") else tensor.bfloat16().float()
        np.testing.assert_array_equal(checkpoint.tensor(name), rounded.numpy(), err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_tie_and_the_findings(written: Path, case: str) -> None:
    seen = examine(written / case)
    report, kind = seen.report, case.split("_")[1]
    assert report.format == "deepspeed"
    assert report.tie == {"tied": "shared", "untied": "untied", "twin": "twin"}[kind]
    assert report.pair.one_storage is (kind == "tied")
    assert [finding.code for finding in seen.findings] == (["TB202", "TB207"] if kind == "twin" else ["TB207"])
    whole = sum(tensor.numel() for tensor in load_file(written / "zero3_untied.safetensors").values())
    assert report.params.untied_total == whole
    assert report.params.total == whole - (41 * 8 if kind == "tied" else 0)


def test_alias_is_the_one_that_deepspeed_recorded(copy: Path, written: Path, tmp_path: Path) -> None:
    where = tmp_path / "tied"
    shutil.copytree(written / "zero3_tied", where)
    resave(step(where) / MODEL_0, lambda state: state["shared_params"].clear())
    report = inspect(where)
    assert (report.tie, report.pair.stored) == ("shared", ("embed",))  # declared tied, and stored once


@pytest.mark.parametrize("source", ["", "global_step1", f"global_step1/{MODEL_0}", f"global_step1/{OPTIM_1}"])
def test_any_path_in_the_checkpoint_opens_the_model(written: Path, source: str) -> None:
    report = inspect(written / "zero3_untied" / source)
    assert (report.tie, report.architecture, report.pair.declared) == ("untied", "llama", False)


def test_without_a_latest_file_the_only_step_is_opened(copy: Path) -> None:
    (copy / "latest").unlink()
    assert inspect(copy).tie == "untied"
    shutil.copytree(step(copy), copy / "global_step2")
    assert "name one, as" in refusal(copy)
    (copy / "latest").write_text("global_step2")
    assert inspect(copy).tie == "untied"


@pytest.mark.parametrize(
    ("text", "message"),
    [("global_step9", "holds no checkpoint"), ("../elsewhere", "outside the model's directory"), ("", "does not name")],
)
def test_latest_file_with_a_wrong_folder_is_refused(copy: Path, text: str, message: str) -> None:
    (copy / "latest").write_text(text)
    assert message in refusal(copy)


def test_consolidated_model_beside_the_states_is_the_model(copy: Path, written: Path) -> None:
    shutil.copy(written / "zero3_untied.safetensors", copy / "model.safetensors")
    assert inspect(copy).format == "safetensors"


# Numbers that are not read


def _no_states(where: Path) -> None:
    for name in (OPTIM_0, OPTIM_1):
        (step(where) / name).unlink()


def _partition_count(where: Path) -> None:
    resave(step(where) / OPTIM_1, lambda state: state["optimizer_state_dict"].update(partition_count=4))


def _no_groups(where: Path) -> None:
    resave(step(where) / OPTIM_0, lambda state: state["optimizer_state_dict"].pop("fp32_flat_groups"))


def _more_numbers(where: Path) -> None:
    def grow(state: Any) -> None:
        groups = state["optimizer_state_dict"]["fp32_flat_groups"]
        groups[0] = torch.cat([groups[0].detach(), torch.ones(3)])

    resave(step(where) / OPTIM_0, grow)
    resave(step(where) / OPTIM_1, grow)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda where: (step(where) / OPTIM_1).unlink(), "belongs to a run of 2 ranks, and the states of 1"),
        (lambda where: (step(where) / OPTIM_0).unlink(), "optimizer states of 2 ranks are needed and 1 are there"),
        (_no_states, "are missing"),
        (_partition_count, "belongs to a run of 4 ranks"),
        (_no_groups, "holds no fp32_flat_groups"),
        (_more_numbers, "this layout is not known"),
    ],
)
def test_unclear_layout_is_reported_as_unreadable(copy: Path, change: Any, message: str) -> None:
    change(copy)
    message = refusal(copy)
    assert f"{EMBED} [41, 8] and {HEAD} [41, 8]" in message
    assert "whether they are equal is not known" in message
    assert message in message
    checkpoint = open_checkpoint(copy)
    assert any("numbers not read" in note for note in checkpoint.notes)
    assert checkpoint.tensors[EMBED].shape == (41, 8)


def test_tied_model_needs_no_numbers(written: Path, tmp_path: Path) -> None:
    where = tmp_path / "tied"
    shutil.copytree(written / "zero3_tied", where)
    (step(where) / OPTIM_1).unlink()
    report = inspect(where)
    assert report.tie == "shared"
    assert report.pair.one_storage
    with pytest.raises(UnreadableInput, match=r"the numbers of .* are not read"):
        tie(where, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_tensor_and_pipeline_parallel_folders_are_refused_with_advice(copy: Path, tmp_path: Path) -> None:
    shutil.copy(step(copy) / MODEL_0, step(copy) / MODEL_0.replace("mp_rank_00", "mp_rank_01"))
    assert "sharded over 2 tensor-parallel ranks" in refusal(copy)
    (tmp_path / "pipeline").mkdir()
    for layer in range(2):
        torch.save(
            {"word_embeddings.weight": torch.ones(4, 2)}, tmp_path / "pipeline" / f"layer_0{layer}-model_states.pt"
        )
    message = refusal(tmp_path / "pipeline")
    assert "pipeline-parallel" in message
    assert "or name one of the files" in message
    assert open_checkpoint(tmp_path / "pipeline" / "layer_00-model_states.pt").tensors


# Surgery


@pytest.mark.parametrize("case", ["zero2_tied", "zero3_tied"])
def test_untie_and_tie_write_a_whole_model(written: Path, tmp_path: Path, case: str) -> None:
    outcome = untie(written / case, tmp_path / "two")
    assert outcome.after.tie == "twin"
    assert tie(written / case, tmp_path / "one").after.tie == "shared"
    made, source = open_checkpoint(tmp_path / "one"), open_checkpoint(written / case)
    assert set(source.tensors) - set(made.tensors) == {HEAD}
    for name in made.tensors:
        np.testing.assert_array_equal(made.tensor(name), source.tensor(name))
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]


# Damage


@pytest.mark.parametrize("name", [MODEL_0, OPTIM_0])
def test_damaged_file_ends_in_a_result_or_one_sentence(copy: Path, name: str) -> None:
    path = step(copy) / name
    outcomes = {survives(path, damaged) for damaged in mangled(path.read_bytes(), 200, seed=21)}
    assert outcomes == {True, False}


@pytest.mark.parametrize("name", [MODEL_0, OPTIM_0])
def test_damaged_pickle_in_a_sound_archive_ends_in_a_result_or_one_sentence(copy: Path, name: str) -> None:
    path = step(copy) / name
    damage_pickle(path, 200, seed=22)
