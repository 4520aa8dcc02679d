"""transformers 4: tie_weights() runs after loading, so the flag decides."""

from __future__ import annotations

from tiebeam.doctor.loaders.loader import Config, Loader, Outcome, Table, look_up
from tiebeam.inspection import Report

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


def predict(report: Report, config: Config) -> Outcome:
    return look_up(TABLE, report, report.pair.declared)


LOADER = Loader(
    rank=2,
    name="transformers 4",
    version="4.57.1",
    date="2026-11-15",
    observed=False,
    formats=("safetensors", "pytorch"),
    where="modeling_utils.tie_weights",
    predict=predict,
)
