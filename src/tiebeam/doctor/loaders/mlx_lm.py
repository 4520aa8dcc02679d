"""mlx-lm: strict loading; its defaults for an absent flag are its own."""

from __future__ import annotations

from tiebeam.doctor.loaders.loader import Config, Loader, Outcome, Table, look_up
from tiebeam.families.config_levels import FLAG
from tiebeam.inspection import Report

TABLE: Table = {
    ("one", True): ("ties", "the head is the embedding"),
    ("one", False): ("refuses", "strict loading: lm_head.weight is missing"),
    ("equal", True): ("ties", "lm_head.weight is dropped"),
    ("equal", False): ("keeps both", "as stored"),
    ("differ", True): ("drops the stored head", "lm_head.weight is dropped if tied"),
    ("differ", False): ("keeps both", "as stored"),
    ("head", True): ("refuses", "lm_head.weight is dropped, then the embedding is missing"),
    ("head", False): ("refuses", "the embedding is missing"),
    ("neither", True): ("refuses", "the embedding is missing"),
    ("neither", False): ("refuses", "the embedding is missing"),
    ("rows", True): ("drops the stored head", "lm_head.weight is dropped if tied"),
    ("rows", False): ("refuses", "shape mismatch"),
}
# Types that mlx-lm ties if the flag is absent.
TIED_BY_DEFAULT = frozenset({
    "bitnet", "exaone", "falcon_h1", "gemma", "gemma2", "gemma3_text", "gemma4_text", "glm", "gpt_bigcode",
    "granite", "granitemoe", "granitemoehybrid", "iquestcoder", "jamba", "llama", "mamba", "ministral3",
    "mistral", "olmo2", "olmoe", "qwen2", "seed_oss", "starcoder2", "xverse",
})  # fmt: skip
# Types that it does not tie then. It requires the flag for others, or they are not known.
UNTIED_BY_DEFAULT = frozenset({
    "afmoe", "baichuan_m1", "dots1", "internlm2", "minicpm", "minicpm3", "minimax", "mixtral", "nemotron",
    "olmo3", "phi3", "qwen2_moe", "qwen3_5", "qwen3_next",
})  # fmt: skip


def default(architecture: str | None) -> bool | None:
    """What mlx-lm assumes if the flag is absent; None where it requires the flag, or where that is not known."""
    return True if architecture in TIED_BY_DEFAULT else False if architecture in UNTIED_BY_DEFAULT else None


def predict(report: Report, config: Config) -> Outcome:
    declared = report.pair.declared
    if config is not None and FLAG not in config and default(report.architecture) is not None:
        declared = default(report.architecture)
    return look_up(TABLE, report, declared)


LOADER = Loader(
    rank=5,
    name="mlx-lm",
    version="0.32.2",
    date="2026-11-15",
    observed=False,
    formats=("safetensors",),
    where="models/*.py sanitize and utils.load_model",
    predict=predict,
)
