"""transformers 5: a stored head that differs survives although the flag is true."""

from __future__ import annotations

from tiebeam.doctor.loaders.loader import Config, Loader, Outcome, Table, look_up
from tiebeam.inspection import Report

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
    return look_up(TABLE, report, report.pair.declared)


LOADER = Loader(
    rank=1,
    name="transformers 5",
    version="5.22",
    date="2026-11-15",
    observed=True,
    formats=("safetensors", "pytorch"),
    where="modeling_utils.tie_weights",
    predict=predict,
)
