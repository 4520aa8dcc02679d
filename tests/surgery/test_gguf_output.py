"""GGUF: `tie` and `untie` follow what llama.cpp does with output.weight, by architecture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from helpers import peer_programs
from helpers import untied_models as models
from helpers.tiny_ggufs import options, write_gguf
from helpers.tiny_models import build
from peers.states import with_older_keys
from tiebeam.checkpoint import open_checkpoint
from tiebeam.cli import tiebeam as command
from tiebeam.doctor import diagnose
from tiebeam.doctor.fix import plan_fix
from tiebeam.errors import BadRequest
from tiebeam.families.gguf_output import NEVER, REQUIRED, output_weight
from tiebeam.surgery import execute, open_source, plan_tie, plan_untie
from tiebeam.surgery.pair_edits import drop_head, write_head
from tiebeam.surgery.plan import Plan


def gguf(family: str, where: Path, tied: bool, twin: bool = False) -> Path:
    model = build(family, tie_word_embeddings=tied, **options(family))
    if twin:
        model.get_output_embeddings().weight.data.copy_(model.get_input_embeddings().weight.data)
    return write_gguf(model, where)


@pytest.mark.parametrize("family", ["gpt_neox", "olmo2"])
def test_tie_refuses_where_llama_cpp_requires_the_head(family: str, tmp_path: Path) -> None:
    source = gguf(family, tmp_path / "m.gguf", tied=False, twin=True)
    with pytest.raises(BadRequest, match=r"requires output\.weight"):
        plan_tie(open_source(source, target=tmp_path / "tied.gguf"))
    assert not {"TB201", "TB202"} & {finding.code for finding in diagnose(source).findings}
    assert plan_fix(source).plan is None


@pytest.mark.parametrize("family", ["gemma2", "cohere2"])
def test_untie_refuses_where_llama_cpp_allows_no_head(family: str, tmp_path: Path) -> None:
    source = gguf(family, tmp_path / "m.gguf", tied=True)
    with pytest.raises(BadRequest, match=r"refuses a file .*without \.gguf"):
        plan_untie(open_source(source, target=tmp_path / "untied.gguf"))
    done = CliRunner().invoke(command, ["untie", str(source), str(tmp_path / "untied.gguf")])
    assert done.exit_code != 0
    assert not (tmp_path / "untied.gguf").exists()


def test_both_ways_where_llama_cpp_accepts_either(tmp_path: Path) -> None:
    source = gguf("llama", tmp_path / "m.gguf", tied=True)
    execute(plan_untie(open_source(source, target=tmp_path / "untied.gguf")), tmp_path / "untied.gguf")
    untied = open_source(tmp_path / "untied.gguf", target=tmp_path / "tied.gguf")
    execute(plan_tie(untied), tmp_path / "tied.gguf")
    assert open_checkpoint(tmp_path / "tied.gguf").tensors.keys() == open_checkpoint(source).tensors.keys()


def test_the_lists_hold_names_that_llama_cpp_uses() -> None:
    import gguf as package

    known = set(package.MODEL_ARCH_NAMES.values())
    assert not REQUIRED & NEVER
    assert len((REQUIRED | NEVER) & known) >= 35
    assert output_weight("qwen3") == output_weight(None) == "optional"


ARCHITECTURES = {
    "required": ["gpt_neox", "olmo2", "stablelm", "nemotron", "apertus"],
    "never": ["gemma", "gemma2", "cohere", "cohere2"],
    "optional": ["llama", "qwen2", "qwen3", "gpt2", "granite", "gemma3_text"],
}


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_what_llama_cpp_requires_is_what_the_lists_say(kind: str, tmp_path: Path) -> None:
    """One matrix and two, written by the converter; the other state made here; all loaded by the runtime."""
    files = []
    for family in ARCHITECTURES[kind]:
        for tied in (True, False):
            where = tmp_path / f"{family}-{tied}"
            model = models.build(family, "CAUSAL_LM", tied)
            model.save_pretrained(where)
            document = with_older_keys(json.loads((where / "config.json").read_text()), model.config)
            (where / "config.json").write_text(json.dumps(document))
            files.append((family, tied, where, tmp_path / f"{family}-{tied}.gguf"))
    answers = peer_programs.llama_cpp([["convert", str(where), str(file)] for *_, where, file in files])
    written = {(f, tied): file for (f, tied, _, file), a in zip(files, answers, strict=True) if a == "written"}
    assert len({family for family, _ in written}) >= len(ARCHITECTURES[kind]) // 2, answers
    expected = []
    for (family, _), file in written.items():
        has_head = "output.weight" in open_checkpoint(file).tensors
        assert output_weight(open_checkpoint(file).architecture) == kind, family
        expected.append((file, has_head))
        target = file.with_name(f"{file.stem}-changed.gguf")
        source = open_source(file, target=target)
        edit = drop_head(source) if has_head else write_head(source)
        execute(Plan("test", source, edit, lambda report: None, exact=False), target)
        expected.append((target, not has_head))
    loads = {"required": (False, True), "never": (True, False), "optional": (True, True)}[kind]
    outcomes = peer_programs.llama_cpp([["load", str(file)] for file, _ in expected])
    for (file, has_head), outcome in zip(expected, outcomes, strict=True):
        assert (outcome == "loads") == loads[has_head], file.name
