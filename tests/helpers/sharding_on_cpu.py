"""DeepSpeed ZeRO-3 on CPUs: its partitions over gloo, and none of its compiled operators."""

from __future__ import annotations

from typing import Any

CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 1,
    "zero_optimization": {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,  # partition small parameters too
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "zero_force_ds_cpu_optimizer": False,  # torch's AdamW: DeepSpeed's is compiled
    "zero_allow_untested_optimizer": True,
}


def without_built_operators() -> None:
    """Let gloo carry the collectives, as on a system without Linux's shared memory: the operator for it is compiled at
    the first use, by one rank while the others wait, which takes minutes on two cores."""
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
