"""safetensors.torch.load_model into a module that is tied as the config declares."""

from __future__ import annotations

from tiebeam.doctor.loaders.loader import Config, Loader, Outcome, Table, look_up
from tiebeam.inspection import Report

TABLE: Table = {
    ("one", True): ("ties", "the module's own tie is kept"),
    ("one", False): ("refuses", "missing key: the head"),
    ("equal", True): ("refuses", "unexpected key: the head"),
    ("equal", False): ("keeps both", "as stored"),
    ("differ", True): ("refuses", "unexpected key: the head"),
    ("differ", False): ("keeps both", "as stored"),
    ("head", True): ("ties", "either name is accepted for a shared parameter"),
    ("head", False): ("refuses", "missing key: the embedding"),
    ("neither", True): ("refuses", "missing keys"),
    ("neither", False): ("refuses", "missing keys"),
    ("rows", True): ("refuses", "size mismatch"),
    ("rows", False): ("refuses", "size mismatch"),
}


def predict(report: Report, config: Config) -> Outcome:
    return look_up(TABLE, report, report.pair.declared)


LOADER = Loader(
    rank=6,
    name="safetensors load_model",
    version="0.8",
    date="2026-11-15",
    observed=True,
    formats=("safetensors",),
    where="torch.load_model on a module that is tied as declared",
    predict=predict,
)
