"""transformers 5: a stored head that differs survives although the flag is true.

What the flag means for each type is in the table of architectures (families/tie_flag.py). The survey names the types
for which that table and this one were seen to hold (`declared`).
"""

from __future__ import annotations

from tiebeam.doctor.loaders.loader import NOT_KNOWN, Config, Loader, Outcome, Table, look_up
from tiebeam.doctor.loaders.surveyed import survey
from tiebeam.families.registry import lookup
from tiebeam.inspection import Report

SURVEY = survey("transformers5")
KINDS = ("declared",)
TABLE: Table = {
    ("one", True): ("ties", "the head is the embedding"),
    ("one", False): ("random head", "one MISSING line in the report, no error"),
    ("equal", True): ("ties", "both are stored and equal"),
    ("equal", False): ("keeps both", "two parameters with the same values"),
    ("differ", True): (
        "keeps both",
        "warns, leaves the flag true: a later tie_weights() or resize overwrites the head",
    ),
    ("differ", False): ("keeps both", "as stored"),
    ("head", True): ("ties", "takes the head for the embedding"),
    ("head", False): ("random embedding", "one MISSING line in the report, no error"),
    ("neither", True): ("random pair", "one MISSING line in the report, no error"),
    ("neither", False): ("random pair", "two MISSING lines in the report, no error"),
    ("rows", True): ("refuses", "size mismatch"),
    ("rows", False): ("refuses", "size mismatch"),
}


def predict(report: Report, config: Config) -> Outcome:
    if report.architecture in SURVEY.not_known:
        return SURVEY.without_kind(report.architecture, "transformers")
    architecture = lookup(report.architecture)
    if architecture is None or architecture.remote:
        return NOT_KNOWN, f"the code of {report.architecture or 'this type'} is not in transformers"
    return by_table("declared", report, config)


def by_table(kind: str, report: Report, config: Config) -> Outcome:
    """The prediction that follows from what the config declares."""
    return look_up(TABLE, report, report.pair.declared)


LOADERS = (
    Loader(
        rank=1,
        name="transformers 5",
        version=SURVEY.version,
        date=SURVEY.date,
        observed=True,
        formats=("safetensors", "pytorch"),
        where="modeling_utils.tie_weights",
        predict=predict,
        tried=SURVEY.tried,
        copes_with=("doubled",),
        unmet={
            "file": ("refuses", "no file named model.safetensors or pytorch_model.bin"),
            "flag": ("refuses", "the config class refuses the value"),
            "prefix": ("random pair", "no parameter is found; one MISSING line each in the report, no error"),
            "rows": ("refuses", "size mismatch"),
        },
    ),
)
