"""The code of docs/integrations.md and docs/patch.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.breaking_ties import rows
from helpers.tiny_models import build

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.mark.filterwarnings("ignore")
def test_the_code_of_the_integrations_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lightning
    from accelerate import Accelerator
    from transformers import Trainer, TrainingArguments

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = build("llama", tie_word_embeddings=True)

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self.model(**batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    monkeypatch.chdir(tmp_path)
    trainer, attach, accelerate, lightning_code, own = blocks("integrations.md")
    arguments = TrainingArguments(
        output_dir="out", max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no"
    )
    model = build("llama", tie_word_embeddings=True)
    names: dict[str, Any] = {
        "Trainer": Trainer,
        "model": model,
        "args": arguments,
        "data": rows(),
        "lightning": lightning,
    }
    exec(trainer, names)
    exec(attach, names)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(rows(), batch_size=4)
    names |= {"accelerator": Accelerator(cpu=True), "optimizer": optimizer, "loader": loader}
    exec(accelerate, names)
    names |= {"module": Module(), "loader": loader}
    exec(lightning_code, names)
    model = build("llama", tie_word_embeddings=True)
    model.resize_token_embeddings(128)
    model.save_pretrained("saved")
    exec(own, {"model": model, "path": "saved", "rollout_model": model})


def test_the_code_of_the_patch_guide_runs() -> None:
    (code,) = blocks("patch.md")
    ids = torch.randint(4, 90, (2, 8))
    names: dict[str, Any] = {"model": build("llama", tie_word_embeddings=True), "ids": ids, "labels": ids}
    exec(code, names)
    assert names["loss"].item() > 0
