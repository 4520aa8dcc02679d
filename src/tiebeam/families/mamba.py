"""Mamba: parameter count. A state space model: convolution, selective scan, no attention."""

from __future__ import annotations

from tiebeam.families.config_fields import Fields
from tiebeam.families.family import Family
from tiebeam.families.parameter_count import linear


def parameters(f: Fields) -> int:
    D = f.count("hidden_size")
    inner, state = f.count_or("intermediate_size", f.count("expand") * D), f.count("state_size")
    rank = -(-D // 16) if f.get("time_step_rank") == "auto" else f.count("time_step_rank")
    bias = f.flag("use_bias")
    mixer = linear(D, 2 * inner, bias) + linear(inner, D, bias) + linear(inner, rank + 2 * state)
    mixer += inner * f.count("conv_kernel") + (inner if f.flag("use_conv_bias") else 0)
    mixer += linear(rank, inner, bias=True) + inner * state + inner
    return f.layers() * (mixer + D) + D


FAMILIES = (
    Family(
        "mamba",
        "MambaForCausalLM",
        defaults={
            "expand": 2,
            "state_size": 16,
            "time_step_rank": "auto",
            "conv_kernel": 4,
            "use_conv_bias": True,
        },
        non_embedding=parameters,
    ),
)
