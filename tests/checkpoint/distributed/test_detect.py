"""Checkpoints of two real ranks open without consolidation and equal the consolidated model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers.distributed_models import KINDS, VOCAB
from helpers.mangling import damage_pickle, mangled, survives
from tiebeam import inspection
from tiebeam.checkpoint import open_checkpoint
from tiebeam.doctor import examine
from tiebeam.errors import UnreadableInput
from tiebeam.inspection import inspect
from tiebeam.surgery import tie, untie

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(inspection.__file__).parents[2])}
TREES = ["fsdp2", "columns", "checkpoint-7", "hf", "dtensors", "sharded", "column_files"]
ONE_STORAGE = ("dtensors",)  # torch.save keeps the alias in each process's file; DCP and FSDP1 write both names


@pytest.fixture(scope="session")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("spread")
    tests = Path(__file__).parents[2]
    command = [sys.executable, str(tests / "helpers/distributed_models.py"), str(out)]
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}{os.pathsep}{tests}"}
    subprocess.run(command, check=True, capture_output=True, timeout=240, env=environment)
    return out


def tiebeam(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tiebeam", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)


def refusal(source: Path | str) -> str:
    with pytest.raises(UnreadableInput) as caught:
        inspect(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tree", TREES)
def test_every_number_equals_the_consolidated_model(spread: Path, kind: str, tree: str) -> None:
    whole, checkpoint = open_checkpoint(spread / kind / "whole"), open_checkpoint(spread / kind / tree)
    missing = set(whole.tensors) - set(checkpoint.tensors)
    assert missing == ({"lm_head.weight"} if (kind, tree) == ("tied", "hf") else set())
    assert set(checkpoint.tensors) <= set(whole.tensors)
    for name, info in checkpoint.tensors.items():
        expected = whole.tensors[name]
        assert (info.shape, info.dtype, info.nbytes) == (expected.shape, expected.dtype, expected.nbytes)
        np.testing.assert_array_equal(checkpoint.tensor(name), whole.tensor(name), err_msg=name)


@pytest.mark.parametrize("tree", TREES)
def test_rows_and_bytes_equal_the_consolidated_model(spread: Path, tree: str) -> None:
    whole, checkpoint = open_checkpoint(spread / "untied" / "whole"), open_checkpoint(spread / "untied" / tree)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        for start, stop in [(0, 0), (0, 1), (20, 22), (40, 41), (5, 41)]:
            np.testing.assert_array_equal(checkpoint.rows(name, start, stop), whole.rows(name, start, stop))
        for begin, end in [(0, 1), (3, 5), (31, 33), (670, 1312), (1311, 1312), (7, 7)]:
            assert checkpoint.read_bytes(name, begin, end) == whole.read_bytes(name, begin, end)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tree", TREES)
def test_tie_counts_and_findings_equal_the_consolidated_model(spread: Path, kind: str, tree: str) -> None:
    whole, seen = examine(spread / kind / "whole"), examine(spread / kind / tree)
    expected, report = whole.report.to_dict(), seen.report.to_dict()
    assert report["declared_by"] == "config.json: tie_word_embeddings"
    if kind == "tied" and tree in (*ONE_STORAGE, "hf"):
        assert report["tie"] == "shared"
        assert report["stored"] == (["embed"] if tree == "hf" else ["embed", "head"])
        assert [f.code for f in seen.findings] == ["TB207"]
        same = ["declared", "architecture"]
    else:
        assert expected["tie"] == {"tied": "twin", "untied": "untied", "twin": "twin"}[kind]
        assert [f.code for f in seen.findings if f.code != "TB207"] == [f.code for f in whole.findings]
        assert seen.loaders == ()  # none opens it as it is
        same = ["declared", "architecture", "tie", "stored", "equal", "difference", "params"]
        for name in ("embed", "head"):
            drop = {"file": ""}
            assert {**report[name], **drop} == {**expected[name], **drop}
    assert {key: report[key] for key in same} == {key: expected[key] for key in same}
    assert report["params"]["total"] == expected["params"]["total"]
    assert report["params"]["trunk"] == expected["params"]["trunk"]


def test_tied_model_of_dcp_is_a_twin_and_the_note_says_why(spread: Path) -> None:
    report = inspect(spread / "tied" / "fsdp2")
    assert report.tie == "twin"
    assert any("once for each of its names" in note for note in report.notes)


def test_optimizer_is_noted_and_not_counted(spread: Path) -> None:
    report = inspect(spread / "untied" / "fsdp2")
    assert report.params.stored == inspect(spread / "untied" / "whole").params.stored
    assert report.notes[0] == (
        "a torch distributed checkpoint (DCP) in 2 files; the weights are under 'app.model', 'app.optim' ignored"
    )


def test_checkpoint_with_only_an_optimizer_is_refused(spread: Path) -> None:
    assert "of an optimizer and none of a model" in refusal(spread / "untied" / "moments")


# Where a person points


def test_trainer_folder_opens_the_distributed_checkpoint_in_it(spread: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-7"
    shutil.copytree(spread / "untied" / "checkpoint-7", folder)
    shutil.copytree(spread / "untied" / "moments", folder / "optimizer_0")
    for name in ("scheduler.pt", "rng_state_0.pth", "training_args.bin", "random_states_0.pkl", "trainer_state.json"):
        (folder / name).write_bytes(b"not the model")
    report = inspect(folder)
    assert (report.tie, report.format, report.pair.declared) == ("untied", "dcp", None)
    assert report.pair.declared_by == "there is no config.json"
    shutil.copy(spread / "untied" / "config.json", folder)
    assert inspect(folder).pair.declared is False
    assert inspect(folder / "pytorch_model_fsdp_0").pair.declared is False  # it is found one folder up


def test_one_file_opens_the_whole_distributed_checkpoint(spread: Path) -> None:
    for name in (".metadata", "__1_0.distcp"):
        assert inspect(spread / "untied" / "fsdp2" / name).pair.embed is not None
    assert inspect(spread / "untied" / "dtensors" / "pytorch_model_fsdp_0_rank1.bin").tie == "untied"
    assert inspect(spread / "untied" / "hf" / "shard-00002-model-00001-of-00001.safetensors").tie == "untied"


def test_whole_model_is_preferred_to_a_distributed_checkpoint(spread: Path, tmp_path: Path) -> None:
    shutil.copytree(spread / "tied" / "whole", tmp_path / "run")
    shutil.copytree(spread / "untied" / "fsdp2", tmp_path / "run" / "state")
    shutil.copy(spread / "untied" / "fsdp2" / ".metadata", tmp_path / "run")
    assert inspect(tmp_path / "run").format == "safetensors"
    (tmp_path / "run" / "model.safetensors").unlink()
    (tmp_path / "run" / ".metadata").unlink()
    assert open_checkpoint(tmp_path / "run").format == "dcp"


def test_several_distributed_checkpoints_are_listed_and_none_is_opened(spread: Path, tmp_path: Path) -> None:
    for step in ("step-100", "step-200"):
        shutil.copytree(spread / "untied" / "fsdp2", tmp_path / step)
    message = refusal(tmp_path)
    assert "2 checkpoints that are not consolidated (step-100, step-200)" in message
    assert message.endswith(f"name one, as {tmp_path}/step-200")


# What is refused


def test_local_fsdp_shards_are_refused_with_advice(spread: Path) -> None:
    for source in ("local", "local/pytorch_model_fsdp_rank1.bin"):
        message = refusal(spread / "untied" / source)
        assert "_flat_param" in message
        assert "SHARDED_STATE_DICT" in message


def test_plain_tensors_of_several_ranks_are_not_joined(tmp_path: Path) -> None:
    for rank in range(2):
        torch.save({"model.embed_tokens.weight": torch.ones(4, 2)}, tmp_path / f"model_rank{rank}.pt")
    assert "do not say how they fit together" in refusal(tmp_path)
    assert open_checkpoint(tmp_path / "model_rank1.pt").tensors  # a person may look at one


@pytest.mark.parametrize("tree", ["dtensors", "sharded", "column_files", "hf"])
def test_missing_rank_is_detected(spread: Path, tmp_path: Path, tree: str) -> None:
    shutil.copytree(spread / "untied" / tree, tmp_path / "tree")
    first = next(path for path in sorted((tmp_path / "tree").iterdir()) if "0" in path.name)
    first.unlink()
    if tree != "hf":  # with two processes, the other alone is no set; a third shows that one is missing
        last = next(iter((tmp_path / "tree").iterdir()))
        shutil.copy(last, last.with_name(last.name.replace("rank1", "rank2")))
    assert "no file of rank 0" in (message := refusal(tmp_path / "tree")) or "incomplete" in message


def test_missing_blob_is_named(spread: Path, tmp_path: Path) -> None:
    shutil.copytree(spread / "untied" / "fsdp2", tmp_path / "tree")
    (tmp_path / "tree" / "__1_0.distcp").unlink()
    message = refusal(tmp_path / "tree")
    assert "__1_0.distcp does not exist" in message
    (tmp_path / "tree" / ".metadata").unlink()
    assert "no .metadata, which is written last" in refusal(tmp_path / "tree")


def test_megatron_folders_are_refused_with_advice(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"mp_rank_0{rank}").mkdir()
        torch.save({"model": {}}, tmp_path / f"mp_rank_0{rank}" / "model_optim_rng.pt")
    message = refusal(tmp_path)
    assert "sharded over 2 ranks" in message
    assert "convert.py" in message


@pytest.mark.parametrize("tree", ["dtensors", "sharded", "hf"])
def test_damaged_rank_file_ends_in_a_result_or_one_sentence(spread: Path, tmp_path: Path, tree: str) -> None:
    shutil.copytree(spread / "untied" / tree, tmp_path / "tree")
    path = sorted((tmp_path / "tree").iterdir())[-1]
    outcomes = {survives(path, damaged) for damaged in mangled(path.read_bytes(), 120, seed=31)}
    assert outcomes == {True, False}


@pytest.mark.parametrize("tree", ["dtensors", "sharded"])
def test_damaged_pickle_in_a_rank_file_ends_in_a_result_or_one_sentence(
    spread: Path, tmp_path: Path, tree: str
) -> None:
    shutil.copytree(spread / "untied" / tree, tmp_path / "tree")
    path = sorted((tmp_path / "tree").iterdir())[-1]
    damage_pickle(path, 200, seed=32)


# Surgery consolidates


@pytest.mark.parametrize("tree", ["fsdp2", "columns", "dtensors", "hf"])
def test_tie_writes_the_whole_model_that_transformers_opens(spread: Path, tmp_path: Path, tree: str) -> None:
    from transformers import AutoModelForCausalLM

    if tree == "hf":
        outcome = untie(spread / "tied" / tree, tmp_path / "out")
        assert outcome.after.tie == "twin"
    else:
        outcome = tie(spread / "tied" / tree, tmp_path / "out")
        assert outcome.after.tie == "shared"
    assert outcome.proof is not None
    assert outcome.proof.ran
    whole = load_file(spread / "tied" / "whole" / "model.safetensors")
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    for name, tensor in loaded.state_dict().items():
        torch.testing.assert_close(tensor, whole[name], rtol=0, atol=0)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_large_distributed_checkpoint_is_written_as_numbered_shards(
    spread: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiebeam.surgery.output_shards._FILE_SIZE", 2000)
    tie(spread / "tied" / "fsdp2", tmp_path / "out")
    assert len(list((tmp_path / "out").glob("model-*-of-*.safetensors"))) > 1
    whole, made = open_checkpoint(spread / "tied" / "whole"), open_checkpoint(tmp_path / "out")
    for name in made.tensors:
        np.testing.assert_array_equal(made.tensor(name), whole.tensor(name))


def test_doctor_fix_drops_the_copy_that_dcp_wrote(spread: Path, tmp_path: Path) -> None:
    done = tiebeam("doctor", spread / "tied" / "fsdp2", "--fix", "--out", tmp_path / "cured")
    assert done.returncode == 0, done.stderr
    assert inspect(tmp_path / "cured").tie == "shared"


# As a person sees it


def test_cli_names_the_format(spread: Path) -> None:
    done = tiebeam("inspect", spread / "untied" / "fsdp2")
    assert done.stdout.splitlines()[0].startswith("● untied  fsdp2 · llama · PyTorch DCP · ")
    document = json.loads(tiebeam("inspect", spread / "untied" / "hf", "--json").stdout)
    assert (document["format"], document["tie"], document["embed"]["shape"]) == ("dcp", "untied", [VOCAB, 8])


def test_unsupported_layout_exits_with_code_3(spread: Path) -> None:
    for verb in ("inspect", "doctor"):
        done = tiebeam(verb, spread / "untied" / "local")
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.count("\n") == 1


def test_inspecting_a_distributed_checkpoint_does_not_import_torch(spread: Path) -> None:
    program = (
        "import sys, tiebeam\n"
        f"for tree in {TREES!r}: tiebeam.inspect({str(spread / 'untied')!r} + '/' + tree)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=ENVIRONMENT)
