"""vLLM, before and after its weight tying of 2026-08-20 (vllm#51665), which looks at the stored head before it ties.

Read in weight_tying.py, default_loader.py and the model files; nothing is promised for types whose code was not read.
"""

from __future__ import annotations

from tiebeam.doctor.examined import stored_state
from tiebeam.doctor.loaders.flags import flag_at, text_of
from tiebeam.doctor.loaders.loader import NOT_KNOWN, Config, Loader, Outcome, Table, look_up
from tiebeam.families.registry import lookup
from tiebeam.inspection import Report

AFTER: Table = {
    ("one", True): ("ties", "the head is the embedding"),
    ("one", False): ("random head", "the head is exempt from the check for missing weights"),
    ("equal", True): ("ties", "the stored head is compared and tied again"),
    ("equal", False): ("keeps both", "as stored"),
    ("differ", True): ("keeps both", "the stored head differs: it is used, with a warning"),
    ("differ", False): ("keeps both", "as stored"),
    ("head", True): ("random embedding", "the embedding is exempt from the check for missing weights"),
    ("head", False): ("random embedding", "the embedding is exempt from the check for missing weights"),
    ("neither", True): ("random pair", "both are exempt from the check for missing weights"),
    ("neither", False): ("random pair", "both are exempt from the check for missing weights"),
    ("rows", True): ("refuses", "an assertion: the head's rows do not fit the vocabulary"),
    ("rows", False): ("refuses", "an assertion: the head's rows do not fit the vocabulary"),
}
_MISSING = (NOT_KNOWN, "whether a missing matrix is noticed depends on the version")
BEFORE: Table = {
    **AFTER,
    ("one", False): _MISSING,
    ("equal", True): ("ties", "lm_head.* is skipped when the flag is true"),
    ("differ", True): ("drops the stored head", "lm_head.* is skipped when the flag is true"),
    ("rows", True): ("drops the stored head", "lm_head.* is skipped when the flag is true"),
    **{(stored, tied): _MISSING for stored in ("head", "neither") for tied in (True, False)},
}
# These have no head of their own, whatever the flag says.
ALWAYS_TIED = ("gemma", "gemma2", "cohere", "cohere2", "cohere2_moe", "mpt")


def _predict(report: Report, config: Config, table: Table, compares: bool) -> Outcome:
    architecture, pair = lookup(report.architecture), report.pair
    if (
        architecture is None
        or architecture.remote
        or architecture.role not in ("causal_lm", "image_text_to_text", "multimodal_lm")
    ):
        return NOT_KNOWN, f"vLLM's code for {report.architecture or 'this type'} was not read"
    if text_of(config) is not None and flag_at(config, "") != flag_at(config, "text"):
        return NOT_KNOWN, "the flags of the config levels differ; which one counts depends on the model's code"
    stored = stored_state(report)
    if report.architecture in ALWAYS_TIED and stored in ("equal", "differ", "rows"):
        return ("ties" if stored == "equal" else "drops the stored head"), "this type has no head of its own in vLLM"
    by_metadata = report.format == "safetensors" and pair.head is not None and pair.head.name.endswith("lm_head.weight")
    if compares and stored == "differ" and pair.declared and not by_metadata:
        return "drops the stored head", "only lm_head.weight in safetensors is compared before tying"
    if compares and stored == "head" and pair.declared and report.format != "safetensors":
        return "refuses", "a tied model without its embedding"
    return look_up(table, report, pair.declared)


def _after(report: Report, config: Config) -> Outcome:
    return _predict(report, config, AFTER, compares=True)


def _before(report: Report, config: Config) -> Outcome:
    return _predict(report, config, BEFORE, compares=False)


_UNMET = {"rows": ("refuses", "an assertion in the embedding's weight loader")}
LOADERS = (
    Loader(
        rank=3,
        name="vLLM",
        version="since 2026-08-20",
        date="2026-11-16",
        observed=False,
        formats=("safetensors", "pytorch"),
        where="weight_tying.py and default_loader.py",
        predict=_after,
        unmet=_UNMET,
    ),
    Loader(
        rank=4,
        name="older vLLM",
        version="before 2026-08-20",
        date="2026-11-16",
        observed=False,
        formats=("safetensors", "pytorch"),
        where="llama.py load_weights (skip_prefixes)",
        predict=_before,
        unmet=_UNMET,
    ),
)
