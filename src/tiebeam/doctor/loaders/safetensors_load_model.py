"""safetensors.torch.load_model into the module that transformers 5 builds from the config, tied as the config declares.

Kinds: `declared` (the table below), `tied-only` (the same for a tied model; an untied one needs more tensors than the
pair, which is not predicted), `renamed` (the names in files are not those of the module, so nothing fits).
"""

from __future__ import annotations

from tiebeam.doctor.loaders.loader import NOT_KNOWN, Config, Loader, Outcome, Table, look_up
from tiebeam.doctor.loaders.surveyed import survey
from tiebeam.families import lookup, resolve_declared
from tiebeam.inspection import Report

SURVEY = survey("safetensors_load_model")
KINDS = ("declared", "tied-only", "renamed")
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


def by_table(kind: str, report: Report, config: Config) -> Outcome:
    """The prediction for a module tied as `config` says, whatever transformers does with a head that differs."""
    tied = resolve_declared(config, lookup(report.architecture)).value
    if kind == "renamed":
        return "refuses", "the names in the file are not those of the module"
    if kind == "tied-only" and tied is False:
        return NOT_KNOWN, "an untied model of this type has more tensors of its own than the pair"
    return look_up(TABLE, report, tied)


def predict(report: Report, config: Config) -> Outcome:
    kind = SURVEY.kind(report.architecture)
    if kind is None:
        return SURVEY.without_kind(report.architecture, "safetensors")
    return by_table(kind[0], report, config)


LOADERS = (
    Loader(
        rank=7,
        name="safetensors load_model",
        version=SURVEY.version,
        date=SURVEY.date,
        observed=True,
        formats=("safetensors",),
        where="safetensors.torch.load_model into the module of transformers 5",
        predict=predict,
        tried=SURVEY.tried,
        unmet={
            "prefix": ("refuses", "missing and unexpected keys"),
            "doubled": ("refuses", "missing and unexpected keys"),
            "names": ("refuses", "missing and unexpected keys"),
            "rows": ("refuses", "size mismatch"),
        },
    ),
)
