"""llama.cpp's converter from Hugging Face to GGUF, and what its runtime does with the result.

A kind is two words. In the runtime output.weight is `optional` (without it the embedding is the head), `required`, or
`unused`. The converter has a stored head `written`, `dropped`, `dropped-if-tied` (by the flag), `dropped-if-equal` (to
the embedding), or `unmapped` (it refuses).
"""

from __future__ import annotations

from tiebeam.doctor.examined import stored_state
from tiebeam.doctor.loaders.flags import flag_at
from tiebeam.doctor.loaders.loader import Config, Loader, Outcome
from tiebeam.doctor.loaders.surveyed import survey
from tiebeam.inspection import Report

SURVEY = survey("llama_cpp_converter")
WORDS = (("optional", "required"), ("written", "dropped", "dropped-if-tied", "dropped-if-equal", "unmapped"))


def outcome(kind: tuple[str, ...], stored: str, flags: dict[str, bool | None]) -> Outcome:
    """What becomes of the pair in a type of that kind; only `dropped-if-tied` reads the flag."""
    output, head = kind
    if stored in ("head", "neither"):
        return "refuses", "token_embd.weight is missing when the GGUF is loaded"
    if stored != "one" and head == "unmapped":
        return "refuses", "the converter has no GGUF name for the stored head of this type"
    dropped = {"dropped": True, "dropped-if-tied": flags["top"] is True, "dropped-if-equal": stored == "equal"}.get(
        head
    )
    if stored == "one" or dropped:
        if output == "required":
            return "refuses", "llama.cpp requires output.weight for this type"
        if stored in ("one", "equal"):
            return "ties", "without output.weight llama.cpp uses token_embd.weight; the flag is not read"
        return "drops the stored head", "the converter leaves the stored head out"
    if stored == "rows":
        return "refuses", "wrong shape of output.weight"
    return "keeps both", "the stored head becomes output.weight; the flag is not read"


def predict(report: Report, config: Config) -> Outcome:
    kind = SURVEY.kind(report.architecture)
    if kind is None:
        return SURVEY.without_kind(report.architecture, "the converter of")
    return outcome(kind, stored_state(report), {"top": flag_at(config, ""), "text": flag_at(config, "text")})


LOADERS = (
    Loader(
        rank=5,
        name="llama.cpp converter",
        version=SURVEY.version,
        date=SURVEY.date,
        observed=True,
        formats=("safetensors", "pytorch"),
        where="convert_hf_to_gguf.py and src/models",
        predict=predict,
        tried=SURVEY.tried,
        unmet={
            "file": ("refuses", "the converter looks for model*.safetensors and pytorch_model*.bin"),
            "prefix": ("refuses", "the converter cannot map such names"),
            "doubled": ("refuses", "the converter cannot map such names"),
            "rows": ("refuses", "the tokenizer and the matrix do not fit"),
        },
    ),
)
