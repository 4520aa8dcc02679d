"""One small comparison for the whole session: two variants at two widths, a few steps, real text."""

from typing import Any

import pytest

from tiebeam.compare import compare
from tiebeam.compare.comparison import base_settings
from tiebeam.corpus import build_corpus

TINY: dict[str, Any] = {
    "layers": 1, "dim": 16, "heads": 2, "kv_heads": 1, "mlp_dim": 32, "context": 32, "batch_tokens": 128,
    "steps": 12, "threads": 1, "warmup_steps": 2, "log_every": 2, "validate_every": 0.25, "validation_tokens": 4096,
}  # fmt: skip


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return build_corpus([], tmp_path_factory.mktemp("corpus") / "c", vocab=300, max_bytes=120_000)


@pytest.fixture
def tiny():
    return lambda **changes: base_settings(**{**TINY, **changes})


@pytest.fixture(scope="session")
def comparison(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("compare") / "R"
    return compare(
        base_settings(**TINY),
        corpus,
        out,
        widths=(8, 16),
        bigram_dim=8,
        bigram_steps=10,
        command="tiebeam compare --steps 12",
    )
