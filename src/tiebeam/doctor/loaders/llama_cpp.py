"""llama.cpp's runtime: a GGUF has no flag; without output.weight the embedding is the head."""

from __future__ import annotations

from tiebeam.doctor.loaders.loader import Config, Loader, Outcome, Table, look_up
from tiebeam.inspection import Report

TABLE: Table = {
    ("one", True): ("ties", "without output.weight, token_embd.weight is used for the logits"),
    ("one", False): ("ties", "without output.weight, token_embd.weight is used for the logits"),
    ("equal", True): ("keeps both", "output.weight is used where it exists"),
    ("equal", False): ("keeps both", "output.weight is used where it exists"),
    ("differ", True): ("keeps both", "output.weight is used where it exists"),
    ("differ", False): ("keeps both", "output.weight is used where it exists"),
    ("head", True): ("refuses", "token_embd.weight is missing"),
    ("head", False): ("refuses", "token_embd.weight is missing"),
    ("neither", True): ("refuses", "token_embd.weight is missing"),
    ("neither", False): ("refuses", "token_embd.weight is missing"),
    ("rows", True): ("refuses", "wrong shape of output.weight"),
    ("rows", False): ("refuses", "wrong shape of output.weight"),
}


def predict(report: Report, config: Config) -> Outcome:
    return look_up(TABLE, report, report.pair.declared)


LOADER = Loader(
    rank=7,
    name="llama.cpp",
    version="",
    date="2026-11-15",
    observed=False,
    formats=("gguf",),
    where="llama-model.cpp",
    predict=predict,
)
