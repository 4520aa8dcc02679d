"""Parameter counts from config alone against the totals of the known models."""

import pytest

from helpers.published_configs import CONFIGS
from tiebeam.catalog import find
from tiebeam.families import count_from_config

COUNTED = {
    name: count for name, (kind, keys) in CONFIGS.items() if (count := count_from_config({"model_type": kind, **keys}))
}


@pytest.mark.parametrize("name", COUNTED)
def test_config_gives_the_known_total(name):
    count, known = COUNTED[name], find(name)
    assert (count.vocab, count.dim, count.trunk) == (known.vocab, known.dim, known.trunk)
    assert known.total == (count.total_tied if known.tied else count.total_untied)


def test_main_families_are_countable():
    families = {CONFIGS[name][0] for name in COUNTED}
    assert {"llama", "gpt2", "gemma", "qwen2", "qwen3", "phi3", "gpt_neox", "opt", "bloom", "mamba"} <= families
