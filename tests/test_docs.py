"""The generated pages are up to date, and the guide of the doctor shows what the program prints."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", list(load_generator().PAGES))
def test_generated_page_is_up_to_date(page: str) -> None:
    assert (DOCS / page).read_text() == load_generator().PAGES[page](), "run: make docs"


def test_there_is_a_page_for_every_finding_and_no_other() -> None:
    from tiebeam.doctor import RULES

    assert {page.stem for page in (DOCS / "findings").glob("TB*.md")} == set(RULES)


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """A llama whose head was changed by a merge while the flag stayed true."""
    from safetensors.torch import load_file, save_file

    from helpers.tiny_models import build

    build("llama", tie_word_embeddings=True).save_pretrained(tmp_path / "merged")
    tensors = load_file(tmp_path / "merged" / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 1.5
    save_file(tensors, tmp_path / "merged" / "model.safetensors", {"format": "pt"})
    return tmp_path / "merged"


def test_the_report_in_the_doctor_guide_is_what_the_program_prints(merged: Path) -> None:
    (block,) = re.findall(
        r"```console\n\$ tiebeam doctor merged\n(.*?)\.\.\.\n```", (DOCS / "doctor.md").read_text(), re.S
    )
    done = subprocess.run(
        [sys.executable, "-m", "tiebeam", "doctor", "merged"], cwd=merged.parent, capture_output=True, text=True,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(DOCS.parent / "src")},
    )  # fmt: skip
    assert done.stdout.startswith(block)


def test_the_python_of_the_doctor_guide_runs(merged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(merged.parent)
    page = (DOCS / "doctor.md").read_text()
    first, training = re.findall(r"```python\n(.*?)```", page, re.S)
    names: dict[str, object] = {}
    exec(first, names)
    assert str(names["diagnosis"].worst) == "error"  # type: ignore[attr-defined]

    import torch

    from helpers.tiny_models import build

    model = build("llama", tie_word_embeddings=True)
    from tiebeam.errors import TieBroken

    state = {name: value.clone() for name, value in model.state_dict().items()}
    given = {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "state": state, "path": "saved"}
    with pytest.raises(TieBroken, match=r"TB501.*after resume"):
        exec(training, given)
