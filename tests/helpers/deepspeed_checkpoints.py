"""Make tests/checkpoint/distributed/deepspeed.tar.xz: tiny checkpoints written by DeepSpeed.

The tests do not need DeepSpeed, so its output is stored (version 0.19.8, torch 2.13, two gloo ranks, CPU). To make it
again, in an environment with deepspeed, torch, transformers and safetensors:

    python tests/helpers/deepspeed_checkpoints.py

Each folder is a `save_checkpoint` directory: ZeRO 1, 2 and 3 of a tied llama, ZeRO 3 of an untied one and of one whose
two matrices are equal, all with one frozen matrix and, for ZeRO 3, several of the optimizer's groups. In each,
`fp32.safetensors` is the result of DeepSpeed's `get_fp32_state_dict_from_zero_checkpoint`.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CASES = [("zero1_tied", 1), ("zero2_tied", 2), ("zero3_tied", 3), ("zero3_untied", 3), ("zero3_twin", 3)]


def model(kind: str) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 41, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1}
    built = LlamaForCausalLM(
        LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=kind == "tied")
    )
    if kind == "twin":
        built.lm_head.weight.data.copy_(built.model.embed_tokens.weight.data)
    built.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    return built


def work(rank: int, world: int, out: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29519", DS_ACCELERATOR="cpu")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    import deepspeed
    import torch

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    for name, stage in CASES:
        kind = name.split("_")[1]
        built = model(kind)
        zero = {"stage": stage, "sub_group_size": 400, "stage3_param_persistence_threshold": 0}
        settings = {
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True},
            "zero_optimization": zero,
            "optimizer": {"type": "AdamW", "params": {"torch_adam": True, "lr": 1e-3}},
            "zero_force_ds_cpu_optimizer": False,
        }
        trained = [p for p in built.parameters() if p.requires_grad]
        engine, *_ = deepspeed.initialize(model=built, model_parameters=trained, config=settings)
        tokens = torch.arange(8)[None]
        if kind != "twin":  # a step would part its two matrices
            engine.backward(engine(input_ids=tokens, labels=tokens).loss)
            engine.step()
        engine.save_checkpoint(f"{out}/{name}", tag="global_step1")
        if rank == 0:
            built.config.save_pretrained(f"{out}/{name}")


def main() -> None:
    import torch.multiprocessing as multiprocessing
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    from safetensors.torch import save_file

    out = Path(tempfile.mkdtemp())
    multiprocessing.spawn(work, (2, str(out)), nprocs=2)
    for name, _ in CASES:
        whole = get_fp32_state_dict_from_zero_checkpoint(out / name)
        save_file({key: value.clone().contiguous() for key, value in whole.items()}, out / name / "fp32.safetensors")
        for script in ("zero_to_fp32.py", "zero_to_torch.py"):
            (out / name / script).write_text("")
    with tarfile.open(HERE.parent / "checkpoint/distributed/deepspeed.tar.xz", "w:xz") as archive:
        for path in sorted(out.rglob("*")):
            if path.is_file():
                member = tarfile.TarInfo(str(path.relative_to(out)))
                member.size = path.stat().st_size
                with path.open("rb") as content:
                    archive.addfile(member, content)
    shutil.rmtree(out)


if __name__ == "__main__":
    main()
