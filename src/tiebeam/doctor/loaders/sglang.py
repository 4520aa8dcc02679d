"""SGLang, from source: llama and qwen2 skip lm_head.* if the flag is true, gpt2 always ties, others were not read."""

from __future__ import annotations

from tiebeam.doctor.examined import stored_state
from tiebeam.doctor.loaders.loader import NOT_KNOWN, Config, Loader, Outcome
from tiebeam.inspection import Report

BY_FLAG = ("llama", "mistral", "qwen2", "qwen3")


def predict(report: Report, config: Config) -> Outcome:
    stored, tied = stored_state(report), report.pair.declared
    if report.architecture == "gpt2":
        tied = True
    elif report.architecture not in BY_FLAG or tied is None:
        return NOT_KNOWN, f"SGLang's code for {report.architecture or 'this type'} was not read"
    if stored in ("head", "neither") or (stored == "one" and not tied):
        return NOT_KNOWN, "SGLang does not check for missing weights in every version"
    if not tied:
        return ("refuses", "the head's rows do not fit") if stored == "rows" else ("keeps both", "as stored")
    if stored == "one":
        return "ties", "the head is the embedding"
    return ("ties" if stored == "equal" else "drops the stored head"), "lm_head.* is skipped when the flag is true"


LOADERS = (
    Loader(
        rank=10,
        name="SGLang",
        version="cce0a12",
        date="2026-11-15",
        observed=False,
        formats=("safetensors", "pytorch"),
        where="srt/models/llama.py, qwen2.py, gpt2.py",
        predict=predict,
    ),
)
