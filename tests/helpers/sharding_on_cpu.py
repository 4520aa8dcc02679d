"""FSDP2 and DeepSpeed ZeRO-3 on CPUs, under Accelerate and the Trainer.

Accelerate takes neither on CPUs: with `cpu=True` it ignores their plugins and wraps the model in DDP. So it is told
that its ranks are those of GPUs, with gloo between them and the CPU as their device. All else is its own code.
"""

from __future__ import annotations

import os
from typing import Any

from tiebeam.doctor.row_samples import is_partitioned

ZERO3: dict[str, Any] = {
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


def accelerator_options(sharded: str) -> dict[str, Any]:
    """What makes an Accelerator shard: nothing, "fsdp2" or "zero3"."""
    if not sharded:
        return {"cpu": True}
    _shard_on_cpu(sharded)
    if sharded == "fsdp2":
        from accelerate import FullyShardedDataParallelPlugin

        return {"fsdp_plugin": FullyShardedDataParallelPlugin(fsdp_version=2)}
    from accelerate import DeepSpeedPlugin

    return {"deepspeed_plugin": DeepSpeedPlugin(hf_ds_config=ZERO3)}


def training_arguments(sharded: str) -> dict[str, Any]:
    """The same for TrainingArguments."""
    if not sharded:
        return {"use_cpu": True}
    _shard_on_cpu(sharded)
    if sharded == "fsdp2":
        return {"fsdp": "full_shard", "fsdp_config": {"fsdp_version": 2}}
    return {"deepspeed": ZERO3}


def assert_sharded(model: Any, sharded: str) -> None:
    """The run must be what its name says, and not DDP."""
    parameter = model.get_input_embeddings().weight
    assert is_partitioned(parameter) == bool(sharded), f"{sharded}: the embedding is {type(parameter)}"


def _shard_on_cpu(sharded: str) -> None:
    from accelerate.state import DistributedType, PartialState

    os.environ.pop("ACCELERATE_USE_CPU", None)
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.MULTI_GPU)
    if sharded == "zero3":
        import deepspeed.ops

        # gloo carries the collectives, as on a system without Linux's shared memory: the operator for it is compiled at
        # the first use, by one rank while the others wait, which takes minutes on two cores.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
