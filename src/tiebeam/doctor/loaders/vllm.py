"""vLLM: lm_head.* is skipped if the flag is true."""

from __future__ import annotations

from tiebeam.doctor.loaders.loader import Config, Loader, Outcome, Table, look_up
from tiebeam.inspection import Report

TABLE: Table = {
    ("one", True): ("ties", "the head is the embedding"),
    ("one", False): ("random head", "the head is exempt from the check for missing weights; older versions refuse"),
    ("equal", True): ("ties", "lm_head.* is skipped"),
    ("equal", False): ("keeps both", "as stored"),
    ("differ", True): ("drops the stored head", "lm_head.* is skipped when the flag is true"),
    ("differ", False): ("keeps both", "as stored"),
    ("head", True): ("refuses", "the embedding is missing and lm_head.* is skipped"),
    ("head", False): ("refuses", "the embedding is missing"),
    ("neither", True): ("refuses", "the embedding is missing"),
    ("neither", False): ("refuses", "the embedding is missing"),
    ("rows", True): ("drops the stored head", "lm_head.* is skipped when the flag is true"),
    ("rows", False): ("refuses", "the head's rows do not fit the vocabulary"),
}


def predict(report: Report, config: Config) -> Outcome:
    return look_up(TABLE, report, report.pair.declared)


LOADER = Loader(
    rank=3,
    name="vLLM",
    version="",
    date="2026-11-15",
    observed=False,
    formats=("safetensors", "pytorch"),
    where="llama.py load_weights (skip_prefixes) and default_loader.py",
    predict=predict,
)
