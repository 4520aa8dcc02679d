"""TensorRT-LLM, PyTorch backend: HfWeightMapper skips lm_head if the flag is true; what is missing was not read."""

from __future__ import annotations

from tiebeam.doctor.examined import stored_state
from tiebeam.doctor.loaders.loader import NOT_KNOWN, Config, Loader, Outcome
from tiebeam.inspection import Report

READ = ("llama", "mistral", "qwen2", "qwen3")


def predict(report: Report, config: Config) -> Outcome:
    stored = stored_state(report)
    if report.architecture not in READ or report.pair.declared is None:
        return NOT_KNOWN, f"its code for {report.architecture or 'this type'} was not read"
    if report.pair.declared and stored == "one":
        return "ties", "the head is the embedding"
    if report.pair.declared and stored in ("equal", "differ"):
        return ("ties" if stored == "equal" else "drops the stored head"), "lm_head.* is skipped when the flag is true"
    if not report.pair.declared and stored in ("equal", "differ"):
        return "keeps both", "as stored"
    return NOT_KNOWN, "what it does with a missing or misfitting matrix was not read"


LOADERS = (
    Loader(
        rank=11,
        name="TensorRT-LLM",
        version="088aa36",
        date="2026-11-16",
        observed=False,
        formats=("safetensors", "pytorch"),
        where="_torch/models/checkpoints/hf/weight_mapper.py",
        predict=predict,
    ),
)
