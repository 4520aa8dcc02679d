"""llama.cpp's runtime, and Ollama, which runs it: each architecture asks for its tensors by name.

A kind is one word, by GGUF architecture: output.weight is `optional` (without it the embedding is the head),
`required`, or `unused` (the embedding is always the head; a file that has output.weight has one tensor too many).
"""

from __future__ import annotations

from tiebeam.doctor.examined import stored_state
from tiebeam.doctor.loaders.loader import NOT_SUPPORTED, Config, Loader, Outcome
from tiebeam.doctor.loaders.surveyed import survey
from tiebeam.inspection import Report

SURVEY = survey("llama_cpp")


def outcome(kind: tuple[str, ...], stored: str) -> Outcome:
    if stored in ("head", "neither"):
        return "refuses", "token_embd.weight is missing"
    if stored == "one":
        if kind == ("required",):
            return "refuses", "output.weight is required for this architecture"
        return "ties", "without output.weight, token_embd.weight is used for the logits"
    if kind == ("unused",):
        return "refuses", "this architecture has no output.weight: wrong number of tensors"
    return ("refuses", "wrong shape of output.weight") if stored == "rows" else ("keeps both", "output.weight is used")


def predict(report: Report, config: Config) -> Outcome:
    kind = SURVEY.kind(report.architecture)
    if kind is None:
        if report.architecture in SURVEY.not_known:
            return SURVEY.without_kind(report.architecture, "llama.cpp")
        return NOT_SUPPORTED, f"llama.cpp {SURVEY.version} has no architecture {report.architecture!r}"
    return outcome(kind, stored_state(report))


def _loader(rank: int, name: str, observed: bool, where: str) -> Loader:
    return Loader(
        rank=rank,
        name=name,
        version=SURVEY.version if observed else "",
        date=SURVEY.date,
        observed=observed,
        assumed=not observed,
        formats=("gguf",),
        where=where,
        predict=predict,
        tried=SURVEY.tried,
    )


LOADERS = (
    _loader(8, "llama.cpp", True, "src/models"),
    _loader(9, "Ollama", False, "llama.cpp's runtime inside Ollama"),
)
