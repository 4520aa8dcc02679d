"""Rotary scalings from config.json: wrong numbers are refused by name, before any arithmetic."""

import numpy as np
import pytest

from tiebeam.decode.numpy.rope import frequencies
from tiebeam.errors import UnreadableInput
from tiebeam.families.config_fields import Fields, read_rope

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10_000.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "rope_theta": 10_000.0}
LLAMA3 = {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
INF, NAN = float("inf"), float("nan")


def run(scaling, length=32):
    f = Fields({"max_position_embeddings": 64, "rope_parameters": scaling})
    return frequencies(read_rope(f, 8), length)


@pytest.mark.parametrize("scaling", [YARN, LONG, LLAMA3, {**YARN, "beta_fast": None, "mscale": 0}], ids=str)
def test_usual_scaling_gives_finite_frequencies(scaling):
    inverse, factor = run(scaling)
    assert inverse.shape == (4,)
    assert np.isfinite([*inverse, factor]).all()


@pytest.mark.parametrize(
    ("base", "key"),
    [
        *((YARN, key) for key in ("beta_fast", "beta_slow", "factor", "attention_factor", "mscale", "mscale_all_dim")),
        *((LONG, key) for key in ("attention_factor", "factor", "short_factor", "original_max_position_embeddings")),
        *((LLAMA3, key) for key in ("factor", "low_freq_factor", "high_freq_factor")),
        (YARN, "rope_theta"),
    ],
    ids=lambda value: value if isinstance(value, str) else value["rope_type"],
)
@pytest.mark.parametrize(
    "value", [-1, INF, -INF, NAN, 1e300, 10**400, 1e-300, "32", [32], True], ids=lambda v: f"{v!r:.9}"
)
def test_number_that_no_scaling_can_have_is_refused_by_name(base, key, value):
    if key == "rope_theta" and value in (1e300, 1e-300):
        pytest.skip("a base of any positive size is arithmetic")
    with pytest.raises(UnreadableInput, match=f"{key}|positive numbers"):
        run({**base, key: value}, length=64)


def test_yarn_with_equal_frequencies_is_refused():
    with pytest.raises(UnreadableInput, match="rope_theta other than 1"):
        run({**YARN, "rope_theta": 1})


@pytest.mark.parametrize("share", [0, -0.5, 1.5, 1e300, NAN, "1"])
def test_share_of_the_head_that_is_rotated_is_bounded(share):
    with pytest.raises(UnreadableInput, match="partial_rotary_factor"):
        run({**YARN, "partial_rotary_factor": share})
