"""mlx-lm: strict loading; each model file decides for itself what it makes of the flag and of a stored head.

A kind is four words. Who decides: `flag`, `always` (tied), `never` (tied) or `storage` (tied if no head is stored). The
level of the flag: `top` or `text`. An absent flag means `tied`, `untied` or is `required`. The stored head of a tied
model is `dropped` or `refused`.
"""

from __future__ import annotations

from tiebeam.doctor.examined import stored_state
from tiebeam.doctor.loaders.flags import flag_at
from tiebeam.doctor.loaders.loader import Config, Loader, Outcome
from tiebeam.doctor.loaders.surveyed import survey
from tiebeam.inspection import Report

SURVEY = survey("mlx_lm")
WORDS = (
    ("flag", "always", "never", "storage"),
    ("top", "text"),
    ("tied", "untied", "required"),
    ("dropped", "refused"),
)


def outcome(kind: tuple[str, ...], stored: str, flags: dict[str, bool | None]) -> Outcome:
    """What a model file of that kind does; `flags` are those of the levels top and text, None where absent."""
    decides, level, absent, head = kind
    flag = flags[level]
    if absent == "required" and flag is None:
        return "refuses", "mlx-lm requires the flag for this type"
    if stored in ("head", "neither"):
        return "refuses", "strict loading: the embedding is missing"
    if decides == "storage":
        tied = stored == "one"
    elif decides == "flag":
        tied = absent == "tied" if flag is None else flag
    else:
        tied = decides == "always"
    why = {"flag": "", "storage": " (the flag is not read)"}.get(decides, f" (this type is {decides} tied)")
    if not tied:
        if stored == "one":
            return "refuses", f"strict loading: the head is missing{why}"
        return ("refuses", "shape mismatch") if stored == "rows" else ("keeps both", f"as stored{why}")
    if stored == "one":
        return "ties", f"the head is the embedding{why}"
    if head == "refused":
        return "refuses", f"strict loading: a tied model has no place for the stored head{why}"
    return ("ties" if stored == "equal" else "drops the stored head"), f"a tied model's stored head is dropped{why}"


def default(model_type: str | None) -> bool | None:
    """What mlx-lm takes an absent flag for; None where it requires the flag, does not read it, or that is not known."""
    kind = SURVEY.kind(model_type)
    if kind is None or kind[0] != "flag":
        return None
    return {"tied": True, "untied": False, "required": None}[kind[2]]


def predict(report: Report, config: Config) -> Outcome:
    kind = SURVEY.kind(report.architecture)
    if kind is None:
        return SURVEY.without_kind(report.architecture, "mlx-lm")
    names = [matrix.name for matrix in (report.pair.embed, report.pair.head) if matrix is not None]
    if report.architecture == "gpt2" and any(name.startswith("transformer.") for name in names):
        return "refuses", "mlx-lm's GPT-2 has names without `transformer.`, as in the first published files"
    flags = {"top": flag_at(config, ""), "text": flag_at(config, "text")}
    return outcome(kind, stored_state(report), flags)


LOADERS = (
    Loader(
        rank=6,
        name="mlx-lm",
        version=SURVEY.version,
        date=SURVEY.date,
        observed=True,
        formats=("safetensors",),
        where="models/*.py and utils.load_model",
        predict=predict,
        tried=SURVEY.tried,
        unmet={
            "file": ("refuses", "mlx-lm loads model*.safetensors"),
            "prefix": ("refuses", "strict loading: no parameter has such a name"),
            "doubled": ("refuses", "strict loading: no parameter has such a name"),
            "names": ("refuses", "strict loading: no parameter has such a name"),
            "rows": ("refuses", "shape mismatch"),
        },
    ),
)
