"""Every command that the doctor prints runs as printed on the model that raised the finding."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from helpers.hub_server import serve
from helpers.lively_models import lively
from helpers.tiny_ggufs import write_gguf
from helpers.tiny_models import build
from tiebeam.cli import tiebeam as tiebeam_command
from tiebeam.doctor import RULES, Finding, diagnose
from tiebeam.doctor.adapters import diagnose_adapter, is_adapter

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def run_printed(findings: tuple[Finding, ...]) -> int:
    """Run every command of the findings as printed; outputs are removed before the next one. How many ran."""
    ran = 0
    for finding in findings:
        for step in finding.steps:
            if not step.command:
                continue
            program, *words = shlex.split(step.command)
            before = set(Path(words[1]).parent.iterdir()) | set(Path().iterdir())
            assert program == "tiebeam", f"{finding.code} prints {step.command}"
            done = CliRunner().invoke(tiebeam_command, words)
            reports = "--rows" in words  # a report about a model with an error exits with 1
            assert done.exit_code in ((0, 1) if reports else (0,)), (step.command, done.output, done.exception)
            for new in (set(Path(words[1]).parent.iterdir()) | set(Path().iterdir())) - before:
                shutil.rmtree(new) if new.is_dir() else new.unlink()
            ran += 1
    return ran


@pytest.mark.parametrize("code", [r.code for r in RULES.values() if r.kind != "module"])
@pytest.mark.filterwarnings("ignore")
def test_every_command_runs_on_the_example_of_its_rule(code: str, tmp_path: Path, monkeypatch: Any) -> None:
    """In a directory with a space in its name, all findings of the example and not only the rule's own."""
    monkeypatch.chdir(tmp_path)
    where = tmp_path / "my models" / "example"
    where.mkdir(parents=True)
    example = RULES[code].example(where)
    rows = code in ("TB706", "TB707")
    found = (diagnose_adapter(example) if is_adapter(example) else diagnose(example, rows=rows)).findings
    assert code in {finding.code for finding in found}
    for finding in found:
        assert "MODEL" not in finding.fix.replace("base=MODEL", "")
        assert not any(word in finding.fix.split() for word in ("DST", "BASE", "SRC"))
        in_memory = finding.code in ("TB404", "TB702")  # the step says to load the model first
        assert in_memory or not [s for s in finding.steps if s.python], "Python needs a model in memory"
    run_printed(found)


def twin_gguf(path: Path, embed: str, head: str) -> Path:
    """A llama with the same values as embedding and head, in two types."""
    model = lively("llama", tie_word_embeddings=False)
    model.lm_head.weight.data = model.model.embed_tokens.weight.data.clone()
    write_gguf(model, path)
    kinds = {"token_embd.weight": embed, "output.weight": head}
    reader = gguf.GGUFReader(path)
    copy = path.with_name("twin.gguf")
    writer = gguf.GGUFWriter(copy, "llama")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            value = field.contents()
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(field.name, value)
    for tensor in reader.tensors:
        kind = gguf.GGMLQuantizationType[kinds.get(tensor.name, "F32")]
        values = np.array(tensor.data, np.float32)
        packed = gguf.quants.quantize(values, kind) if kind.name != "F32" else values
        writer.add_tensor(tensor.name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return copy


@pytest.mark.parametrize(("embed", "head"), [("F32", "F32"), ("F16", "F32"), ("F32", "F16"), ("Q8_0", "F16")])
def test_commands_for_gguf_twins_run_whatever_their_types(embed: str, head: str, tmp_path: Path) -> None:
    findings = diagnose(twin_gguf(tmp_path / "m.gguf", embed, head)).findings
    (finding,) = [f for f in findings if f.code in ("TB201", "TB202", "TB209")]
    command = next(step.command for step in finding.steps if step.command)
    assert ("--yes" in command) == (embed != head), "a lossless fix needs no --yes"
    assert run_printed(findings)


def stored_as(where: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    file = where / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})
    return where


CASES: dict[str, tuple[bool, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "torn": (True, lambda t: {**t, HEAD: t[EMBED] * 3}),
    "twin": (True, lambda t: {**t, HEAD: t[EMBED].clone()}),
    "twin in two dtypes": (True, lambda t: {**t, HEAD: t[EMBED].clone().bfloat16()}),
    "swapped": (True, lambda t: {HEAD if name == EMBED else name: value for name, value in t.items()}),
    "few rows": (False, lambda t: {**t, HEAD: t[EMBED] + (t[EMBED] * 0).index_fill(0, t[EMBED][:2, 0].long() * 0, 1)}),
    "wrapped and torn": (True, lambda t: {f"module.{n}": v for n, v in {**t, HEAD: t[EMBED] * 3}.items()}),
    "foreign and untied": (False, lambda t: {{HEAD: "output.weight"}.get(n, n): v for n, v in t.items()}),
}


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_commands_run_on_real_models(case: str, model_type: str, tmp_path: Path) -> None:
    tied, change = CASES[case]
    build(model_type, tie_word_embeddings=tied).save_pretrained(tmp_path / "m")
    findings = diagnose(stored_as(tmp_path / "m", change)).findings
    assert findings
    assert run_printed(findings)


def test_commands_for_a_model_on_the_hub_download_it_first(tmp_path: Path) -> None:
    """The real `hf` program and the installed client, against a small Hub."""
    RULES["TB101"].example(tmp_path / "repos" / "org" / "torn")
    work = tmp_path / "work"
    work.mkdir()
    with serve(tmp_path / "repos") as hub:
        env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "cache"), "NO_PROXY": "*"}
        env["HF_HUB_OFFLINE"] = "0"  # other tests set it for their own processes

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            program = {"tiebeam": [sys.executable, "-m", "tiebeam"], "hf": [str(Path(sys.executable).parent / "hf")]}
            return subprocess.run(
                [*program[words[0]], *words[1:]], cwd=work, env=env, capture_output=True, text=True, check=False
            )

        document = json.loads(run("tiebeam", "doctor", "hf://org/torn", "--json").stdout)
        commands = document["findings"][0]["commands"]
        assert commands[:2] == [
            "hf download org/torn --local-dir torn",
            "tiebeam doctor torn --fix --out torn-fixed",
        ]
        for command in commands:
            done = run(*shlex.split(command))
            assert done.returncode == 0, (command, done.stderr)
            shutil.rmtree(work / "torn-fixed", ignore_errors=True)


def test_the_python_for_an_adapter_of_another_vocabulary_runs(tmp_path: Path) -> None:
    """TB404: after the resize, the real peft loads the adapter."""
    import peft

    base = build("llama", tie_word_embeddings=False)
    base.save_pretrained(tmp_path / "base")
    base.resize_token_embeddings(100)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["embed_tokens"])
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    found = diagnose_adapter(tmp_path / "adapter", tmp_path / "base").findings
    steps = next(finding.steps for finding in found if finding.code == "TB404")
    step = next(step for step in steps if step.python)
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    with pytest.raises(RuntimeError, match="size mismatch"):
        peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    exec(step.python, {"model": model})
    peft.PeftModel.from_pretrained(model, tmp_path / "adapter")
