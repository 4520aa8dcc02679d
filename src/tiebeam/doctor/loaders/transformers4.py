"""transformers 4: tie_weights() runs after loading, so the flag decides, at the level that the model class reads.

A kind is two words. The level: `top`, `text`, or `never` (the type is not tied whatever the flag says). An absent flag
means `tied` or `untied`; in a text config the default of the text model's own type counts before this one.
"""

from __future__ import annotations

from tiebeam.doctor.examined import stored_state
from tiebeam.doctor.loaders.flags import flag_at, text_of
from tiebeam.doctor.loaders.loader import Config, Loader, Outcome, Table
from tiebeam.doctor.loaders.surveyed import survey
from tiebeam.inspection import Report

SURVEY = survey("transformers4")
WORDS = (("top", "text", "never"), ("tied", "untied"))
TABLE: Table = {
    ("one", True): ("ties", "the head is the embedding"),
    ("one", False): ("random head", "newly initialized, a warning"),
    ("equal", True): ("ties", "the stored head is overwritten by the same values"),
    ("equal", False): ("keeps both", "two parameters with the same values"),
    ("differ", True): ("drops the stored head", "tie_weights() runs after loading and replaces it by the embedding"),
    ("differ", False): ("keeps both", "as stored"),
    ("head", True): ("refuses", "the embedding is left without data; the first forward fails"),
    ("head", False): ("random embedding", "newly initialized, a warning"),
    ("neither", True): ("random pair", "newly initialized, a warning"),
    ("neither", False): ("random pair", "newly initialized, a warning"),
    ("rows", True): ("refuses", "size mismatch"),
    ("rows", False): ("refuses", "size mismatch"),
}


def outcome(kind: tuple[str, ...], stored: str, flags: dict[str, bool | None]) -> Outcome:
    """What a model class of that kind does; `flags` are those of the levels top and text, None where absent."""
    level, absent = kind
    if level == "never":
        return TABLE[stored, False]
    flag = flags[level]
    result, reason = TABLE[stored, absent == "tied" if flag is None else flag]
    return result, reason if level == "top" else f"{reason} (only text_config's flag is read)"


def predict(report: Report, config: Config) -> Outcome:
    kind = SURVEY.kind(report.architecture)
    if kind is None:
        return SURVEY.without_kind(report.architecture, "transformers")
    text = text_of(config)
    if kind[0] == "text" and text is not None:
        inner = SURVEY.kind(text.get("model_type"))
        kind = (kind[0], inner[1]) if inner else kind
    return outcome(kind, stored_state(report), {"top": flag_at(config, ""), "text": flag_at(config, "text")})


LOADERS = (
    Loader(
        rank=2,
        name="transformers 4",
        version=SURVEY.version,
        date=SURVEY.date,
        observed=True,
        formats=("safetensors", "pytorch"),
        where="modeling_utils.tie_weights",
        predict=predict,
        tried=SURVEY.tried,
        unmet={
            "file": ("refuses", "no file named model.safetensors or pytorch_model.bin"),
            "prefix": ("random pair", "no parameter is found; everything is newly initialized, a warning"),
            "rows": ("refuses", "size mismatch"),
        },
    ),
)
